"""Events and actions after GKE has created or deleted the node pool of a JobSet, or has failed to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.stories.helpers import HOUR, MINUTE
from tests.stories.jobsets import (
    JOBSETS,
    MERGE,
    NAME,
    PODS,
    RUNS_FOREVER,
    SECOND,
    are_running,
    delete,
    reported_events,
    until,
)
from tests.stories.node_pool_slices import CREATING, POOLS, is_gone, new_harness, post, send
from tests.support.harness import GKE_CLUSTER, GKE_REGION, Harness
from tests.support.jobset_objects import JOBSET, pod

CREATED = f"Pod NodePoolCreationSucceeded: node pool {NAME} has been created"
DELETED = f"JobSet NodePoolDeletionSucceeded: node pool {NAME} has been deleted"


def end_of(method: str, cluster: str = GKE_CLUSTER, pool: str = NAME) -> bytes:
    """The message of the log sinks about the end of a node pool operation."""
    labels = {"project_id": "my-gcp-project", "location": GKE_REGION, "cluster_name": cluster}
    entry = {
        "logName": "projects/my-gcp-project/logs/cloudaudit.googleapis.com%2Factivity",
        "timestamp": "2026-11-20T10:00:03Z",
        "resource": {"type": "gke_nodepool", "labels": {**labels, "nodepool_name": pool}},
        "protoPayload": {
            "serviceName": "container.googleapis.com",
            "methodName": f"google.container.v1.ClusterManager.{method}",
        },
        "operation": {"id": "operation-1", "last": True},
    }
    return json.dumps(entry).encode()


def answers(harness: Harness, step: str, data: bytes) -> list[str]:
    """Return the step's answer to a message."""
    before = len(harness.answers)
    harness.simulation.publish(step, data, {})
    harness.run_for(5 * SECOND)
    return [answer.outcome for who, answer in harness.answers[before:] if who == step]


def running() -> Harness:
    """A simulation in which a JobSet runs on its node pool."""
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    post(harness)
    until(harness, lambda: are_running(harness))
    return harness


def test_the_creation_of_a_pool_is_reported_even_after_its_pod_has_started() -> None:
    harness = running()
    assert reported_events(harness)[1:] == [CREATED]
    harness.simulation.admin(
        "DELETE", f"/api/v1/namespaces/default/events/{event_name(harness, CREATED)}"
    )
    outcome = answers(harness, "provision_slice", end_of("CreateNodePool"))
    assert outcome == ["CreationSucceeded"]
    assert reported_events(harness)[1:] == [CREATED]


def event_name(harness: Harness, line: str) -> str:
    events = harness.simulation.admin("GET", "/api/v1/namespaces/default/events")["items"]
    return next(str(one["metadata"]["name"]) for one in events if line.endswith(one["message"]))


def test_a_pool_without_a_waiting_pod_is_not_reported() -> None:
    harness = new_harness()
    assert answers(harness, "provision_slice", end_of("CreateNodePool")) == ["NoPod"]
    assert answers(harness, "provision_slice", end_of("DeleteNodePool")) == ["NoPod"]
    assert answers(harness, "release_slice", end_of("DeleteNodePool")) == ["DeletionSucceeded"]
    assert reported_events(harness) == []


@pytest.mark.parametrize("step", ["provision_slice", "release_slice"])
def test_another_clusters_pools_are_ignored(step: str) -> None:
    harness = running()
    before = reported_events(harness)
    entry = end_of("DeleteNodePool", cluster="other")
    assert answers(harness, step, entry) == ["NotOurs"]
    assert reported_events(harness) == before


@pytest.mark.conformance("state-operation-done-with-error")
def test_a_failed_creation_of_a_pool_is_reported_and_retried() -> None:
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    harness.gke.faults.fail_operations("nodePools.create", code=8, message="no capacity")
    post(harness)
    until(harness, lambda: are_running(harness))
    events = reported_events(harness)
    assert (
        f"Pod NodePoolCreationFailed: node pool {NAME} could not be created: no capacity" in events
    )
    assert any(line.startswith("Pod NodePoolDeletionStarted: ") for line in events)
    assert events[-1] == CREATED


