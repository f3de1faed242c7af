"""The service without a transport: topics, subscriptions, publishing, pulling, pushing.

Single-threaded and deterministic: it runs on a `local.base.clock.Clock` and a `random.Random`. No
push begins within `PubSub.publish`; all work is scheduled on the clock.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from local.base.clock import Clock
from local.pubsub.envelope import render_time
from local.pubsub.errors import InvalidArgument, Unavailable, already_exists, not_found
from local.pubsub.model import (
    DeadLetter,
    Message,
    PushConfig,
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
DELETED_TOPIC = "_deleted-topic_"
"""The topic of a subscription whose topic was deleted, as the service names it."""


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
        self._topics: dict[str, Mapping[str, str]] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._message_ids = itertools.count(random.randrange(10**15, 9 * 10**15))
        self._has_outage = False
        self._around = Context(
            clock,
            random,
            timings or Timings(),
            push,
            lambda: self._has_outage,
            self._forward_dead_letter,
        )

    @property
    def timings(self) -> Timings:
        """The behaviour of the service; may be changed in place."""
        return self._around.timings

    def create_topic(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Create a topic. Raises `AlreadyExists`, `InvalidArgument`."""
        check_name(name, "topics")
        if name in self._topics:
            raise already_exists(name)
        self._topics[name] = dict(labels or {})

    def get_topic_labels(self, name: str) -> Mapping[str, str]:
        """A topic's labels."""
        check_name(name, "topics")
        self._check_topic(name)
        return self._topics[name]

    def list_topics(self, project: str) -> list[str]:
        """The names of a project's topics; ``project`` as in ``projects/P``."""
        return sorted(name for name in self._topics if name.startswith(f"{project}/"))

    def list_topic_subscriptions(self, topic: str) -> list[str]:
        """The names of a topic's subscriptions."""
        self.get_topic_labels(topic)
        return sorted(subscription.config.name for subscription in self._subscriptions_of(topic))

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its subscriptions keep their messages."""
        self.get_topic_labels(name)
        del self._topics[name]
        for subscription in self._subscriptions_of(name):
            subscription.detached = True

    def create_subscription(self, config: SubscriptionConfig) -> Subscription:
        """Create a subscription; it gets messages that are published from now on.

        Raises `AlreadyExists`, `InvalidArgument`, `OutOfRange`, and `NotFound` for a missing topic,
        the dead-letter topic too.
        """
        self._check(config)
        self.get_topic_labels(config.topic)
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

    def update_subscription(self, config: SubscriptionConfig) -> Subscription:
        """Change the settings of a subscription, except topic and filter.

        Raises as `create_subscription` does.
        """
        found = self.get_subscription(config.name)
        self._check(config)
        found.change(config)
        return found

    def delete_subscription(self, name: str) -> None:
        """Delete a subscription and its messages."""
        self.get_subscription(name).close()
        del self._subscriptions[name]

    def publish(
        self, topic: str, data: bytes, attributes: Mapping[str, str], *, ordering_key: str = ""
    ) -> str:
        """Publish a message; returns its id.

        An ordering key is delivered, but the order is not guaranteed. Raises `InvalidArgument` for an
        empty message and for too many or too long attributes.
        """
        self._check_here()
        self.get_topic_labels(topic)
        check_message(data, attributes)
        return self._fan_out(topic, data, attributes, ordering_key)

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

    def modify_push_config(self, subscription: str, push: PushConfig | None) -> None:
        """Change the push endpoint; without one, the messages can be pulled."""
        found = self.get_subscription(subscription)
        found.change(replace(found.config, push=push))

    def backlog(self, subscription: str) -> int:
        """The number of unacknowledged messages."""
        return self.get_subscription(subscription).backlog

    def idle(self) -> bool:
        """Whether no push subscription has a message."""
        return not any(
            subscription.backlog
            for subscription in self._subscriptions.values()
            if subscription.config.push
        )

    @property
    def has_outage(self) -> bool:
        """Whether the service has an outage."""
        return self._has_outage

    def begin_outage(self) -> None:
        """Begin an outage: nothing can be published or pulled, and pushes stop."""
        self._has_outage = True

    def end_outage(self) -> None:
        """End the outage; nothing that was accepted is lost."""
        self._has_outage = False
        for subscription in self._subscriptions.values():
            subscription.resume()

    def _fan_out(
        self, topic: str, data: bytes, attributes: Mapping[str, str], ordering_key: str
    ) -> str:
        message_id = str(next(self._message_ids))
        message = Message(message_id, data, dict(attributes), self._clock.now(), ordering_key)
        for subscription in self._subscriptions_of(topic):
            subscription.accept(message)
        return message_id

    def _check(self, config: SubscriptionConfig) -> None:
        check_subscription(config)
        if config.dead_letter:
            self._check_topic(config.dead_letter.topic)

    def _check_topic(self, name: str) -> None:
        if name not in self._topics:
            raise not_found(name)

    def _check_here(self) -> None:
        if self._has_outage:
            raise Unavailable("The service was unable to fulfill your request. Please try again.")

    def _subscriptions_of(self, topic: str) -> list[Subscription]:
        return [
            subscription
            for subscription in self._subscriptions.values()
            if subscription.config.topic == topic and not subscription.detached
        ]

    def _forward_dead_letter(self, topic: str, letter: DeadLetter) -> bool:
        if topic not in self._topics or self._has_outage:
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
        self._fan_out(topic, letter.message.data, attributes, letter.message.ordering_key)
        self.dead_letters.append(letter)
        return True
