# ruff: noqa: E501  (a table reads best with a row on a line)
"""The errors of the simulated GKE."""

from __future__ import annotations

from typing import Any

import pytest

from local.gce import Principal
from local.gke import Timings
from local.gke.generate import PAGE, with_tables
from local.gke.refusals import CATALOGUE
from local.tests.gke.small_gke import CLUSTER, NAME, POOL, POOLS, ZONE, Gke, pool_body

BAD = "400 INVALID_ARGUMENT badRequest "
SINGLE = (
    BAD
    + "TPU topology can't be specified with single-host TPU slice pool; please remove the tpu_topology from the node pool creation request if the node pool is intented to run with single-host TPU slice nodes."
)
BODIES: list[Any] = [
    pytest.param({"name": "A"}, BAD + 'Invalid value for field "node_pool.name": "A". Must be a match of regex \'(?:[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?)\'.', id="name"),
    pytest.param({"name": "a" * 41}, BAD + f'Invalid value for field "node_pool.name": "{"a" * 41}". Must be a match of regex \'(?:[a-z](?:[-a-z0-9]{{0,38}}[a-z0-9])?)\'.', id="long name"),
    pytest.param({"machine_type": "ct6e-standard-16t"}, BAD + "Machine type with name 'ct6e-standard-16t' does not exist in zone 'us-east5-a'.", id="machine type"),
    pytest.param({"machine_type": "ct5p-hightpu-8t"}, BAD + "Machine type with name 'ct5p-hightpu-8t' does not exist in zone 'us-east5-a'.", id="chips"),
    pytest.param({"initialNodeCount": 1, "placementPolicy": {"type": "COMPACT", "tpuTopology": "2x2"}}, SINGLE, id="single host"),
    pytest.param({"initialNodeCount": 1, "placementPolicy": {"type": "COMPACT"}}, SINGLE, id="single host without topology"),
    pytest.param({"machine_type": "ct6e-standard-8t", "initialNodeCount": 1}, SINGLE, id="single large host"),
    pytest.param({"machine_type": "tpu7x-standard-4t", "initialNodeCount": 1, "placementPolicy": {"policyName": "p"}}, SINGLE, id="single host with a policy"),
    pytest.param({"initialNodeCount": 3}, BAD + "Initial node count 3 is not a valid size of TPU pod slice with topology 2x4.", id="count"),
    pytest.param({"placementPolicy": {"type": "COMPACT", "tpuTopology": "2x"}}, BAD + "Initial node count 2 is not a valid size of TPU pod slice with topology 2x.", id="topology"),
    pytest.param({"locations": ["us-east1-b"]}, BAD + 'Location "us-east1-b" is not in the region of the cluster "us-east5".', id="location"),
    pytest.param({"maxPodsConstraint": {"maxPodsPerNode": 7}}, BAD + 'Invalid value for field "node_pool.max_pods_constraint.max_pods_per_node": 7. Must be between 8 and 256.', id="pods"),
    pytest.param({"config": {"labels": {"batch.kubernetes.io/x": "y"}}}, BAD + 'Node label key "batch.kubernetes.io/x" is reserved: prefixes kubernetes.io/ and k8s.io/ are.', id="label"),
    pytest.param(
        {"config": {"secondaryBootDisks": [{"diskImage": "i", "mode": "CONTAINER_IMAGE_CACHE"}]}},
        BAD + "Secondary boot disks require image streaming (gcfs_config) to be enabled.",
        id="disk",
    ),
    pytest.param({"foo": 1}, BAD + "Invalid JSON payload received. Unknown name \"foo\" at 'node_pool': Cannot find field.", id="unknown field"),
    pytest.param({"config": {"foo": 1}}, BAD + "Invalid JSON payload received. Unknown name \"foo\" at 'node_pool.config': Cannot find field.", id="unknown field inside"),
    pytest.param(
        {"placementPolicy": {"type": "LOOSE"}},
        BAD
        + "Invalid JSON payload received. Invalid enum value LOOSE for enum type google.container.v1.NodePool.PlacementPolicy.Type at CreateNodePoolRequest.nodePool.placementPolicy.type.",
        id="unknown enum value",
    ),
]  # fmt: skip


