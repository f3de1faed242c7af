"""What a simulator is told to let happen to the next calls or operations of some verbs."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

_What = TypeVar("_What")


@dataclass
class _Plan(Generic[_What]):
    verbs: str
    left: int
    what: _What


class Planned(Generic[_What]):
    """Plans, used up one by one, those made first first."""

    def __init__(self) -> None:
        self._plans: list[_Plan[_What]] = []

    def add(self, verbs: str, times: int, what: _What) -> None:
        """For the next so many that match; ``verbs`` is a pattern as in a shell."""
        self._plans.append(_Plan(verbs, times, what))

    def take(self, verb: str) -> _What | None:
        """What is planned for this verb, if anything, used up by asking."""
        for plan in self._plans:
            if plan.left > 0 and fnmatchcase(verb, plan.verbs):
                plan.left -= 1
                return plan.what
        return None


class Slowness:
    """How much longer operations take, by patterns of their verbs."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def set(self, verbs: str, seconds: float) -> None:
        """Operations that match take so much longer from now on; 0 ends it."""
        self._seconds[verbs] = seconds

    def of(self, verb: str) -> float:
        """How many seconds longer an operation of this verb takes."""
        return sum(s for pattern, s in self._seconds.items() if fnmatchcase(verb, pattern))
