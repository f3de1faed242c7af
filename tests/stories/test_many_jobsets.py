"""A hundred JobSets at once: how long their slices take, and what giving them costs.

TPU Provisioner, whose work this is, waits for each operation of GKE by asking every five seconds, in one
of three workers (facts of its code: ``CONCURRENCY`` 3). What it would need for slices that take as long
as these do is arithmetic, and printed beside what has been counted here.
"""

from __future__ import annotations

from datetime import timedelta
from math import ceil
from typing import Any

import pytest

from local.jobsets import Habits
from local.world import identity
from shared.names import JOBSET_STEPS
from tests import jobset_objects as objects
from tests.harness import Harness
from tests.stories.life import HOUR, MINUTE, Say
from tests.stories.test_jobset_slices import JOBSETS, PODS, RUNS_ON, until, world
from tests.stories.test_node_pool_slices import world as world_of_pools

COUNT = 100
CALLS_EACH = 20
"""Of both steps to the API server, for a JobSet's whole life."""
CALLS_A_MINUTE = 4
"""Of both steps, whatever the number of JobSets."""
GKE_CALLS_EACH = 8
"""Of both steps to GKE for a pool, where the cluster carries out five operations at once."""
POLL_EVERY_S, WORKERS = 5, 3


def small(name: str) -> dict[str, Any]:
    """A JobSet with one Job of one host."""
    job = objects.jobset()["spec"]["replicatedJobs"][0]
    spec = job["template"]["spec"]
    spec["template"]["spec"]["nodeSelector"] = objects.selector(topology="2x2")
    spec |= {"parallelism": 1, "completions": 1}
    return objects.jobset(metadata={"name": name}, spec={"replicatedJobs": [job]})


def calls(harness: Harness) -> int:
    """What both steps have asked the API server."""
    by_user = harness.world.kube.calls.by_user
    return sum(by_user[identity(step.replace("_", "-")).name] for step in JOBSET_STEPS)


def phases(harness: Harness) -> list[str]:
    return [pod["status"]["phase"] for pod in harness.world.admin("GET", PODS)["items"]]


def begin(harness: Harness) -> None:
    """Apply them all; their Pods run on for as long as nobody says otherwise."""
    harness.jobsets.habits = RUNS_ON
    for number in range(COUNT):
        made = harness.world.admin("POST", JOBSETS, small(f"train-{number}"))
        assert made["kind"] == "JobSet", made


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_jobsets_at_once_get_their_slices_together_and_at_few_calls(say: Say) -> None:
    harness = world()
    began = harness.clock.now()
    begin(harness)
    until(harness, lambda: phases(harness) == ["Running"] * COUNT)
    took = harness.clock.now() - began
    harness.jobsets.habits = Habits(run_s=0)
    until(harness, lambda: harness.leftovers() == [], HOUR)
    whole = harness.clock.now() - began
    spent, allowed = calls(harness), COUNT * CALLS_EACH + CALLS_A_MINUTE * ceil(whole / MINUTE)
    polled, polled_for = polling(took)
    say(f"{COUNT} JobSets at once: all run after {_say(took)}, all gone after {_say(whole)}")
    say(
        f"{COUNT} JobSets at once: {spent} calls of both steps, {allowed} allowed, none of them waits"
    )
    say(
        f"{COUNT} JobSets at once: polling every {POLL_EVERY_S} s, {WORKERS} at a time: {polled} calls "
        f"for the creations alone, the last done after {_say(polled_for)}"
    )
    assert spent <= allowed
    assert took < polled_for / 10


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_jobsets_at_once_get_their_pools_as_fast_as_gke_makes_them(say: Say) -> None:
    harness = world_of_pools()
    began = harness.clock.now()
    begin(harness)
    until(harness, lambda: phases(harness) == ["Running"] * COUNT, 3 * HOUR)
    took = harness.clock.now() - began
    spent = harness.gke.calls.counts()
    made = [record.verb for record in harness.gke.calls.records if record.status == 200]
    say(f"{COUNT} JobSets at once on GKE: all run after {_say(took)}, {dict(spent)}")
    assert made.count("nodePools.create") == COUNT
    assert spent.total() <= COUNT * GKE_CALLS_EACH + ceil(took / MINUTE) * 2


def polling(each: timedelta) -> tuple[int, timedelta]:
    """Calls, and when the last slice is there, where workers wait for slices that take so long."""
    polls = ceil(each / timedelta(seconds=POLL_EVERY_S)) + 1
    get_and_create = 2
    return COUNT * (polls + get_and_create), ceil(COUNT / WORKERS) * each


def _say(duration: timedelta) -> str:
    return f"{round(duration / MINUTE)} minutes"
