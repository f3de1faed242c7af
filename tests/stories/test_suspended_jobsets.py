"""JobSets that are suspended by users or by a queue get no slice, and their slices are released."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from local.jobsets import Controller
from tests.stories import jobset_slices, node_pool_slices
from tests.stories.helpers import MINUTE
from tests.stories.jobsets import (
    JOBSETS,
    MERGE,
    OPTIONS,
    RUNS_FOREVER,
    SECOND,
    apply,
    pods,
    reported_events,
    until,
)
from tests.support import jobset_objects as objects
from tests.support.harness import Harness
from tests.support.jobset_objects import JOBSET

MODULE = Path(__file__).parents[2] / "infra" / "terraform"
ZONE = node_pool_slices.ZONE


def default_minutes() -> int:
    """Read the default time, in minutes, after which the slice of a suspended JobSet is released."""
    text = (MODULE / "variables.tf").read_text()
    found = re.search(
        r'variable "jobset_suspended_release_minutes" {.*?default += ([0-9]+)', text, re.S
    )
    assert found
    return int(found[1])


def harness_of_groups() -> Harness:
    return jobset_slices.new_harness()


HARNESSES: dict[str, Callable[[], Harness]] = {
    "node pools": node_pool_slices.new_harness,
    "TPUNodeGroups": harness_of_groups,
}


def new_harness_with_one_host(kind: str) -> Harness:
    """A default installation in a zone with one host."""
    harness = HARNESSES[kind]()
    harness.configure(suspended_release=timedelta(minutes=default_minutes()))
    harness.jobsets.behaviour = RUNS_FOREVER
    if kind == "node pools":
        harness.gke.faults.set_capacity(ZONE, "ct6e-standard", 1)
    else:
        harness.simulation.gce.faults.set_capacity(ZONE, "ct6e", 1)
    return harness


def suspend(harness: Harness, name: str, *, is_suspended: bool) -> None:
    change = {"spec": {"suspend": is_suspended}}
    answer = harness.simulation.admin("PATCH", f"{JOBSETS}/{name}", change, **MERGE)
    assert answer["kind"] == "JobSet", answer


def small(name: str, *, is_suspended: bool) -> dict[str, Any]:
    jobset = objects.small_jobset(name)
    jobset["spec"]["suspend"] = is_suspended
    return jobset


def running(harness: Harness) -> set[str]:
    """The JobSets that have a running Pod."""
    return {
        pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"]
        for pod in pods(harness)
        if pod["status"]["phase"] == "Running"
    }


@pytest.mark.parametrize("kind", HARNESSES)
def test_a_jobset_that_a_queue_prefers_runs_on_the_only_chips_and_the_other_after_it(
    kind: str,
) -> None:
    """As with Kueue: the JobSet of low priority is preempted and suspended, the other one is
    admitted."""
    harness = new_harness_with_one_host(kind)
    apply(harness, small("low", is_suspended=False))
    until(harness, lambda: running(harness) == {"low"})
    apply(harness, small("high", is_suspended=True))
    harness.run_for(MINUTE)
    suspend(harness, "low", is_suspended=True)
    suspend(harness, "high", is_suspended=False)
    until(harness, lambda: running(harness) == {"high"}, 30 * MINUTE)
    (why,) = [
        line
        for line in reported_events(harness)
        if re.match("JobSet [A-Za-z]+DeletionStarted", line)
    ]
    assert re.search(r": JobSet low has been suspended for [0-9]+ minutes$", why)

    harness.simulation.admin("DELETE", f"{JOBSETS}/high")
    suspend(harness, "low", is_suspended=False)
    until(harness, lambda: running(harness) == {"low"}, 30 * MINUTE)
    harness.simulation.admin("DELETE", f"{JOBSETS}/low")
    until(harness, lambda: harness.leftovers() == [])


@pytest.mark.parametrize("kind", HARNESSES)
def test_a_jobset_that_is_suspended_for_a_short_time_keeps_its_slice(kind: str) -> None:
    harness = new_harness_with_one_host(kind)
    apply(harness, small("low", is_suspended=False))
    until(harness, lambda: running(harness) == {"low"})
    before = harness.operations.copy()
    suspend(harness, "low", is_suspended=True)
    harness.run_for((default_minutes() - 1) * MINUTE)
    suspend(harness, "low", is_suspended=False)
    until(harness, lambda: running(harness) == {"low"}, MINUTE)
    harness.run_for(10 * MINUTE)
    assert running(harness) == {"low"}
    assert harness.operations == before


@pytest.mark.parametrize("kind", HARNESSES)
def test_a_jobset_that_is_suspended_while_its_pod_still_waits_gets_no_slice(kind: str) -> None:
    harness = HARNESSES[kind]()
    harness.jobsets.behaviour = RUNS_FOREVER
    pause(harness, "true")
    apply(harness, small(JOBSET, is_suspended=False))
    until(harness, lambda: any("SlicePaused" in line for line in reported_events(harness)))
    controllers = {Controller.JOBSET_CONTROLLER, Controller.JOB_CONTROLLER}
    harness.jobsets.controllers -= controllers
    suspend(harness, JOBSET, is_suspended=True)
    pause(harness, None)
    harness.run_for(10 * MINUTE)
    assert len(pods(harness)) == 1
    assert harness.leftovers() == []

    harness.jobsets.controllers |= controllers
    suspend(harness, JOBSET, is_suspended=False)
    until(harness, lambda: running(harness) == {JOBSET})


def pause(harness: Harness, value: str | None) -> None:
    harness.simulation.admin("PATCH", f"{OPTIONS}/jobsets", {"data": {"paused": value}}, **MERGE)
    harness.run_for(SECOND)
