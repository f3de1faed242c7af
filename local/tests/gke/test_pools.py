# ruff: noqa: E501
"""Pools of the simulated GKE are created, changed, fail and are deleted; and their Nodes."""

from __future__ import annotations

import json

import pytest

from local.base.http import Request
from local.gke import Timings
from local.gke.machines import FAMILIES
from local.tests.gke.small_gke import CLUSTER, NAME, POOL, POOLS, ZONE, Document, Gke, pool_body

RESERVED = {"consumeReservationType": "SPECIFIC_RESERVATION", "values": ["tpus"]}
FLEX = {"flexStart": True, "maxRunDuration": "3600s"}


@pytest.fixture
def gke() -> Gke:
    return Gke()


def test_a_pool_is_provisioning_until_its_operation_is_done(gke: Gke) -> None:
    operation = gke.create()
    assert (operation["operationType"], operation["status"]) == ("CREATE_NODE_POOL", "PENDING")
    assert gke.get()["status"] == "PROVISIONING"
    done = gke.settle(operation)
    assert "error" not in done
    assert gke.get()["status"] == "RUNNING"
    assert gke.simulator.leftovers() == [f"locations/us-east5/clusters/{CLUSTER}/nodePools/{NAME}"]


def test_an_operation_is_pending_then_running_then_done(gke: Gke) -> None:
    operation = gke.create()
    path = f"projects/my-project/locations/us-east5/operations/{operation['name']}"
    seen: list[str] = []
    while not seen or seen[-1] != "DONE":
        seen.append(gke.get(path)["status"])
        gke.clock.run_for(1)
    assert list(dict.fromkeys(seen)) == ["PENDING", "RUNNING", "DONE"]
    listed = gke.get("projects/my-project/locations/-/operations")["operations"]
    assert [one["name"] for one in listed] == [operation["name"]]


def test_the_vms_of_a_pool_become_nodes_with_labels_of_the_pool_and_of_gke(gke: Gke) -> None:
    taint = {"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NO_SCHEDULE"}
    config = {"labels": {"job-key": "abc"}, "spot": True, "taints": [taint]}
    gke.settle(gke.create(config=config))
    assert gke.nodes.there == {}, "VMs take time to boot"
    gke.clock.run_for(120)
    first, second = gke.nodes.there.values()
    assert first.labels == second.labels
    assert first.labels == {
        "job-key": "abc",
        "cloud.google.com/gke-nodepool": NAME,
        "cloud.google.com/gke-os-distribution": "cos",
        "cloud.google.com/gke-spot": "true",
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "2x4",
        "cloud.google.com/gke-accelerator-count": "4",
        "node.kubernetes.io/instance-type": "ct6e-standard-4t",
        "topology.kubernetes.io/zone": ZONE,
        "topology.kubernetes.io/region": "us-east5",
    }
    assert first.taints == ("cloud.google.com/gke-spot=true:NoSchedule",)


def test_the_taint_of_gke_is_an_option() -> None:
    gke = Gke(Timings(tpu_taint=True))
    gke.settle(gke.create())
    gke.clock.run_for(120)
    assert {node.taints for node in gke.nodes.there.values()} == {
        ("google.com/tpu=present:NoSchedule",)
    }


@pytest.mark.parametrize(
    "machine_type, placement, count, topology",
    [
        ("tpu7x-standard-4t", {"policyName": "tpu-provisioner-2x2x2"}, 2, "2x2x2"),
        ("tpu7x-standard-4t", {}, 1, "2x2x1"),
        ("ct6e-standard-8t", {}, 1, "2x4"),
        ("ct5lp-hightpu-1t", {}, 1, "1x1"),
    ],
)
def test_the_topology_labels_of_a_node(
    gke: Gke, machine_type: str, placement: dict[str, str], count: int, topology: str
) -> None:
    gke.create(machine_type=machine_type, placementPolicy=placement, initialNodeCount=count)
    gke.clock.run_for(600)
    found = {node.labels["cloud.google.com/gke-tpu-topology"] for node in gke.nodes.there.values()}
    assert (found, len(gke.nodes.there)) == ({topology}, count)


def test_a_deleted_pool_deletes_its_nodes(gke: Gke) -> None:
    gke.create()
    gke.clock.run_for(600)
    operation = gke.change("DELETE")
    assert (operation["operationType"], operation["status"]) == ("DELETE_NODE_POOL", "PENDING")
    assert gke.get()["status"] == "STOPPING"
    gke.settle(operation)
    assert gke.send("GET", POOL)[0] == 404
    assert gke.nodes.there == {}
    assert gke.simulator.leftovers() == []


