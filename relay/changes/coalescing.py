"""When a message about an object is due: immediately, then at growing intervals while it changes."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shared.triggers.message import Cause

FIRST_GAP = timedelta(seconds=3)
WIDEST_GAP = timedelta(seconds=10)
"""The intervals between two publications."""
REQUESTS_GAP = timedelta(seconds=0.5)
"""The interval for certificate requests: all VMs share one subject, and each waits for its approval."""
WIDEST_RETRY_GAP = timedelta(seconds=10)
"""The intervals between two attempts to publish the same trigger."""
MAX_PENDING_NAMES = 5_000
"""The limit of Node names for one group while nothing can be published: more than any slice has. The
step reads the whole group, whatever the names."""


@dataclass(slots=True)
class PendingTrigger:
    """A pending trigger: the cause, the time of the latest change, and its Nodes."""

    cause: Cause
    at: datetime
    names: dict[str, None] = field(default_factory=dict)

    def add_names(self, names: Iterable[str]) -> None:
        """Add Nodes in the order of their changes, as far as there is room."""
        for name in names:
            if len(self.names) >= MAX_PENDING_NAMES:
                return
            self.names[name] = None


class Coalescer:
    """The pending trigger for one step and one object, and when it is due.

    The first change is due immediately. Each publication increases the interval to the next one, up to
    ``widest_gap``, and changes in between are coalesced. An interval without a change resets it.
    """

    __slots__ = ("_free_from", "_gap", "_trigger", "_widest_gap", "due")

    def __init__(self, widest_gap: timedelta = WIDEST_GAP) -> None:
        self._widest_gap = widest_gap
        self._trigger: PendingTrigger | None = None
        self._gap = timedelta(0)
        self._free_from: datetime | None = None
        self.due: datetime | None = None
        """When it may be published; ``None`` while nothing is pending."""

    def is_idle(self, now: datetime) -> bool:
        """Whether it equals a new one: nothing is pending, and the interval is over."""
        return self._trigger is None and (
            self._free_from is None or now >= self._free_from + self._gap
        )

    def add(self, cause: Cause, names: Iterable[str], now: datetime, *, immediately: bool) -> None:
        """Add a change. The first cause is kept.

        ``immediately`` makes it due now, with all that was collected.
        """
        if self._free_from is None or now >= self._free_from + self._gap:
            self._gap, self._free_from = timedelta(0), now
        if self._trigger is None:
            self._trigger = PendingTrigger(cause, now)
            self.due = max(now, self._free_from)
        if immediately:
            self.due = now
        self._trigger.at = now
        self._trigger.add_names(names)

    def take(self, now: datetime) -> PendingTrigger | None:
        """Remove and return the trigger if it is due, otherwise ``None``.

        A clock that was set back delays nothing.
        """
        trigger, due = self._trigger, self.due
        if trigger is None or due is None or now < due <= now + WIDEST_RETRY_GAP:
            return None
        self._trigger = self.due = None
        self._gap = min(self._gap + FIRST_GAP, self._widest_gap)
        self._free_from = now + self._gap
        return trigger

    def put_back(self, trigger: PendingTrigger, now: datetime) -> None:
        """Return a trigger that could not be published. It is due later, with newer changes."""
        newer = self._trigger
        self._trigger = trigger
        if newer is not None:
            trigger.at = newer.at
            trigger.add_names(newer.names)
        self._gap = min(max(self._gap * 2, FIRST_GAP), WIDEST_RETRY_GAP)
        self._free_from = self.due = now + self._gap
