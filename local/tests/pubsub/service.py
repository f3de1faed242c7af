"""A Pub/Sub on a virtual clock, with an endpoint whose answers a test sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from random import Random
from typing import Any

from local.base.clock import VirtualClock
from local.pubsub.core import PubSub
from local.pubsub.model import (
    DeadLetterPolicy,
    PushConfig,
    Received,
    RetryPolicy,
    SubscriptionConfig,
)
from local.pubsub.subscription import Done, Subscription, Timings

PROJECT = "projects/p"
TOPIC = "projects/p/topics/inbox"
DEAD = "projects/p/topics/dead"
SUBSCRIPTION = "projects/p/subscriptions/inbox"
DEAD_SUBSCRIPTION = "projects/p/subscriptions/dead"
ENDPOINT = "http://127.0.0.1:8080/"


class Endpoint:
    """Answers each push with the next of ``statuses`` after ``takes_s``. The last status is repeated.

    The status `None` is a refused connection. An endpoint with ``hangs`` set never answers.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.statuses: list[int | None] = [200]
        self.takes_s = 0.0
        self.hangs = False
        self.pushes: list[tuple[float, dict[str, Any]]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.status_of: Callable[[dict[str, Any]], int | None] | None = None
        self._clock = clock
        self._start = clock.now()

    def push(self, endpoint: str, envelope: dict[str, Any], timeout_s: float, done: Done) -> None:
        assert endpoint == ENDPOINT
        assert timeout_s > 0
        self.pushes.append((_seconds(self._clock.now(), self._start), envelope))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if not self.hangs:
            status = self._next_status(envelope)
            self._clock.call_later(self.takes_s, lambda: self._answer(status, done))

    @property
    def times(self) -> list[float]:
        """The start times of pushes, in seconds since the start."""
        return [moment for moment, _ in self.pushes]

    @property
    def datas(self) -> list[str]:
        """The data of the pushed messages, in base64."""
        return [envelope["message"]["data"] for _, envelope in self.pushes]

    def _next_status(self, envelope: dict[str, Any]) -> int | None:
        if self.status_of is not None:
            return self.status_of(envelope)
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def _answer(self, status: int | None, done: Done) -> None:
        self.in_flight -= 1
        done(status)


class Service:
    """A `PubSub` with one topic, and a dead-letter topic with a pull subscription."""

    def __init__(self, timings: Timings | None = None, seed: int = 1) -> None:
        self.clock = VirtualClock()
        self.endpoint = Endpoint(self.clock)
        self.pubsub = PubSub(
            self.clock, random=Random(seed), push=self.endpoint.push, timings=timings
        )
        self.pubsub.create_topic(TOPIC)
        self.pubsub.create_topic(DEAD)
        self.pubsub.create_subscription(SubscriptionConfig(DEAD_SUBSCRIPTION, DEAD))

    def subscribe(
        self,
        *,
        push: bool = True,
        ack_deadline_s: int = 10,
        retry: RetryPolicy | None = None,
        max_attempts: int | None = None,
    ) -> Subscription:
        return self.pubsub.create_subscription(
            SubscriptionConfig(
                SUBSCRIPTION,
                TOPIC,
                push=PushConfig(ENDPOINT) if push else None,
                ack_deadline_s=ack_deadline_s,
                retry=retry,
                dead_letter=DeadLetterPolicy(DEAD, max_attempts) if max_attempts else None,
            )
        )

    def publish(self, *datas: bytes) -> list[str]:
        return [self.pubsub.publish(TOPIC, data, {}) for data in datas]

    def pull(self, max_messages: int = 10) -> list[Received]:
        return self.pubsub.pull(SUBSCRIPTION, max_messages)

    def acknowledge(self, received: Iterable[Received]) -> None:
        self.pubsub.acknowledge(SUBSCRIPTION, [message.ack_id for message in received])


def _seconds(moment: datetime, start: datetime) -> float:
    return round((moment - start).total_seconds(), 3)
