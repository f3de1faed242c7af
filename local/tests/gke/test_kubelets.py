"""The VMs of pools become Nodes of the embedded cluster."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from local.base.http import Request
from local.gke import Cluster, Kubelets, Simulator
from local.tests.contract.kubernetes.embedded import Embedded
from local.tests.gke.small_gke import CLUSTER, LOCATION, NUMBER, POOLS, PROJECT, pool_body
from local.vm.conversation import Bearer, Identity
from local.vm.kubelet import KubeletBehaviour
from local.vm.transport import InProcess

ADMIN = Identity("https://10.128.0.2:6443", "", Bearer("admin"))


class GkeWithKubelets:
    """A simulated GKE whose VMs join the embedded cluster."""

    def __init__(self) -> None:
        self.embedded = Embedded()
        self.clock = self.embedded.clock
        kubelets = Kubelets(
            self.clock,
            InProcess(self.embedded.api),
            lambda _: ADMIN,
            ADMIN,
            behaviour=KubeletBehaviour(ready_s=5.0, plugin_s=5.0),
        )
        self.gke = Simulator(
            self.clock,
            clusters=[Cluster(PROJECT, NUMBER, LOCATION, CLUSTER)],
            random=Random(1),
            nodes=kubelets,
            on_log_entry=lambda _: None,
        )

    def send(self, method: str, path: str, body: Any = None) -> int:
        raw = json.dumps(body) if body else ""
        return self.gke.handle(Request.of(method, f"/v1/{path}", body=raw)).status

    def nodes(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.embedded.ask("GET", "/api/v1/nodes")["items"]
        return items


@pytest.fixture
def gke() -> GkeWithKubelets:
    return GkeWithKubelets()


def test_a_pools_nodes_are_ready_and_offer_their_chips(gke: GkeWithKubelets) -> None:
    assert gke.send("POST", POOLS, {"nodePool": pool_body()}) == 200
    gke.clock.run_for(600)
    nodes = gke.nodes()
    assert len(nodes) == 2
    for node in nodes:
        assert node["metadata"]["labels"]["cloud.google.com/gke-tpu-topology"] == "2x4"
        assert node["spec"]["providerID"].startswith("gce://my-project/us-east5-a/gke-tpu-")
        assert node["status"]["allocatable"]["google.com/tpu"] == "4"
        ready = {one["type"]: one["status"] for one in node["status"]["conditions"]}
        assert ready["Ready"] == "True"


def test_the_nodes_of_a_deleted_pool_are_deleted(gke: GkeWithKubelets) -> None:
    gke.send("POST", POOLS, {"nodePool": pool_body()})
    gke.clock.run_for(600)
    gke.send("DELETE", f"{POOLS}/{pool_body()['name']}")
    gke.clock.run_for(600)
    assert gke.nodes() == []
