"""A record of the calls that arrived, for budgets and for tests of who did what."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

_KEPT = 100_000


@dataclass(frozen=True)
class Call:
    """One HTTP call and the code that it was answered with."""

    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int


class CallLog:
    """The calls, oldest first (the last hundred thousand), and counts that forget nothing."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque(maxlen=_KEPT)
        self.by_user: Counter[str] = Counter()

    def add(self, call: Call) -> None:
        """Note a call."""
        self._calls.append(call)
        self.by_user[call.user] += 1

    def clear(self) -> None:
        """Begin anew."""
        self._calls.clear()
        self.by_user.clear()

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    def __len__(self) -> int:
        return self.by_user.total()

    def count(self, **wanted: str | int) -> int:
        """How many of the kept calls have these values: ``count(user="relay", verb="list")``."""
        return sum(
            1
            for call in self._calls
            if all(getattr(call, name) == value for name, value in wanted.items())
        )
