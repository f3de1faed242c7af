"""Deployments, Jobs, StatefulSets and Pods that ask for TPUs, for stories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.base.names import POOL_LABEL
from tests.support import jobset_objects
from tests.support.builders import merge

NAMESPACE = jobset_objects.NAMESPACE
ONE_HOST, FOUR_HOSTS = "2x2", "4x4"
PATHS = {
    "JobSet": f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets",
    "Deployment": f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
    "ReplicaSet": f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets",
    "StatefulSet": f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets",
    "LeaderWorkerSet": f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{NAMESPACE}/leaderworkersets",
    "Job": f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
    "Pod": f"/api/v1/namespaces/{NAMESPACE}/pods",
}


def template(topology: str = ONE_HOST, restart: str = "Always") -> dict[str, Any]:
    resources = {"requests": {"google.com/tpu": "4"}, "limits": {"google.com/tpu": "4"}}
    container = {"name": "serve", "image": "serve", "resources": resources}
    return {
        "metadata": {"labels": {"app": "serve"}},
        "spec": {
            "restartPolicy": restart,
            "nodeSelector": jobset_objects.selector(topology=topology),
            "containers": [container],
        },
    }


def _owner(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": dict(spec)}


SELECTOR = {"matchLabels": {"app": "serve"}}


def deployment(replicas: int = 1, surge: int = 0, **change: Any) -> dict[str, Any]:
    """Deployment ``serve``, which replaces one Pod at a time, after or before its end."""
    limits = {"maxSurge": surge, "maxUnavailable": 1 - surge}
    strategy = {"type": "RollingUpdate", "rollingUpdate": limits}
    spec = {
        "replicas": replicas,
        "selector": SELECTOR,
        "strategy": strategy,
        "template": template(),
    }
    made: dict[str, Any] = merge(_owner("Deployment", "serve", spec), change)
    return made


def replica_set(replicas: int = 1) -> dict[str, Any]:
    spec = {"replicas": replicas, "selector": SELECTOR, "template": template()}
    return _owner("ReplicaSet", "serve", spec)


def stateful_set(replicas: int = 1, topology: str = ONE_HOST) -> dict[str, Any]:
    spec = {"replicas": replicas, "selector": SELECTOR, "template": template(topology)}
    more = {"serviceName": "serve", "podManagementPolicy": "Parallel"}
    return _owner("StatefulSet", "serve", {**spec, **more})


def job(pods: int = 1, topology: str = ONE_HOST, **spec: Any) -> dict[str, Any]:
    size = {"completionMode": "Indexed", "completions": pods, "parallelism": pods}
    given = {"backoffLimit": 0, "template": template(topology, "Never"), **spec}
    return _owner("Job", "train", {**size, **given})


def pod(name: str = "one", **change: Any) -> dict[str, Any]:
    made = template(restart="Never")
    given = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": made["spec"]}
    merged: dict[str, Any] = merge(given, change)
    return merged


def leader_worker_set(
    size: int = 4,
    policy: str = "Shared",
    *,
    replicas: int = 1,
    surge: int = 0,
    topology: str = FOUR_HOSTS,
    has_leader: bool = True,
) -> dict[str, Any]:
    """LeaderWorkerSet ``serve``. Without TPUs for its leaders, it is not exclusive: they would wait."""
    groups: dict[str, Any] = {"size": size, "workerTemplate": template(topology)}
    if not has_leader:
        groups["leaderTemplate"] = {"spec": {"containers": [{"name": "serve", "image": "serve"}]}}
    key = "leaderworkerset.sigs.k8s.io/exclusive-topology"
    is_exclusive = has_leader and topology != ONE_HOST
    limits = {"maxSurge": surge, "maxUnavailable": 1 - surge}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {
            "name": "serve",
            "annotations": {key: POOL_LABEL} if is_exclusive else {},
        },
        "spec": {
            "replicas": replicas,
            "leaderWorkerTemplate": groups,
            "networkConfig": {"subdomainPolicy": policy},
            "rolloutStrategy": {"rollingUpdateConfiguration": limits},
        },
    }
