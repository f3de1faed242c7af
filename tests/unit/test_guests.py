"""A simulated VM's guest: it boots, waits for its token, joins, and keeps its Node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from local.clock import VirtualClock
from local.guests import Dials, InProcess, KubeGuest
from local.kubeadm import Bearer, Identity, public_key_pin
from tests.unit.small_cluster import SmallCluster

TOKEN = "abc123.0123456789abcdef"
OTHER_TOKEN = "xyz789.fedcba9876543210"
NODE = "tng-train-0a1b2c3d-x1y2"
SCRIPT = """#!/bin/bash
readonly KUBERNETES_MINOR=1.32
readonly NODE_LABELS=a=b,cloud.google.com/gke-tpu-accelerator=tpu7x
readonly NODE_TAINTS=google.com/tpu=present:NoSchedule
"""


@dataclass
class Vm:
    """A `Machine` that keeps what its guest writes."""

    project: str = "my-project"
    zone: str = "us-central1-c"
    name: str = NODE
    id: str = "4711"
    machine_type: str = "tpu7x-standard-4t"
    metadata: dict[str, str] = field(default_factory=lambda: {"startup-script": SCRIPT})
    serial: str = ""
    guest_attributes: dict[str, str] = field(default_factory=dict)

    def attributes(self) -> Mapping[str, str]:
        return self.metadata

    def write_serial(self, text: str) -> None:
        self.serial += text

    def set_guest_attribute(self, namespace: str, key: str, value: str) -> None:
        self.guest_attributes[f"{namespace}/{key}"] = value


class World:
    """One VM and one cluster on a virtual clock."""

    def __init__(self, dials: Dials | None = None, **vm: Any) -> None:
        self.clock = VirtualClock()
        self.cluster = SmallCluster(self.clock.now)
        self.vm = Vm(**vm)
        self.guest = KubeGuest(self.vm, self.clock, InProcess(self.cluster), dials)
        self.guest.power_on()

    def inject(self, token: str = TOKEN, **changes: str) -> None:
        """Do what the functions do: token into the metadata, Secret into the cluster."""
        expires = self.clock.now() + timedelta(hours=1)
        self.cluster.tokens[token] = expires
        self.vm.metadata |= {
            "kubeadm-join-token": token,
            "kubeadm-join-token-expires": expires.isoformat().replace("+00:00", "Z"),
            "kubeadm-control-plane-ip": "10.128.0.2",
            "kubeadm-ca-hash": public_key_pin(self.cluster.ca_pem),
            **changes,
        }
        self.guest.metadata_changed()

    @property
    def node(self) -> dict[str, Any]:
        return self.cluster.nodes[self.vm.name]

    @property
    def state(self) -> str:
        return self.vm.guest_attributes.get("tpu-functions/join-state", "")

    def run_until(self, condition: Callable[[], bool], timeout_s: float = 600) -> None:
        assert self.clock.run_until(condition, timeout_s), self.vm.serial

    def is_ready(self) -> bool:
        conditions = (
            self.cluster.nodes.get(self.vm.name, {}).get("status", {}).get("conditions", [])
        )
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def chips(self) -> tuple[str | None, str | None]:
        status = self.node["status"]
        return status["capacity"].get("google.com/tpu"), status["allocatable"].get("google.com/tpu")


def joined(dials: Dials | None = None, **vm: Any) -> World:
    world = World(dials, **vm)
    world.inject()
    world.run_until(lambda: NODE in world.cluster.nodes and world.chips() == ("4", "4"))
    return world


# --- joining ---


def test_a_vm_with_a_token_becomes_a_ready_node_with_its_chips() -> None:
    world = joined()
    assert world.is_ready()
    assert world.state == f"joined: https://10.128.0.2:6443 as {NODE}"


def test_the_node_has_what_the_script_tells_the_kubelet() -> None:
    node = joined().node
    assert node["spec"] == {
        "providerID": f"gce://my-project/us-central1-c/{NODE}",
        "taints": [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}],
    }
    assert node["metadata"]["labels"]["cloud.google.com/gke-tpu-accelerator"] == "tpu7x"
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.32.4"


def test_the_calls_are_those_of_kubeadm_in_its_order() -> None:
    world = joined()
    csrs = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    (csr,) = world.cluster.requests
    config = "/api/v1/namespaces/kube-system/configmaps"
    assert world.cluster.calls[:9] == [
        "system:anonymous GET /api/v1/namespaces/kube-public/configmaps/cluster-info",
        "system:anonymous GET /api/v1/namespaces/kube-public/configmaps/cluster-info",
        f"system:bootstrap:abc123 GET {config}/kubeadm-config",
        f"system:bootstrap:abc123 GET {config}/kubelet-config",
        f"system:bootstrap:abc123 GET {config}/kube-proxy",
        f"system:bootstrap:abc123 GET /api/v1/nodes/{NODE}",
        f"system:bootstrap:abc123 POST {csrs}",
        f"system:bootstrap:abc123 GET {csrs}/{csr}",
        f"system:node:{NODE} POST /api/v1/nodes",
    ]
    assert {call.split()[0] for call in world.cluster.calls[8:]} == {f"system:node:{NODE}"}


def test_the_signing_request_is_one_that_is_approved_automatically() -> None:
    (request,) = joined().cluster.requests.values()
    assert request["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet"
    assert request["spec"]["usages"] == ["digital signature", "client auth"]


def test_a_vm_waits_for_its_token_as_long_as_need_be() -> None:
    world = World()
    world.clock.run_for(86400)
    assert world.state.startswith("waiting: for kubeadm-join-token")
    assert world.cluster.calls == []
    world.inject()
    world.run_until(world.is_ready)


def test_metadata_that_changes_twice_makes_one_attempt() -> None:
    world = World()
    world.clock.run_for(60)
    world.inject()
    world.guest.metadata_changed()
    world.run_until(world.is_ready)
    assert world.vm.serial.count("joining") == 1


def test_a_vm_that_never_joins_stays_silent() -> None:
    world = World(Dials(joins=False))
    world.inject()
    world.clock.run_for(86400)
    assert world.cluster.calls == []


def test_a_vm_without_a_startup_script_does_nothing() -> None:
    world = World(metadata={})
    world.inject()
    world.clock.run_for(3600)
    assert (world.cluster.calls, world.vm.serial) == ([], "")


def test_a_node_that_joins_by_other_means_uses_its_own_identity() -> None:
    def admin(_: object) -> Identity:
        return Identity("https://10.128.0.2:6443", "", Bearer("admin0.0123456789abcdef"))

    world = World(Dials(identity=admin), metadata={})
    world.cluster.tokens["admin0.0123456789abcdef"] = world.clock.now() + timedelta(days=1)
    world.run_until(world.is_ready)
    assert {call.split()[0] for call in world.cluster.calls} == {"system:bootstrap:admin0"}
