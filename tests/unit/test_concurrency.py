"""Whose turn it is, where only so many can be served at a time."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from shared.base import backoff
from shared.slices import concurrency
from shared.slices.provider import Owner, Slice, SliceState
from tests.unit.builders import NOW

MINUTE = timedelta(minutes=1)


def slices(*states: SliceState) -> list[Slice]:
    owner = Owner("default", "train", "job")
    return [Slice(f"slice-{index}", owner, "", state) for index, state in enumerate(states)]


@pytest.mark.parametrize(
    "states, places",
    [
        ([], 5),
        ([SliceState.READY, SliceState.FAILED], 5),
        ([SliceState.PROVISIONING, SliceState.DELETING], 3),
        ([SliceState.PROVISIONING] * 5, concurrency.FEWEST),
        ([SliceState.DELETING] * 100, concurrency.FEWEST),
    ],
)
def test_for_how_many_there_is_room(states: list[SliceState], places: int) -> None:
    assert concurrency.count_slots(5, slices(*states)) == places


def select(waiting: list[str], places: int, minute: int = 0) -> list[str]:
    return concurrency.select(waiting, places, NOW + minute * MINUTE, str)


WAITING = [f"pod-{number:02}" for number in range(20)]


@pytest.mark.parametrize("places", [1, 2, 3, 5])
def test_half_of_the_places_are_for_those_who_have_waited_longest(places: int) -> None:
    chosen = select(WAITING, places)
    assert len(set(chosen)) == places
    assert chosen[: (places + 1) // 2] == WAITING[: (places + 1) // 2]


def test_nobody_waits_for_more_than_there_are() -> None:
    assert select([], 5) == []
    assert sorted(select(WAITING[:3], 5)) == WAITING[:3]


def test_nobody_waits_for_ever_behind_those_who_are_always_refused() -> None:
    """All but the last are refused at every turn, and have waited longer."""
    turns_until_it = [
        next(minute for minute in range(1000) if WAITING[-1] in select(WAITING, 2, minute + start))
        for start in range(0, 10_000, 1000)
    ]
    assert max(turns_until_it) < 150


def looks(lag: float, until: int = 600) -> list[int]:
    return [minute for minute in range(until) if backoff.is_due(NOW, NOW + minute * MINUTE, lag)]


def test_who_began_to_wait_together_is_looked_at_in_minutes_of_their_own() -> None:
    names = [f"pod-{number}" for number in range(100)]
    hour = [looks(concurrency.hash_to_unit(name), 120) for name in names]
    assert all(one[:8] == list(range(1, 9)) for one in hour)
    most = max(sum(minute in one for one in hour) for minute in range(60, 120))
    assert most < 30


@pytest.mark.parametrize("lag", [0, 0.25, 0.5, 0.999])
def test_a_look_that_lags_has_gaps_of_a_minute_to_half_an_hour_all_the_same(lag: float) -> None:
    found = looks(lag)
    gaps = [later - earlier for earlier, later in pairwise(found)]
    assert gaps[:6] == [1] * 6
    assert all(gap <= max(1, minute / 4) for gap, minute in zip(gaps, found, strict=False))
    assert gaps[-1] == 30
