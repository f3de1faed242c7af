"""The resync interval of an object that waits: it grows with the wait, within bounds."""

from datetime import datetime, timedelta

TICK = timedelta(minutes=1)
MAX_GAP = timedelta(minutes=30)
STEADY_AFTER = timedelta(minutes=20)
"""What has not come by then mostly takes hours."""


def is_due(since: datetime, at: datetime, lag: float = 0.0) -> bool:
    """Whether an object that has waited since ``since`` is due in the minute of ``at``. The interval
    between two observations is an eighth of the wait, and half of it after `STEADY_AFTER`, within
    bounds.

    A caller that asks once about each minute, at any second of it, gets True exactly once for each
    observation. A ``since`` more than a minute after ``at`` is wrong, and always due.

    ``lag``, from 0 to 1, delays each observation by this share of the interval, so that objects that
    began to wait together are spread over the minutes.
    """
    if since > at + TICK:
        return True
    waited = at.replace(second=0, microsecond=0) - since
    point = TICK
    while True:
        gap = min(MAX_GAP, max(TICK, point / (8 if point < STEADY_AFTER else 2)))
        offset = point + (gap - TICK) * lag
        if offset > waited:
            return False
        if gap == MAX_GAP:
            return (waited - offset) % MAX_GAP < TICK
        if offset > waited - TICK:
            return True
        point += gap
