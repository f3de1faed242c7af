"""How often somebody looks at what waits: at gaps that grow with the wait, within bounds."""

from __future__ import annotations

from datetime import timedelta

TICK = timedelta(minutes=1)
MAX_GAP = timedelta(minutes=30)


def is_due(waited: timedelta) -> bool:
    """Whether one of the looks falls into the minute that has just passed: each gap between them is
    an eighth of the wait, within bounds."""
    point = TICK
    while point <= waited - TICK:
        gap = min(MAX_GAP, max(TICK, point / 8))
        if gap == MAX_GAP:
            return (waited - point) % MAX_GAP < TICK
        point += gap
    return point <= waited
