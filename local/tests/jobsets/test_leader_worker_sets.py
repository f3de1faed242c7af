"""The stand-in for LeaderWorkerSet, in a cluster in which a test adds slices."""

from __future__ import annotations

from typing import Any

import pytest

from local.jobsets.objects import is_true
from local.tests.jobsets.cluster import SLICE, TPU, Cluster

LWS = "leaderworkerset.sigs.k8s.io"
PATH = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets"
MERGE = {"Content-Type": "application/merge-patch+json"}
PODS = "/api/v1/namespaces/default/pods"
RUNNING = {"serve-0": "a", "serve-0-1": "a", "serve-1": "b", "serve-1-1": "b"}


def lws(image: str = "serve", *, exclusive: bool = False, **spec: Any) -> dict[str, Any]:
    """LeaderWorkerSet ``serve`` of two groups of two Pods."""
    resources = {"limits": {"google.com/tpu": "4"}, "requests": {"google.com/tpu": "4"}}
    container = {"name": "serve", "image": image, "resources": resources}
    template = {"spec": {"nodeSelector": TPU, "containers": [container]}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {
            "name": "serve",
            "annotations": {f"{LWS}/exclusive-topology": SLICE} if exclusive else {},
        },
        "spec": {
            "replicas": 2,
            "leaderWorkerTemplate": {"size": 2, "workerTemplate": template},
            **spec,
        },
    }


def applied(slices: str = "ab", **change: Any) -> Cluster:
    """A cluster with these slices of two hosts, in which the LeaderWorkerSet runs."""
    cluster = Cluster()
    for name in slices:
        cluster.add_slice(name)
    answer = cluster.ask("POST", PATH, lws(exclusive=True, **change))
    assert answer["kind"] == "LeaderWorkerSet", answer
    cluster.run_for(20)
    return cluster


def slices_of_pods(cluster: Cluster) -> dict[str, str]:
    """The slice of each Pod, by its name; empty if it has none."""
    found = {
        pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in cluster.items(PODS)
    }
    assert len(set(filter(None, found.values()))) == len(list(filter(None, found.values())))
    return {name: node.partition("-")[0] for name, node in found.items()}


def uids(cluster: Cluster) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in cluster.items(PODS)}


def conditions(cluster: Cluster) -> dict[str, str]:
    found = cluster.ask("GET", f"{PATH}/serve")["status"]["conditions"]
    return {one["type"]: one["status"] for one in found}


def test_each_group_runs_on_one_slice_and_follows_the_replicas() -> None:
    cluster = applied()
    assert slices_of_pods(cluster) == RUNNING
    assert conditions(cluster)["Available"] == "True"
    for replicas, count in ((1, 2), (2, 4), (0, 0)):
        cluster.ask("PATCH", f"{PATH}/serve", {"spec": {"replicas": replicas}}, **MERGE)
        cluster.run_for(20)
        assert len(slices_of_pods(cluster)) == count
    cluster.ask("PATCH", f"{PATH}/serve", {"spec": {"replicas": 2}}, **MERGE)
    cluster.run_for(20)
    cluster.ask("DELETE", f"{PATH}/serve")
    cluster.run_for(20)
    assert slices_of_pods(cluster) == {}


def test_without_a_slice_an_exclusive_group_is_a_pending_leader() -> None:
    cluster = applied(slices="")
    assert slices_of_pods(cluster) == {"serve-0": "", "serve-1": ""}
    assert conditions(cluster) == {"Progressing": "True"}
    cluster.add_slice("a")
    cluster.run_for(20)
    assert slices_of_pods(cluster) == {"serve-0": "a", "serve-0-1": "a", "serve-1": ""}


def test_a_group_whose_pod_is_deleted_is_created_again_on_its_slice() -> None:
    cluster = applied()
    before = uids(cluster)
    cluster.ask("DELETE", f"{PODS}/serve-1-1")
    cluster.run_for(30)
    after = uids(cluster)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"serve-1", "serve-1-1"}
    assert slices_of_pods(cluster) == RUNNING


def test_without_restarts_of_groups_only_the_deleted_pod_is_created_again() -> None:
    template = {**lws()["spec"]["leaderWorkerTemplate"], "restartPolicy": "None"}
    cluster = applied(leaderWorkerTemplate=template)
    before = uids(cluster)
    cluster.ask("DELETE", f"{PODS}/serve-1-1")
    cluster.run_for(30)
    after = uids(cluster)
    assert {name for name in before if after[name] != before[name]} == {"serve-1-1"}


def is_leader(pod: dict[str, Any]) -> bool:
    return bool(pod["metadata"]["labels"][f"{LWS}/worker-index"] == "0")


@pytest.mark.parametrize(
    "surge, unavailable, most, least", [(0, 1, 2, 1), (0, 2, 2, 0), (1, 0, 3, 2)]
)
def test_a_rolling_update_replaces_the_groups_one_by_one(
    surge: int, unavailable: int, most: int, least: int
) -> None:
    rollout = {"rollingUpdateConfiguration": {"maxSurge": surge, "maxUnavailable": unavailable}}
    cluster = applied(slices="abc", rolloutStrategy=rollout)
    before = uids(cluster)
    cluster.ask("PATCH", f"{PATH}/serve", {"spec": lws(image="new")["spec"]}, **MERGE)
    counts, ready, leaders = set(), set(), set()
    for _ in range(120):
        cluster.run_for(1)
        names = uids(cluster)
        counts.add(sum(name.count("-") == 1 for name in names))
        ready.add(cluster.ask("GET", f"{PATH}/serve")["status"]["readyReplicas"])
        pods = cluster.items(PODS)
        leaders.add(sum(is_true(pod, "Ready") for pod in pods if is_leader(pod)))
    assert max(counts) == most
    assert min(ready) == least
    assert min(leaders) == 1 + surge
    after = cluster.items(PODS)
    assert {pod["metadata"]["name"] for pod in after} == set(RUNNING)
    assert {pod["spec"]["containers"][0]["image"] for pod in after} == {"new"}
    assert not set(before.values()) & set(uids(cluster).values())
    assert conditions(cluster)["Available"] == "True"
