"""Deployments, Jobs, StatefulSets and Pods get slices, with both providers, from a Pod that waits to the
deletion of what is left."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from local.cloud.simulation import Options
from local.jobsets import PodBehaviour
from shared.settings import GKE, TPU_NODE_GROUP
from shared.slices.units import Unit
from tests.faults.jobsets import SETTINGS
from tests.stories import workload_objects as objects
from tests.stories.helpers import MINUTE, describe_state
from tests.stories.jobsets import OPTIONS, RUNS_FOREVER, until
from tests.stories.workload_objects import FOUR_HOSTS, NAMESPACE, PATHS
from tests.support import jobset_objects
from tests.support.harness import Harness

MERGE = {"Content-Type": "application/merge-patch+json"}
KINDS = "Deployment, ReplicaSet, StatefulSet, Job, Pod"
LISTED = f"{NAMESPACE}: {{kinds: [{KINDS}], slices: 8, chips: 64}}"


def new_harness(provider: str, behaviour: PodBehaviour = RUNS_FOREVER) -> Harness:
    harness = Harness(Options(workloads=True), slices=SETTINGS[provider])
    harness.simulation.admin("POST", OPTIONS, jobset_objects.config_map(namespaces=LISTED))
    harness.jobsets.behaviour = behaviour
    return harness


def apply(harness: Harness, manifest: dict[str, Any]) -> None:
    answer = harness.simulation.admin("POST", PATHS[manifest["kind"]], manifest)
    assert answer["kind"] == manifest["kind"], answer


def scale(harness: Harness, kind: str, replicas: int) -> None:
    path = f"{PATHS[kind]}/serve"
    harness.simulation.admin("PATCH", path, {"spec": {"replicas": replicas}}, **MERGE)


def pods(harness: Harness) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = harness.simulation.admin("GET", PATHS["Pod"])["items"]
    return found


def running(harness: Harness) -> int:
    return sum(one["status"].get("phase") == "Running" for one in pods(harness))


def slices(harness: Harness) -> int:
    path = "/apis/tpu.google.com/v1alpha1/tpunodegroups"
    return len(harness.simulation.admin("GET", path)["items"]) + len(harness.gke.leftovers())


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet"])
def test_replicas_are_scaled_from_1_to_3_to_0(kind: str, provider: str) -> None:
    make: dict[str, Callable[[], dict[str, Any]]] = {
        "Deployment": objects.deployment,
        "ReplicaSet": objects.replica_set,
        "StatefulSet": objects.stateful_set,
    }
    harness = new_harness(provider)
    apply(harness, make[kind]())
    until(harness, lambda: running(harness) == 1)
    scale(harness, kind, 3)
    until(harness, lambda: running(harness) == 3)
    harness.run_for(5 * MINUTE)
    assert slices(harness) == 3, describe_state(harness)
    scale(harness, kind, 0)
    until(harness, lambda: harness.leftovers() == [])


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
@pytest.mark.parametrize("surge", [0, 1])
def test_a_rollout_buys_only_what_surges(surge: int, provider: str) -> None:
    harness = new_harness(provider)
    apply(harness, objects.deployment(2, surge=surge))
    until(harness, lambda: running(harness) == 2)
    before = {one["metadata"]["name"] for one in pods(harness)}
    changed = objects.template()
    changed["metadata"]["labels"]["version"] = "2"
    path = f"{PATHS['Deployment']}/serve"
    harness.simulation.admin("PATCH", path, {"spec": {"template": changed}}, **MERGE)
    peak = 0

    def is_done() -> bool:
        nonlocal peak
        peak = max(peak, slices(harness))
        now = {one["metadata"]["name"] for one in pods(harness)}
        return before.isdisjoint(now) and running(harness) == 2 and slices(harness) == 2

    until(harness, is_done)
    harness.run_for(5 * MINUTE)
    assert (peak, slices(harness)) == (2 + surge, 2)


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
def test_an_indexed_job_runs_and_leaves_nothing(end: str, provider: str) -> None:
    harness = new_harness(provider, PodBehaviour(run_s=60, ends=lambda _: end))
    apply(harness, objects.job(2))
    until(harness, lambda: running(harness) == 2)
    until(harness, lambda: harness.leftovers() == [])


def test_a_suspended_job_loses_its_slice_after_a_time_and_gets_one_again() -> None:
    harness = new_harness(TPU_NODE_GROUP)
    harness.configure(suspended_release=timedelta(minutes=5))
    apply(harness, objects.job(1))
    until(harness, lambda: running(harness) == 1)
    path = f"{PATHS['Job']}/train"
    harness.simulation.admin("PATCH", path, {"spec": {"suspend": True}}, **MERGE)
    harness.run_for(3 * MINUTE)
    assert slices(harness) == 1
    until(harness, lambda: harness.leftovers() == [])
    harness.simulation.admin("PATCH", path, {"spec": {"suspend": False}}, **MERGE)
    until(harness, lambda: running(harness) == 1)


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
def test_a_pod_of_its_own_gets_a_slice_until_it_is_deleted(provider: str) -> None:
    harness = new_harness(provider)
    apply(harness, objects.pod("one"))
    until(harness, lambda: running(harness) == 1)
    harness.simulation.admin("DELETE", f"{PATHS['Pod']}/one")
    until(harness, lambda: harness.leftovers() == [])


def test_a_stranger_costs_no_slice_more_than_pods() -> None:
    harness = new_harness(TPU_NODE_GROUP)
    apply(harness, objects.deployment())
    until(harness, lambda: running(harness) == 1)
    (pod,) = pods(harness)
    apply(harness, objects.pod("guest", spec={"nodeName": pod["spec"]["nodeName"]}))
    harness.simulation.admin("DELETE", f"{PATHS['Pod']}/{pod['metadata']['name']}")
    until(harness, lambda: running(harness) == 2 and slices(harness) == 2)
    harness.simulation.admin("DELETE", f"{PATHS['Pod']}/guest")
    until(harness, lambda: slices(harness) == 1)
    harness.run_for(5 * MINUTE)
    assert (running(harness), slices(harness)) == (1, 1)


def tied(key: str, topology: str = objects.ONE_HOST) -> dict[str, Any]:
    """The template of a Job whose Pods select the Nodes with a key."""
    made = objects.template(topology, "Never")
    made["spec"]["nodeSelector"]["job-key"] = key
    return made


TRAIN = Unit("Job", NAMESPACE, "train", "")
ANOTHER = Unit("JobSet", "other", "train", "train-main-0")


def test_a_job_of_several_hosts_that_selects_its_key_gets_its_slice_and_only_this_one() -> None:
    harness = new_harness(TPU_NODE_GROUP)
    apply(harness, objects.job(4, FOUR_HOSTS, template=tied(TRAIN.key, FOUR_HOSTS)))
    until(harness, lambda: running(harness) == 4)
    assert slices(harness) == 1


@pytest.mark.parametrize(
    "manifest, why",
    [
        (
            objects.deployment(spec={"template": objects.template(FOUR_HOSTS)}),
            "4x4 has 4 hosts of 4 chips, and a Deployment's Pod gets slices of one host only: use a",
        ),
        (objects.job(1, completionMode="NonIndexed"), "Job train is not Indexed"),
        (
            objects.job(4, FOUR_HOSTS),
            "the Pod has no nodeSelector job-key, so that Pods of other owners could take hosts of the "
            f"slice: the Pods of Job train must select job-key: {TRAIN.key}",
        ),
        (
            objects.job(template=tied(ANOTHER.key)),
            f"the Pod's nodeSelector job-key is '{ANOTHER.key}': only ",
        ),
    ],
)
@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
def test_what_gets_no_slice_is_told_why(manifest: dict[str, Any], why: str, provider: str) -> None:
    harness = new_harness(provider)
    apply(harness, manifest)
    harness.run_for(5 * MINUTE)
    events = harness.simulation.admin("GET", f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    assert any(why in one["message"] for one in events), events
    assert slices(harness) == 0


def test_a_namespace_that_is_not_listed_gets_nothing() -> None:
    harness = Harness(Options(workloads=True), slices=SETTINGS[TPU_NODE_GROUP])
    harness.simulation.admin("POST", OPTIONS, jobset_objects.config_map())
    apply(harness, objects.deployment())
    harness.run_for(10 * MINUTE)
    assert slices(harness) == 0
    assert "KindOff" in {answer.outcome for _, answer in harness.answers}