def test_vms_do_not_register_after_their_pool_is_deleted() -> None:
    gke = Gke(Timings(register_s=(500, 600), operation_s={"nodePools.delete": (1, 2)}))
    gke.settle(gke.create())
    gke.settle(gke.change("DELETE"))
    gke.clock.run_for(1200)
    assert gke.nodes.there == {}


def test_without_capacity_a_pool_ends_in_error_and_remains(gke: Gke) -> None:
    gke.faults.set_capacity(ZONE, "ct6e-standard", 1)
    done = gke.settle(gke.create())
    assert done["error"]["code"] == 8
    assert done["statusMessage"] == done["error"]["message"]
    pool = gke.get()
    assert pool["status"] == "ERROR"
    assert "does not have enough resources available" in pool["statusMessage"]
    (condition,) = pool["conditions"]
    assert (condition["code"], condition["canonicalCode"]) == ("GCE_STOCKOUT", "RESOURCE_EXHAUSTED")
    gke.clock.run_for(3600)
    assert gke.nodes.there == {}
    gke.settle(gke.change("DELETE"))
    gke.faults.set_capacity(ZONE, "ct6e-standard", 2)
    gke.settle(gke.create())
    assert gke.get()["status"] == "RUNNING"


@pytest.mark.parametrize(
    "limited, config, status",
    [
        ("SPOT", {"spot": True}, "ERROR"),
        ("SPOT", {}, "RUNNING"),
        ("any", {"spot": True}, "ERROR"),
        ("FLEX_START", FLEX, "ERROR"),
        ("STANDARD", FLEX, "RUNNING"),
        ("STANDARD", {}, "ERROR"),
        ("any", {"reservationAffinity": RESERVED}, "RUNNING"),
    ],
    ids=str,
)
def test_the_capacity_of_a_zone_can_end_for_one_provisioning_model(
    gke: Gke, limited: str, config: Document, status: str
) -> None:
    gke.faults.set_capacity(ZONE, "ct6e-standard", 1, limited)
    gke.settle(gke.create(config=config))
    assert gke.get()["status"] == status


def test_pools_that_are_being_created_use_capacity(gke: Gke) -> None:
    gke.faults.set_capacity(ZONE, "ct6e-standard", 3)
    gke.create()
    gke.settle(gke.create(name="other"))
    assert gke.get(f"{POOLS}/other")["status"] == "ERROR"


def test_a_placement_for_tpu7x_is_accepted_and_fails(gke: Gke) -> None:
    placement = {"type": "COMPACT", "tpuTopology": "2x2x2"}
    done = gke.settle(gke.create(machine_type="tpu7x-standard-4t", placementPolicy=placement))
    assert done["statusMessage"] == (
        "Creation of a managed instance group with tpu7x-standard-4t machine type with placement "
        "policy is not supported. Use workload policy instead."
    )
    assert gke.get()["status"] == "ERROR"


def test_labels_are_changed_in_place(gke: Gke) -> None:
    gke.create(config={"labels": {"a": "1"}})
    gke.clock.run_for(600)
    before = dict(gke.nodes.there)
    etag = gke.get()["etag"]
    body = {"labels": {"labels": {"b": "2"}}, "etag": etag}
    operation = gke.change("PUT", POOL, body)
    assert (operation["operationType"], operation["status"]) == ("UPGRADE_NODES", "PENDING")
    assert gke.get()["status"] == "RECONCILING"
    gke.settle(operation)
    pool = gke.get()
    assert (pool["config"]["labels"], pool["status"]) == ({"b": "2"}, "RUNNING")
    assert pool["etag"] != etag
    assert gke.nodes.there.keys() == before.keys()
    for name, node in gke.nodes.there.items():
        own = {key: value for key, value in before[name].labels.items() if key != "a"}
        assert node.labels == {**own, "b": "2"}


def test_a_change_of_resource_labels_recreates_the_nodes(gke: Gke) -> None:
    gke.create()
    gke.clock.run_for(600)
    before = set(gke.nodes.there)
    gke.settle(gke.change("PUT", POOL, {"resourceLabels": {"labels": {"a": "b"}}}))
    assert gke.get()["config"]["resourceLabels"] == {
        "a": "b",
        "goog-gke-node-pool-provisioning-model": "on-demand",
    }
    gke.clock.run_for(600)
    assert len(gke.nodes.there) == 2
    assert not before & set(gke.nodes.there)


