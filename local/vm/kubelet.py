"""The kubelet of a simulated VM: its Node, heartbeats, and the chips of the device plugin."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from local.base.http import Response
from local.vm.conversation import (
    RETRY_S,
    Api,
    Conversation,
    Identity,
    Now,
    Reply,
    Wait,
    status_of,
)

ACCELERATOR_LABEL = "cloud.google.com/gke-tpu-accelerator"
TPU_RESOURCE = "google.com/tpu"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
_CRI_SOCKET = "unix:///run/containerd/containerd.sock"


@dataclass(frozen=True)
class Node:
    """A Node to register: its name, the kubelet's flags, the chips of its machine."""

    name: str
    provider_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    chips: int = 0
    kubelet_version: str = "v1.31.4"
    boot: str = ""
    """Identifies this boot of the machine; empty for a machine that boots once."""


@dataclass(frozen=True)
class KubeletBehaviour:
    """The intervals of a kubelet, in seconds.

    ``lease_s`` is the interval of Lease renewals (a real one: 10); `None` for a kubelet without
    heartbeats. ``plugin_s`` is the time from the label that selects the device plugin's DaemonSet
    to ``google.com/tpu``; `None` for a cluster without the plugin.
    """

    ready_s: float = 10.0
    plugin_s: float | None = 15.0
    label_poll_s: float = 5.0
    lease_s: float | None = 10.0
    status_s: float = 300.0


def parse_labels(text: str) -> dict[str, str]:
    """Parse labels in the form ``a=b,c=d``, as of ``--node-labels``."""
    pairs = (entry.partition("=") for entry in text.split(",") if entry)
    return {key: value for key, _, value in pairs}


def chips_of(machine_type: str) -> int:
    """The number of chips of a machine type: 4 for ``tpu7x-standard-4t``, 0 without TPU."""
    match = re.fullmatch(r"(?:ct|tpu)[0-9a-z]+-\w+-(\d+)t(?:-tpu)?", machine_type)
    return int(match[1]) if match else 0


def run_kubelet(
    identity: Identity, node: Node, behaviour: KubeletBehaviour, now: Now
) -> Conversation[None]:
    """Register the Node and maintain it: readiness, chips, heartbeats.

    Runs without end; with ``behaviour.lease_s`` `None` it ends when nothing changes any more.
    """
    kubelet = _Kubelet(identity, node, behaviour, now)
    yield from kubelet.register()
    yield Wait(behaviour.ready_s)
    kubelet.is_ready = True
    yield from kubelet.maintain()


def remove_node(administrator: Identity, name: str) -> Conversation[None]:
    """Delete a Node whose VM is gone, as a cloud's own controller does."""
    api = Api(administrator.server, administrator.ca_pem, administrator.credential)
    while status_of((yield from api.delete(f"/api/v1/nodes/{name}"))) not in (200, 404):
        yield Wait(RETRY_S)


def relabel_node(
    administrator: Identity, name: str, changes: Mapping[str, str | None]
) -> Conversation[None]:
    """Change labels of a Node, as a cloud's own controller does; nothing if it is gone."""
    api = Api(administrator.server, administrator.ca_pem, administrator.credential)
    body = {"metadata": {"labels": changes}}
    while status_of((yield from api.patch(f"/api/v1/nodes/{name}", body))) not in (200, 404):
        yield Wait(RETRY_S)


