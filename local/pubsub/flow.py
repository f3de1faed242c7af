"""How fast a subscription pushes: a window of outstanding pushes, and a pause for all after refusals.

Documented: the window starts small, grows exponentially with success and shrinks with failure, up
to about 3,000; refusals that pile up make the whole subscription rest, from 100 milliseconds to 60
seconds. Where a number is not documented (each success widens by one, each failure halves; the rest
doubles and halves) it is assumed.
"""

from __future__ import annotations

from datetime import datetime, timedelta

MAX_OUTSTANDING = 3_000
MIN_PAUSE_S = 0.1
MAX_PAUSE_S = 60.0


class PushFlow:
    """The pace of one push subscription."""

    def __init__(self) -> None:
        self.window = 1
        self.paused_until: datetime | None = None
        self._pause_s = 0.0
        self._slowed_at: datetime | None = None

    def acknowledged(self) -> None:
        """A push succeeded: more at once, and a shorter rest the next time."""
        self.window = min(MAX_OUTSTANDING, self.window + 1)
        self._pause_s = self._pause_s / 2 if self._pause_s > MIN_PAUSE_S else 0.0

    def refused(self, began: datetime, now: datetime) -> None:
        """A push that began at ``began`` failed: fewer at once, and all rest.

        Pushes that were under way together and fail together count as one failure.
        """
        if self._slowed_at is not None and began <= self._slowed_at:
            return
        self._slowed_at = now
        self.window = max(1, self.window // 2)
        self._pause_s = min(MAX_PAUSE_S, max(MIN_PAUSE_S, self._pause_s * 2))
        self.paused_until = now + timedelta(seconds=self._pause_s)

    def pause_left_s(self, now: datetime) -> float:
        """How long no push may begin."""
        if self.paused_until is None:
            return 0.0
        return max(0.0, (self.paused_until - now).total_seconds())
