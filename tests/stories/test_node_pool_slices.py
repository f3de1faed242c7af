"""JobSets whose slices are GKE node pools, from an unschedulable Pod to the deletion of the pool."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from functions import provision_slice
from shared.frame.step import handle
from shared.ports.errors import CallError
from shared.triggers.message import POD_KIND, Cause, Message
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE
from tests.stories.jobsets import (
    JOBSETS,
    MERGE,
    NAME,
    PODS,
    RUNS_FOREVER,
    are_running,
    delete,
    pods,
    reported_events,
    until,
)
from tests.stories.node_pool_slices import CREATING, ZONE, is_gone, new_harness, post
from tests.support import jobset_objects as objects
from tests.support.harness import Harness
from tests.support.jobset_objects import NAMESPACE

STEP = "provision_slice"


@pytest.mark.conformance("event-creation-succeeded", "event-deletion-succeeded")
def test_a_jobset_gets_its_pool_runs_and_leaves_nothing_behind() -> None:
    harness = new_harness()
    post(harness)
    until(harness, lambda: are_running(harness))
    until(harness, lambda: is_gone(harness))
    harness.run_for(5 * MINUTE)
    assert harness.leftovers() == []
    assert reported_events(harness) == [
        CREATING,
        f"Pod NodePoolCreationSucceeded: node pool {NAME} has been created",
        f"JobSet NodePoolDeletionStarted: Deleting node pool {NAME}: JobSet train has ended (Completed)",
        f"JobSet NodePoolDeletionSucceeded: node pool {NAME} has been deleted",
    ]
    calls = harness.gke.calls.counts()
    assert [calls[f"nodePools.{verb}"] for verb in ("create", "update", "delete")] == [1, 0, 1]


def test_a_pool_without_capacity_is_created_again_when_there_is_capacity() -> None:
    harness = new_harness()
    harness.gke.faults.set_capacity(ZONE, "ct6e-standard", 0)
    post(harness)
    until(
        harness, lambda: any("NodePoolCreationFailed" in line for line in reported_events(harness))
    )
    (failure,) = [line for line in reported_events(harness) if "NodePoolCreationFailed" in line][:1]
    assert "does not have enough resources available" in failure
    harness.gke.faults.set_capacity(ZONE, "ct6e-standard")
    until(harness, lambda: are_running(harness))


def test_a_lasting_stockout_is_reported_once_although_gke_names_another_vm_each_time() -> None:
    harness = new_harness()
    harness.gke.faults.set_capacity(ZONE, "ct6e-standard", 0)
    post(harness)
    harness.run_for(3 * HOUR)
    calls = harness.gke.calls.counts()
    assert calls["nodePools.create"] > 5
    (leader,) = pods(harness)
    lines = reported_events(harness)
    stockout = "Google Compute Engine: Not all instances running in IGM after "
    assert [line.partition(stockout)[0] for line in lines] == [
        CREATING,
        f"Pod NodePoolCreationFailed: node pool {NAME} could not be created: ",
        f"Pod NodePoolDeletionStarted: Deleting node pool {NAME} to create it again: ",
    ]
    assert leader["status"]["phase"] == "Pending"


@pytest.mark.parametrize("has_pool", [False, True], ids=["a Pod that waits", "a pool of a JobSet"])
def test_the_pools_of_another_installation_are_neither_created_nor_deleted(
    *, has_pool: bool
) -> None:
    harness = new_harness()
    if has_pool:
        harness.jobsets.behaviour = RUNS_FOREVER
        post(harness)
        until(harness, lambda: are_running(harness))
    before, wrong = harness.gke.leftovers(), ("Pod", "NodePoolCreationFailed", "INSTALLATION_ID")
    with helpers.mistaken(harness, "a", "b") as writes:
        delete(harness) if has_pool else post(harness)
        harness.run_for(HOUR)
        assert (harness.gke.leftovers(), writes) == (before, [])
        reported = [all(word in line for word in wrong) for line in reported_events(harness)]
        assert reported.count(True) == (0 if has_pool else 1)
        helpers.identify(harness, "b")
        until(harness, lambda: is_gone(harness) if has_pool else are_running(harness))


def requiring(key: str, *values: str) -> dict[str, Any]:
    """A change that adds a required node affinity for one of these values to a Pod."""
    expression = {"key": key, "operator": "In", "values": list(values)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return {"affinity": {"nodeAffinity": required}}


def test_a_pool_that_never_existed_is_not_reported_lost() -> None:
    harness = new_harness()
    harness.gke.faults.set_capacity(ZONE, "ct6e-standard", 0)
    post(harness)
    harness.run_for(2 * HOUR)
    assert [line for line in reported_events(harness) if "NodePoolLost" in line] == []


def test_more_jobs_than_gke_has_operations_get_their_pools_and_leave_nothing_behind() -> None:
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    post(harness, replicas=12)
    until(harness, lambda: are_running(harness, replicas=12), 2 * HOUR)
    assert len(harness.gke.leftovers()) == 12
    assert 429 in {record.status for record in harness.gke.calls.records}
    delete(harness)
    until(harness, lambda: is_gone(harness), 2 * HOUR)
    harness.run_for(5 * MINUTE)
    assert harness.leftovers() == []


def test_the_name_of_another_namespaces_pool_is_not_taken() -> None:
    harness = new_harness()
    other = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}
    harness.simulation.admin("POST", "/api/v1/namespaces", other)
    other = objects.jobset(metadata={"namespace": "other"}, spec={"suspend": True})
    harness.simulation.admin("POST", JOBSETS.replace(NAMESPACE, "other"), other)
    owner = {"apiVersion": "example.com/v1", "kind": "Other", "name": objects.JOB, "uid": "1"}
    forged = objects.pod(
        metadata={"namespace": "other", "ownerReferences": [{**owner, "controller": True}]}
    )
    harness.simulation.admin("POST", PODS.replace(NAMESPACE, "other"), forged)
    harness.run_for(MINUTE)
    outcomes = {answer.outcome for step, answer in harness.answers if step == "provision_slice"}
    assert outcomes == {"InputRefused", "Swept"}
    post(harness)
    until(harness, lambda: reported_events(harness) != [], MINUTE)
    assert reported_events(harness) == [CREATING]


def read_state(harness: Harness) -> str:
    """Return the answer to the sweep's message about the leader."""
    (leader,) = (
        pod
        for pod in pods(harness)
        if pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] == "0"
    )
    about = Message(
        NAMESPACE,
        leader["metadata"]["name"],
        leader["metadata"]["uid"],
        Cause.RESYNC,
        harness.clock.now(),
        kind=POD_KIND,
    )
    data = base64.b64encode(about.encode()).decode()
    body = json.dumps({"message": {"data": data, "messageId": "m"}}).encode()
    return handle(STEP, provision_slice.STEP.run, body, harness.runtime(STEP)).outcome


