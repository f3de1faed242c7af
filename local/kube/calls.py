"""A log of the received calls, for budgets and tests."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

_MAX_CALLS = 100_000


@dataclass(frozen=True)
class Call:
    """One HTTP call and the code of its response."""

    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int


class CallLog:
    """The latest calls (at most `_MAX_CALLS`), oldest first, and counts of all calls."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque(maxlen=_MAX_CALLS)
        self.by_user: Counter[str] = Counter()

    def add(self, call: Call) -> None:
        """Record a call."""
        self._calls.append(call)
        self.by_user[call.user] += 1

    def clear(self) -> None:
        """Remove all calls and counts."""
        self._calls.clear()
        self.by_user.clear()

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    def __len__(self) -> int:
        return self.by_user.total()

    def count(self, **wanted: str | int) -> int:
        """Count the recorded calls with these values: ``count(user="relay", verb="list")``."""
        return sum(
            1
            for call in self._calls
            if all(getattr(call, name) == value for name, value in wanted.items())
        )
