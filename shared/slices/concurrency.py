"""The concurrency limit of a provider that changes only so many slices at a time.

If no slot is free, the provider rejects the call; the end of an operation then triggers the step again.
There is no queue: the step selects from the slices that wait now.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from typing import TypeVar

from shared.slices.provider import Slice, SliceState

MIN_SELECTED = 2
"""How many slices the sweep selects if no slot seems free. The count may be wrong, with no operation's
end to follow: the second one is tried even if the one that has waited longest is always rejected."""
T = TypeVar("T")
_CHANGING = (SliceState.PROVISIONING, SliceState.DELETING)


def count_slots(
    limit: int, slices: Iterable[Slice], least: int = MIN_SELECTED, begun: Iterable[str] = ()
) -> int:
    """The number of free slots, by the states of the slices and the names of those whose change is about
    to begin. At the end of an operation ``least`` is 1: its slot is free, unless the other step has just
    taken it."""
    changing = {one.name for one in slices if one.state in _CHANGING}
    return max(least, limit - len(changing | {*begun}))


def select(
    waiting: Sequence[T],
    slots: int,
    now: datetime,
    identify: Callable[[T], tuple[str, str]],
) -> list[T]:
    """Select from ``waiting``, longest wait first, those that may try now. ``identify`` returns the
    namespace of one and its key.

    Half of the slots are for the longest waits. The others are selected at random each time, from the
    namespaces in turn: neither slices that are always rejected nor a namespace with very many block the
    rest. An odd slot belongs to either half, at random: the end of an operation frees a single one.
    """

    def draw(text: str) -> float:
        return hash_to_unit(f"{text} {now.isoformat()}")

    first, counts = (slots + round(draw("odd slot"))) // 2, Counter[str]()
    others: list[tuple[int, float, T]] = []
    for one in sorted(waiting[first:], key=lambda one: draw(identify(one)[1])):
        namespace, _ = identify(one)
        others.append((counts[namespace], draw(namespace), one))
        counts[namespace] += 1
    others.sort(key=lambda other: other[:2])
    return [*waiting[:first], *(one for _, _, one in others[: slots - first])]


def hash_to_unit(text: str) -> float:
    """A pseudo-random number from 0 to 1 that is computed from a text."""
    return int.from_bytes(sha256(text.encode()).digest()[:4], "big") / 2**32
