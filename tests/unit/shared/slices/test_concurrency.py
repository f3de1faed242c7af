"""The concurrency limit: how many slots are free, and which waiting objects get them."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from shared.base import backoff
from shared.slices import concurrency
from shared.slices.provider import Slice, SliceState
from shared.slices.units import Unit
from tests.support.builders import NOW

MINUTE = timedelta(minutes=1)


def slices(*states: SliceState) -> list[Slice]:
    owner = Unit("JobSet", "default", "train", "job")
    return [Slice(f"slice-{index}", owner, "", state) for index, state in enumerate(states)]


@pytest.mark.parametrize(
    "states, slots",
    [
        ([], 5),
        ([SliceState.READY, SliceState.FAILED], 5),
        ([SliceState.PROVISIONING, SliceState.DELETING], 3),
        ([SliceState.PROVISIONING] * 5, concurrency.MIN_SELECTED),
        ([SliceState.DELETING] * 100, concurrency.MIN_SELECTED),
    ],
)
def test_each_slice_in_progress_takes_a_slot_and_a_minimum_stays_free(
    states: list[SliceState], slots: int
) -> None:
    assert concurrency.count_slots(5, slices(*states)) == slots
    at_an_end = 1 if slots == concurrency.MIN_SELECTED else slots
    assert concurrency.count_slots(5, slices(*states), least=1) == at_an_end


def select(waiting: list[str], slots: int, minute: int = 0) -> list[str]:
    return concurrency.select(waiting, slots, NOW + minute * MINUTE, lambda one: ("default", one))


WAITING = [f"pod-{number:02}" for number in range(20)]


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_half_of_the_slots_go_to_the_objects_that_have_waited_longest(slots: int) -> None:
    half, more = slots // 2, (slots + 1) // 2
    minutes = [select(WAITING, slots, minute) for minute in range(20)]
    assert {len(set(selected)) for selected in minutes} == {slots}
    assert all(selected[:half] == WAITING[:half] for selected in minutes)
    has_more = {selected[:more] == WAITING[:more] for selected in minutes}
    assert has_more == ({True, False} if slots % 2 else {True}), "an odd slot is for either half"


@pytest.mark.parametrize("minute", range(10))
def test_the_other_slots_go_to_the_namespaces_in_turn(minute: int) -> None:
    waiting = [f"{namespace}/{number:02}" for namespace in "abc" for number in range(20)]
    now = NOW + minute * MINUTE
    selected = concurrency.select(waiting, 6, now, lambda one: (one[0], one))
    assert selected[:3] == waiting[:3]
    assert {one[0] for one in selected[3:]} == {*"abc"}


def test_all_waiting_objects_are_selected_if_there_are_enough_slots() -> None:
    assert select([], 5) == []
    assert sorted(select(WAITING[:3], 5)) == WAITING[:3]


def test_an_object_is_selected_even_if_the_actions_for_all_others_fail() -> None:
    """All other objects have waited longer, and each action for them fails."""
    waits = [
        next(minute for minute in range(1000) if WAITING[-1] in select(WAITING, 2, minute + start))
        for start in range(0, 10_000, 1000)
    ]
    assert max(waits) < 150


def list_due_minutes(lag: float, until: int = 600) -> list[int]:
    return [minute for minute in range(until) if backoff.is_due(NOW, NOW + minute * MINUTE, lag)]


def test_objects_that_began_to_wait_together_are_observed_in_different_minutes() -> None:
    names = [f"pod-{number}" for number in range(100)]
    hour = [list_due_minutes(concurrency.hash_to_unit(name), 120) for name in names]
    assert all(one[:8] == list(range(1, 9)) for one in hour)
    most = max(sum(minute in one for one in hour) for minute in range(60, 120))
    assert most < 30


@pytest.mark.parametrize("lag", [0, 0.25, 0.5, 0.999])
def test_observations_with_a_lag_are_1_to_30_minutes_apart(lag: float) -> None:
    found = list_due_minutes(lag)
    gaps = [later - earlier for earlier, later in pairwise(found)]
    assert gaps[:6] == [1] * 6
    limits = (max(1, minute / (4 if minute < 15 else 1.5)) for minute in found)
    assert all(gap <= limit for gap, limit in zip(gaps, limits, strict=False))
    assert gaps[-1] == 30
