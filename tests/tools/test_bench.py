"""`make bench` fails if reviews are slow."""

from __future__ import annotations

import pytest

from tools.bench import find_slowness


@pytest.mark.parametrize(
    "took, message",
    [
        ([0.01] * 299 + [9.0], ""),
        ([0.01] * 297 + [0.05] * 3, ""),
        ([0.0612] * 3 + [0.01] * 297, "too slow: p99 of a review is 61.2 ms; at most 50 ms"),
    ],
    ids=["one of 300 is slow", "50 ms", "one of 100 is slow"],
)
def test_reviews_that_are_too_slow_are_reported(took: list[float], message: str) -> None:
    assert find_slowness(took) == message
