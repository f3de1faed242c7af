"""Whatever happens in whatever order: operations end, power is balanced, nothing is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from local.gce import UnknownFault
from local.gce.refusals import Refused
from tests.unit.gce.small_cloud import GROUP, SPOT, TEMPLATE, ZONE, ZONE_PATH, Cloud, describe

MODELS = {
    "stop": SPOT | {"instanceTerminationAction": "STOP"},
    "delete": SPOT | {"instanceTerminationAction": "DELETE"},
    "standard": {},
}

Deed = Callable[[Cloud, str], object]

DEEDS: list[Deed] = [
    lambda cloud, vm: cloud.faults.preempt(vm),
    lambda cloud, vm: cloud.faults.host_error(vm),
    lambda cloud, vm: cloud.faults.guest_shutdown(vm),
    lambda cloud, vm: cloud.faults.act_by_hand("POST", f"{vm}/stop"),
    lambda cloud, vm: cloud.faults.act_by_hand("POST", f"{vm}/start"),
    lambda cloud, vm: cloud.faults.act_by_hand("POST", f"{vm}/reset"),
    lambda cloud, vm: cloud.faults.act_by_hand("DELETE", vm),
    lambda cloud, vm: cloud.faults.act_by_hand(
        "POST", f"{vm}/setMetadata", cloud.faults.act_by_hand("GET", vm)["metadata"]
    ),
    lambda cloud, vm: cloud.faults.act_by_hand(
        "POST", f"{GROUP}/recreateInstances", {"instances": [vm, vm]}
    ),
    lambda cloud, vm: cloud.faults.act_by_hand(
        "POST", f"{GROUP}/deleteInstances", {"instances": [vm, vm]}
    ),
    lambda cloud, _: cloud.faults.act_by_hand("POST", f"{GROUP}/resize?size=0"),
    lambda cloud, _: cloud.faults.act_by_hand("POST", f"{GROUP}/resize?size=2"),
    lambda cloud, _: cloud.faults.set_capacity(ZONE, "ct6e", 1),
    lambda cloud, _: cloud.faults.set_capacity(ZONE, "ct6e"),
    lambda cloud, _: cloud.faults.fail_operations("instances.insert"),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_a_group_survives_chaos_and_can_be_deleted(seed: int) -> None:
    random = Random(seed)
    bulk = random.random() < 0.5
    cloud = Cloud()
    cloud.make_parts(scheduling=MODELS[random.choice(list(MODELS))])
    cloud.make_group(bulk=bulk, repair=random.random() < 0.7)
    for _ in range(25):
        cloud.clock.run_for(random.choice([0, 1, 10, 60, 600]))
        _do_something(cloud, random)
    cloud.faults.set_capacity(ZONE, "ct6e")
    cloud.clock.run_for(10)
    cloud.settle("DELETE", GROUP)
    cloud.clock.run_for(600)
    assert len(cloud.simulator.leftovers()) == 2
    _check_log(cloud)
    _check_power(cloud)
    assert cloud.simulator.leftovers()[0] == TEMPLATE


def _do_something(cloud: Cloud, random: Random) -> None:
    names = [vm["name"] for vm in cloud.managed()] or ["none"]
    deed = random.choice(DEEDS)
    try:
        deed(cloud, f"{ZONE_PATH}/instances/{random.choice(names)}")
    except (Refused, UnknownFault):
        return  # impossible just now, and said so
    _check_group(cloud)


def _check_group(cloud: Cloud) -> None:
    status = cloud.group_status()
    managed = cloud.managed()
    assert sum(status["currentInstanceStatuses"].values()) == len(managed)
    assert sum(cloud.get(GROUP)["currentActions"].values()) == len(managed)
    assert len({vm["name"] for vm in managed}) == len(managed)


def _check_log(cloud: Cloud) -> None:
    """Every operation that began has ended, once."""
    positions = Counter(
        (entry["operation"]["id"], describe(entry).rpartition(" ")[2])
        for entry in cloud.log
        if "operation" in entry and "." + "repair." not in describe(entry)
    )
    begun = {operation for operation, position in positions if position == "first"}
    ended = {operation for operation, position in positions if position == "last"}
    assert begun <= ended
    assert set(positions.values()) <= {1}


def _check_power(cloud: Cloud) -> None:
    """Each guest was switched on and off in turns, and is off now."""
    for guest in cloud.guests:
        power = [event for event in guest.events if event in ("on", "off")]
        assert power == ["on", "off"] * (len(power) // 2)


def test_a_vm_that_was_preempted_away_is_repaired_once(cloud: Cloud) -> None:
    cloud.make_parts(scheduling=SPOT | {"instanceTerminationAction": "DELETE"})
    cloud.make_group(bulk=False, repair=True)
    vm = cloud.run_until_running(2)[0]
    del cloud.log[:]
    cloud.faults.preempt(f"{ZONE_PATH}/instances/{vm['name']}")
    cloud.clock.run_for(1200)
    cloud.run_until_running(2)
    assert cloud.methods().count("v1.compute.instances.insert first") == 1
    assert "v1.compute.instances.delete first" not in cloud.methods()


def test_a_month_of_stockout_is_survived() -> None:
    cloud = Cloud()
    cloud.faults.set_capacity(ZONE, "ct6e", 0)
    cloud.make_parts()
    cloud.make_group(size=1, bulk=False)
    cloud.clock.run_for(30 * 24 * 3600)
    cloud.faults.set_capacity(ZONE, "ct6e")
    cloud.run_until_running(1)


def test_a_vm_deleted_twice_through_its_group_counts_once(slice_cloud: Cloud) -> None:
    slice_cloud.make_group(size=3, bulk=False)
    vm = slice_cloud.run_until_running(3)[0]
    body = {"instances": [vm["instance"], vm["instance"]]}
    slice_cloud.settle("POST", f"{GROUP}/deleteInstances", body)
    slice_cloud.settle("POST", f"{GROUP}/deleteInstances", body)
    slice_cloud.clock.run_for(120)
    assert slice_cloud.get(GROUP)["targetSize"] == len(slice_cloud.managed()) == 2
