"""A decision about nine times as many hosts takes nine times as many operations, not eighty-one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.unit.large_slices import CASES, Decide

SMALL, LARGE = 32, 288
SLACK = 1.2


def count_lines(decide: Decide) -> int:
    """How many lines of code run until there is a decision: time without a clock."""
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
def test_a_decision_grows_with_the_number_of_hosts_and_no_faster(
    make: Callable[[int], Decide],
) -> None:
    make(SMALL)()  # what is worked out once in a process is no part of it
    small, large = count_lines(make(SMALL)), count_lines(make(LARGE))
    assert large <= small * LARGE / SMALL * SLACK