def test_nodes_of_a_slowly_created_pool_get_their_full_time() -> None:
    harness = new_harness()
    harness.gke.faults.slow_operations("nodePools.create", 20 * 60)
    post(harness)
    until(harness, lambda: any("has been created" in line for line in reported_events(harness)))
    assert not helpers.nodes(harness)
    assert read_state(harness) == "Ready"
    until(harness, lambda: are_running(harness))
    assert not [line for line in reported_events(harness) if "Unfit" in line]


def test_a_pod_that_fits_no_node_of_its_pool_is_reported_after_15_minutes() -> None:
    harness = new_harness()
    harness.gke.faults.slow_operations("nodePools.create", 20 * 60)
    post(harness)
    until(harness, lambda: len(helpers.nodes(harness)) > 0)
    until(harness, lambda: cordon_all(harness), MINUTE)
    harness.run_for(14 * MINUTE)
    assert read_state(harness) == "Ready"
    harness.run_for(2 * MINUTE)
    assert read_state(harness) == "Unfit"


def cordon_all(harness: Harness) -> bool:
    """Cordon all Nodes; return whether there are four."""
    nodes = list(helpers.nodes(harness).values())
    for node in nodes:
        path = f"/api/v1/nodes/{node['metadata']['name']}"
        harness.simulation.admin("PATCH", path, {"spec": {"unschedulable": True}}, **MERGE)
    return len(nodes) == 4


def test_a_busy_api_server_is_retried_and_not_mistaken_for_gke() -> None:
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    post(harness)
    until(harness, lambda: are_running(harness))
    errors = [CallError("GET /api/v1/pods", 429, "TooManyRequests", "try later")]

    def reject(step: str, call: str) -> None:
        if errors and (step, call) == ("release_slice", "GET /api/v1/pods"):
            raise errors.pop()

    harness.hooks.before = reject
    delete(harness)
    until(harness, lambda: is_gone(harness))
    notes = [line for line in harness.log.lines if "TooManyRequests" in line.get("note", "")]
    assert {line["decision"] for line in notes} <= {"TryAgain", "ResyncDropped"}
    assert len(notes) == 1