@pytest.mark.parametrize("fields, words", BODIES)
def test_an_invalid_pool_is_an_error(fields: dict[str, Any], words: str) -> None:
    gke = Gke()
    assert gke.refusal("POST", POOLS, {"nodePool": pool_body(**fields)}) == words
    assert gke.simulator.leftovers() == []


@pytest.mark.parametrize(
    "management, is_refused",
    [({"autoRepair": True, "autoUpgrade": False}, True), ({"autoUpgrade": True}, False), (None, False)],
)  # fmt: skip
def test_a_release_channel_requires_automatic_upgrades(
    management: dict[str, bool] | None, is_refused: bool
) -> None:
    gke = Gke(release_channel="REGULAR")
    fields: dict[str, Any] = {"management": management} if management else {}
    if is_refused:
        assert gke.refusal("POST", POOLS, {"nodePool": pool_body(**fields)}) == (
            BAD + "Auto_upgrade cannot be false when release_channel REGULAR is set."
        )
    else:
        gke.create(**fields)


def test_creating_a_pool_with_a_used_name_is_an_error() -> None:
    gke = Gke()
    gke.create()
    assert gke.refusal("POST", POOLS, {"nodePool": pool_body()}) == (
        "409 ALREADY_EXISTS alreadyExists Already exists: projects/my-project/locations/us-east5/"
        f"clusters/{CLUSTER}/nodePools/{NAME}."
    )


@pytest.mark.parametrize("method, body", [("DELETE", None), ("PUT", {"labels": {"labels": {}}})])
def test_changing_a_pool_during_another_operation_is_an_error(method: str, body: Any) -> None:
    gke = Gke()
    operation = gke.create()
    assert gke.refusal(method, POOL, body) == (
        "400 FAILED_PRECONDITION failedPrecondition Cluster is running incompatible operation "
        f"{operation['name']}."
    )
    gke.settle(operation)
    gke.change(method, POOL, body)


def test_the_number_of_concurrent_operations_of_a_cluster_is_limited() -> None:
    gke = Gke(Timings(operations_at_once=2))
    first = gke.create()
    gke.create(name="second")
    body = {"nodePool": pool_body(name="third")}
    assert gke.refusal("POST", POOLS, body) == (
        '429 RESOURCE_EXHAUSTED rateLimitExceeded Too many operations: cluster "my-cluster" hits the '
        "concurrent operations quota 2, please try again later."
    )
    gke.settle(first)
    gke.change("POST", POOLS, body)


def test_an_old_etag_is_an_error() -> None:
    gke = Gke()
    gke.settle(gke.create())
    body = {"labels": {"labels": {}}, "etag": "old"}
    assert gke.refusal("PUT", POOL, body).startswith("409 ABORTED aborted ")


QUOTA = "403 PERMISSION_DENIED forbidden Insufficient regional quota to satisfy request: resource \"TPUS_PER_CT6E-STANDARD\": request requires '8.0' and is short '4.0'. project has a quota of '12.0' with '4.0' available."
RESERVATION = '429 RESOURCE_EXHAUSTED rateLimitExceeded Reservation does not have enough resources for the request: specific reservation "tpus" is insufficient for node pool "other" at zone "us-east5-a": required 2 and short of 1 VM count of machine type ct6e-standard-4t.'


@pytest.mark.parametrize("fault, limit, words", [("set_chip_quota", ("us-east5", "ct6e-standard", 12), QUOTA), ("set_reservation", ("tpus", 3), RESERVATION)], ids=["quota", "reservation"])  # fmt: skip
def test_pools_that_are_being_created_count(fault: str, limit: tuple[Any, ...], words: str) -> None:
    gke = Gke()
    getattr(gke.faults, fault)(*limit)
    affinity = {"reservationAffinity": {"values": ["tpus"]}}
    gke.create(config=affinity)
    body = {"nodePool": pool_body(name="other", config=affinity)}
    assert gke.refusal("POST", POOLS, body) == words
    getattr(gke.faults, fault)(*limit[:-1])
    gke.change("POST", POOLS, body)


