"""Whose turn it is, where a provider changes only so many slices at a time.

Who comes when all places are taken is refused, and hears of it when one is free again. Nobody keeps a
queue: whoever hears of it looks who waits now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TypeVar
from zlib import crc32

from shared.slices.provider import Slice, SliceState

FEWEST = 2
"""Who are woken where no place seems to be free: it may be, since others change things, too."""
T = TypeVar("T")
_CHANGING = (SliceState.PROVISIONING, SliceState.DELETING)


def count_places(concurrency_limit: int, slices: Iterable[Slice]) -> int:
    """For how many there is room, as far as slices show it."""
    return max(FEWEST, concurrency_limit - sum(one.state in _CHANGING for one in slices))


def choose(waiting: Sequence[T], places: int, now: datetime, key: Callable[[T], str]) -> list[T]:
    """Who may try now, of those who wait, the first of whom has waited longest.

    Half of the places are for those who have waited longest; the others are drawn anew each time: so
    nobody waits for ever behind some who are always refused.
    """
    first = (places + 1) // 2
    drawn = sorted(waiting[first:], key=lambda one: draw(f"{key(one)} {now.isoformat()}"))
    return [*waiting[:first], *drawn[: places - first]]


def draw(text: str) -> float:
    """A number from 0 to 1 that follows from a text and looks like any other."""
    return crc32(text.encode()) / 2**32
