"""What is told, and done, when GKE has made a node pool of a JobSet's, or deleted it, or could not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness import GKE_CLUSTER, GKE_REGION, Harness
from tests.jobset_objects import JOBSET, pod
from tests.stories.jobsets import (
    JOBSETS,
    MERGE,
    NAME,
    PODS,
    RUNS_ON,
    SECOND,
    are_running,
    delete,
    told,
    until,
)
from tests.stories.life import MINUTE
from tests.stories.test_node_pool_slices import MAKING, is_gone, new_harness, post

MADE = f"Pod NodePoolCreationSucceeded: node pool {NAME} has been created"
DELETED = f"JobSet NodePoolDeletionSucceeded: node pool {NAME} has been deleted"


def end_of(method: str, cluster: str = GKE_CLUSTER, pool: str = NAME) -> bytes:
    """What the log sinks publish when an operation about a node pool has ended."""
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
    """How a step answers a message."""
    before = len(harness.answers)
    harness.simulation.publish(step, data, {})
    harness.run_for(5 * SECOND)
    return [answer.outcome for who, answer in harness.answers[before:] if who == step]


def running() -> Harness:
    """A simulation in which a JobSet runs on its node pool."""
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_ON
    post(harness)
    until(harness, lambda: are_running(harness))
    return harness


def test_a_pool_that_was_made_is_told_when_the_pod_has_started_too() -> None:
    harness = running()
    assert told(harness)[1:] == [MADE]
    harness.simulation.admin(
        "DELETE", f"/api/v1/namespaces/default/events/{event_name(harness, MADE)}"
    )
    outcome = answers(harness, "provision_slice", end_of("CreateNodePool"))
    assert outcome == ["CreationSucceeded"]
    assert told(harness)[1:] == [MADE]


def event_name(harness: Harness, line: str) -> str:
    events = harness.simulation.admin("GET", "/api/v1/namespaces/default/events")["items"]
    return next(str(one["metadata"]["name"]) for one in events if line.endswith(one["message"]))


def test_a_pool_that_nobody_waits_for_is_told_to_nobody() -> None:
    harness = new_harness()
    assert answers(harness, "provision_slice", end_of("CreateNodePool")) == ["NoPod"]
    assert answers(harness, "provision_slice", end_of("DeleteNodePool")) == ["NoPod"]
    assert answers(harness, "release_slice", end_of("DeleteNodePool")) == ["DeletionSucceeded"]
    assert told(harness) == []


@pytest.mark.parametrize("step", ["provision_slice", "release_slice"])
def test_another_cluster_s_pools_are_nobody_s_here(step: str) -> None:
    harness = running()
    before = told(harness)
    entry = end_of("DeleteNodePool", cluster="other")
    assert answers(harness, step, entry) == ["NotOurs"]
    assert told(harness) == before


def test_a_pool_that_could_not_be_made_is_told_and_made_anew() -> None:
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_ON
    harness.gke.faults.fail_operations("nodePools.create", code=8, message="no capacity")
    post(harness)
    until(harness, lambda: are_running(harness))
    events = told(harness)
    assert (
        f"Pod NodePoolCreationFailed: node pool {NAME} could not be created: no capacity" in events
    )
    assert any(line.startswith("Pod NodePoolDeletionStarted: ") for line in events)
    assert events[-1] == MADE


def test_a_pool_that_could_not_be_deleted_is_told_and_deleted_again() -> None:
    harness = running()
    harness.gke.faults.fail_operations("nodePools.delete", message="try later")
    harness.simulation.admin("PATCH", f"{JOBSETS}/{JOBSET}/status", completed(), **MERGE)
    until(harness, lambda: is_gone(harness))
    harness.run_for(MINUTE)
    assert told(harness)[2:] == [
        f"JobSet NodePoolDeletionStarted: Deleting node pool {NAME}: JobSet train has ended (Completed)",
        f"JobSet NodePoolDeletionFailed: node pool {NAME} could not be deleted: try later",
        DELETED,
    ]


def completed() -> dict[str, Any]:
    condition = {"type": "Completed", "status": "True", "reason": "x", "message": ""}
    return {"status": {"conditions": [{**condition, "lastTransitionTime": "2026-01-01T00:10:00Z"}]}}


def test_a_pool_that_gke_will_not_have_marked_goes_at_once() -> None:
    harness = running()
    words = "The user does not have access to service account"
    harness.gke.faults.fail_next("nodePools.update", 100, 403, "forbidden", words)
    harness.simulation.admin("PATCH", f"{JOBSETS}/{JOBSET}/status", completed(), **MERGE)
    until(harness, lambda: is_gone(harness))
    harness.run_for(MINUTE)
    assert told(harness)[-2:] == [
        f"JobSet NodePoolDeletionStarted: Deleting node pool {NAME}: no JobSet needs it, and its "
        f"release deadline cannot be written: nodePools.update: 403 forbidden: {words}",
        DELETED,
    ]


def test_a_pool_whose_mark_is_lost_again_and_again_goes() -> None:
    harness = running()
    harness.gke.faults.fail_operations("nodePools.update", message="try later", operations=100_000)
    harness.simulation.admin("PATCH", f"{JOBSETS}/{JOBSET}/status", completed(), **MERGE)
    until(harness, lambda: is_gone(harness), 10 * MINUTE)
    assert (
        f"JobSet NodePoolDeletionStarted: Deleting node pool {NAME}: no JobSet needs it, and its "
        "release deadline cannot be written: try later"
    ) in told(harness)


def test_an_update_of_a_pool_that_is_needed_may_fail() -> None:
    harness = running()
    entry = json.loads(end_of("UpdateNodePool"))
    entry["protoPayload"]["status"] = {"code": 13, "message": "try later"}
    assert answers(harness, "release_slice", json.dumps(entry).encode()) == ["Needed"]
    harness.run_for(5 * MINUTE)
    assert are_running(harness)


def test_a_deletion_that_was_long_ago_is_not_told_of_a_pool_that_stands() -> None:
    harness = running()
    before = told(harness)
    assert answers(harness, "release_slice", end_of("DeleteNodePool")) == ["Superseded"]
    assert told(harness) == before


def test_a_cluster_that_is_not_there_is_told_on_the_pod() -> None:
    harness = new_harness()
    words = "Not found: projects/my-gcp-project/locations/us-central1/clusters/my-cluster."
    harness.gke.faults.fail_next("nodePools.create", 100, 404, "notFound", words)
    post(harness)
    harness.run_for(10 * MINUTE)
    assert f"Pod NodePoolCreationFailed: nodePools.create: 404 notFound: {words}" in told(harness)


def test_a_pod_of_somebody_s_own_making_is_told_what_is_wrong_with_it() -> None:
    harness = new_harness()
    name = {"jobset.sigs.k8s.io/jobset-name": "x/../y?z"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs-1", "uid": "rs-uid"}
    metadata = {
        "labels": dict.fromkeys(name),
        "annotations": name,
        "ownerReferences": [{**owner, "controller": True}],
    }
    harness.simulation.admin("POST", PODS, pod(metadata=metadata))
    harness.run_for(MINUTE)
    assert told(harness) == [
        "Pod NodePoolCreationFailed: the Pod's jobset.sigs.k8s.io/jobset-name is 'x/../y?z': it must be "
        "the name of a JobSet"
    ]


NO_ROOM = "Too many operations: please try again later."


def no_room(harness: Harness, verb: str, calls: int) -> None:
    """GKE has no room for so many calls."""
    harness.gke.faults.fail_next(verb, calls, 429, "rateLimitExceeded", NO_ROOM)


def counts(harness: Harness) -> dict[str, int]:
    """How often each Event was told, by its reason."""
    events = harness.simulation.admin("GET", "/api/v1/namespaces/default/events")["items"]
    return {one["reason"]: one["count"] for one in events}


def test_what_gke_has_no_room_for_is_queued_and_said_to_begin_when_it_does() -> None:
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_ON
    no_room(harness, "nodePools.create", 3)
    post(harness)
    harness.run_for(30 * SECOND)
    assert told(harness) == [
        f"Pod NodePoolQueued: node pool {NAME} waits for others that are being created or deleted: "
        f"{NO_ROOM}"
    ]
    until(harness, lambda: are_running(harness))
    assert told(harness)[1:] == [MAKING, MADE]
    no_room(harness, "nodePools.update", 2)
    no_room(harness, "nodePools.delete", 3)
    delete(harness)
    until(harness, lambda: is_gone(harness))
    told_of = counts(harness)
    assert told_of["NodePoolQueued"] == told_of["NodePoolCreationStarted"] == 1
    assert told_of["NodePoolDeletionStarted"] == 1
    assert "NodePoolDeletionFailed" not in told_of
    refused = [one for one in harness.gke.calls.records if one.status == 429]
    assert len(refused) == 8, "each of them was made"


def test_what_gke_is_too_busy_for_is_tried_again_and_not_told() -> None:
    harness = new_harness()
    harness.gke.faults.fail_next("nodePools.create", calls=3, http=503)
    post(harness)
    until(harness, lambda: is_gone(harness) and len(told(harness)) >= 4)
    assert [line.split(":")[0].split()[1] for line in told(harness)] == [
        "NodePoolCreationStarted",
        "NodePoolCreationSucceeded",
        "NodePoolDeletionStarted",
        "NodePoolDeletionSucceeded",
    ]
