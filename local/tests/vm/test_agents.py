"""The agent of a simulated VM: it boots, waits for its token, joins, and reports its Node."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from local.base.clock import VirtualClock
from local.base.http import Response
from local.tests.vm.machine import Machine
from local.tests.vm.small_cluster import SmallCluster
from local.vm.agents import JoinFault, KubeAgent, Timings
from local.vm.conversation import Bearer, Identity
from local.vm.kubeadm import public_key_pin
from local.vm.kubelet import chips_of
from local.vm.transport import InProcess

TOKEN = "abc123.0123456789abcdef"
OTHER_TOKEN = "xyz789.fedcba9876543210"
NODE = "tng-train-0a1b2c3d-x1y2"
SCRIPT = """#!/bin/bash
readonly KUBERNETES_MINOR=1.32
readonly NODE_LABELS=a=b,cloud.google.com/gke-tpu-accelerator=tpu7x
readonly NODE_TAINTS=google.com/tpu=present:NoSchedule
"""


class Bench:
    """One VM and one cluster on a virtual clock."""

    def __init__(self, timings: Timings | None = None, **vm: Any) -> None:
        self.clock = VirtualClock()
        self.cluster = SmallCluster(self.clock.now)
        self.vm = Machine(**{"metadata": {"startup-script": SCRIPT}, **vm})
        self.agent = KubeAgent(self.vm, self.clock, InProcess(self.cluster), timings)
        self.agent.power_on()

    def inject(self, token: str = TOKEN, **changes: str) -> None:
        """Write token and Secret as the functions do, into the metadata and the cluster."""
        expires = self.clock.now() + timedelta(hours=1)
        self.cluster.tokens[token] = expires
        self.vm.metadata |= {
            "kubeadm-join-token": token,
            "kubeadm-join-token-expires": expires.isoformat().replace("+00:00", "Z"),
            "kubeadm-control-plane-ip": "10.128.0.2",
            "kubeadm-ca-hash": public_key_pin(self.cluster.ca_pem),
            **changes,
        }
        self.agent.metadata_changed()

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


def joined(timings: Timings | None = None, **vm: Any) -> Bench:
    bench = Bench(timings, **vm)
    bench.inject()
    bench.run_until(lambda: NODE in bench.cluster.nodes and bench.chips() == ("4", "4"))
    return bench


# --- joining ---


def test_a_vm_with_a_token_becomes_a_ready_node_with_its_chips() -> None:
    bench = joined()
    assert bench.is_ready()
    assert bench.state == f"joined: https://10.128.0.2:6443 as {NODE}"


def test_the_node_has_the_kubelet_arguments_of_the_script() -> None:
    node = joined().node
    assert node["spec"] == {
        "providerID": f"gce://my-project/us-central1-c/{NODE}",
        "taints": [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}],
    }
    assert node["metadata"]["labels"]["cloud.google.com/gke-tpu-accelerator"] == "tpu7x"
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.32.4"


def test_the_calls_are_those_of_kubeadm_in_its_order() -> None:
    bench = joined()
    csrs = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    (csr,) = bench.cluster.requests
    config = "/api/v1/namespaces/kube-system/configmaps"
    assert bench.cluster.calls[:9] == [
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
    assert {call.split()[0] for call in bench.cluster.calls[8:]} == {f"system:node:{NODE}"}


def test_the_signing_request_is_one_that_is_approved_automatically() -> None:
    (request,) = joined().cluster.requests.values()
    assert request["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet"
    assert request["spec"]["usages"] == ["digital signature", "client auth"]


def test_a_vm_waits_for_its_token_without_a_limit() -> None:
    bench = Bench()
    bench.clock.run_for(86400)
    assert bench.state.startswith("waiting: for kubeadm-join-token")
    assert bench.cluster.calls == []
    bench.inject()
    bench.run_until(bench.is_ready)


def test_two_changes_of_metadata_cause_one_attempt() -> None:
    bench = Bench()
    bench.clock.run_for(60)
    bench.inject()
    bench.agent.metadata_changed()
    bench.run_until(bench.is_ready)
    assert bench.vm.serial.count("joining") == 1


def test_a_vm_that_never_joins_makes_no_calls() -> None:
    bench = Bench(Timings(joins=False))
    bench.inject()
    bench.clock.run_for(86400)
    assert bench.cluster.calls == []


def test_a_vm_without_a_startup_script_does_nothing() -> None:
    bench = Bench(metadata={})
    bench.inject()
    bench.clock.run_for(3600)
    assert (bench.cluster.calls, bench.vm.serial) == ([], "")


def test_a_node_that_joins_by_other_means_uses_its_own_identity() -> None:
    def admin(_: object) -> Identity:
        return Identity("https://10.128.0.2:6443", "", Bearer("admin0.0123456789abcdef"))

    bench = Bench(Timings(identity=admin), metadata={})
    bench.cluster.tokens["admin0.0123456789abcdef"] = bench.clock.now() + timedelta(days=1)
    bench.run_until(bench.is_ready)
    assert {call.split()[0] for call in bench.cluster.calls} == {"system:bootstrap:admin0"}


@pytest.mark.parametrize(
    "machine_type, chips",
    [
        ("tpu7x-standard-4t", 4),
        ("ct6e-standard-1t", 1),
        ("ct6e-standard-8t", 8),
        ("ct6e-standard-4t-tpu", 4),
        ("n2-standard-4", 0),
    ],
)
def test_the_machine_type_determines_the_number_of_chips(machine_type: str, chips: int) -> None:
    assert chips_of(machine_type) == chips


@pytest.mark.parametrize(
    "endpoint, server",
    [
        ("10.0.0.2", "10.0.0.2:6443"),
        ("10.0.0.2:443", "10.0.0.2:443"),
        ("k8s.example.com", "k8s.example.com:6443"),
        ("fd00::2", "[fd00::2]:6443"),
        ("[fd00::2]", "[fd00::2]:6443"),
        ("[fd00::2]:443", "[fd00::2]:443"),
    ],
)
def test_a_vm_agent_reads_an_endpoint_as_the_script_does(endpoint: str, server: str) -> None:
    bench = Bench()
    bench.inject(**{"kubeadm-control-plane-ip": endpoint})
    bench.run_until(lambda: "joining" in bench.state)
    assert bench.state == f"joining: {server} as {NODE}, try 1 with this token"


# --- failures ---


def test_a_failed_attempt_is_retried_with_the_same_token() -> None:
    bench = Bench(Timings(join_faults=(JoinFault.KUBEADM_FAILS,) * 4))
    bench.inject()
    bench.run_until(bench.is_ready, timeout_s=900)
    assert "try 5 with this token" in bench.vm.serial


def test_another_token_is_tried_without_a_pause() -> None:
    bench = Bench(Timings(join_faults=(JoinFault.KUBEADM_FAILS,)))
    bench.inject()
    bench.run_until(lambda: bench.state.startswith("failed"))
    bench.inject(OTHER_TOKEN)
    bench.run_until(lambda: bench.state.startswith("joining"), timeout_s=1)
    bench.run_until(bench.is_ready)
    assert bench.vm.serial.count("try 1 with this token") == 2


def test_an_attempt_can_start_just_after_its_token_expired() -> None:
    bench = Bench(Timings(join_faults=(JoinFault.TOKEN_EXPIRES,)))
    bench.inject()
    bench.run_until(lambda: bench.state.startswith("waiting"), timeout_s=4000)
    assert bench.vm.serial.splitlines()[1:] == [
        "tpu-functions: failed: kubeadm join: error execution phase preflight: unable to fetch the"
        " kubeadm-config ConfigMap: failed to get config map: Unauthorized",
        "tpu-functions: waiting: for another token: this one expired at 2026-01-01T01:00:00Z",
    ]


def test_a_token_that_expired_before_the_vm_saw_it_is_not_tried() -> None:
    bench = Bench()
    bench.inject(**{"kubeadm-join-token-expires": "2020-01-01T00:00:00Z"})
    bench.clock.run_for(3600)
    assert bench.state == "waiting: for another token: this one expired at 2020-01-01T00:00:00Z"
    assert bench.cluster.calls == []


def test_all_attempts_can_fail_randomly() -> None:
    bench = Bench(Timings(join_fault_chance=1.0))
    bench.inject()
    bench.clock.run_for(3600)
    assert bench.cluster.calls == []


def test_a_recreated_vm_waits_for_the_deletion_of_its_stale_node() -> None:
    bench = joined()
    again = KubeAgent(bench.vm, bench.clock, InProcess(bench.cluster))
    bench.agent.power_off()
    again.power_on()
    bench.run_until(lambda: "try 2 with this token" in bench.vm.serial and "failed" in bench.state)
    assert f'a Node with name "{NODE}" and status "Ready" already exists' in bench.vm.serial
    del bench.cluster.nodes[NODE]
    bench.agent = again
    bench.inject(OTHER_TOKEN)
    bench.run_until(bench.is_ready)


# --- power ---


def test_power_off_stops_the_heartbeats_of_the_node() -> None:
    bench = joined()
    bench.agent.power_off()
    before = len(bench.cluster.calls)
    bench.clock.run_for(3600)
    assert len(bench.cluster.calls) == before


@pytest.mark.parametrize("seconds", range(0, 60, 5))
def test_power_off_at_any_time_ends_the_current_work(seconds: int) -> None:
    bench = Bench()
    bench.inject()
    bench.clock.run_for(seconds)
    bench.agent.power_off()
    before = len(bench.cluster.calls)
    bench.clock.run_for(1200)
    assert len(bench.cluster.calls) == before
    bench.agent.power_on()
    bench.run_until(bench.is_ready)


def test_a_joined_vm_uses_its_certificate_after_a_reboot() -> None:
    bench = joined()
    bench.agent.power_off()
    bench.cluster.tokens.clear()
    before = len(bench.cluster.calls)
    bench.agent.power_on()
    bench.run_until(lambda: bench.chips() == ("0", "0"))
    bench.run_until(lambda: bench.chips() == ("4", "4"))
    users = {call.split()[0] for call in bench.cluster.calls[before:]}
    assert users == {f"system:node:{NODE}"}


def test_a_node_that_was_deleted_while_its_vm_was_off_is_registered_again() -> None:
    bench = joined()
    bench.agent.power_off()
    bench.cluster.nodes.clear()
    bench.agent.power_on()
    bench.run_until(bench.is_ready)


def test_a_running_kubelet_does_not_register_a_deleted_node_again() -> None:
    bench = joined()
    bench.cluster.nodes.clear()
    bench.clock.run_for(3600)
    assert bench.cluster.nodes == {}


# --- the kubelet ---


def test_the_kubelet_renews_its_lease_at_the_configured_interval() -> None:
    bench = joined(Timings(lease_s=20.0))
    bench.cluster.calls.clear()
    bench.clock.run_for(200)
    renewals = [call for call in bench.cluster.calls if "PUT" in call]
    assert len(renewals) == 10
    assert bench.cluster.leases[NODE]["spec"]["leaseDurationSeconds"] == 40


def test_a_stopped_kubelet_makes_no_calls() -> None:
    bench = joined(Timings(lease_s=None))
    bench.cluster.calls.clear()
    bench.clock.run_for(86400)
    assert (bench.cluster.calls, bench.cluster.leases) == ([], {})


def test_the_status_is_reported_every_five_minutes() -> None:
    bench = joined()
    bench.cluster.calls.clear()
    bench.clock.run_for(3000)
    assert sum(call.endswith("/status") for call in bench.cluster.calls) == 10


def test_calls_are_retried_while_the_api_server_is_unavailable() -> None:
    bench = Bench()
    bench.cluster.answers["POST /api/v1/nodes"] = Response(503)
    bench.inject()
    bench.clock.run_for(300)
    bench.cluster.answers.clear()
    bench.run_until(bench.is_ready)


def test_without_the_device_plugin_there_are_no_chips() -> None:
    bench = Bench(Timings(plugin_s=None))
    bench.inject()
    bench.clock.run_for(3600)
    assert bench.is_ready()
    assert bench.chips() == (None, None)


def test_the_device_plugin_runs_only_with_the_accelerator_label() -> None:
    script = SCRIPT.replace(",cloud.google.com/gke-tpu-accelerator=tpu7x", "")
    bench = Bench(metadata={"startup-script": script})
    bench.inject()
    bench.clock.run_for(3600)
    assert bench.chips() == (None, None)
    bench.node["metadata"]["labels"]["cloud.google.com/gke-tpu-accelerator"] = "tpu7x"
    bench.run_until(lambda: bench.chips() == ("4", "4"), timeout_s=30)


def test_the_same_random_numbers_give_the_same_timing() -> None:
    def join() -> list[str]:
        bench = joined()
        return [f"{bench.clock.now()}", *bench.cluster.calls[-3:], bench.vm.serial]

    assert join() == join()
