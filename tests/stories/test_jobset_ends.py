"""The slice of a Job is released after the end of the Job or of its JobSet, when no Pod that may still
work runs on it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from local.jobsets import PodBehaviour
from tests.stories import jobset_slices, node_pool_slices
from tests.stories.helpers import HOUR, MINUTE
from tests.stories.jobsets import (
    JOBSETS,
    MERGE,
    PODS,
    RUNS_FOREVER,
    SECOND,
    apply,
    is_first_attempt,
    pods,
    reported_events,
    until,
)
from tests.support import jobset_objects as objects
from tests.support.harness import Harness
from tests.support.jobset_objects import JOBSET, NAMESPACE

KINDS: dict[str, Callable[[], Harness]] = {
    "TPUNodeGroups": jobset_slices.new_harness,
    "node pools": node_pool_slices.new_harness,
}
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
HANGS = PodBehaviour(ends=lambda _: "", hangs=lambda _: True)
"""Pods run until their Nodes are deleted."""
FOREGROUND = {"propagationPolicy": "Foreground"}
GRACE = timedelta(seconds=30)


def running(kind: str, behaviour: PodBehaviour, replicas: int = 1, **change: Any) -> Harness:
    """A simulation in which a JobSet runs with Jobs of one host."""
    harness = KINDS[kind]()
    harness.configure(suspended_release=MINUTE)
    harness.jobsets.behaviour = behaviour
    jobset = objects.small_jobset()
    jobset["spec"]["replicatedJobs"][0]["replicas"] = replicas
    jobset["spec"] |= change.get("spec", {})
    jobset["metadata"] |= change.get("metadata", {})
    apply(harness, jobset)
    until(harness, lambda: len(running_jobs(harness)) == replicas)
    return harness


def running_jobs(harness: Harness) -> list[str]:
    return sorted(
        pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
        for pod in pods(harness)
        if pod["status"]["phase"] == "Running"
    )


def delete(harness: Harness, options: dict[str, Any]) -> None:
    harness.simulation.admin("DELETE", f"{JOBSETS}/{JOBSET}", options)


def slices(harness: Harness) -> set[str]:
    """The slices, each with the uid of one of its Nodes: another one is another slice."""
    nodes = harness.simulation.admin("GET", "/api/v1/nodes")["items"]
    label = "cloud.google.com/gke-nodepool"
    return {f"{one['metadata']['labels'][label]} {one['metadata']['uid']}" for one in nodes}


def in_use(harness: Harness) -> list[str]:
    return [line for line in reported_events(harness) if "InUse: " in line]


def suspend(harness: Harness) -> None:
    harness.simulation.admin("PATCH", f"{JOBSETS}/{JOBSET}", {"spec": {"suspend": True}}, **MERGE)


def end_as_failed(harness: Harness) -> None:
    """Write the end of a JobSet whose failure policy deletes no Pods."""
    failed = {"type": "Failed", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    change = {"status": {"terminalState": "Failed", "conditions": [failed]}}
    harness.simulation.admin("PATCH", f"{JOBSETS}/{JOBSET}/status", change, **MERGE)


ENDS: dict[str, Callable[[Harness], None]] = {
    "deleted in the foreground": lambda harness: delete(harness, FOREGROUND),
    "deleted in the background": lambda harness: delete(harness, {}),
    "suspended": suspend,
    "failed": end_as_failed,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ENDS)
def test_a_slice_whose_pod_does_not_end_is_released_ten_minutes_after_the_grace_period(
    kind: str, end: str
) -> None:
    harness = running(kind, HANGS)
    ENDS[end](harness)
    overdue = harness.clock.now() + GRACE + 10 * MINUTE
    until(harness, lambda: in_use(harness) != [], 15 * MINUTE)
    (line,) = in_use(harness)
    assert line.endswith(
        f"because Pods of Job {NAMESPACE}/{FIRST} run on it: it is deleted when they have ended, at the "
        "latest ten minutes after the grace period of their deletion"
    )
    harness.run_for(overdue - harness.clock.now() - 10 * SECOND)
    assert running_jobs(harness)
    until(harness, lambda: harness.leftovers() == [], 20 * MINUTE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_pods_of_a_deleted_jobset_that_a_finalizer_holds_keep_their_slice(kind: str) -> None:
    harness = running(kind, RUNS_FOREVER, metadata={"finalizers": ["example.com/hold"]})
    before = slices(harness)
    delete(harness, {"propagationPolicy": "Background"})
    harness.run_for(2 * HOUR)
    assert running_jobs(harness)
    assert slices(harness) == before
    assert len(in_use(harness)) == 1
    change = {"metadata": {"finalizers": None}}
    harness.simulation.admin("PATCH", f"{JOBSETS}/{JOBSET}", change, **MERGE)
    until(harness, lambda: harness.leftovers() == [], 15 * MINUTE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_jobset_deleted_in_the_foreground_and_applied_again_keeps_its_slice(kind: str) -> None:
    """Its Pods need their whole grace period to end."""
    harness = running(kind, PodBehaviour(ends=lambda _: "", stop_s=30))
    before = slices(harness)
    delete(harness, FOREGROUND)
    until_gone = harness.clock.now() + 40 * SECOND
    while harness.simulation.admin("GET", f"{JOBSETS}/{JOBSET}")["kind"] == "JobSet":
        assert harness.clock.now() < until_gone
        harness.run_for(SECOND)
    harness.run_for(10 * SECOND)
    apply(harness, objects.small_jobset())
    harness.run_for(30 * MINUTE)
    assert running_jobs(harness)
    assert slices(harness) == before
    assert in_use(harness) == []


FIRST, SECOND_JOB = f"{JOBSET}-workers-0", f"{JOBSET}-workers-1"


def is_of_first_job(pod: dict[str, Any]) -> bool:
    return bool(pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] == FIRST)


FIRST_COMPLETES = PodBehaviour(ends=lambda pod: "Succeeded" if is_of_first_job(pod) else "")


@pytest.mark.parametrize("kind", KINDS)
def test_the_slice_of_a_completed_job_is_released_while_the_others_run(kind: str) -> None:
    harness = running(kind, FIRST_COMPLETES, replicas=2)
    before = slices(harness)
    until(harness, lambda: running_jobs(harness) == [SECOND_JOB])
    until(harness, lambda: len(slices(harness)) == 1, 20 * MINUTE)
    assert slices(harness) < before
    (line,) = [line for line in reported_events(harness) if "DeletionStarted: " in line]
    assert line.endswith(f": Job {FIRST} of JobSet {JOBSET} has completed")
    harness.run_for(2 * HOUR)
    assert running_jobs(harness) == [SECOND_JOB]
    assert slices(harness) < before


ENDS_ONCE = PodBehaviour(
    ends=lambda pod: "Succeeded" if is_of_first_job(pod) and is_first_attempt(pod) else ""
)


def fail(harness: Harness) -> None:
    """Let the Pod that runs fail."""
    (name,) = (
        pod["metadata"]["name"] for pod in pods(harness) if pod["status"]["phase"] == "Running"
    )
    change = {"status": {"phase": "Failed"}}
    harness.simulation.admin("PATCH", f"{PODS}/{name}/status", change, **MERGE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_keeps_the_slice_of_a_job_that_had_completed(kind: str) -> None:
    restarts = {"failurePolicy": {"maxRestarts": 1}}
    harness = running(kind, ENDS_ONCE, replicas=2, spec=restarts)
    before = slices(harness)
    until(harness, lambda: running_jobs(harness) == [SECOND_JOB])
    fail(harness)
    until(harness, lambda: running_jobs(harness) == [FIRST, SECOND_JOB], 5 * MINUTE)
    harness.run_for(30 * MINUTE)
    assert running_jobs(harness) == [FIRST, SECOND_JOB]
    assert slices(harness) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_deleted_alone_in_the_foreground_runs_again_on_its_slice(kind: str) -> None:
    harness = running(kind, PodBehaviour(ends=lambda _: "", stop_s=30))
    before = slices(harness)
    (uid,) = (pod["metadata"]["uid"] for pod in pods(harness))
    harness.simulation.admin("DELETE", f"{JOBS}/{FIRST}", FOREGROUND)
    harness.run_for(30 * MINUTE)
    (pod,) = pods(harness)
    assert (pod["status"]["phase"], pod["metadata"]["uid"] != uid) == ("Running", True)
    assert slices(harness) == before
