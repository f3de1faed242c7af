"""The cost of a decision grows linearly with the number of hosts, not with its square."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.support.large_slices import CASES, Decide

SMALL, LARGE = 32, 288
SLACK = 1.2


def count_lines(decide: Decide) -> int:
    """Return the number of lines of code that a decision executes, a measure of time without a clock."""
    lines = 0

    def trace(_: FrameType, event: str, __: Any) -> Callable[..., Any]:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        decide()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in CASES.items()])
def test_the_cost_of_a_decision_grows_at_most_linearly_with_the_hosts(
    make: Callable[[int], Decide],
) -> None:
    make(SMALL)()  # Fill the caches: a value that a process computes only once is not counted.
    small, large = count_lines(make(SMALL)), count_lines(make(LARGE))
    assert large <= small * LARGE / SMALL * SLACK
