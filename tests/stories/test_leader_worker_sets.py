"""LeaderWorkerSets whose groups get slices, with both providers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from local.cloud.simulation import Options
from local.jobsets import Controller
from shared.base.names import POOL_LABEL
from shared.settings import GKE, TPU_NODE_GROUP
from shared.slices.units import Unit
from tests.faults.jobsets import SETTINGS
from tests.stories import workload_objects as objects
from tests.stories.jobsets import OPTIONS, RUNS_FOREVER, reported_events, until
from tests.stories.workload_objects import PATHS
from tests.support import jobset_objects
from tests.support.harness import Harness

LWS = PATHS["LeaderWorkerSet"]
GROUPS = "/apis/tpu.google.com/v1alpha1/tpunodegroups"
GROUPS_HERE = GROUPS.replace("/tpunode", "/namespaces/default/tpunode")
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


def slices_of(harness: Harness, *names: str) -> list[str]:
    """The slices on which these Pods run."""
    nodes = {one["metadata"]["name"]: one["spec"]["nodeName"] for one in pods(harness)}
    labels = {
        one["metadata"]["name"]: one["metadata"]["labels"]
        for one in harness.simulation.admin("GET", "/api/v1/nodes")["items"]
    }
    return [labels[nodes[name]][POOL_LABEL] for name in names]


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


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
def test_groups_that_have_swapped_their_slices_wait_for_none_and_keep_no_more_than_they_need(
    provider: str,
) -> None:
    harness = new_harness(provider)
    harness.simulation.admin("POST", LWS, objects.leader_worker_set(replicas=2))
    until(harness, lambda: len(running(harness)) == 8)
    own = [Unit("LeaderWorkerSet", "default", "serve", group).slice_name for group in "01"]
    for group in "01":
        harness.simulation.admin("DELETE", f"{PATHS['Pod']}/serve-{group}")
    until(harness, lambda: len(running(harness)) == 8)
    assert slices_of(harness, "serve-0", "serve-1") == [own[1], own[0]]

    if provider == TPU_NODE_GROUP:  # of GKE's pools, Nodes are recreated
        harness.simulation.admin("DELETE", f"{GROUPS_HERE}/{own[1]}")
        until(harness, lambda: len(running(harness)) == 4)
        until(harness, lambda: len(running(harness)) == 8)
        assert (slices_of(harness, "serve-0"), slices(harness)) == ([own[1]], 2)

    change(harness, replicas=1)
    until(harness, lambda: slices(harness) == 1)
    harness.run_for(timedelta(minutes=10))
    assert (len(running(harness)), slices_of(harness, "serve-0"), slices(harness)) == (
        4,
        [own[1]],
        1,
    )

    change(harness, replicas=2)
    until(harness, lambda: len(running(harness)) == 8)
    assert (slices_of(harness, "serve-1"), slices(harness)) == ([own[0]], 2)
    harness.simulation.admin("DELETE", f"{LWS}/serve")
    until(harness, lambda: not slices(harness))


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
def test_a_group_and_a_jobset_whose_slices_are_each_others_wait_for_none_and_keep_no_more_than_they_need(
    provider: str,
) -> None:
    harness = new_harness(provider)
    harness.jobsets.controllers -= {Controller.JOB_SELECTOR}
    harness.simulation.admin("POST", LWS, objects.leader_worker_set())
    until(harness, lambda: len(running(harness)) == 4)
    (own,) = {*slices_of(harness, "serve-0")}
    harness.simulation.admin("DELETE", f"{LWS}/serve")
    until(harness, lambda: not pods(harness))
    jobset = jobset_objects.jobset(metadata={"name": "early"})
    harness.simulation.admin("POST", PATHS["JobSet"], jobset)
    until(harness, lambda: len(running(harness)) == 4)
    (first, *_) = running(harness)
    assert (slices_of(harness, first), slices(harness)) == ([own], 1)
    harness.simulation.admin("POST", LWS, objects.leader_worker_set())
    until(harness, lambda: len(running(harness)) == 8)
    other = slices_of(harness, "serve-0")
    assert (other != [own], slices(harness)) == (True, 2)

    harness.simulation.admin("DELETE", f"{PATHS['JobSet']}/early")
    until(harness, lambda: slices(harness) == 1)
    harness.run_for(timedelta(minutes=10))
    assert (len(running(harness)), slices_of(harness, "serve-0")) == (4, other)
    harness.simulation.admin("DELETE", f"{LWS}/serve")
    until(harness, lambda: not slices(harness))


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
def test_a_tied_jobset_waits_for_its_slice_while_a_group_that_is_not_runs_on_it_and_is_told_so(
    provider: str,
) -> None:
    harness = new_harness(provider)
    path = f"{PATHS['JobSet']}/early"
    jobset = jobset_objects.jobset(metadata={"name": "early"})
    harness.simulation.admin("POST", PATHS["JobSet"], jobset)
    until(harness, lambda: len(running(harness)) == 4)
    harness.simulation.admin("PATCH", path, {"spec": {"suspend": True}}, **MERGE)
    until(harness, lambda: not pods(harness))
    harness.simulation.admin("POST", LWS, objects.leader_worker_set())
    until(harness, lambda: len(running(harness)) == 4)
    harness.simulation.admin("PATCH", path, {"spec": {"suspend": False}}, **MERGE)
    harness.run_for(timedelta(minutes=40))
    assert (len(running(harness)), slices(harness)) == (4, 1)
    (told,) = [one for one in reported_events(harness) if "Unfit" in one]
    assert "for the Pod, and Pods of StatefulSet default/serve" in told

    harness.simulation.admin("DELETE", f"{LWS}/serve")
    until(harness, lambda: len(running(harness)) == 4 and len(pods(harness)) == 4)
    harness.simulation.admin("DELETE", path)
    until(harness, lambda: not slices(harness))


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
