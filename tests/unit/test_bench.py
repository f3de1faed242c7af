"""What `make bench` fails for."""

from __future__ import annotations

import pytest

from tests.bench import find_slowness


@pytest.mark.parametrize(
    "took, said",
    [
        ([0.01] * 299 + [9.0], ""),
        ([0.01] * 297 + [0.05] * 3, ""),
        ([0.0612] * 3 + [0.01] * 297, "too slow: p99 of a review is 61.2 ms; at most 50 ms"),
    ],
    ids=["one is slow", "just so", "one in a hundred is slow"],
)
def test_slow_reviews_are_named(took: list[float], said: str) -> None:
    assert find_slowness(took) == said