@pytest.mark.parametrize(
    "method, path, words",
    [
        ("GET", POOL, f'404 NOT_FOUND notFound Not found: node pool "{NAME}" not found.'),
        ("DELETE", POOL, f'404 NOT_FOUND notFound Not found: node pool "{NAME}" not found.'),
        ("PUT", POOL, f'404 NOT_FOUND notFound Not found: node pool "{NAME}" not found.'),
        ("GET", POOLS.replace(CLUSTER, "other"), "404 NOT_FOUND notFound Not found: projects/my-project/locations/us-east5/clusters/other."),
        (
            "GET",
            "projects/my-project/locations/us-east5/operations/x",
            "404 NOT_FOUND notFound Not found: projects/my-project/locations/us-east5/operations/x.",
        ),
        ("PATCH", POOL, "404 NOT_FOUND notFound Method not found."),
        ("GET", "projects/my-project", "404 NOT_FOUND notFound Method not found."),
    ],
)  # fmt: skip
def test_absent_resources_are_not_found(method: str, path: str, words: str) -> None:
    assert Gke().refusal(method, path) == words


READER = Principal("reader@x", frozenset({"container.clusters.get"}))
MAKER = Principal("maker@x", frozenset({"container.clusters.get", "container.clusters.update"}))
ON_CLUSTER = f'permission(s) for "projects/my-project/locations/us-east5/clusters/{CLUSTER}".'


@pytest.mark.parametrize(
    "token, method, path, words",
    [
        ("reader", "POST", POOLS, f'403 PERMISSION_DENIED forbidden Required "container.clusters.update" {ON_CLUSTER}'),
        (
            "maker",
            "POST",
            POOLS,
            '403 PERMISSION_DENIED forbidden The user does not have access to service account "default". Ask a project owner to grant you the iam.serviceAccountUser role on the service account.',
        ),
        ("nobody", "GET", POOLS, "401 UNAUTHENTICATED authError Request had invalid authentication credentials."),
    ],
)  # fmt: skip
def test_methods_need_permissions(token: str, method: str, path: str, words: str) -> None:
    gke = Gke(principals={"reader": READER, "maker": MAKER})
    assert gke.refusal(method, path, {"nodePool": pool_body()}, token) == words
    if token == "reader":
        assert gke.send("GET", POOLS, token="reader") == (200, {})


def test_a_permission_can_be_revoked() -> None:
    gke = Gke(principals={"maker": MAKER})
    gke.faults.remove_permission("maker@x", "container.clusters.get")
    assert gke.refusal("GET", POOLS, token="maker") == (
        f'403 PERMISSION_DENIED forbidden Required "container.clusters.get" {ON_CLUSTER}'
    )


@pytest.mark.parametrize("executed", [False, True])
def test_a_call_can_fail_on_demand(executed: bool) -> None:
    gke = Gke()
    gke.faults.fail_next("nodePools.create", executed=executed)
    assert gke.refusal("POST", POOLS, {"nodePool": pool_body()}) == (
        "503 UNAVAILABLE backendError The service is currently unavailable."
    )
    assert bool(gke.simulator.leftovers()) is executed


def test_a_body_that_is_no_json_is_an_error() -> None:
    assert Gke().refusal("POST", POOLS, b"{").startswith(f"{BAD}Invalid JSON payload received. ")


def test_a_finished_operation_can_be_removed() -> None:
    gke = Gke()
    operation = gke.create()
    gke.settle(operation)
    gke.faults.forget_operations()
    path = f"projects/my-project/locations/us-east5/operations/{operation['name']}"
    assert gke.refusal("GET", path).startswith("404 NOT_FOUND")


def test_the_tables_in_the_docs_match_the_code() -> None:
    page = PAGE.read_text()
    assert with_tables(page) == page, "run python -m local.gke.generate"


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_error_has_the_status_of_its_kind(name: str) -> None:
    refusal = CATALOGUE[name]
    assert bool(refusal.status) is (refusal.where == ("call",))
    assert refusal.status in ("", refusal.log[1])


def test_a_pool_without_locations_has_the_zone_of_the_cluster() -> None:
    zonal = Gke(location=ZONE)
    path = POOLS.replace("us-east5", ZONE)
    body = pool_body(locations=[])
    zonal.change("POST", path, {"nodePool": body})
    assert zonal.get(f"{path}/{NAME}")["locations"] == [ZONE]
