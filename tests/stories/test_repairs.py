"""Slices with ``repair: Recreate``: a lost BULK slice is deleted and created again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from local import gce
from local.cloud.simulation import Options
from shared.base.names import PAUSED_ANNOTATION
from shared.base.timestamps import parse_time, render_time
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE, NAME, SPOT, STANDARD
from tests.support.harness import Harness
from tests.support.manifests import manifest

RECREATE = {"repair": "Recreate"}
SECOND = timedelta(seconds=1)
FLEX = {"provisioningModel": "FLEX_START", "reservation": None, "maxRunDuration": "90m"}


def ready(options: Options | None = None, **change: Any) -> Harness:
    return helpers.ready(manifest(**RECREATE, **change), options or helpers.with_heartbeats())


def repairs(harness: Harness) -> dict[str, Any]:
    group = harness.group(NAME)
    assert group is not None
    found: dict[str, Any] = group["status"].get("repairs", {})
    return found


def lose_one(harness: Harness) -> str:
    """Preempt a VM (Spot), or delete one."""
    vm = helpers.vms(harness)[0]
    is_spot = helpers.get(harness, vm)["scheduling"].get("provisioningModel") == "SPOT"
    faults = harness.simulation.gce.faults
    faults.preempt(vm) if is_spot else faults.act_as_user("DELETE", vm)
    return vm


def until_repaired(harness: Harness, count: int, timeout: timedelta = HOUR) -> None:
    helpers.until(harness, lambda: repairs(harness).get("count") == count, timeout)
    helpers.until_ready(harness)


def test_a_lost_spot_slice_is_created_again_at_once() -> None:
    harness = ready(instanceConfig=SPOT)
    before, nodes = helpers.vms(harness), set(helpers.nodes(harness))
    lose_one(harness)
    helpers.until_reason(harness, "Repairing", timeout=2 * MINUTE)
    text = (
        "Repair 1 of the last day. The slice has lost VMs, and spec.repair is Recreate: its managed "
        "instance group is being deleted and is created again, with all VMs. Nothing to do."
    )
    assert helpers.condition_of(harness) == ("False", "Repairing", text)
    helpers.until_ready(harness, timeout=15 * MINUTE)
    assert not set(before) & set(helpers.vms(harness))
    assert not nodes & set(helpers.nodes(harness))
    assert repairs(harness)["count"] == 1
    counts = harness.operations
    assert (counts["instanceGroupManagers.insert"], counts["instanceGroupManagers.delete"]) == (
        2,
        1,
    )
    assert (counts["instanceTemplates.insert"], counts["resourcePolicies.insert"]) == (1, 1)
    assert ("Warning", "Repairing", text) in helpers.events(harness)
    harness.run_for(2 * HOUR)
    assert harness.is_ready(NAME)
    assert repairs(harness)["count"] == 1
    helpers.assert_deleted_completely(harness)


def test_other_slices_are_created_again_when_compute_engine_may_not_restore_them_any_more() -> None:
    harness = ready(instanceConfig=STANDARD)
    lose_one(harness)
    helpers.until_reason(harness, "NodeLost", timeout=5 * MINUTE)
    group = harness.group(NAME)
    assert group is not None
    (lost,) = group["status"]["pending"]
    at = parse_time(lost["since"]) + 30 * MINUTE
    assert helpers.condition_of(harness)[2].endswith(
        f"Compute Engine restarts the VMs of a slice together, except deleted ones. If the slice is not "
        f"Ready by {render_time(at)}, tpu-functions deletes its VMs as soon as Compute Engine has ended "
        "its changes, and creates it again (spec.repair)."
    )
    harness.run_for(at - harness.clock.now() - SECOND)
    assert harness.operations["instanceGroupManagers.delete"] == 0
    until_repaired(harness, 1, 2 * MINUTE)
    helpers.assert_deleted_completely(harness)


def test_a_slice_that_compute_engine_restarts_is_not_repaired() -> None:
    timings = gce.Timings(automatic_restart_after_s=(1500.0, 1500.0))
    harness = ready(replace(helpers.with_heartbeats(), gce=timings))
    harness.simulation.gce.faults.host_error(helpers.vms(harness)[0])
    harness.run_for(2 * HOUR)
    assert harness.is_ready(NAME)
    assert harness.operations["instanceGroupManagers.delete"] == 0
    assert repairs(harness) == {}


@pytest.mark.slow
def test_a_slice_that_is_lost_again_and_again_is_repaired_at_growing_intervals() -> None:
    harness = ready(instanceConfig=SPOT)
    begun = []
    for count in range(1, 6):
        lose_one(harness)
        until_repaired(harness, count, 6 * HOUR)
        begun.append(parse_time(repairs(harness)["lastAt"]))
    gaps = [(later - earlier) // MINUTE for earlier, later in pairwise(begun)]
    assert gaps == [10, 20, 40, 80]
    harness.run_for(timedelta(days=1))
    lose_one(harness)
    until_repaired(harness, 1)


SWEEP_ONLY = Options(relays=False, sinks=False)


@pytest.mark.parametrize(
    "options", [Options(sweeps=False), SWEEP_ONLY], ids=["events only", "sweep only"]
)
def test_events_alone_or_the_sweep_alone_repair_a_slice(options: Options) -> None:
    harness = ready(options, instanceConfig=SPOT)
    lose_one(harness)
    until_repaired(harness, 1, 2 * HOUR)
    helpers.assert_deleted_completely(harness)


@pytest.mark.parametrize("options", [None, SWEEP_ONLY], ids=["", "sweep only"])
def test_a_repair_waits_for_capacity_and_its_group_can_be_deleted_meanwhile(
    options: Options | None,
) -> None:
    harness = ready(options, instanceConfig=SPOT)
    harness.simulation.gce.faults.set_capacity("us-central1-c", "tpu7x", 0)
    lose_one(harness)
    helpers.until_reason(harness, "InsufficientCapacity", timeout=2 * HOUR)
    harness.run_for(2 * HOUR)
    assert (repairs(harness)["count"], helpers.nodes(harness)) == (1, {})
    assert harness.operations["instanceGroupManagers.insert"] == 2
    helpers.assert_deleted_completely(harness)


def test_a_group_that_is_deleted_during_a_repair_leaves_nothing() -> None:
    harness = ready(instanceConfig=SPOT)
    lose_one(harness)
    helpers.until_reason(harness, "Repairing", timeout=2 * MINUTE)
    helpers.assert_deleted_completely(harness)
    assert harness.operations["instanceGroupManagers.insert"] == 1


def test_a_slice_that_a_restore_shows_in_an_earlier_repair_is_not_deleted_again() -> None:
    harness = ready(instanceConfig=SPOT)
    lose_one(harness)
    helpers.until_reason(harness, "Repairing", timeout=2 * MINUTE)
    server: Any = harness.simulation.kube
    snapshot = server.snapshot()
    helpers.until_ready(harness)
    running = set(helpers.vms(harness))
    server.restore(snapshot)
    harness.run_for(5 * MINUTE)
    for vm in running - {f"{helpers.ZONE}/instances/{name}" for name in helpers.nodes(harness)}:
        harness.simulation.gce.faults.act_as_user("POST", f"{vm}/reset")  # as NodeDeleted advises
    helpers.until_ready(harness)
    assert set(helpers.vms(harness)) == running
    counts = harness.operations
    assert counts["instanceGroupManagers.delete"] == 1
    assert repairs(harness)["count"] == 1
    helpers.assert_deleted_completely(harness)


def test_a_restored_repair_ends_though_the_new_vms_wait_for_capacity() -> None:
    harness = ready(instanceConfig=SPOT)
    lose_one(harness)
    helpers.until_reason(harness, "Repairing", timeout=2 * MINUTE)
    server: Any = harness.simulation.kube
    snapshot = server.snapshot()
    faults = harness.simulation.gce.faults
    faults.set_capacity("us-central1-c", "tpu7x", 0)
    helpers.until_reason(harness, "InsufficientCapacity", timeout=20 * MINUTE)
    server.restore(snapshot)
    assert helpers.condition_of(harness)[1] == "Repairing"
    helpers.until_reason(harness, "InsufficientCapacity", timeout=20 * MINUTE)
    faults.set_capacity("us-central1-c", "tpu7x", 64)
    helpers.until_ready(harness)
    assert harness.operations["instanceGroupManagers.delete"] == 1
    helpers.assert_deleted_completely(harness)


def test_a_delete_that_fails_is_repeated() -> None:
    harness = ready(instanceConfig=SPOT)
    harness.simulation.gce.faults.fail_operations("instanceGroupManagers.delete")
    lose_one(harness)
    until_repaired(harness, 1, 2 * HOUR)
    assert harness.operations["instanceGroupManagers.insert"] == 2
    helpers.assert_deleted_completely(harness)


@pytest.mark.parametrize("change", [{"repair": "Never"}, None], ids=["Never", "paused"])
def test_a_slice_that_is_not_to_be_repaired_stays(change: dict[str, Any] | None) -> None:
    harness = ready(instanceConfig=SPOT)
    if change is None:
        helpers.annotate(harness, PAUSED_ANNOTATION, "true")
    else:
        helpers.patch(harness, helpers.group_path(), {"spec": change})
    lose_one(harness)
    harness.run_for(2 * HOUR)
    assert helpers.condition_of(harness)[:2] == ("False", "Preempted")
    assert harness.operations["instanceGroupManagers.delete"] == 0
    helpers.annotate(harness, PAUSED_ANNOTATION, None)
    helpers.patch(harness, helpers.group_path(), {"spec": RECREATE})
    until_repaired(harness, 1)


def test_a_slice_whose_run_is_over_is_not_repaired() -> None:
    harness = ready(instanceConfig=FLEX)
    harness.run_for(4 * HOUR)
    assert helpers.condition_of(harness)[:2] == ("False", "MaxRunDurationReached")
    assert (repairs(harness), harness.operations["instanceGroupManagers.insert"]) == ({}, 1)


def test_a_slice_that_is_lost_before_it_is_complete_is_repaired() -> None:
    harness = Harness(helpers.vm_options(joins=False))
    harness.apply(manifest(**RECREATE, instanceConfig=SPOT))
    helpers.until(harness, lambda: len(helpers.vms(harness)) == 2)
    harness.run_for(2 * MINUTE)
    lose_one(harness)
    helpers.until(harness, lambda: repairs(harness).get("count") == 1)
    helpers.assert_deleted_completely(harness)


def test_an_individual_group_cannot_ask_for_repairs() -> None:
    harness = Harness()
    group = manifest(**RECREATE, **helpers.TWO_SINGLE)
    answer = harness.simulation.admin("POST", helpers.group_path().rpartition("/")[0], group)
    assert answer["kind"] == "Status"
    assert "spec.repair: Invalid value" in answer["message"]
    assert answer["message"].endswith(
        "must be Never with targetSizePolicyMode INDIVIDUAL: Compute Engine repairs its VMs one by one"
    )
