"""A hundred JobSets at once: how long their slices take, and what giving them costs.

TPU Provisioner, whose work this is, waits for each operation of GKE by asking every five seconds, in one
of three workers (facts of its code: ``CONCURRENCY`` 3). What it would need for slices that take as long
as these do is arithmetic, and printed beside what has been counted here.
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
from shared.base.names import JOBSET_STEPS
from tests import jobset_objects as objects
from tests.harness import Harness
from tests.stories.jobsets import JOBSETS, RUNS_ON, apply, phases, until
from tests.stories.life import HOUR, MINUTE, PrintFigure
from tests.stories.test_jobset_slices import new_harness
from tests.stories.test_node_pool_slices import new_harness as new_harness_of_pools

COUNT = 100
CALLS_EACH = 20
"""Of both steps to the API server, for a JobSet's whole life."""
CALLS_EACH_ON_GKE = 40
"""The same, where most wait for their turn."""
CALLS_A_MINUTE = 4
"""Of both steps, whatever the number of JobSets."""
GKE_CALLS_EACH = 24
"""Of both steps to GKE for a pool's whole life, where the cluster carries out five operations at once
and a hundred pools wait for their turn."""
GKE_CALLS_A_MINUTE = 2
"""Of both steps to GKE, whatever the number of JobSets: the lists of the minute."""
POLL_EVERY_S, WORKERS = 5, 3


def calls(harness: Harness) -> int:
    """What both steps have asked the API server."""
    by_user = harness.simulation.kube.calls.by_user
    return sum(by_user[identity(step.replace("_", "-")).name] for step in JOBSET_STEPS)


def begin(harness: Harness, count: int = COUNT) -> None:
    """Apply them all; their Pods run on for as long as nobody says otherwise."""
    harness.jobsets.behaviour = RUNS_ON
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
        f"{COUNT} JobSets at once: all run after {_say(took)}, all gone after {_say(whole)}"
    )
    print_figure(
        f"{COUNT} JobSets at once: {spent} calls of both steps, {allowed} allowed, none of them waits"
    )
    print_figure(
        f"{COUNT} JobSets at once: polling every {POLL_EVERY_S} s, {WORKERS} at a time: {polled} calls "
        f"for the creations alone, the last done after {_say(polled_for)}"
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
        f"{count} JobSets at once on GKE: all run after {_say(took)}, all gone {_say(released)} after "
        f"their end, {spent.total()} calls to GKE of which {spent.total() - done.total()} in vain, "
        f"{calls(harness)} to the API server"
    )
    print_figure(
        f"{count} JobSets at once on GKE: polling, {WORKERS} at a time: {_say(polled_for)}, then "
        f"{_say(polled_for_again)}, {polled + polled_again} calls"
    )
    assert {verb: done[f"nodePools.{verb}"] for verb in ("create", "update", "delete")} == {
        "create": count,
        "update": count,
        "delete": count,
    }
    absent = [one for one in harness.gke.calls.records if one.status == 404]
    assert not absent, "nothing is read that is not there"
    assert took < polled_for
    assert released < polled_for_again
    minutes = ceil((took + released) / MINUTE)
    assert spent.total() <= count * GKE_CALLS_EACH + minutes * GKE_CALLS_A_MINUTE
    assert calls(harness) <= count * CALLS_EACH_ON_GKE + minutes * CALLS_A_MINUTE


def test_ended_jobsets_lose_their_slices_while_others_wait() -> None:
    """A slice that nobody needs is paid for, and its chips may be what the others wait for."""
    harness = new_harness_of_pools(Options(pubsub=pubsub.Timings(delay_s=0.5)))
    begin(harness, 3)
    until(harness, lambda: phases(harness) == ["Running"] * 3)
    over = {*harness.gke.leftovers()}
    for number in range(3, 18):
        apply(harness, objects.small_jobset(f"train-{number}"))
    harness.run_for(MINUTE)
    for number in range(3):
        harness.simulation.admin("DELETE", f"{JOBSETS}/train-{number}")
    until(harness, lambda: over.isdisjoint(harness.gke.leftovers()), 8 * MINUTE)
    until(harness, lambda: phases(harness) == ["Running"] * 15)


def accepted(harness: Harness) -> Iterator[str]:
    """The calls that GKE has not refused."""
    return (record.verb for record in harness.gke.calls.records if record.status == 200)


def mean(verb: str) -> timedelta:
    """How long an operation of GKE takes."""
    return timedelta(seconds=sum(OPERATION_S[verb]) / 2)


def polling(count: int, each: timedelta) -> tuple[int, timedelta]:
    """Calls, and when the last is done, where workers wait for operations that take so long."""
    polls = ceil(each / timedelta(seconds=POLL_EVERY_S)) + 1
    get_and_ask = 2
    return count * (polls + get_and_ask), ceil(count / WORKERS) * each


def _say(duration: timedelta) -> str:
    return f"{round(duration / MINUTE)} minutes"
