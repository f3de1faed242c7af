# ruff: noqa: E501  (a table reads best with a row on a line)
"""The product's port to GKE, against the simulated one: its requests, and how it reads answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from local.gce import Principal
from local.gke import Timings
from local.tests.gke.small_gke import CLUSTER, ZONE, Gke
from local.tests.product.node_pools import LEADER, SETTINGS, V6E, provider
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gke import GkeClient
from shared.slices.by_node_pool.provider import NodePools
from shared.slices.create_or_release import Phase, find_phase
from shared.slices.provider import NameConflict, Slice, SliceState
from shared.slices.selectors import SPOT
from tests.support.loopback import open_loopback
from tests.support.slices import build_first
from tests.unit.shared.slices.by_node_pool.objects import TOLERATION, leader

NAME = "jobset-test-78c32d3b806d5259"


@pytest.fixture
def gke() -> Gke:
    return Gke()


@pytest.fixture
def pools(gke: Gke) -> NodePools:
    return provider(gke)


def found(pools: NodePools) -> Slice:
    it = pools.find(build_first(pools, *LEADER))
    assert isinstance(it, Slice)
    return it


def test_a_pool_is_created_read_and_deleted(gke: Gke, pools: NodePools) -> None:
    desired = build_first(pools, *LEADER)
    assert pools.find(desired) is None
    pools.create(desired)
    assert found(pools).state is SliceState.PROVISIONING
    gke.clock.run_for(600)
    ready = Slice(NAME, desired.unit, desired.hash, SliceState.READY, chips=8, place=desired.place)
    assert found(pools) == ready
    assert len(gke.nodes.there) == 2
    assert pools.delete(found(pools)) is True
    assert found(pools).state is SliceState.DELETING
    gke.clock.run_for(600)
    assert pools.find(desired) is None
    assert gke.nodes.there == {}
    assert gke.simulator.calls.counts() == {
        "nodePools.get": 1,
        "nodePools.list": 4,
        "nodePools.create": 1,
        "nodePools.delete": 1,
    }


@pytest.mark.parametrize(
    "accelerator, topology, chips",
    [
        ("tpu-v4-podslice", "2x2x4", 4),
        ("tpu-v4-podslice", "2x2x1", 4),
        ("tpu-v5-lite-podslice", "4x8", 4),
        ("tpu-v5-lite-podslice", "2x4", 8),
        ("tpu-v5-lite-podslice", "1x1", 1),
        ("tpu-v5p-slice", "8x16x16", 4),
        ("tpu-v5p-slice", "2x2x1", 4),
        ("tpu-v6e-slice", "2x2", 4),
        ("tpu-v6e-slice", "2x4", 8),
        ("tpu7x", "2x2x2", 4),
        ("tpu7x", "2x2x1", 4),
        ("tpu7x", "1x1x1", 1),
    ],
)
def test_a_slice_of_the_product_is_created_and_its_pod_fits(
    gke: Gke, pools: NodePools, accelerator: str, topology: str, chips: int
) -> None:
    selector = {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
        "cloud.google.com/gke-tpu-ici-resiliency": "true",
        "topology.kubernetes.io/zone": ZONE,
        "job-key": "abc",
        SPOT: "true",
    }
    asking = leader(node_selector=selector, tpu=chips, tolerations=[TOLERATION])
    desired = build_first(pools, *asking)
    pools.create(desired)
    gke.clock.run_for(1200)
    nodes = list(gke.nodes.there.values())
    assert len(nodes) == desired.body["initialNodeCount"]
    assert all(asking[0].selector.items() <= node.labels.items() for node in nodes)


def test_a_reservation_is_a_label_of_the_nodes(gke: Gke, pools: NodePools) -> None:
    selector = {
        **V6E,
        "cloud.google.com/reservation-name": "mine",
        "cloud.google.com/reservation-project": "theirs",
    }
    pools.create(build_first(pools, *leader(node_selector=selector)))
    gke.clock.run_for(600)
    assert all(selector.items() <= node.labels.items() for node in gke.nodes.there.values())


def test_creating_an_existing_pool_is_a_conflict(pools: NodePools) -> None:
    pools.create(build_first(pools, *LEADER))
    with pytest.raises(CallError) as raised:
        pools.create(build_first(pools, *LEADER))
    error = raised.value
    assert (error.call, error.http, error.code) == ("nodePools.create", 409, "alreadyExists")
    assert error.message.startswith("Already exists: projects/my-project/")


def test_deleting_an_absent_pool_is_no_error(gke: Gke, pools: NodePools) -> None:
    pools.create(build_first(pools, *LEADER))
    gke.clock.run_for(600)
    there = found(pools)
    assert pools.delete(there) is True
    gke.clock.run_for(600)
    assert pools.delete(there) is False


CHANGES: dict[str, Callable[[Gke, NodePools, Slice], None]] = {
    "its release deadline": lambda _, pools, there: pools.set_release_deadline(there, datetime(2026, 1, 1, tzinfo=UTC)),
    "its nodes": lambda gke, _, there: gke.faults.lose_nodes(there.name),
}  # fmt: skip


@pytest.mark.parametrize("etag", ["known", "unknown"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_pool_that_changed_after_the_read_is_not_deleted(
    gke: Gke, pools: NodePools, change: str, etag: str
) -> None:
    pools.create(build_first(pools, *LEADER))
    gke.clock.run_for(600)
    there = found(pools)
    CHANGES[change](gke, pools, there)
    gke.clock.run_for(60)
    if etag == "unknown":
        there = replace(there, raw={**there.raw, "etag": ""})
    with pytest.raises(CallError) as raised:
        pools.delete(there)
    assert str(raised.value) == (
        f"nodePools.delete: 409 aborted: node pool {NAME} has changed since it was read"
    )
    assert gke.simulator.calls.counts()["nodePools.delete"] == 0
    assert pools.delete(found(pools)) is True


def test_a_pool_from_a_list_can_be_deleted(gke: Gke, pools: NodePools) -> None:
    pools.create(build_first(pools, *LEADER))
    gke.clock.run_for(600)
    (there,) = pools.list_all()
    assert pools.delete(there) is True


def test_a_pool_cannot_be_deleted_during_its_creation(pools: NodePools) -> None:
    pools.create(build_first(pools, *LEADER))
    with pytest.raises(CallError, match="400 failedPrecondition: Cluster is running") as raised:
        pools.delete(found(pools))
    assert raised.value.reason is None


def test_a_stockout_is_reported_with_gkes_message(gke: Gke) -> None:
    gke.faults.set_capacity(ZONE, "ct6e-standard", 0)
    asked: list[str] = []

    def list_readiness(name: str) -> list[bool]:
        asked.append(name)
        return []

    pools = provider(gke, list_readiness=list_readiness)
    pools.create(build_first(pools, *LEADER))
    assert found(pools).state is SliceState.PROVISIONING
    assert asked == []
    gke.clock.run_for(600)
    there = found(pools)
    assert there.state is SliceState.FAILED
    assert there.message.startswith("Google Compute Engine: Not all instances running in IGM")
    assert (there.has_ready_nodes, there.is_self_healing, asked) == (False, False, [NAME])
    assert find_phase(there) is Phase.UNCREATED


@pytest.mark.parametrize(
    "nodes, phase",
    [([], Phase.UNCREATED), ([False], Phase.LOST), ([False, True], Phase.DEGRADED)],
)
def test_a_failed_pool_with_nodes_counts_as_created(
    gke: Gke, nodes: list[bool], phase: Phase
) -> None:
    gke.faults.set_capacity(ZONE, "ct6e-standard", 0)
    pools = provider(gke, list_readiness=lambda _: nodes)
    pools.create(build_first(pools, *LEADER))
    gke.clock.run_for(600)
    assert find_phase(found(pools)) is phase


def test_a_pool_that_lost_a_node_reports_whether_others_are_ready(gke: Gke) -> None:
    pools = provider(gke, list_readiness=lambda _: [False, True])
    pools.create(build_first(pools, *LEADER))
    gke.clock.run_for(600)
    gke.faults.lose_nodes(NAME)
    there = found(pools)
    assert (there.state, there.has_ready_nodes) == (SliceState.FAILED, True)
    assert there.is_self_healing
    assert there.message == "1 of 2 instances are not running."


def test_a_release_deadline_is_stored_in_the_pool_without_an_upgrade_of_nodes(
    gke: Gke, pools: NodePools
) -> None:
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    pools.create(build_first(pools, *LEADER))
    gke.clock.run_for(600)
    nodes = dict(gke.nodes.there)
    pools.set_release_deadline(found(pools), moment)
    gke.clock.run_for(60)
    stamped = found(pools)
    assert (stamped.release_after, stamped.state) == (moment, SliceState.READY)
    assert stamped.hash == build_first(pools, *LEADER).hash
    pools.set_release_deadline(stamped, None)
    gke.clock.run_for(60)
    assert found(pools).release_after is None
    assert gke.nodes.there == nodes


def test_a_release_deadline_does_not_overwrite_a_concurrent_change(
    gke: Gke, pools: NodePools
) -> None:
    pools.create(build_first(pools, *LEADER))
    gke.clock.run_for(600)
    before = found(pools)
    pools.set_release_deadline(before, datetime(2026, 1, 1, tzinfo=UTC))
    gke.clock.run_for(60)
    with pytest.raises(CallError, match=r"nodePools\.update: 409 aborted"):
        pools.set_release_deadline(before, None)


def test_a_pool_of_a_user_with_the_same_name_is_a_name_conflict(gke: Gke, pools: NodePools) -> None:
    gke.faults.make_pool(CLUSTER, NAME, {"team": "a"})
    assert pools.find(build_first(pools, *LEADER)) == NameConflict(
        NAME, "a node pool that was not created for a workload"
    )
    assert pools.get("default", NAME) is None
    assert list(pools.list_all()) == []


def test_slices_can_be_listed_by_name_by_jobset_and_all(gke: Gke, pools: NodePools) -> None:
    manager = {"google.com/nodepool-manager": "tpu-provisioner"}
    gke.faults.make_pool(CLUSTER, "default-pool")
    gke.faults.make_pool(CLUSTER, "old-75973", {**manager, "provisioner-nodepool-id": "old"})
    pools.create(build_first(pools, *LEADER))
    there = found(pools)
    assert pools.get("default", NAME) == there
    assert pools.get("other", NAME) is None
    assert pools.get("default", "nothing") is None
    assert pools.list_by_owner("JobSet", "default", "jobset-test") == [there]
    assert pools.list_by_owner("JobSet", "other", "jobset-test") == []
    assert [one.name for one in pools.list_all()] == [NAME, "old-75973"]
    assert [one.name for one in pools.list_by_owner("JobSet", "default", "old")] == ["old-75973"]


def test_a_cluster_without_pools_has_no_slices(pools: NodePools) -> None:
    assert list(pools.list_all()) == []


def test_an_absent_cluster_is_not_reported_as_an_absent_pool(gke: Gke) -> None:
    pools = provider(gke, replace(SETTINGS, cluster="other"))
    with pytest.raises(CallError, match=r"nodePools\.create: 404 notFound: Not found: projects/"):
        pools.create(build_first(pools, *LEADER))


def test_no_call_is_made_after_the_deadline(gke: Gke) -> None:
    def over() -> float:
        raise OutOfTimeError

    pools = provider(gke, remaining_s=over)
    with pytest.raises(OutOfTimeError):
        pools.get("default", NAME)
    assert gke.simulator.calls.records == []


@pytest.mark.parametrize("http", [429, 500, 503])
def test_a_failed_call_is_not_retried(gke: Gke, pools: NodePools, http: int) -> None:
    gke.faults.fail_next("nodePools.*", calls=1, http=http, reason="backendError")
    with pytest.raises(CallError) as failed:
        pools.get("default", NAME)
    assert failed.value.reason is None
    assert len(gke.simulator.calls.records) == 1


def test_operations_are_never_read(gke: Gke, pools: NodePools) -> None:
    pools.create(build_first(pools, *LEADER))
    gke.clock.run_for(600)
    pools.delete(found(pools))
    assert not any(verb.startswith("operations.") for verb in gke.simulator.calls.counts())


def test_the_service_can_be_called_over_a_socket(gke: Gke) -> None:
    with open_loopback() as loopback:
        port = loopback.serve(gke.simulator)
        client = GkeClient(f"http://127.0.0.1:{port}")
        pools = NodePools(SETTINGS, client, lambda: 30.0, lambda _: (), gke.clock.now)
        pools.create(build_first(pools, *LEADER))
        assert found(pools).state is SliceState.PROVISIONING


def test_an_unreachable_service_is_a_transient_error() -> None:
    client = GkeClient("http://127.0.0.1:9")
    pools = NodePools(SETTINGS, client, lambda: 1.0, lambda _: (), lambda: datetime.now(UTC))
    with pytest.raises(
        CallError, match=r"nodePools\.get: 0 unreachable: ConnectionError"
    ) as failed:
        pools.get("default", NAME)
    assert failed.value.reason is None


def test_the_error_about_a_missing_permission_names_it(gke: Gke) -> None:
    gke = Gke(Timings(), principals={"x": Principal("x@y")})
    gke.faults.remove_permission("user@example.com", "container.clusters.update")
    pools = provider(gke)
    with pytest.raises(CallError, match=r'403 forbidden: Required "container\.clusters\.update"'):
        pools.create(build_first(pools, *LEADER))
