"""How often somebody looks at what waits: at gaps that grow with the wait, within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

TICK = timedelta(minutes=1)
MAX_GAP = timedelta(minutes=30)


def is_due(waited: timedelta) -> bool:
    """Whether one of the looks falls into the minute that has just passed."""
    return any(waited - TICK < point <= waited for point in _points(waited))


def _points(until: timedelta) -> Iterator[timedelta]:
    """After how long a wait somebody looks: each gap an eighth of the wait, within bounds."""
    point = TICK
    while point <= until:
        yield point
        point += min(MAX_GAP, max(TICK, point / 8))
