"""When one inbox hears of one object: at once, then at growing gaps while changes keep coming."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shared.frame.message import Cause

FIRST_GAP = timedelta(seconds=3)
WIDEST_GAP = timedelta(seconds=10)
"""Between two publications of which the later one tells of something new."""
WIDEST_RETRY_GAP = timedelta(seconds=10)
"""Between two attempts to publish the same."""
MAX_PENDING_NAMES = 5_000
"""Node names held for one group while nothing can be published: more than any slice has. The step
looks at the whole group whatever names it is given."""


@dataclass(slots=True)
class Story:
    """What there is to tell: why, when the latest change was seen, which Nodes had to do with it."""

    cause: Cause
    at: datetime
    names: dict[str, None] = field(default_factory=dict)

    def add_names(self, names: Iterable[str]) -> None:
        """These Nodes too, in the order of telling, as far as there is room."""
        for name in names:
            if len(self.names) >= MAX_PENDING_NAMES:
                return
            self.names[name] = None


class Slot:
    """What one step has to be told of one object, and how soon it may be.

    The first change goes out at once. Every publication widens the gap to the next one, and what
    comes in between is collected; a whole gap without a change after the last one closes it again.
    """

    __slots__ = ("_due", "_free_from", "_gap", "_story")

    def __init__(self) -> None:
        self._story: Story | None = None
        self._gap = timedelta(0)
        self._free_from: datetime | None = None
        self._due: datetime | None = None

    @property
    def due(self) -> datetime | None:
        """When it may be told; ``None`` while there is nothing to tell."""
        return self._due

    def is_due(self, now: datetime) -> bool:
        """Whether it may be told now. A clock that was set back holds nothing up."""
        return self._due is not None and not now < self._due <= now + WIDEST_RETRY_GAP

    def is_spent(self, now: datetime) -> bool:
        """Whether it is as good as a new one: nothing to tell, and the last telling long ago."""
        return self._story is None and (
            self._free_from is None or now >= self._free_from + self._gap
        )

    def add(
        self, cause: Cause, names: Iterable[str], now: datetime, *, at_once: bool = False
    ) -> None:
        """Something new has been seen. Of several causes the first untold one is kept.

        ``at_once`` is for what somebody waits for: it and all that was collected go out now.
        """
        if self._free_from is None or now >= self._free_from + self._gap:
            self._gap, self._free_from = timedelta(0), now
        if self._story is None:
            self._story = Story(cause, now)
            self._due = max(now, self._free_from)
        if at_once:
            self._due = now
        self._story.at = now
        self._story.add_names(names)

    def take(self, now: datetime) -> Story:
        """It is being told. Only for a slot that is due."""
        story = self._story
        assert story is not None
        self._story = self._due = None
        self._gap = min(self._gap + FIRST_GAP, WIDEST_GAP)
        self._free_from = now + self._gap
        return story

    def put_back(self, story: Story, now: datetime) -> None:
        """It could not be told: once more, later, with what has been seen since."""
        newer = self._story
        self._story = story
        if newer is not None:
            story.at = newer.at
            story.add_names(newer.names)
        self._gap = min(max(self._gap * 2, FIRST_GAP), WIDEST_RETRY_GAP)
        self._free_from = self._due = now + self._gap
