"""How a watch is doing: whether it is quiet, cut off or stuck.

- *Quiet*: connected; the server closes every watch after a known time at the latest and usually
  sends bookmarks before, so something arrives even when nothing happens.
- *Cut off*: the API server cannot be reached, or refuses. The watch tries again and again; each
  answer, even a refused connection, shows that it is alive. A restart would not help.
- *Stuck*: nothing at all arrives for longer than the server and the read time-out allow: the other
  end has gone without a word, again and again, or the relay itself hangs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Monotonic = Callable[[], float]
"""Seconds on a clock that is never set."""


@dataclass
class WatchHealth:
    """The signs of life of one watch. Times are in seconds on ``clock``."""

    clock: Monotonic
    listed: bool = False
    """Whether a whole list has come since the start."""
    missing: str = ""
    """What the API server lacked when it was last asked, in words."""
    _answered_at: float = field(init=False)
    _contact_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._answered_at = self._contact_at = self.clock()

    def contact(self) -> None:
        """The API server has answered the question: a list, an event, a bookmark, an end in order."""
        self._answered_at = self._contact_at = self.clock()
        self.missing = ""

    def refusal(self, missing: str = "") -> None:
        """Something has answered, if only that the API server is not there or says no."""
        self._answered_at = self.clock()
        self.missing = missing

    def silence_s(self) -> float:
        """Seconds since the last sign of life of any kind."""
        return self.clock() - self._answered_at

    def without_contact_s(self) -> float:
        """Seconds since the API server last answered the question."""
        return self.clock() - self._contact_at
