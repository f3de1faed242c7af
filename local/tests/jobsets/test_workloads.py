"""Jobs, Deployments and StatefulSets on slices, in a cluster where no containers run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from local.jobsets import WORKLOADS, PodBehaviour
from local.tests.jobsets.cluster import TPU, Cluster

JOBS = "/apis/batch/v1/namespaces/default/jobs"
STATEFUL_SETS = "/apis/apps/v1/namespaces/default/statefulsets"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
PODS = "/api/v1/namespaces/default/pods"
RUN_S = 10.0


def template(restart: str = "Never", env: Any = ()) -> dict[str, Any]:
    container = {
        "name": "jax",
        "image": "python:3.12",
        "env": list(env),
        "resources": {"limits": {"google.com/tpu": "4"}},
    }
    spec = {"restartPolicy": restart, "nodeSelector": TPU, "containers": [container]}
    return {"metadata": {"labels": {"app": "train"}}, "spec": spec}


def job(hosts: int = 2, mode: str = "Indexed", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {
            "completionMode": mode,
            "completions": hosts,
            "parallelism": hosts,
            "template": template(),
            **spec,
        },
    }


def stateful_set(policy: str) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "serve"},
        "spec": {
            "serviceName": "serve",
            "replicas": 2,
            "podManagementPolicy": policy,
            "selector": {"matchLabels": {"app": "train"}},
            "template": template("Always"),
        },
    }


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(PodBehaviour(run_s=RUN_S), controllers=WORKLOADS)


def phases(cluster: Cluster) -> list[str]:
    return sorted(pod["status"]["phase"] for pod in cluster.items(PODS))


def shown(cluster: Cluster) -> list[tuple[str, str]]:
    """Return READY and STATUS of each Pod, as kubectl shows them."""
    table = cluster.ask("GET", PODS, Accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    return [(row["cells"][1], row["cells"][2]) for row in table["rows"]]


def conditions(item: Mapping[str, Any]) -> list[str]:
    return [one["type"] for one in item["status"].get("conditions", [])]


@pytest.mark.parametrize("mode", ["Indexed", "NonIndexed"])
def test_a_job_runs_on_all_hosts_of_a_slice_and_completes(cluster: Cluster, mode: str) -> None:
    cluster.add_slice("slice")
    cluster.ask("POST", JOBS, job(mode=mode))
    cluster.run_for(RUN_S / 2)
    assert phases(cluster) == ["Running", "Running"]
    assert shown(cluster) == [("1/1", "Running")] * 2
    assert {pod["spec"]["nodeName"] for pod in cluster.items(PODS)} == {"slice-0", "slice-1"}
    cluster.run_for(RUN_S)
    assert phases(cluster) == ["Succeeded", "Succeeded"]
    assert shown(cluster) == [("0/1", "Completed")] * 2
    found = cluster.jobs()["train"]
    assert conditions(found) == ["Complete"]
    assert found["status"]["succeeded"] == 2
    assert found["status"].get("completedIndexes") == ("0,1" if mode == "Indexed" else None)


def test_a_job_says_since_when_it_is_suspended_and_which_indexes_have_completed(
    cluster: Cluster,
) -> None:
    cluster.add_slice("slice", hosts=3)
    cluster.ask("POST", JOBS, job(hosts=3, suspend=True))
    cluster.run_for(5)
    assert conditions(cluster.jobs()["train"]) == ["Suspended"]
    merge = {"Content-Type": "application/merge-patch+json"}
    cluster.ask("PATCH", f"{JOBS}/train", {"spec": {"suspend": False}}, **merge)
    cluster.run_for(5)
    (condition,) = cluster.jobs()["train"]["status"]["conditions"]
    assert condition["status"] == "False"
    cluster.run_for(2 * RUN_S)
    assert cluster.jobs()["train"]["status"]["completedIndexes"] == "0-2"


def test_a_job_that_is_not_indexed_creates_as_many_pods_as_run_in_parallel(
    cluster: Cluster,
) -> None:
    cluster.add_slice("slice")
    cluster.ask("POST", JOBS, job(hosts=3, mode="NonIndexed", parallelism=1))
    cluster.run_for(RUN_S / 2)
    assert phases(cluster) == ["Running"]
    cluster.run_for(4 * RUN_S)
    assert phases(cluster) == ["Succeeded"] * 3
    assert conditions(cluster.jobs()["train"]) == ["Complete"]


def test_no_pod_of_a_job_ends_before_its_siblings_run(cluster: Cluster) -> None:
    cluster.add_slice("slice", hosts=1)
    cluster.ask("POST", JOBS, job())
    cluster.run_for(5 * RUN_S)
    assert phases(cluster) == ["Pending", "Running"], "the second host does not exist yet"
    cluster.add_slice("more", hosts=1)
    cluster.run_for(RUN_S / 2)
    assert phases(cluster) == ["Running", "Running"]
    assert {pod["spec"]["nodeName"] for pod in cluster.items(PODS)} == {"slice-0", "more-0"}
    cluster.run_for(RUN_S)
    assert phases(cluster) == ["Succeeded", "Succeeded"]


@pytest.mark.parametrize(
    "policy, alone", [("Parallel", ["serve-0", "serve-1"]), ("OrderedReady", ["serve-0"])]
)
def test_the_pods_of_a_stateful_set_are_created_in_parallel_or_in_order(
    cluster: Cluster, policy: str, alone: list[str]
) -> None:
    cluster.ask("POST", STATEFUL_SETS, stateful_set(policy))
    cluster.run_for(5)
    assert [pod["metadata"]["name"] for pod in cluster.items(PODS)] == alone
    cluster.add_slice("slice")
    cluster.run_for(5 * RUN_S)
    assert phases(cluster) == ["Running", "Running"], "they continue to run"
    found = cluster.ask("GET", f"{STATEFUL_SETS}/serve")
    assert found["status"]["readyReplicas"] == 2
    pod = cluster.ask("GET", f"{PODS}/serve-1")
    assert pod["spec"]["subdomain"] == "serve"
    assert pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "1"


def test_a_pod_of_a_stateful_set_is_recreated_and_deleted_with_the_set(cluster: Cluster) -> None:
    cluster.add_slice("slice")
    cluster.ask("POST", STATEFUL_SETS, stateful_set("Parallel"))
    cluster.run_for(5)
    uid = cluster.ask("GET", f"{PODS}/serve-1")["metadata"]["uid"]
    cluster.ask("DELETE", f"{PODS}/serve-1")
    cluster.run_for(5)
    assert phases(cluster) == ["Running", "Running"]
    assert cluster.ask("GET", f"{PODS}/serve-1")["metadata"]["uid"] != uid
    scaled = {"spec": {"replicas": 1}}
    merge = {"Content-Type": "application/merge-patch+json"}
    cluster.ask("PATCH", f"{STATEFUL_SETS}/serve", scaled, **merge)
    cluster.run_for(5)
    assert [pod["metadata"]["name"] for pod in cluster.items(PODS)] == ["serve-0"]
    cluster.ask("DELETE", f"{STATEFUL_SETS}/serve")
    cluster.run_for(5)
    assert cluster.items(PODS) == []


def deployment(replicas: int = 2, **strategy: Any) -> dict[str, Any]:
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "train"}}}
    rolling = {"type": "RollingUpdate", "rollingUpdate": strategy} if strategy else None
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve"},
        "spec": {
            **spec,
            "template": template("Always"),
            "strategy": rolling or {"type": "Recreate"},
        },
    }


def patch_deployment(cluster: Cluster, **spec: Any) -> None:
    merge = {"Content-Type": "application/merge-patch+json"}
    cluster.ask("PATCH", f"{DEPLOYMENTS}/serve", {"spec": spec}, **merge)


def test_the_pods_of_a_deployment_are_scaled_replaced_and_deleted_with_it(cluster: Cluster) -> None:
    cluster.add_slice("slice", hosts=3)
    cluster.ask("POST", DEPLOYMENTS, deployment())
    cluster.run_for(5)
    assert phases(cluster) == ["Running", "Running"]
    patch_deployment(cluster, replicas=4)
    cluster.run_for(5)
    assert phases(cluster) == ["Pending", "Running", "Running", "Running"]
    patch_deployment(cluster, replicas=3)
    cluster.run_for(5)
    assert phases(cluster) == ["Running"] * 3, "the Pod that waits is deleted first"
    first = cluster.items(PODS)[0]["metadata"]["name"]
    cluster.ask("DELETE", f"{PODS}/{first}")
    cluster.run_for(5)
    assert phases(cluster) == ["Running"] * 3
    assert first not in {pod["metadata"]["name"] for pod in cluster.items(PODS)}
    assert cluster.ask("GET", f"{DEPLOYMENTS}/serve")["status"]["readyReplicas"] == 3
    cluster.ask("DELETE", f"{DEPLOYMENTS}/serve")
    cluster.run_for(5)
    assert cluster.items(PODS) == []


@pytest.mark.parametrize(
    "strategy, hosts, peak, least",
    [
        ({"maxSurge": 1, "maxUnavailable": 0}, 3, 3, 2),
        ({"maxSurge": 0, "maxUnavailable": 1}, 2, 2, 1),
        ({}, 2, 2, 0),
    ],
)
def test_a_deployment_is_updated_within_its_limits(
    cluster: Cluster, strategy: dict[str, int], hosts: int, peak: int, least: int
) -> None:
    cluster.add_slice("slice", hosts=hosts)
    cluster.ask("POST", DEPLOYMENTS, deployment(**strategy))
    cluster.run_for(5)
    before = {pod["metadata"]["name"] for pod in cluster.items(PODS)}
    changed = template("Always")
    changed["metadata"]["labels"]["version"] = "2"
    patch_deployment(cluster, template=changed)
    counts = []
    for _ in range(100):
        cluster.run_for(0.2)
        left = [one for one in cluster.items(PODS) if "deletionTimestamp" not in one["metadata"]]
        counts.append((len(left), sum(one["status"].get("phase") == "Running" for one in left)))
    assert max(count for count, _ in counts) == peak
    assert min(running for _, running in counts) == least
    after = {pod["metadata"]["name"] for pod in cluster.items(PODS)}
    assert phases(cluster) == ["Running", "Running"]
    assert before.isdisjoint(after)


def test_the_selector_that_the_server_adds_selects_the_pods_of_a_job(
    cluster: Cluster,
) -> None:
    created = cluster.ask("POST", JOBS, job())
    cluster.run_for(5)
    ((key, value),) = created["spec"]["selector"]["matchLabels"].items()
    assert value == created["metadata"]["uid"]
    assert len(cluster.items(f"{PODS}?labelSelector={key}={value}")) == 2
    assert cluster.items(f"{PODS}?labelSelector={key}=another") == []


INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
ENV = (
    {"name": "TPU_WORKER_ID", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}},
    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    {"name": "TPU_TOPOLOGY", "value": "2x4"},
    {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}},
)


def test_the_log_of_a_pod_has_its_variables_and_no_secret(cluster: Cluster) -> None:
    cluster.add_slice("slice")
    cluster.ask("POST", JOBS, job(template=template(env=ENV)))
    cluster.run_for(5)
    pod = cluster.pods()["train-1"]
    assert cluster.read_log(pod["metadata"]["name"]) == (
        "No container runs in this simulation. This one would have these variables:\n"
        "TPU_WORKER_ID=1\n"
        f"NODE={pod['spec']['nodeName']}\n"
        "TPU_TOPOLOGY=2x4\n"
    )


def test_a_pod_that_has_not_started_has_no_log(cluster: Cluster) -> None:
    cluster.ask("POST", JOBS, job())
    cluster.run_for(5)
    name = cluster.pods()["train-0"]["metadata"]["name"]
    error = cluster.ask("GET", f"{PODS}/{name}/log")
    assert error["code"] == 400
    assert error["message"] == f"pod {name} does not have a host assigned"
    error = cluster.ask("GET", f"{PODS}/{name}/log?container=x")
    assert error["message"] == f"container x is not valid for pod {name}"
