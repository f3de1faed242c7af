"""The service without a transport: topics, subscriptions, publishing, pulling, pushing.

Single-threaded and deterministic: it runs on a `local.base.clock.Clock` and a `random.Random`. No
push begins within `PubSub.publish`; all work is scheduled on the clock.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from random import Random

from local.base.clock import Clock
from local.pubsub.envelope import render_time
from local.pubsub.errors import InvalidArgument, Unavailable, already_exists, not_found
from local.pubsub.model import (
    DeadLetter,
    Message,
    Received,
    SubscriptionConfig,
    check_ack_ids,
    check_lease,
    check_message,
    check_name,
    check_subscription,
)
from local.pubsub.subscription import Context, Pusher, Subscription, Timings

MAX_DEAD_LETTERS_KEPT = 1_000


class PubSub:
    """All topics and subscriptions of one service.

    ``push`` sends push requests. Every method with a name raises `NotFound` if the resource does
    not exist, and `InvalidArgument` if the name is invalid; during an outage (`begin_outage`) publishing
    and pulling raise `Unavailable`, and no push begins.
    """

    def __init__(
        self, clock: Clock, *, random: Random, push: Pusher, timings: Timings | None = None
    ) -> None:
        self.dead_letters: deque[DeadLetter] = deque(maxlen=MAX_DEAD_LETTERS_KEPT)
        """The latest messages that subscriptions have dropped or dead-lettered."""
        self._clock = clock
        self._topics: set[str] = set()
        self._subscriptions: dict[str, Subscription] = {}
        self._message_ids = itertools.count(random.randrange(10**15, 9 * 10**15))
        self.has_outage = False
        """Whether the service has an outage. Read-only."""
        self._around = Context(
            clock,
            random,
            timings or Timings(),
            push,
            lambda: self.has_outage,
            self._forward_dead_letter,
        )

    @property
    def timings(self) -> Timings:
        """The behaviour of the service; may be changed in place."""
        return self._around.timings

    def create_topic(self, name: str) -> None:
        """Create a topic. Raises `AlreadyExists`, `InvalidArgument`."""
        check_name(name, "topics")
        if name in self._topics:
            raise already_exists(name)
        self._topics.add(name)

    def create_subscription(self, config: SubscriptionConfig) -> Subscription:
        """Create a subscription; it gets messages that are published from now on.

        Raises `AlreadyExists`, `InvalidArgument`, `OutOfRange`, and `NotFound` for a missing topic,
        the dead-letter topic too.
        """
        check_subscription(config)
        if config.dead_letter:
            self._check_topic(config.dead_letter.topic)
        check_name(config.topic, "topics")
        self._check_topic(config.topic)
        if config.name in self._subscriptions:
            raise already_exists(config.name)
        subscription = Subscription(config, self._around)
        self._subscriptions[config.name] = subscription
        return subscription

    def get_subscription(self, name: str) -> Subscription:
        """Get a subscription."""
        check_name(name, "subscriptions")
        if name not in self._subscriptions:
            raise not_found(name)
        return self._subscriptions[name]

    def list_subscriptions(self, project: str) -> list[Subscription]:
        """A project's subscriptions; ``project`` as in ``projects/P``."""
        names = sorted(name for name in self._subscriptions if name.startswith(f"{project}/"))
        return [self._subscriptions[name] for name in names]

    def delete_subscription(self, name: str) -> None:
        """Delete a subscription and its messages."""
        self.get_subscription(name).close()
        del self._subscriptions[name]

    def publish(self, topic: str, data: bytes, attributes: Mapping[str, str]) -> str:
        """Publish a message; returns its id.

        Raises `InvalidArgument` for an empty message and for too many or too long attributes.
        """
        self._check_here()
        check_name(topic, "topics")
        self._check_topic(topic)
        check_message(data, attributes)
        return self._fan_out(topic, data, attributes)

    def pull(self, subscription: str, max_messages: int) -> list[Received]:
        """Lease at most ``max_messages`` messages that are ready.

        Raises `FailedPrecondition` on a subscription that pushes.
        """
        self._check_here()
        if max_messages < 1:
            raise InvalidArgument(
                "You have passed an invalid argument to the service (argument=max_messages)."
            )
        return self.get_subscription(subscription).pull(max_messages)

    def acknowledge(self, subscription: str, ack_ids: Sequence[str]) -> None:
        """Acknowledge deliveries; finished ones are ignored."""
        self._check_here()
        found = self.get_subscription(subscription)
        check_ack_ids(ack_ids, subscription)
        for ack_id in ack_ids:
            found.acknowledge(ack_id)

    def modify_ack_deadline(
        self, subscription: str, ack_ids: Sequence[str], seconds: float
    ) -> None:
        """Set the deadline of leases to ``seconds`` (0 to 600) from now; zero nacks the messages."""
        self._check_here()
        found = self.get_subscription(subscription)
        check_ack_ids(ack_ids, subscription)
        check_lease(seconds)
        for ack_id in ack_ids:
            found.modify_ack_deadline(ack_id, seconds)

    def backlog(self, subscription: str) -> int:
        """The number of unacknowledged messages."""
        return self.get_subscription(subscription).backlog

    def begin_outage(self) -> None:
        """Begin an outage: nothing can be published or pulled, and pushes stop."""
        self.has_outage = True

    def end_outage(self) -> None:
        """End the outage; nothing that was accepted is lost."""
        self.has_outage = False
        for subscription in self._subscriptions.values():
            subscription.resume()

    def _fan_out(self, topic: str, data: bytes, attributes: Mapping[str, str]) -> str:
        message_id = str(next(self._message_ids))
        message = Message(message_id, data, dict(attributes), self._clock.now())
        for subscription in self._subscriptions.values():
            if subscription.config.topic == topic:
                subscription.accept(message)
        return message_id

    def _check_topic(self, name: str) -> None:
        if name not in self._topics:
            raise not_found(name)

    def _check_here(self) -> None:
        if self.has_outage:
            raise Unavailable("The service was unable to fulfill your request. Please try again.")

    def _forward_dead_letter(self, topic: str, letter: DeadLetter) -> bool:
        if self.has_outage:
            return False
        _, project, _, subscription = letter.subscription.split("/")
        published = letter.message.publish_time
        attributes = {
            **letter.message.attributes,
            "CloudPubSubDeadLetterSourceDeliveryCount": str(letter.attempts),
            "CloudPubSubDeadLetterSourceSubscription": subscription,
            "CloudPubSubDeadLetterSourceSubscriptionProject": project,
            "CloudPubSubDeadLetterSourceTopicPublishTime": render_time(published),
        }
        self._fan_out(topic, letter.message.data, attributes)
        self.dead_letters.append(letter)
        return True
