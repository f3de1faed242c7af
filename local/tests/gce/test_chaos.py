"""After random faults and calls, operations have ended, VM agents are off, and nothing is left."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from local.gce import UnknownFault
from local.gce.refusals import (
    BULK_GROWS,
    NOT_FOUND,
    NOT_READY,
    Refusal,
    Refused,
)
from local.tests.gce.small_cloud import (
    GROUP,
    SPOT,
    TEMPLATE,
    ZONE,
    ZONE_PATH,
    Cloud,
    Document,
    describe,
)

MODELS = {
    "stop": SPOT | {"instanceTerminationAction": "STOP"},
    "delete": SPOT | {"instanceTerminationAction": "DELETE"},
    "standard": {},
}


@dataclass(frozen=True)
class Action:
    """A fault or a user's call, and the errors that are expected in some states."""

    name: str
    run: Callable[[Cloud, str], object]
    refusals: tuple[Refusal, ...] = ()


def user_call(
    name: str,
    method: str,
    path: str = "{vm}",
    make_body: Callable[[Cloud, str], Document | None] = lambda _cloud, _vm: None,
    refusals: tuple[Refusal, ...] = (),
) -> Action:
    """A call by a user. ``{vm}`` in ``path`` is replaced by the path of the VM."""

    def run(cloud: Cloud, vm: str) -> object:
        return cloud.faults.act_as_user(method, path.format(vm=vm), make_body(cloud, vm))

    return Action(name, run, refusals)


def same_metadata(cloud: Cloud, vm: str) -> Document:
    return dict(cloud.faults.act_as_user("GET", vm)["metadata"])


VM_ERRORS = (NOT_FOUND, NOT_READY)
VM_ACTIONS = [
    Action("preempt", lambda cloud, vm: cloud.faults.preempt(vm)),
    Action("host error", lambda cloud, vm: cloud.faults.host_error(vm)),
    user_call("stop", "POST", "{vm}/stop", refusals=VM_ERRORS),
    user_call("start", "POST", "{vm}/start", refusals=VM_ERRORS),
    user_call("reset", "POST", "{vm}/reset", refusals=VM_ERRORS),
    user_call("delete", "DELETE", refusals=VM_ERRORS),
    user_call("setMetadata", "POST", "{vm}/setMetadata", same_metadata, VM_ERRORS),
]
OTHER_ACTIONS = [
    user_call("resize to 0", "POST", f"{GROUP}/resize?size=0", refusals=(NOT_READY,)),
    user_call("resize to 2", "POST", f"{GROUP}/resize?size=2", refusals=(NOT_READY, BULK_GROWS)),
    Action("little capacity", lambda cloud, _: cloud.faults.set_capacity(ZONE, "ct6e", 1)),
    Action("any capacity", lambda cloud, _: cloud.faults.set_capacity(ZONE, "ct6e")),
    Action("failing insert", lambda cloud, _: cloud.faults.fail_operations("instances.insert")),
]


@pytest.mark.parametrize("seed", range(60))
def test_a_mig_survives_chaos_and_can_be_deleted(seed: int) -> None:
    random = Random(seed)
    bulk = random.random() < 0.5
    cloud = Cloud()
    cloud.make_parts(scheduling=MODELS[random.choice(list(MODELS))])
    cloud.make_group(bulk=bulk, repair=random.random() < 0.7)
    for _ in range(25):
        cloud.clock.run_for(random.choice([0, 1, 10, 60, 600]))
        _act_randomly(cloud, random)
    cloud.faults.set_capacity(ZONE, "ct6e")
    cloud.clock.run_for(10)
    cloud.settle("DELETE", GROUP)
    cloud.clock.run_for(600)
    assert len(cloud.simulator.leftovers()) == 2
    _check_log(cloud)
    _check_power(cloud)
    assert cloud.simulator.leftovers()[0] == TEMPLATE


def _act_randomly(cloud: Cloud, random: Random) -> None:
    names = [vm["name"] for vm in cloud.managed()]
    action = random.choice(VM_ACTIONS + OTHER_ACTIONS if names else OTHER_ACTIONS)
    _try(cloud, action, f"{ZONE_PATH}/instances/{random.choice(names)}" if names else "")


def _try(cloud: Cloud, action: Action, vm: str) -> None:
    try:
        action.run(cloud, vm)
    except UnknownFault:
        return  # the call reported that it is impossible in this state
    except Refused as error:
        if not any(_matches(error, refusal) for refusal in action.refusals):
            raise
        return
    _check_group(cloud)


def _matches(error: Refused, refusal: Refusal) -> bool:
    message = re.sub(r"\\{\w+\\}", ".*", re.escape(refusal.message))
    return error.reason == refusal.reason and bool(re.fullmatch(message, error.message))


@pytest.mark.parametrize("action", VM_ACTIONS + OTHER_ACTIONS, ids=lambda action: action.name)
def test_an_action_on_a_running_mig_is_accepted(action: Action) -> None:
    cloud = Cloud()
    cloud.make_parts(scheduling=MODELS["stop"])
    cloud.make_group(bulk=False)
    vm = cloud.run_until_running(2)[0]
    action.run(cloud, f"{ZONE_PATH}/instances/{vm['name']}")


def test_an_unexpected_error_of_an_action_is_raised(slice_cloud: Cloud) -> None:
    slice_cloud.make_group(bulk=False)
    with pytest.raises(Refused, match="explode was not found"):
        _try(
            slice_cloud,
            user_call("unknown", "POST", f"{GROUP}/explode", refusals=VM_ERRORS),
            "",
        )


@pytest.mark.parametrize("size", [0, 3])
def test_a_manual_resize_changes_the_size(slice_cloud: Cloud, size: int) -> None:
    slice_cloud.make_group(size=2, bulk=False)
    slice_cloud.run_until_running(2)
    slice_cloud.faults.act_as_user("POST", f"{GROUP}/resize?size={size}")
    slice_cloud.clock.run_for(600)
    assert slice_cloud.get(GROUP)["targetSize"] == len(slice_cloud.managed()) == size


def _check_group(cloud: Cloud) -> None:
    status = cloud.group_status()
    managed = cloud.managed()
    assert sum(status["currentInstanceStatuses"].values()) == len(managed)
    assert sum(cloud.get(GROUP)["currentActions"].values()) == len(managed)
    assert len({vm["name"] for vm in managed}) == len(managed)


def _check_log(cloud: Cloud) -> None:
    """Check that every operation that began has ended once."""
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
    """Check that each agent was powered on and off alternately, and is off at the end."""
    for agent in cloud.agents:
        power = [event for event in agent.events if event in ("on", "off")]
        assert power == ["on", "off"] * (len(power) // 2)


def test_a_preempted_vm_is_repaired_once(cloud: Cloud) -> None:
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
