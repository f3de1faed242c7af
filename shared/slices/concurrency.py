"""The concurrency limit of a provider that changes only so many slices at a time.

If no slot is free, the provider rejects the call; the end of an operation then triggers the step again.
There is no queue: the step selects from the slices that wait now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TypeVar
from zlib import crc32

from shared.slices.provider import Slice, SliceState

MIN_SELECTED = 2
"""How many slices are selected if no slot seems free: the count may be outdated."""
T = TypeVar("T")
_CHANGING = (SliceState.PROVISIONING, SliceState.DELETING)


def count_slots(concurrency_limit: int, slices: Iterable[Slice]) -> int:
    """The number of free slots, by the states of the slices."""
    return max(MIN_SELECTED, concurrency_limit - sum(one.state in _CHANGING for one in slices))


def select(waiting: Sequence[T], slots: int, now: datetime, key: Callable[[T], str]) -> list[T]:
    """Select from ``waiting``, longest wait first, those that may try now.

    Half of the slots are for the longest waits; the others are selected at random each time, so slices
    that are always rejected do not block the rest.
    """
    first = (slots + 1) // 2
    others = sorted(waiting[first:], key=lambda one: hash_to_unit(f"{key(one)} {now.isoformat()}"))
    return [*waiting[:first], *others[: slots - first]]


def hash_to_unit(text: str) -> float:
    """A pseudo-random number from 0 to 1 that is computed from a text."""
    return crc32(text.encode()) / 2**32
