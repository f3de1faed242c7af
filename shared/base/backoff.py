"""How often somebody looks at what waits: at gaps that grow with the wait, within bounds."""

from __future__ import annotations

from datetime import datetime, timedelta

TICK = timedelta(minutes=1)
MAX_GAP = timedelta(minutes=30)


def is_due(since: datetime, now: datetime, lag: float = 0.0) -> bool:
    """Whether what waits since then is observed in this minute: each gap between two observations is
    an eighth of the wait, within bounds.

    Whoever asks once in each minute of the clock, at any second of it, is told each observation
    exactly once. A time in the future is wrong, and always due.

    ``lag``, from 0 to 1, is by how much of a gap each observation comes later than it could: what began
    to wait together and has a lag of its own is not observed in the same minutes for ever.
    """
    if since > now:
        return True
    waited = now.replace(second=0, microsecond=0) - since
    point = TICK
    while True:
        gap = min(MAX_GAP, max(TICK, point / 8))
        look = point + (gap - TICK) * lag
        if look > waited:
            return False
        if gap == MAX_GAP:
            return (waited - look) % MAX_GAP < TICK
        if look > waited - TICK:
            return True
        point += gap
