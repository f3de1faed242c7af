"""How often somebody looks at what waits: at gaps that grow with the wait, within bounds."""

from __future__ import annotations

from datetime import timedelta

TICK = timedelta(minutes=1)
MAX_GAP = timedelta(minutes=30)


def is_due(waited: timedelta, lag: float = 0.0) -> bool:
    """Whether one of the looks falls into the minute that has just passed: each gap between them is
    an eighth of the wait, within bounds.

    ``lag``, from 0 to 1, is by how much of a gap each look comes later than it could: what began to
    wait together and has a lag of its own is not looked at in the same minutes for ever.
    """
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
