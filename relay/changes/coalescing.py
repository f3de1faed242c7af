"""When a message about an object is due: immediately, then at growing intervals while it changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shared.frame.message import Cause

FIRST_GAP = timedelta(seconds=3)
WIDEST_GAP = timedelta(seconds=10)
"""Between two publications of which the later one reports something new."""
WIDEST_RETRY_GAP = timedelta(seconds=10)
"""Between two attempts to publish the same trigger."""
MAX_PENDING_NAMES = 5_000
"""Node names held for one group while nothing can be published: more than any slice has. The step
reads the whole group whatever names it receives."""


@dataclass(slots=True)
class PendingTrigger:
    """What is to be published: the cause, the time of the latest change, the Nodes it concerns."""

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
    """What is to be published to one step about one object, and when it is due.

    The first change is due immediately. Each publication widens the gap to the next one, and changes
    in between are collected. A whole gap without a change resets it.
    """

    __slots__ = ("_due", "_free_from", "_gap", "_trigger")

    def __init__(self) -> None:
        self._trigger: PendingTrigger | None = None
        self._gap = timedelta(0)
        self._free_from: datetime | None = None
        self._due: datetime | None = None

    @property
    def due(self) -> datetime | None:
        """When it may be published; ``None`` while nothing is pending."""
        return self._due

    def is_idle(self, now: datetime) -> bool:
        """True if it is no different from a new one: nothing is pending, and the gap is over."""
        return self._trigger is None and (
            self._free_from is None or now >= self._free_from + self._gap
        )

    def add(
        self, cause: Cause, names: Iterable[str], now: datetime, *, immediately: bool = False
    ) -> None:
        """Add a change. Of several causes the first unpublished one is kept.

        ``immediately`` makes it due now, with all that was collected.
        """
        if self._free_from is None or now >= self._free_from + self._gap:
            self._gap, self._free_from = timedelta(0), now
        if self._trigger is None:
            self._trigger = PendingTrigger(cause, now)
            self._due = max(now, self._free_from)
        if immediately:
            self._due = now
        self._trigger.at = now
        self._trigger.add_names(names)

    def take(self, now: datetime) -> PendingTrigger | None:
        """Remove and return what is due; ``None`` if nothing is. A clock that was set back delays
        nothing."""
        trigger, due = self._trigger, self._due
        if trigger is None or due is None or now < due <= now + WIDEST_RETRY_GAP:
            return None
        self._trigger = self._due = None
        self._gap = min(self._gap + FIRST_GAP, WIDEST_GAP)
        self._free_from = now + self._gap
        return trigger

    def put_back(self, trigger: PendingTrigger, now: datetime) -> None:
        """Return a trigger that could not be published: it is due again, later, with what was added
        since."""
        newer = self._trigger
        self._trigger = trigger
        if newer is not None:
            trigger.at = newer.at
            trigger.add_names(newer.names)
        self._gap = min(max(self._gap * 2, FIRST_GAP), WIDEST_RETRY_GAP)
        self._free_from = self._due = now + self._gap