def test_a_failed_deletion_of_a_pool_is_reported_and_retried() -> None:
    harness = running()
    harness.gke.faults.fail_operations("nodePools.delete", message="try later")
    harness.simulation.admin("PATCH", f"{JOBSETS}/{JOBSET}/status", completed(), **MERGE)
    until(harness, lambda: is_gone(harness))
    harness.run_for(MINUTE)
    assert reported_events(harness)[2:] == [
        f"JobSet NodePoolDeletionStarted: Deleting node pool {NAME}: JobSet train has ended (Completed)",
        f"JobSet NodePoolDeletionFailed: node pool {NAME} could not be deleted: try later",
        DELETED,
    ]


def completed() -> dict[str, Any]:
    condition = {"type": "Completed", "status": "True", "reason": "x", "message": ""}
    return {"status": {"conditions": [{**condition, "lastTransitionTime": "2026-01-01T00:10:00Z"}]}}


def test_a_pool_whose_release_deadline_is_refused_is_deleted_immediately() -> None:
    harness = running()
    words = "The user does not have access to service account"
    harness.gke.faults.fail_next("nodePools.update", 100, 403, "forbidden", words)
    delete(harness)
    until(harness, lambda: is_gone(harness))
    assert reported_events(harness)[-1] == (
        f"JobSet NodePoolDeletionStarted: Deleting node pool {NAME}: no JobSet needs it, and its "
        f"release deadline cannot be written: nodePools.update: 403 forbidden: {words}"
    )


def test_a_pool_whose_release_deadline_keeps_failing_is_deleted() -> None:
    harness = running()
    harness.gke.faults.fail_operations("nodePools.update", message="try later", operations=100_000)
    delete(harness)
    until(harness, lambda: is_gone(harness), 10 * MINUTE)
    assert (
        f"JobSet NodePoolDeletionStarted: Deleting node pool {NAME}: no JobSet needs it, and its "
        "release deadline cannot be written: try later"
    ) in reported_events(harness)


def test_an_update_of_a_pool_that_is_needed_may_fail() -> None:
    harness = running()
    entry = json.loads(end_of("UpdateNodePool"))
    entry["protoPayload"]["status"] = {"code": 13, "message": "try later"}
    assert answers(harness, "release_slice", json.dumps(entry).encode()) == ["Needed"]
    harness.run_for(5 * MINUTE)
    assert are_running(harness)


def test_an_old_deletion_is_not_reported_for_an_existing_pool() -> None:
    harness = running()
    before = reported_events(harness)
    assert answers(harness, "release_slice", end_of("DeleteNodePool")) == ["Superseded"]
    assert reported_events(harness) == before


def test_a_missing_cluster_is_reported_on_the_pod() -> None:
    harness = new_harness()
    words = "Not found: projects/my-gcp-project/locations/us-central1/clusters/my-cluster."
    harness.gke.faults.fail_next("nodePools.create", 100, 404, "notFound", words)
    post(harness)
    harness.run_for(10 * MINUTE)
    assert (
        f"Pod NodePoolCreationFailed: nodePools.create: 404 notFound: {words}"
        in reported_events(harness)
    )


def test_an_error_of_a_manually_created_pod_is_reported_on_it() -> None:
    harness = new_harness()
    name = {"jobset.sigs.k8s.io/jobset-name": "x/../y?z"}
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "w", "uid": "w"}
    metadata = {
        "labels": dict.fromkeys(name),
        "annotations": name,
        "ownerReferences": [{**owner, "controller": True}],
    }
    harness.simulation.admin("POST", PODS, pod(metadata=metadata))
    harness.run_for(MINUTE)
    assert reported_events(harness) == [
        "Pod NodePoolCreationFailed: the Pod's jobset.sigs.k8s.io/jobset-name is 'x/../y?z': it must be "
        "the name of a JobSet"
    ]