def test_a_pool_that_loses_vms_is_running_with_error(gke: Gke) -> None:
    gke.create()
    gke.clock.run_for(600)
    gke.faults.lose_nodes(NAME)
    pool = gke.get()
    assert pool["status"] == "RUNNING_WITH_ERROR"
    assert pool["statusMessage"] == "1 of 2 instances are not running."
    assert len(gke.nodes.there) == 1
    gke.faults.repair_nodes(NAME)
    gke.clock.run_for(600)
    assert (gke.get()["status"], len(gke.nodes.there)) == ("RUNNING", 2)


def test_a_pool_of_a_user_exists_immediately(gke: Gke) -> None:
    gke.faults.make_pool(CLUSTER, "default-pool", {"team": "a"})
    assert gke.get(f"{POOLS}/default-pool")["status"] == "RUNNING"
    listed = gke.get(POOLS)["nodePools"]
    assert [pool["name"] for pool in listed] == ["default-pool"]


@pytest.mark.parametrize("verb, change", [("create", "POST"), ("delete", "DELETE")])
def test_an_operation_can_fail_on_demand(gke: Gke, verb: str, change: str) -> None:
    if change == "DELETE":
        gke.settle(gke.create())
    gke.faults.fail_operations(f"nodePools.{verb}", message="Internal error, really.")
    body = {"nodePool": pool_body()} if change == "POST" else None
    done = gke.settle(gke.change(change, POOLS if change == "POST" else POOL, body))
    assert done["error"] == {"code": 13, "message": "Internal error, really."}
    assert gke.get()["status"] == "ERROR"


def test_an_operation_can_be_slow(gke: Gke) -> None:
    gke.faults.slow_operations("nodePools.*", 1000)
    operation = gke.create()
    gke.clock.run_for(900)
    path = f"projects/my-project/locations/us-east5/operations/{operation['name']}"
    assert gke.get(path)["status"] == "RUNNING"


def test_enums_are_accepted_and_returned_as_numbers(gke: Gke) -> None:
    body = pool_body(placementPolicy={"type": 1, "tpuTopology": "2x4"})
    gke.settle(gke.change("POST", POOLS, {"nodePool": body}))
    assert gke.get()["placementPolicy"]["type"] == "COMPACT"
    request = Request.of("GET", f"/v1/{POOL}?%24alt=json%3Benum-encoding%3Dint")
    document = gke.simulator.handle(request).json()
    assert (document["placementPolicy"]["type"], document["status"]) == (1, 2)


def control(gke: Gke, method: str, name: str, body: Document | None = None) -> tuple[int, Document]:
    raw = json.dumps(body) if body is not None else ""
    response = gke.simulator.handle(Request.of(method, f"/_simulator/{name}", body=raw))
    return response.status, response.json()


def test_faults_and_state_are_available_over_http(gke: Gke) -> None:
    status, faults = control(gke, "GET", "faults")
    assert (status, "set_capacity" in faults, "find_room" in faults) == (200, True, False)
    fault = {"zone": ZONE, "family": "ct6e-standard", "vms": 0}
    assert control(gke, "POST", "set_capacity", fault) == (200, {})
    gke.settle(gke.create())
    _, state = control(gke, "GET", "state")
    assert state["pools"] == {
        f"clusters/{CLUSTER}/nodePools/{NAME}": {"status": "ERROR", "nodes": []}
    }
    assert state["calls"]["nodePools.create"] == 1
    assert control(gke, "POST", "lose_nodes", {"pool": "x"})[0] == 409
    for name, wrong, error in (
        ("set_capacity", {**fault, "zone": "mars"}, "zone must be a zone of the clusters' regions: us-east5, not \"mars\""),
        ("set_capacity", {**fault, "family": "ct6e"}, f"family must be one of {', '.join(sorted(FAMILIES))}, not \"ct6e\""),
        ("fail_operations", {"verbs": "*.create", "code": 2}, "code must be one of 3, 8, 13, not 2"),
    ):  # fmt: skip
        assert control(gke, "POST", name, wrong) == (400, {"error": f"{name}: {error}"})
