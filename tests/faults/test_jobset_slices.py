"""A step of JobSets dies before and after each of its calls; the slice's life goes as if it had not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

import pytest

from shared.names import JOBSET_STEPS
from tests.harness import Death, Harness
from tests.stories import test_jobset_slices as stories
from tests.stories.life import MINUTE

SHARDS = 6
LISTS = (
    "GET /api/v1/pods",
    "GET /apis/tpu.google.com/v1alpha1/tpunodegroups",
    "GET /apis/jobset.x-k8s.io/v1alpha2/jobsets",
)
"""What the minute costs, again and again: it only reads, and is not died at."""


@dataclass
class Point:
    """Where a step dies: at its ``index``-th call of the whole life, before or after it."""

    index: int
    moment: str
    is_reached: bool = False


@dataclass
class Outcome:
    """What was made and deleted, what is left, and the calls of the steps of JobSets."""

    made: Counter[str]
    leftovers: list[str]
    calls: list[str]


def live(point: Point | None = None) -> Outcome:
    """A JobSet gets its slice, is deleted and made again at once, runs, ends, and its slice goes."""
    harness = stories.world()
    harness.jobsets.habits = stories.RUNS_ON
    calls: list[str] = []

    def before(step: str, call: str) -> None:
        if step in JOBSET_STEPS and call.partition("?")[0] not in LISTS:
            calls.append(f"{step}: {call}")
            die_at("before")

    def after(step: str, call: str) -> None:
        if step in JOBSET_STEPS and call.partition("?")[0] not in LISTS:
            die_at("after")

    def die_at(moment: str) -> None:
        if point and not point.is_reached and (len(calls), moment) == (point.index, point.moment):
            point.is_reached = True
            raise Death

    harness.hooks.before, harness.hooks.after = before, after
    play(harness)
    harness.run_for(10 * MINUTE)
    return Outcome(harness.made, harness.leftovers(), calls)


def play(harness: Harness) -> None:
    stories.post(harness)
    stories.until_running(harness)
    stories.delete(harness)
    harness.run_for(timedelta(seconds=5))
    stories.post(harness)
    harness.run_for(5 * MINUTE)
    stories.until_running(harness)
    stories.delete(harness)
    stories.until_gone(harness)


@pytest.fixture(scope="module")
def undisturbed() -> Outcome:
    return live()


def test_the_life_leaves_nothing_behind(undisturbed: Outcome) -> None:
    assert undisturbed.leftovers == []
    assert undisturbed.made["instanceGroupManagers.insert"] == 1
    assert len(undisturbed.calls) > 20


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_death_changes_nothing(undisturbed: Outcome, shard: int) -> None:
    for index in range(1 + shard, len(undisturbed.calls) + 1, SHARDS):
        for moment in ("before", "after"):
            point = Point(index, moment)
            outcome = live(point)
            where = f"{moment} {outcome.calls[index - 1]}"
            assert point.is_reached
            assert (outcome.made, outcome.leftovers) == (undisturbed.made, []), where