QUOTA_MESSAGE = "Too many operations: please try again later."


def exceed_quota(harness: Harness, verb: str, calls: int) -> None:
    """GKE rejects calls because of its quota."""
    harness.gke.faults.fail_next(verb, calls, 429, "rateLimitExceeded", QUOTA_MESSAGE)


def counts(harness: Harness) -> dict[str, int]:
    """The number of occurrences of the Events, by reason."""
    events = harness.simulation.admin("GET", "/api/v1/namespaces/default/events")["items"]
    return {one["reason"]: one["count"] for one in events}


def test_operations_beyond_gkes_limit_are_queued_and_reported_when_they_begin() -> None:
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    exceed_quota(harness, "nodePools.create", 3)
    post(harness)
    harness.run_for(30 * SECOND)
    assert reported_events(harness) == [
        f"Pod NodePoolQueued: node pool {NAME} waits for others that are being created or deleted: "
        f"{QUOTA_MESSAGE}"
    ]
    until(harness, lambda: are_running(harness))
    assert reported_events(harness)[1:] == [CREATING, CREATED]
    exceed_quota(harness, "nodePools.update", 2)
    exceed_quota(harness, "nodePools.delete", 3)
    delete(harness)
    until(harness, lambda: is_gone(harness))
    occurrences = counts(harness)
    assert occurrences["NodePoolQueued"] == occurrences["NodePoolCreationStarted"] == 1
    assert occurrences["NodePoolDeletionStarted"] == 1
    assert "NodePoolDeletionFailed" not in occurrences
    rejected = [one for one in harness.gke.calls.records if one.status == 429]
    assert len(rejected) == 8, "all calls were sent"


def test_an_outdated_list_of_pools_is_not_used_for_the_second_observation() -> None:
    harness = running()
    client = harness.runtime("release_slice").gke
    assert client is not None
    assert client.kept is not None
    outdated = {name: {**pool, "etag": "old"} for name, pool in client.kept[1].items()}
    client.kept = (harness.clock.now(), outdated)
    delete(harness)
    harness.run_for(5 * SECOND)
    updates = [one for one in harness.gke.calls.records if one.verb == "nodePools.update"]
    assert [one.status for one in updates] == [409, 200]


def test_an_end_is_reported_although_gke_rejects_the_reads_of_both_steps() -> None:
    harness = new_harness()

    def reject(entry: dict[str, Any]) -> None:
        is_end = entry.get("operation", {}).get("last")
        if is_end and not entry["protoPayload"]["methodName"].endswith("UpdateNodePool"):
            exceed_quota(harness, "nodePools.list", 2)

    harness.hooks.on_entry = reject
    post(harness)
    until(harness, lambda: DELETED in reported_events(harness))
    failed = [line for line in harness.log.lines if QUOTA_MESSAGE in line.get("note", "")]
    assert {(one["step"], one["decision"]) for one in failed} == {
        ("provision_slice", "TryAgain"),
        ("release_slice", "TryAgain"),
    }
    assert CREATED in reported_events(harness)


def test_a_full_reservation_is_reported_and_tried_again_at_growing_intervals() -> None:
    harness = new_harness()
    harness.gke.faults.set_reservation("tpus", 3)
    harness.jobsets.behaviour = RUNS_FOREVER
    post(harness, reservation="tpus")
    tried = []
    for _ in range(4):
        harness.run_for(HOUR)
        tried.append(sum(one.verb == "nodePools.create" for one in harness.gke.calls.records))
        harness.gke.calls.clear()
    assert tried[0] > tried[1] >= tried[2] >= tried[3] > 0
    assert tried[3] <= 3
    assert reported_events(harness) == [
        "Pod NodePoolCreationFailed: nodePools.create: 429 rateLimitExceeded: Reservation does not "
        f'have enough resources for the request: specific reservation "tpus" is insufficient for '
        f'node pool "{NAME}" at zone "us-central1-c": required 4 and short of 1 VM count of machine '
        "type ct6e-standard-4t."
    ]
    harness.gke.faults.set_reservation("tpus", 4)
    until(harness, lambda: are_running(harness))


