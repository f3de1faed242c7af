"""A hundred JobSets at the same time: how long their slices take, and how many calls.

TPU Provisioner polls each operation of GKE every five seconds, with three workers (``CONCURRENCY`` 3 in
its code). Its time and calls for slices that take as long are computed and printed for comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from math import ceil

import pytest

from local import pubsub
from local.cloud.simulation import Options, identity
from local.gke.timings import OPERATION_S
from local.jobsets import PodBehaviour
from shared.triggers.routes import SLICE_STEPS
from tests.stories.helpers import HOUR, MINUTE, PrintFigure
from tests.stories.jobset_slices import new_harness
from tests.stories.jobsets import JOBSETS, RUNS_FOREVER, apply, phases, until
from tests.stories.node_pool_slices import new_harness as new_harness_of_pools
from tests.support import jobset_objects as objects
from tests.support.harness import Harness

COUNT = 100
CALLS_EACH = 20
"""Calls of both steps to the API server for the lifecycle of one JobSet."""
CALLS_EACH_ON_GKE = 40
"""The same on GKE, where most JobSets wait for a slot."""
CALLS_A_MINUTE = 4
"""Calls of both steps to the API server per minute, for any number of JobSets."""
GKE_CALLS_EACH = 9
"""Calls of both steps to GKE for the lifecycle of one pool, if the cluster executes five operations at
the same time and a hundred pools wait for a slot."""
GKE_CALLS_A_MINUTE = 2
"""Calls of both steps to GKE per minute, for any number of JobSets: the lists of the sweep."""
POLL_EVERY_S, WORKERS = 5, 3


def calls(harness: Harness) -> int:
    """The number of calls of both steps to the API server."""
    by_user = harness.simulation.kube.calls.by_user
    return sum(by_user[identity(step.replace("_", "-")).name] for step in SLICE_STEPS)


def begin(harness: Harness, count: int = COUNT) -> None:
    """Apply all JobSets; their Pods run until the test ends them."""
    harness.jobsets.behaviour = RUNS_FOREVER
    for number in range(count):
        apply(harness, objects.small_jobset(f"train-{number}"))


@pytest.mark.slow
def test_a_hundred_jobsets_get_their_slices_in_parallel_with_few_calls(
    print_figure: PrintFigure,
) -> None:
    harness = new_harness()
    began = harness.clock.now()
    begin(harness)
    until(harness, lambda: phases(harness) == ["Running"] * COUNT)
    took = harness.clock.now() - began
    harness.jobsets.behaviour = PodBehaviour(run_s=0)
    until(harness, lambda: harness.leftovers() == [], HOUR)
    whole = harness.clock.now() - began
    spent, allowed = calls(harness), COUNT * CALLS_EACH + CALLS_A_MINUTE * ceil(whole / MINUTE)
    polled, polled_for = polling(COUNT, took)
    print_figure(
        f"{COUNT} JobSets: all running after {_text(took)}, all slices deleted after {_text(whole)}"
    )
    print_figure(
        f"{COUNT} JobSets: {spent} of {allowed} Kubernetes calls by both steps, none of them polls"
    )
    print_figure(
        f"{COUNT} JobSets: with polling every {POLL_EVERY_S} s by {WORKERS} workers: {polled} calls for "
        f"the creations only, the last one complete after {_text(polled_for)}"
    )
    assert spent <= allowed
    assert took < polled_for / 10


@pytest.mark.parametrize(
    "count",
    [20, pytest.param(COUNT, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_many_jobsets_get_their_pools_and_lose_them_as_fast_as_gke_changes_them(
    count: int, print_figure: PrintFigure
) -> None:
    harness = new_harness_of_pools()
    began = harness.clock.now()
    begin(harness, count)
    until(harness, lambda: phases(harness) == ["Running"] * count, 3 * HOUR)
    took = harness.clock.now() - began
    harness.jobsets.behaviour = PodBehaviour(run_s=0)
    until(harness, lambda: harness.gke.leftovers() == [], 3 * HOUR)
    released = harness.clock.now() - began - took
    harness.run_for(5 * MINUTE)
    assert harness.leftovers() == []
    spent, done = harness.gke.calls.counts(), Counter(accepted(harness))
    polled, polled_for = polling(count, mean("nodePools.create"))
    polled_again, polled_for_again = polling(count, mean("nodePools.delete"))
    print_figure(
        f"{count} JobSets on GKE: all running after {_text(took)}, all pools deleted {_text(released)} "
        f"after their end; {spent.total()} calls to GKE, of which {spent.total() - done.total()} were "
        f"rejected; {calls(harness)} Kubernetes calls"
    )
    print_figure(
        f"{count} JobSets on GKE: with polling by {WORKERS} workers: {_text(polled_for)} for the "
        f"creations, {_text(polled_for_again)} for the deletions, {polled + polled_again} calls"
    )
    assert {verb: done[f"nodePools.{verb}"] for verb in ("create", "update", "delete")} == {
        "create": count,
        "update": 0,
        "delete": count,
    }
    absent = [one for one in harness.gke.calls.records if one.status == 404]
    assert not absent, "a step read a pool that does not exist"
    assert took < polled_for
    assert released <= polled_for_again
    minutes = ceil((took + released) / MINUTE)
    assert spent.total() <= count * GKE_CALLS_EACH + minutes * GKE_CALLS_A_MINUTE
    assert calls(harness) <= count * CALLS_EACH_ON_GKE + minutes * CALLS_A_MINUTE


def test_ended_jobsets_lose_their_slices_while_others_wait() -> None:
    """An unneeded slice is billed, and other JobSets may wait for its chips."""
    harness = new_harness_of_pools(Options(pubsub=pubsub.Timings(delay_s=0.5)))
    begin(harness, 3)
    until(harness, lambda: phases(harness) == ["Running"] * 3)
    ended = {*harness.gke.leftovers()}
    for number in range(3, 18):
        apply(harness, objects.small_jobset(f"train-{number}"))
    harness.run_for(MINUTE)
    for number in range(3):
        harness.simulation.admin("DELETE", f"{JOBSETS}/train-{number}")
    until(harness, lambda: ended.isdisjoint(harness.gke.leftovers()), 8 * MINUTE)
    until(harness, lambda: phases(harness) == ["Running"] * 15)


def accepted(harness: Harness) -> Iterator[str]:
    """The calls that GKE accepted."""
    return (record.verb for record in harness.gke.calls.records if record.status == 200)


def mean(verb: str) -> timedelta:
    """The mean duration of an operation of GKE."""
    return timedelta(seconds=sum(OPERATION_S[verb]) / 2)


def polling(count: int, each: timedelta) -> tuple[int, timedelta]:
    """The number of calls, and the time until the last operation is complete, if workers poll operations
    of this duration."""
    polls = ceil(each / timedelta(seconds=POLL_EVERY_S)) + 1
    read_and_request = 2
    return count * (polls + read_and_request), ceil(count / WORKERS) * each


def _text(duration: timedelta) -> str:
    return f"{round(duration / MINUTE)} minutes"
