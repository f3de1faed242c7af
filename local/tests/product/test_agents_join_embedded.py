"""A VM agent joins the embedded API with the token that `shared.node_groups.bootstrap` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from local.base.clock import VirtualClock
from local.base.http import Request
from local.kube import ADMIN, KubeApi
from local.tests.vm.machine import Machine
from local.vm.agents import JoinFault, KubeAgent, Timings
from local.vm.transport import InProcess
from shared.node_groups.bootstrap import (
    KUBEADM_GROUP,
    Token,
    ca_hash,
    join_metadata,
    new_token,
    render_startup_script,
    token_secret,
)

ADMIN_TOKEN = "an-administrator"
NODE_PATH = "/api/v1/nodes/tng-train-0a1b2c3d-x1y2"


class Bench:
    """One VM and the embedded API on a virtual clock."""

    def __init__(self, timings: Timings | None = None, seed: int = 0) -> None:
        self.clock = VirtualClock()
        self.random = Random(seed)
        self.kube = KubeApi(self.clock, random=self.random, tokens={ADMIN_TOKEN: ADMIN})
        self.vm = Machine()
        self.vm.metadata["startup-script"] = render_startup_script(
            version="1.31",
            project=self.vm.project,
            zone=self.vm.zone,
            node_labels={"cloud.google.com/gke-tpu-accelerator": "tpu7x"},
            node_taints=["google.com/tpu=present:NoSchedule"],
        )
        self.agent = KubeAgent(self.vm, self.clock, InProcess(self.kube), timings)
        self.agent.power_on()
        self.clock.run_for(1)  # the cluster publishes its CA

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}", "Content-Type": "application/json"}
        raw = None if body is None else json.dumps(body)
        return self.kube.handle(Request.of(method, path, headers=headers, body=raw)).json()

    def inject(self) -> Token:
        """Inject a token with the product's own code."""
        trusted = "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt"
        pin = ca_hash(self.call("GET", trusted)["data"]["ca.crt"])
        token = new_token(self.random.randbytes, self.clock.now())
        self.vm.metadata |= join_metadata(token, endpoint="10.128.0.2", ca_hash=pin)
        secret = token_secret(
            token,
            resource_name="tng-train-0a1b2c3d",
            vm=self.vm.name,
            bootstrap_group=KUBEADM_GROUP,
        )
        created = self.call("POST", "/api/v1/namespaces/kube-system/secrets", secret)
        assert created["kind"] == "Secret", created
        self.agent.metadata_changed()
        return token

    @property
    def node(self) -> dict[str, Any]:
        """Return the VM's Node, or an empty one if there is none."""
        found: dict[str, Any] = self.call("GET", NODE_PATH)
        return found if found["kind"] == "Node" else {"status": {}}

    def is_complete(self) -> bool:
        status = self.node["status"]
        ready = {each["type"]: each["status"] for each in status.get("conditions", [])}.get("Ready")
        return ready == "True" and status["allocatable"].get("google.com/tpu") == "4"

    def complete(self) -> None:
        assert self.clock.run_until(self.is_complete, 1200), self.vm.serial


def test_a_token_of_ours_lets_a_vm_join() -> None:
    bench = Bench()
    bench.inject()
    bench.complete()
    assert bench.node["spec"]["providerID"] == f"gce://my-project/us-central1-c/{bench.vm.name}"
    assert bench.node["metadata"]["labels"]["cloud.google.com/gke-tpu-accelerator"] == "tpu7x"
    taints = {taint["key"] for taint in bench.node["spec"]["taints"]}
    assert "google.com/tpu" in taints


def test_a_token_can_be_revoked_after_the_join() -> None:
    bench = Bench()
    token = bench.inject()
    bench.complete()
    bench.call("DELETE", f"/api/v1/namespaces/kube-system/secrets/{token.secret_name}")
    bench.agent.power_off()
    bench.clock.run_for(3600)
    bench.agent.power_on()
    bench.clock.run_for(60)
    bench.complete()


def test_a_join_fails_with_an_expired_token_and_succeeds_with_a_new_one() -> None:
    bench = Bench(Timings(join_faults=(JoinFault.TOKEN_EXPIRES,)))
    bench.inject()
    bench.clock.run_for(2 * 3600)
    assert "kubeadm join: error execution phase preflight:" in bench.vm.serial
    bench.inject()
    bench.complete()


def test_a_vm_cannot_join_with_a_token_whose_secret_is_absent() -> None:
    bench = Bench()
    token = bench.inject()
    bench.call("DELETE", f"/api/v1/namespaces/kube-system/secrets/{token.secret_name}")
    bench.clock.run_for(1200)
    assert bench.node == {"status": {}}
    assert 'could not find a JWS signature in the cluster-info ConfigMap for token ID "' in (
        bench.vm.serial
    )


def test_the_heartbeat_of_a_node_is_its_lease() -> None:
    bench = Bench()
    bench.inject()
    bench.complete()
    path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{bench.vm.name}"
    before = bench.call("GET", path)["spec"]["renewTime"]
    bench.clock.run_for(30)
    assert bench.call("GET", path)["spec"]["renewTime"] > before


@pytest.mark.parametrize("seed", range(5))
def test_a_vm_joins_whatever_its_random_numbers(seed: int) -> None:
    bench = Bench(seed=seed)
    bench.inject()
    bench.complete()
    assert bench.clock.now() < VirtualClock().now() + timedelta(minutes=5)