def test_calls_that_gke_is_too_busy_for_are_retried_and_not_reported() -> None:
    harness = new_harness()
    harness.gke.faults.fail_next("nodePools.create", calls=3, http=503)
    post(harness)
    until(harness, lambda: is_gone(harness) and len(reported_events(harness)) >= 4)
    assert [line.split(":")[0].split()[1] for line in reported_events(harness)] == [
        "NodePoolCreationStarted",
        "NodePoolCreationSucceeded",
        "NodePoolDeletionStarted",
        "NodePoolDeletionSucceeded",
    ]


BUSY = "Cluster is running incompatible operation operation-"


@pytest.mark.parametrize("call", ["create", "list"])
def test_a_creation_that_keeps_failing_is_reported_once_after_ten_minutes(call: str) -> None:
    harness = new_harness()
    for number in range(1000):
        verb, text = f"nodePools.{call}", f"{BUSY}{number}"
        harness.gke.faults.fail_next(verb, 1, 400, "FAILED_PRECONDITION", text)
    post(harness)
    harness.run_for(9 * MINUTE)
    assert reported_events(harness) == []
    harness.run_for(60 * MINUTE)
    (line,) = reported_events(harness)
    assert line.startswith(
        "Pod NodePoolCreationFailed: A call failed and is retried: "
        f"nodePools.{call}: 400 FAILED_PRECONDITION: {BUSY}"
    )
    harness.gke.faults.fail_next(f"nodePools.{call}", 0)
    until(harness, lambda: are_running(harness))


@pytest.mark.parametrize("call, is_deleted", [("delete", False), ("delete", True)])
def test_a_release_that_keeps_failing_is_reported_once_after_ten_minutes(
    call: str, is_deleted: bool
) -> None:
    harness = new_harness()
    post(harness)
    until(harness, lambda: are_running(harness))
    harness.gke.faults.fail_next(f"nodePools.{call}", 1000)
    if is_deleted:
        delete(harness)
    harness.run_for(9 * MINUTE)
    before = reported_events(harness)
    assert "is retried" not in str(before)
    harness.run_for(60 * MINUTE)
    (line,) = reported_events(harness)[len(before) :]
    assert line.startswith(
        f"JobSet NodePoolDeletionFailed: A call failed and is retried: nodePools.{call}: 503 "
    )
    harness.gke.faults.fail_next(f"nodePools.{call}", 0)
    until(harness, lambda: is_gone(harness))


def test_a_pool_whose_labels_somebody_has_replaced_is_reported_as_leaked() -> None:
    """gcloud's ``node-pools update --node-labels`` replaces all labels."""
    harness = running()
    send(harness, "PUT", f"{POOLS}/{NAME}", {"labels": {"labels": {"team": "research"}}})
    harness.run_for(3 * HOUR)
    lines = [one for one in harness.log.lines if one["message"] == "report_leaks: LeakedSlice"]
    assert {(one["severity"], one["slice"], one["note"]) for one in lines} == {
        (
            "ERROR",
            NAME,
            f"Node pool {NAME} has the name of a slice and not its labels: somebody has replaced "
            "them, and nothing releases it. It is billed until you delete it; its workload may still "
            "run on it. To see the commands that delete them: kubectl tng leaks",
        )
    }
    assert len(lines) >= 2, "once an hour: the alert needs two"
    delete(harness)
    harness.run_for(HOUR)
    assert not is_gone(harness)
