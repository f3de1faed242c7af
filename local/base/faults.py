"""Injected faults that every simulated service has.

A service reads its `FaultPlan` before it answers. Tests and users change the plan by
`FaultControls`. Each service adds faults of its own to both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fnmatch import filter as matching
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

from local.base.controls import Valid

_Key = TypeVar("_Key")
_What = TypeVar("_What")
_Refused = TypeVar("_Refused")
_Failure = TypeVar("_Failure")


@dataclass
class _Plan(Generic[_What]):
    verbs: str
    left: int
    what: _What


class _Planned(Generic[_What]):
    """Plans that are used up in order."""

    def __init__(self) -> None:
        self._plans: list[_Plan[_What]] = []

    def add(self, verbs: str, times: int, what: _What) -> None:
        """Plan it for the next ``times`` matches; ``verbs`` is a pattern as in a shell.

        0 removes the plans of the same pattern.
        """
        if not times:
            self._plans = [plan for plan in self._plans if plan.verbs != verbs]
        self._plans.append(_Plan(verbs, times, what))

    def take(self, verb: str) -> _What | None:
        """Use up the next plan for this verb; ``None`` if there is none."""
        for plan in self._plans:
            if plan.left > 0 and fnmatchcase(verb, plan.verbs):
                plan.left -= 1
                return plan.what
        return None


class FaultPlan(Generic[_Refused, _Failure]):
    """The planned errors of calls and operations, slow operations, and removed permissions.

    ``verbs`` are patterns as in a shell.
    """

    def __init__(self) -> None:
        self._refusals = _Planned[_Refused]()
        self._lost_answers = _Planned[_Refused]()
        self._failures = _Planned[_Failure]()
        self._slow: dict[str, float] = {}
        self._denied: defaultdict[str, set[str]] = defaultdict(set)

    def add_refusal(self, verbs: str, calls: int, refused: _Refused, *, executed: bool) -> None:
        """Let the next ``calls`` matches fail, before or after each is executed."""
        (self._lost_answers if executed else self._refusals).add(verbs, calls, refused)

    def take_refusal(self, verb: str, *, executed: bool) -> _Refused | None:
        """Use up the next planned refusal for this verb; ``None`` if there is none."""
        return (self._lost_answers if executed else self._refusals).take(verb)

    def add_failure(self, verbs: str, operations: int, failure: _Failure) -> None:
        """Let the next ``operations`` matches fail."""
        self._failures.add(verbs, operations, failure)

    def take_failure(self, verb: str) -> _Failure | None:
        """Use up the next planned failure for this verb; ``None`` if there is none."""
        return self._failures.take(verb)

    def set_slowness(self, verbs: str, seconds: float) -> None:
        """Let matching operations take ``seconds`` longer from now on; 0 ends it."""
        self._slow[verbs] = seconds

    def slowness(self, verb: str) -> float:
        """The additional seconds of an operation of this verb."""
        return sum(s for pattern, s in self._slow.items() if fnmatchcase(verb, pattern))

    def set_denied(self, email: str, permission: str, denied: bool) -> None:
        """Take a permission from a principal, or give it back."""
        switch(self._denied[email], permission, denied)

    def denied_to(self, email: str) -> frozenset[str]:
        """The permissions that a principal has lost."""
        return frozenset(self._denied.get(email, ()))


class FaultControls(ABC, Generic[_Refused, _Failure]):
    """The faults of every simulated service."""

    def __init__(
        self, plan: FaultPlan[_Refused, _Failure], forget_operations: Callable[[], None]
    ) -> None:
        self.plan = plan
        self._forget_operations = forget_operations

    @abstractmethod
    def _make_refusal(self, http: int, reason: str, message: str) -> _Refused:
        """The service's error for a call; an empty ``message`` means the default."""

    def fail_next(
        self,
        verbs: str,
        calls: int = 1,
        http: int = 503,
        reason: str = "backendError",
        message: str = "",
        executed: bool = False,
    ) -> None:
        """Reject the next matching calls; 0 ends that for the same ``verbs``.

        With ``executed`` the call takes effect and only its answer is an error.
        """
        refused = self._make_refusal(http, reason, message)
        self.plan.add_refusal(verbs, calls, refused, executed=executed)

    def slow_operations(self, verbs: str, seconds: float) -> None:
        """Let matching operations take this much longer from now on; 0 ends it."""
        self.plan.set_slowness(verbs, seconds)

    def remove_permission(self, email: str, permission: str, removed: bool = True) -> None:
        """Take an IAM permission from a principal, or give it back."""
        self.plan.set_denied(email, permission, removed)

    def forget_operations(self) -> None:
        """Forget all operations that are DONE."""
        self._forget_operations()


def common_arguments(verbs: Collection[str], permissions: Collection[str]) -> dict[str, Valid]:
    """The valid arguments of the faults of every service."""
    return {
        "verbs": Valid(
            lambda pattern: matching(verbs, pattern),
            f"{', '.join(sorted(verbs))}, or a pattern of them as in *.insert",
        ),
        "permission": Valid.among(permissions),
        "email": Valid(lambda email: "@" in email, "an e-mail address"),
        "http": Valid(lambda http: 400 <= http <= 599, "an error's status, from 400 to 599"),
    }


def set_limit(limits: dict[_Key, int], key: _Key, value: int | None) -> None:
    """Set a limit; ``None`` removes it."""
    if value is None:
        limits.pop(key, None)
    else:
        limits[key] = value


def switch(items: set[str], item: str, on: bool) -> None:
    """Add an item to a set, or remove it."""
    if on:
        items.add(item)
    else:
        items.discard(item)
