"""The delay after a number of failures."""

from __future__ import annotations

import random

import pytest

from relay.watching.backoff import Backoff

DELAYS: dict[str, tuple[int, float]] = {
    "none": (0, 0),
    "one": (1, 0.5),
    "two": (2, 1),
    "six": (6, 16),
    "seven": (7, 30),
    "a million": (1_000_000, 30),
}


@pytest.mark.parametrize("failures, longest_s", DELAYS.values(), ids=DELAYS.keys())
def test_a_delay_doubles_up_to_the_longest_and_is_reduced_by_at_most_half(
    failures: int, longest_s: float
) -> None:
    backoff = Backoff(first_s=0.5, longest_s=30, rng=random.Random(1))
    delays = [backoff.delay_s(failures) for _ in range(200)]
    assert longest_s / 2 <= min(delays)
    assert max(delays) <= longest_s
    assert max(delays) >= 0.95 * longest_s
