"""A cluster in which the stand-in for JobSet runs, and a test adds slices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import yaml

from local import jobsets, kube
from local.base.clock import VirtualClock
from local.base.http import Request

Manifest = dict[str, Any]

_FOLDER = Path(jobsets.__file__).parent
CRD, LWS_CRD = (
    yaml.safe_load((_FOLDER / name).read_text()) for name in ("crd.yaml", "leader_worker_set.yaml")
)
SLICE = "tpu-functions.dev/resource-name"
TPU = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
    "cloud.google.com/gke-tpu-topology": "2x4",
}


def jobset(
    name: str = "train",
    *,
    replicas: int = 2,
    hosts: int = 2,
    chips: int = 4,
    exclusive: bool = True,
    suspend: bool = False,
    max_restarts: int = 0,
    selector: Mapping[str, str] = TPU,
    ttl_s: int | None = None,
    restart_policy: str = "Never",
) -> Manifest:
    """Build a JobSet: ``replicas`` Jobs of ``hosts`` Pods."""
    topology = {"alpha.jobset.sigs.k8s.io/exclusive-topology": SLICE}
    container = {
        "name": "jax",
        "image": "python:3.12",
        "resources": {"limits": {"google.com/tpu": str(chips)}},
    }
    job = {
        "parallelism": hosts,
        "completions": hosts,
        "backoffLimit": 0,
        "template": {
            "spec": {
                **({"restartPolicy": restart_policy} if restart_policy else {}),
                "nodeSelector": dict(selector),
                "containers": [container],
            }
        },
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": "default"}
        | ({"annotations": topology} if exclusive else {}),
        "spec": {
            "suspend": suspend,
            **({} if ttl_s is None else {"ttlSecondsAfterFinished": ttl_s}),
            "failurePolicy": {"maxRestarts": max_restarts},
            "replicatedJobs": [{"name": "slice", "replicas": replicas, "template": {"spec": job}}],
        },
    }


class Cluster:
    """The embedded API on a virtual clock, without the product."""

    def __init__(
        self,
        behaviour: jobsets.PodBehaviour | None = None,
        controllers: frozenset[jobsets.Controller] = frozenset(jobsets.Controller),
    ) -> None:
        self.clock = VirtualClock()
        admin = kube.User("admin", ("system:masters", "system:authenticated"))
        # There are no kubelets, so no Node may become unknown.
        options = kube.ClusterOptions(node_grace_s=86400.0)
        self._api = kube.KubeApi(
            self.clock, random=Random(1), tokens={"admin": admin}, options=options
        )
        self._api.apply_manifests([CRD, LWS_CRD])
        self.stand_in = jobsets.StandIn(
            self.clock,
            self._api,
            token="admin",
            controllers=controllers,
            behaviour=behaviour or jobsets.PodBehaviour(),
        )
        self.stand_in.start()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Manifest:
        """Send a request as the administrator; return any answer."""
        kind = {"Content-Type": "application/json", "Authorization": "Bearer admin"}
        raw = json.dumps(body) if body is not None else ""
        found: Manifest = self._api.handle(
            Request.of(method, path, headers=kind | headers, body=raw)
        ).json()
        return found

    def read_log(self, pod: str) -> str:
        path = f"/api/v1/namespaces/default/pods/{pod}/log"
        request = Request.of("GET", path, headers={"Authorization": "Bearer admin"})
        return self._api.handle(request).body.decode()

    def items(self, path: str) -> list[Manifest]:
        found: list[Manifest] = self.ask("GET", path)["items"]
        return found

    def apply(self, manifest: Manifest) -> Manifest:
        return self.ask(
            "POST", "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets", manifest
        )

    def jobset(self, name: str = "train") -> Manifest:
        return self.ask("GET", f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/{name}")

    def suspend_jobset(self, is_suspended: bool) -> None:
        self.patch_jobset({"suspend": is_suspended})

    def patch_jobset(self, spec: Manifest, name: str = "train") -> None:
        path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/{name}"
        self.ask("PATCH", path, {"spec": spec}, **{"Content-Type": "application/merge-patch+json"})

    def delete_jobset(self, name: str = "train", **options: str) -> None:
        path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/{name}"
        self.ask("DELETE", path, options)

    def jobs(self) -> dict[str, Manifest]:
        return {one["metadata"]["name"]: one for one in self.items("/apis/batch/v1/jobs")}

    def pods(self) -> dict[str, Manifest]:
        """Return the Pods by ``<job>-<index>``."""
        return {one["spec"]["hostname"]: one for one in self.items("/api/v1/pods")}

    def nodes_of_pods(self) -> dict[str, str]:
        """Return the Node of each Pod, empty if it has none."""
        return {name: pod["spec"].get("nodeName", "") for name, pod in self.pods().items()}

    def add_slice(
        self, name: str, job: str = "", hosts: int = 2, taint: str = "", **labels: str
    ) -> None:
        """Create the Nodes of a slice, for a Job if it is named."""
        if job:
            labels["job-key"] = hashlib.sha1(f"default/{job}".encode()).hexdigest()
        for number in range(hosts):
            node: Manifest = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": f"{name}-{number}", "labels": {**TPU, SLICE: name, **labels}},
                "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}] if taint else []},
                "status": {"allocatable": {"google.com/tpu": "4"}},
            }
            self.ask("POST", "/api/v1/nodes", node)
            # New Nodes have a taint until their kubelets report.
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
            self.ask(
                "PATCH",
                f"/api/v1/nodes/{name}-{number}/status",
                {"status": {"conditions": [ready]}},
                **{"Content-Type": "application/merge-patch+json"},
            )

    def run_for(self, seconds: float) -> None:
        self.clock.run_for(seconds)
