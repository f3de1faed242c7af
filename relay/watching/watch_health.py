"""The health of a watch: quiet, disconnected or stuck.

- *Quiet*: connected; the server closes every watch after a known time at the latest and usually
  sends bookmarks before, so something arrives even when nothing happens.
- *Disconnected*: the API server cannot be reached, or answers with errors. The watch retries; each
  answer, even a refused connection, shows that the watch works. A restart would not help.
- *Stuck*: nothing arrives for longer than the server's and the read timeout allow: connections break
  silently again and again, the server's certificate is of another CA than at the start, or the relay
  itself hangs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

Monotonic = Callable[[], float]
"""Seconds on a clock that is never set."""


@dataclass
class WatchHealth:
    """When a watch last received something. Times are in seconds on ``clock``."""

    clock: Monotonic
    listed: bool = False
    """Whether a complete list has been received since the start."""
    missing: str = ""
    """What the API server does not know, by its last answer."""
    _answered_at: float = field(init=False)
    _contact_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._answered_at = self._contact_at = self.clock()

    def contact(self) -> None:
        """Record a successful answer: a list, an event, a bookmark, a normal end."""
        self._answered_at = self._contact_at = self.clock()
        self.missing = ""

    def refusal(self, missing: str = "") -> None:
        """Record an answer that is an error, a refused connection included."""
        self._answered_at = self.clock()
        self.missing = missing

    def silence_s(self) -> float:
        """Seconds since the last answer of any kind."""
        return self.clock() - self._answered_at

    def without_contact_s(self) -> float:
        """Seconds since the last successful answer."""
        return self.clock() - self._contact_at