class _Kubelet:
    def __init__(
        self, identity: Identity, node: Node, behaviour: KubeletBehaviour, now: Now
    ) -> None:
        impersonated = node.name if identity.impersonates else ""
        self._api = Api(identity.server, identity.ca_pem, identity.credential, impersonated)
        self._node = node
        self._behaviour = behaviour
        self._now = now
        self._path = f"/api/v1/nodes/{node.name}"
        self._chips: int | None = None
        self._has_plugin = False
        self._ready_since = now()
        self.is_ready = False

    def register(self) -> Conversation[None]:
        """Create the Node, or take over an existing one, as after a reboot."""
        status = 0
        while status not in (201, 409):
            status = status_of((yield from self._api.post("/api/v1/nodes", self._manifest())))
            if status not in (201, 409):
                yield Wait(RETRY_S)
        if status == 409:
            yield from self._take_over()
        annotation = {"kubeadm.alpha.kubernetes.io/cri-socket": _CRI_SOCKET}
        yield from self._api.patch(self._path, {"metadata": {"annotations": annotation}})

    def _take_over(self) -> Conversation[None]:
        if self._node.chips:
            self._chips = (
                0  # a kubelet reports no extended resources until their plugin has registered
            )
        yield from self._api.patch(self._path, {"metadata": {"labels": self._own_labels()}})
        yield from self._send_status()

    def maintain(self) -> Conversation[None]:
        """Run each task when it is due. A task returns the seconds until its next run."""
        self._ready_since = self._now()
        tasks: dict[Callable[[], Conversation[float | None]], datetime] = {}
        for task in (self._report, self._renew_lease, self._find_chips):
            tasks[task] = self._now()
        while tasks:
            task = min(tasks, key=lambda each: tasks[each])
            delay_s = (tasks[task] - self._now()).total_seconds()
            if delay_s > 0:
                yield Wait(delay_s)
            again_s = yield from task()
            if again_s is None:
                del tasks[task]
            else:
                tasks[task] = self._now() + timedelta(seconds=again_s)

    def _report(self) -> Conversation[float | None]:
        reply = yield from self._send_status()
        if status_of(reply) == 0 or status_of(reply) >= 500:
            return RETRY_S
        return self._behaviour.status_s if self._behaviour.lease_s is not None else None

    def _send_status(self) -> Conversation[Reply]:
        return self._api.patch(f"{self._path}/status", {"status": self._status()})

    def _find_chips(self) -> Conversation[float | None]:
        """Simulate the device plugin: the label selects its DaemonSet, whose Pod reports the chips."""
        if self._behaviour.plugin_s is None or not self._node.chips:
            return None
        if not self._has_plugin:
            self._has_plugin = yield from self._is_labelled()
            return self._behaviour.plugin_s if self._has_plugin else self._behaviour.label_poll_s
        self._chips = self._node.chips
        reply = yield from self._send_status()
        return None if status_of(reply) == 200 else RETRY_S

    def _is_labelled(self) -> Conversation[bool]:
        if ACCELERATOR_LABEL in self._node.labels:
            return True
        reply = yield from self._api.get(self._path)
        if not isinstance(reply, Response) or reply.status != 200:
            return False
        return ACCELERATOR_LABEL in reply.json()["metadata"].get("labels", {})

    def _renew_lease(self) -> Conversation[float | None]:
        if self._behaviour.lease_s is None:
            return None
        path = f"{_LEASES}/{self._node.name}"
        reply = yield from self._api.get(path)
        if isinstance(reply, Response) and reply.status == 200:
            lease = reply.json()
            lease["spec"] = self._lease_spec()
            yield from self._api.put(path, lease)
        elif status_of(reply) == 404:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._node.name, "namespace": "kube-node-lease"},
                "spec": self._lease_spec(),
            }
            yield from self._api.post(_LEASES, lease)
        return self._behaviour.lease_s

    def _lease_spec(self) -> dict[str, Any]:
        return {
            "holderIdentity": self._node.name,
            "leaseDurationSeconds": 40,
            "renewTime": self._now().astimezone(UTC).strftime(_MICRO_TIME),
        }

    def _own_labels(self) -> dict[str, str]:
        own = {
            "kubernetes.io/hostname": self._node.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "beta.kubernetes.io/os": "linux",
            "beta.kubernetes.io/arch": "amd64",
        }
        return {**own, **self._node.labels}

    def _manifest(self) -> dict[str, Any]:
        spec: dict[str, Any] = {}
        if self._node.provider_id:
            spec["providerID"] = self._node.provider_id
        if self._node.taints:
            spec["taints"] = [_taint(text) for text in self._node.taints]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self._node.name, "labels": self._own_labels()},
            "spec": spec,
            "status": self._status(),
        }

    def _status(self) -> dict[str, Any]:
        resources = {"cpu": "224", "memory": "947Gi", "pods": "110", "ephemeral-storage": "100Gi"}
        if self._chips is not None:
            resources[TPU_RESOURCE] = str(self._chips)
        return {
            "capacity": resources,
            "allocatable": resources,
            "conditions": self._conditions(),
            "addresses": [
                {"type": "InternalIP", "address": _address(self._node.name)},
                {"type": "Hostname", "address": self._node.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": _node_info(self._node),
        }

    def _conditions(self) -> list[dict[str, str]]:
        now = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        since = self._ready_since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = (
            ("True", "KubeletReady", "kubelet is posting ready status")
            if self.is_ready
            else ("False", "KubeletNotReady", "container runtime network not ready")
        )
        rows = [
            ("MemoryPressure", "False", "KubeletHasSufficientMemory", "enough memory available"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ("PIDPressure", "False", "KubeletHasSufficientPID", "enough PID available"),
            ("Ready", *ready),
        ]
        return [
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": since,
            }
            for kind, status, reason, message in rows
        ]


def _taint(text: str) -> dict[str, str]:
    """A taint from ``key=value:Effect`` or ``key:Effect``."""
    head, _, effect = text.rpartition(":")
    key, _, value = head.partition("=")
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def _address(name: str) -> str:
    """A stable address for each name."""
    low, high = hashlib.sha256(name.encode()).digest()[:2]
    return f"10.128.{low}.{high}"


def _node_info(node: Node) -> dict[str, str]:
    seed = hashlib.sha256(node.name.encode()).hexdigest()
    return {
        "architecture": "amd64",
        "bootID": hashlib.sha256(f"{node.name} {node.boot}".encode()).hexdigest()[:32],
        "containerRuntimeVersion": "containerd://1.7.24",
        "kernelVersion": "6.8.0-1024-gcp",
        "kubeProxyVersion": node.kubelet_version,
        "kubeletVersion": node.kubelet_version,
        "machineID": seed[32:],
        "operatingSystem": "linux",
        "osImage": "Ubuntu 24.04.1 LTS",
        "systemUUID": seed[:32],
    }
