"""The audit log of the simulated GKE."""

from __future__ import annotations

import pytest

from local.tests.gke.small_gke import CLUSTER, NAME, POOL, POOLS, PROJECT, ZONE, Gke, pool_body


@pytest.fixture
def gke() -> Gke:
    return Gke()


def test_an_operation_has_two_entries(gke: Gke) -> None:
    gke.settle(gke.create())
    gke.settle(gke.change("PUT", POOL, {"labels": {"labels": {"a": "b"}}}))
    gke.settle(gke.change("DELETE"))
    gke.clock.run_for(10)
    methods = ("CreateNodePool", "UpdateNodePool", "DeleteNodePool")
    assert gke.entries() == [f"{name} {end}" for name in methods for end in ("first", "last")]


def test_the_last_entry_of_a_failed_operation_has_the_error(gke: Gke) -> None:
    gke.faults.set_capacity(ZONE, "ct6e-standard", 0)
    gke.settle(gke.create())
    gke.clock.run_for(10)
    assert gke.entries() == ["CreateNodePool first", "CreateNodePool last (8)"]
    assert [entry["severity"] for entry in gke.log] == ["NOTICE", "ERROR"]


def test_an_immediate_error_has_one_entry(gke: Gke) -> None:
    gke.send("POST", POOLS, {"nodePool": pool_body(name="A")})
    gke.clock.run_for(10)
    gke.send("DELETE", POOL)
    gke.send("GET", POOL)
    gke.clock.run_for(10)
    assert gke.entries() == ["CreateNodePool (3)", "DeleteNodePool (5)"]
    names = [entry["resource"]["labels"]["nodepool_name"] for entry in gke.log]
    assert names == ["A", NAME]


def test_an_entry_names_the_pool_the_caller_and_the_request(gke: Gke) -> None:
    gke.create()
    gke.clock.run_for(10)
    (entry,) = gke.log
    assert entry["resource"] == {
        "type": "gke_nodepool",
        "labels": {
            "project_id": PROJECT,
            "location": "us-east5",
            "cluster_name": CLUSTER,
            "nodepool_name": NAME,
        },
    }
    payload = entry["protoPayload"]
    assert payload["serviceName"] == "container.googleapis.com"
    assert payload["methodName"] == "google.container.v1.ClusterManager.CreateNodePool"
    assert payload["authenticationInfo"] == {"principalEmail": "user@example.com"}
    assert payload["request"]["nodePool"]["name"] == NAME
    assert payload["response"]["status"] == "PENDING"
    assert entry["operation"]["producer"] == "container.googleapis.com"
