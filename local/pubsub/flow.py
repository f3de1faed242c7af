"""The flow control of pushes: a window of outstanding pushes, and a pause after nacks.

Documented: the window starts small, grows exponentially with success and shrinks with failure, up
to about 3,000; repeated nacks pause the whole subscription for 100 milliseconds to 60
seconds. Assumed: each success widens the window by one, each failure halves it; the pause doubles and
halves.
"""

from __future__ import annotations

from datetime import datetime, timedelta

MAX_OUTSTANDING = 3_000
MIN_PAUSE_S = 0.1
MAX_PAUSE_S = 60.0


class PushFlow:
    """The flow control of one push subscription."""

    def __init__(self) -> None:
        self.window = 1
        self.paused_until: datetime | None = None
        self._pause_s = 0.0
        self._slowed_at: datetime | None = None

    def acknowledged(self) -> None:
        """Handle a successful push: widen the window, shorten the pause."""
        self.window = min(MAX_OUTSTANDING, self.window + 1)
        self._pause_s = self._pause_s / 2 if self._pause_s > MIN_PAUSE_S else 0.0

    def refused(self, began: datetime, now: datetime) -> None:
        """Handle a failed push that began at ``began``: halve the window, and pause.

        Concurrent pushes that fail together count as one failure.
        """
        if self._slowed_at is not None and began <= self._slowed_at:
            return
        self._slowed_at = now
        self.window = max(1, self.window // 2)
        self._pause_s = min(MAX_PAUSE_S, max(MIN_PAUSE_S, self._pause_s * 2))
        self.paused_until = now + timedelta(seconds=self._pause_s)

    def pause_left_s(self, now: datetime) -> float:
        """The remaining seconds of the pause."""
        if self.paused_until is None:
            return 0.0
        return max(0.0, (self.paused_until - now).total_seconds())
