"""One subscription: its messages, leases and retries.

A message in a subscription is a `_Delivery`. It is ready, in backoff, or leased: to a puller until
the ack deadline, or to a push request until its response or that deadline. An acknowledgement ends
it; after a refusal or the deadline it is in backoff and then ready again, or it goes to the
dead-letter topic.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

from local.base.clock import Clock, Timer
from local.pubsub.envelope import render_envelope
from local.pubsub.errors import FailedPrecondition
from local.pubsub.flow import PushFlow
from local.pubsub.model import (
    Counts,
    DeadLetter,
    Message,
    Received,
    SubscriptionConfig,
)

Done = Callable[[int | None], None]
Pusher = Callable[[str, dict[str, Any], float, Done], None]
"""Sends ``(endpoint, envelope, timeout_s, done)`` and calls ``done`` with the HTTP status, or with
`None` for a time-out or a refused connection. Late and repeated calls are ignored."""

ACKNOWLEDGING = frozenset({102, 200, 201, 202, 204})
"""The documented statuses of success; all others are refusals, redirects and 203 too."""

RETENTION = timedelta(days=7)
MAX_HELD_BYTES = 128 * 1024 * 1024
OVERHEAD_BYTES = 1_000
"""The estimated overhead of a message, which also limits the number of tiny messages."""
MAX_DUPLICATE_DELAY_S = 10.0


@dataclass
class Timings:
    """The behaviour within the documented guarantees. All zero: once, immediately, in order."""

    duplicates: float = 0.0
    """The fraction of messages that are delivered twice."""
    delay_s: float = 0.0
    """The maximum of a random delay of each message, which changes their order."""


@dataclass(frozen=True)
class Context:
    """What a subscription uses of its service."""

    clock: Clock
    random: Random
    timings: Timings
    push: Pusher
    has_outage: Callable[[], bool]
    forward_dead_letter: Callable[[str, DeadLetter], bool]
    """Publish to the topic; `False` during an outage."""


@dataclass(eq=False)
class _Delivery:
    message: Message
    attempts: int = 0
    gone: bool = False


@dataclass(frozen=True, eq=False)
class _Lease:
    delivery: _Delivery
    began: datetime
    timer: Timer
    pushed: bool


@dataclass(eq=False)
class Subscription:
    """A subscription. Its public attributes are read-only."""

    config: SubscriptionConfig
    around: Context
    counts: Counts = field(default_factory=Counts)
    flow: PushFlow = field(default_factory=PushFlow)

    def __post_init__(self) -> None:
        self._held: OrderedDict[_Delivery, None] = OrderedDict()
        self._held_bytes = 0
        self._ready: deque[_Delivery] = deque()
        self._leases: dict[str, _Lease] = {}
        self._pushes_out = 0
        self._ack_ids = itertools.count(1)
        self._wake: Timer | None = None
        self._wake_due = self.around.clock.now()
        self._closed = False
        self._listeners: dict[object, Callable[[], None]] = {}

    @property
    def backlog(self) -> int:
        """Messages not yet acknowledged, dead-lettered or dropped."""
        return len(self._held)

    @property
    def outstanding(self) -> int:
        """The number of leased messages."""
        return len(self._leases)

    def accept(self, message: Message) -> None:
        """Accept a message of the topic."""
        self.counts.received += 1
        self._hold(message, delay_s=self._draw(self.around.timings.delay_s))
        if self.around.random.random() < self.around.timings.duplicates:
            self._hold(message, delay_s=self._draw(MAX_DUPLICATE_DELAY_S))

    def pull(self, max_messages: int) -> list[Received]:
        """Lease up to ``max_messages`` until the ack deadline.

        Raises `FailedPrecondition` on a subscription that pushes.
        """
        if self.config.push is not None:
            raise FailedPrecondition("This method is not supported for this subscription type.")
        received: list[Received] = []
        while len(received) < max_messages and (delivery := self._next_ready()):
            ack_id = self._lease(delivery, self.config.ack_deadline_s, pushed=False)
            attempt = delivery.attempts if self.config.dead_letter else 0
            received.append(Received(ack_id, delivery.message, attempt))
        return received

    def acknowledge(self, ack_id: str) -> None:
        """Acknowledge a delivery; an expired id is ignored, as the service may do."""
        lease = self._end_lease(ack_id)
        if lease is None:
            return
        self.counts.acknowledged += 1
        if lease.pushed:
            self.flow.acknowledged()
        self._forget(lease.delivery)
        self._wake_in(0)

    def modify_ack_deadline(self, ack_id: str, seconds: float) -> None:
        """Let a lease run ``seconds`` from now; zero nacks the message."""
        lease = self._leases.get(ack_id)
        if lease is None:
            return
        if seconds <= 0:
            self._refuse(ack_id)
            return
        lease.timer.cancel()
        timer = self.around.clock.call_later(seconds, lambda: self._refuse(ack_id))
        self._leases[ack_id] = replace(lease, timer=timer)

    def close(self) -> None:
        """Drop all messages and stop."""
        self._closed = True
        for ack_id in list(self._leases):
            self._end_lease(ack_id)
        self._held.clear()
        self._ready.clear()
        self._call_listeners()

    def resume(self) -> None:
        """Handle the end of an outage."""
        self._wake_in(0)

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` when messages may be ready; returns a function that unsubscribes."""
        key = object()
        self._listeners[key] = callback

        def stop() -> None:
            self._listeners.pop(key, None)

        return stop

    def _draw(self, up_to_s: float) -> float:
        return self.around.random.uniform(0.0, up_to_s) if up_to_s else 0.0

    def _hold(self, message: Message, delay_s: float) -> None:
        delivery = _Delivery(message)
        self._held[delivery] = None
        self._held_bytes += message.size_bytes + OVERHEAD_BYTES
        self._drop_excess()
        self._make_ready(delivery, delay_s)

    def _make_ready(self, delivery: _Delivery, delay_s: float) -> None:
        if delay_s > 0:
            self.around.clock.call_later(delay_s, lambda: self._make_ready(delivery, 0))
            return
        if delivery.gone:
            return
        self._ready.append(delivery)
        self._wake_in(0)

    def _forget(self, delivery: _Delivery) -> None:
        if delivery in self._held:
            del self._held[delivery]
            self._held_bytes -= delivery.message.size_bytes + OVERHEAD_BYTES
        delivery.gone = True

    def _drop_excess(self) -> None:
        oldest_kept = self.around.clock.now() - RETENTION
        while self._held:
            first = next(iter(self._held))
            if first.message.publish_time >= oldest_kept and self._held_bytes <= MAX_HELD_BYTES:
                return
            self.counts.dropped += 1
            self._forget(first)

    def _next_ready(self) -> _Delivery | None:
        self._drop_excess()
        while self._ready and not self.around.has_outage():
            delivery = self._ready.popleft()
            if not delivery.gone:
                return delivery
        return None

    def _lease(self, delivery: _Delivery, seconds: float, *, pushed: bool) -> str:
        ack_id = f"{self.config.name}:{next(self._ack_ids)}"
        clock = self.around.clock
        timer = clock.call_later(seconds, lambda: self._refuse(ack_id))
        self._leases[ack_id] = _Lease(delivery, clock.now(), timer, pushed)
        self._pushes_out += pushed
        delivery.attempts += 1
        self.counts.delivered += 1
        return ack_id

    def _end_lease(self, ack_id: str) -> _Lease | None:
        lease = self._leases.pop(ack_id, None)
        if lease is None:
            return None
        lease.timer.cancel()
        self._pushes_out -= lease.pushed
        return lease

    def _refuse(self, ack_id: str) -> None:
        lease = self._end_lease(ack_id)
        if lease is None:
            return
        self.counts.refused += 1
        if lease.pushed:
            self.flow.refused(lease.began, self.around.clock.now())
        if self._dead_lettered(lease.delivery):
            self._forget(lease.delivery)
            self._wake_in(0)
            return
        retry = self.config.retry
        rest_s = retry.backoff_s(lease.delivery.attempts) if retry else 0.0
        self._make_ready(lease.delivery, rest_s)
        self._wake_in(0)

    def _dead_lettered(self, delivery: _Delivery) -> bool:
        policy = self.config.dead_letter
        if policy is None or delivery.attempts < policy.max_delivery_attempts or delivery.gone:
            return False
        letter = DeadLetter(self.config.name, delivery.message, delivery.attempts)
        if not self.around.forward_dead_letter(policy.topic, letter):
            return False
        self.counts.dead_lettered += 1
        return True

    def _wake_in(self, delay_s: float) -> None:
        due = self.around.clock.now() + timedelta(seconds=delay_s)
        if self._closed or (self._wake is not None and self._wake_due <= due):
            return
        if self._wake is not None:
            self._wake.cancel()
        self._wake_due = due
        self._wake = self.around.clock.call_later(delay_s, self._work)

    def _work(self) -> None:
        self._wake = None
        self._call_listeners()
        while self._may_push() and (delivery := self._next_ready()):
            self._push(delivery)

    def _may_push(self) -> bool:
        if self.config.push is None or self._pushes_out >= self.flow.window or not self._ready:
            return False
        pause_s = self.flow.pause_left_s(self.around.clock.now())
        if pause_s > 0:
            self._wake_in(pause_s)
        return pause_s <= 0

    def _push(self, delivery: _Delivery) -> None:
        push = self.config.push
        assert push is not None
        deadline_s = float(self.config.ack_deadline_s)
        ack_id = self._lease(delivery, deadline_s, pushed=True)
        attempt = delivery.attempts if self.config.dead_letter else None
        envelope = render_envelope(delivery.message, self.config.name, attempt)

        def done(status: int | None) -> None:
            if status in ACKNOWLEDGING:
                self.acknowledge(ack_id)
            else:
                self._refuse(ack_id)

        self.around.push(push.endpoint, envelope, deadline_s, done)

    def _call_listeners(self) -> None:
        for callback in list(self._listeners.values()):
            callback()
