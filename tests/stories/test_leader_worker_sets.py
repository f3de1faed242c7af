"""LeaderWorkerSets whose groups get slices, with both providers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from local.cloud.simulation import Options
from shared.settings import GKE, TPU_NODE_GROUP
from tests.faults.jobsets import SETTINGS
from tests.stories import workload_objects as objects
from tests.stories.jobsets import OPTIONS, RUNS_FOREVER, until
from tests.stories.workload_objects import PATHS
from tests.support import jobset_objects
from tests.support.harness import Harness

LWS = PATHS["LeaderWorkerSet"]
GROUPS = "/apis/tpu.google.com/v1alpha1/tpunodegroups"
MERGE = {"Content-Type": "application/merge-patch+json"}
LISTED = {"namespaces": "default: {kinds: [LeaderWorkerSet], slices: 3}"}


def new_harness(provider: str = TPU_NODE_GROUP) -> Harness:
    harness = Harness(Options(workloads=True), slices=SETTINGS[provider])
    harness.simulation.admin("POST", OPTIONS, jobset_objects.config_map(**LISTED))
    harness.jobsets.behaviour = RUNS_FOREVER
    return harness


def pods(harness: Harness) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = harness.simulation.admin("GET", PATHS["Pod"])["items"]
    return found


def running(harness: Harness) -> list[str]:
    return [
        one["metadata"]["name"] for one in pods(harness) if one["status"].get("phase") == "Running"
    ]


def slices(harness: Harness) -> int:
    return len(harness.simulation.admin("GET", GROUPS)["items"]) + len(harness.gke.leftovers())


def change(harness: Harness, **spec: Any) -> None:
    answer = harness.simulation.admin("PATCH", f"{LWS}/serve", {"spec": spec}, **MERGE)
    assert answer["kind"] == "LeaderWorkerSet", answer


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
@pytest.mark.parametrize("surge", [0, 1])
def test_a_leader_worker_set_is_served_scaled_updated_and_deleted(
    provider: str, surge: int
) -> None:
    harness = new_harness(provider)
    harness.simulation.admin("POST", LWS, objects.leader_worker_set(surge=surge))
    until(harness, lambda: len(running(harness)) == 4)
    change(harness, replicas=2)
    until(harness, lambda: len(running(harness)) == 8)
    nodes = {one["spec"]["nodeName"] for one in pods(harness)}
    assert (len(nodes), slices(harness)) == (8, 2)

    new = objects.leader_worker_set(replicas=2, surge=surge)["spec"]
    new["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["image"] = "new"
    change(harness, **new)
    most = 2
    for _ in range(40):
        harness.run_for(timedelta(seconds=30))
        most = max(most, slices(harness))
    assert {one["spec"]["containers"][0]["image"] for one in pods(harness)} == {"new"}
    assert {one["spec"]["nodeName"] for one in pods(harness)} == nodes
    assert (len(running(harness)), most, slices(harness)) == (8, 2 + surge, 2)

    harness.simulation.admin("DELETE", f"{PATHS['Pod']}/serve-1-2")
    until(harness, lambda: len(running(harness)) == 8)
    assert {one["spec"]["nodeName"] for one in pods(harness)} == nodes

    change(harness, replicas=1)
    until(harness, lambda: slices(harness) == 1)
    assert len(running(harness)) == 4
    harness.simulation.admin("DELETE", f"{LWS}/serve")
    until(harness, lambda: not slices(harness))
    until(harness, lambda: not harness.simulation.gce.leftovers())


def test_a_group_that_cannot_have_a_slice_is_told_why_once() -> None:
    harness = new_harness()
    harness.simulation.admin("POST", LWS, objects.leader_worker_set(size=3))
    harness.run_for(timedelta(minutes=10))
    assert slices(harness) == 0
    events = harness.simulation.admin("GET", "/api/v1/namespaces/default/events")["items"]
    (event,) = (one for one in events if "topology" in one["message"])
    assert (event["involvedObject"]["name"], event["count"]) == ("serve-0", 1)
    assert (
        "a slice of topology 4x4 has 4 hosts with 4 chips, and group 0 of LeaderWorkerSet serve has 3 "
        "Pods with TPUs: the numbers must be equal"
    ) in event["message"]


def test_without_a_switch_a_group_gets_no_slice() -> None:
    harness = new_harness()
    path = f"{OPTIONS}/jobsets"
    harness.simulation.admin("PATCH", path, {"data": {"namespaces": None}}, **MERGE)
    harness.simulation.admin("POST", LWS, objects.leader_worker_set())
    harness.run_for(timedelta(minutes=10))
    assert slices(harness) == 0
    assert harness.simulation.admin("GET", "/api/v1/namespaces/default/events")["items"] == []
