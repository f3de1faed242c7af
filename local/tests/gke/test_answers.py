"""The answers of the simulated GKE look like observed answers of the real one."""

from __future__ import annotations

from typing import Any

import pytest

from local.tests.gke.small_gke import CLUSTER, NUMBER, POOLS, PROJECT, Document, Gke

ZONE = "us-central1-a"
PATH = POOLS.replace("us-east5", ZONE)
ROOT = f"https://container.googleapis.com/v1/projects/{NUMBER}/zones/{ZONE}"


@pytest.fixture
def gke() -> Gke:
    """A zonal cluster."""
    return Gke(location=ZONE)


def without_times(document: Document) -> Document:
    return {key: value for key, value in document.items() if not key.endswith("Time")}


def test_a_change_is_answered_with_a_pending_operation(gke: Gke) -> None:
    operation = gke.change("POST", PATH, {"nodePool": {"name": "p", "initialNodeCount": 1}})
    assert operation.keys() >= {"startTime"}
    assert "endTime" not in operation
    assert operation["startTime"] == "2026-01-01T00:00:00.000000000Z"
    assert without_times(operation) == {
        "name": operation["name"],
        "operationType": "CREATE_NODE_POOL",
        "selfLink": f"{ROOT}/operations/{operation['name']}",
        "status": "PENDING",
        "targetLink": f"{ROOT}/clusters/{CLUSTER}/nodePools/p",
        "zone": ZONE,
    }
    done = gke.settle(operation)
    assert without_times(done) == {**without_times(operation), "status": "DONE"}
    assert "endTime" in done


@pytest.mark.parametrize(
    "body",
    [
        {"taints": {"taints": [{"key": "k", "value": "v", "effect": "NO_SCHEDULE"}]}},
        {"linuxNodeConfig": {"cgroupMode": "CGROUP_MODE_V2"}},
        {"tags": {"tags": ["a"]}},
    ],
)
def test_an_update_upgrades_nodes_and_reports_progress(gke: Gke, body: dict[str, Any]) -> None:
    gke.settle(gke.change("POST", PATH, {"nodePool": {"name": "p", "initialNodeCount": 1}}))
    operation = gke.change("PUT", f"{PATH}/p", body)
    assert (operation["operationType"], operation["status"]) == ("UPGRADE_NODES", "PENDING")
    done = gke.settle(operation)
    assert done["progress"] == {"metrics": [{"name": "NODES_TOTAL", "intValue": "0"}]}
    ((name, value),) = body.items()
    assert gke.get(f"{PATH}/p")["config"][name] == value.get(name, value)


def test_a_read_pool_has_the_fields_that_gke_adds(gke: Gke) -> None:
    autoscaling = {"enabled": True, "minNodeCount": 1, "maxNodeCount": 3, "totalMinNodeCount": 0}
    gke.settle(gke.change("POST", PATH, {"nodePool": {"name": "p", "autoscaling": autoscaling}}))
    pool = gke.get(f"{PATH}/p")
    assert pool["autoscaling"] == {
        "enabled": True,
        "locationPolicy": "BALANCED",
        "maxNodeCount": 3,
        "minNodeCount": 1,
    }
    assert pool["locations"] == [ZONE]
    assert pool["management"] == {"autoRepair": True, "autoUpgrade": True}
    assert pool["upgradeSettings"] == {"maxSurge": 1, "strategy": "SURGE"}
    assert (pool["maxPodsConstraint"], pool["podIpv4CidrSize"]) == ({"maxPodsPerNode": "110"}, 24)
    assert pool["selfLink"] == (
        f"https://container.googleapis.com/v1/projects/{PROJECT}/zones/{ZONE}/clusters/{CLUSTER}"
        "/nodePools/p"
    )
    (group,) = pool["instanceGroupUrls"]
    assert group.startswith(
        f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}/instanceGroupManagers/"
    )
    config = pool["config"]
    assert (config["machineType"], config["serviceAccount"]) == ("e2-medium", "default")
    assert config["bootDisk"] == {"diskType": "pd-balanced", "sizeGb": "100"}
    assert config["resourceLabels"] == {"goog-gke-node-pool-provisioning-model": "on-demand"}
    assert config["metadata"] == {"disable-legacy-endpoints": "true"}
    assert config["shieldedInstanceConfig"] == {"enableIntegrityMonitoring": True}


@pytest.mark.parametrize(
    "pods, size", [(8, 28), (15, 27), (16, 27), (17, 26), (110, 24), (256, 23)]
)
def test_the_address_range_of_a_node_has_two_addresses_for_each_pod(
    gke: Gke, pods: int, size: int
) -> None:
    body = {"name": "p", "initialNodeCount": 1, "maxPodsConstraint": {"maxPodsPerNode": pods}}
    gke.settle(gke.change("POST", PATH, {"nodePool": body}))
    assert gke.get(f"{PATH}/p")["podIpv4CidrSize"] == size


def test_links_have_the_api_version_of_the_request(gke: Gke) -> None:
    body = {"nodePool": {"name": "p", "initialNodeCount": 1}}
    _, operation = gke.send("POST", PATH, body, version="v1beta1")
    assert operation["selfLink"].startswith("https://container.googleapis.com/v1beta1/projects/")
