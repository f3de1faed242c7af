# ruff: noqa: E501  (a table reads best with a row on a line)
"""Faults and state over HTTP, and the log of calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from local.base.http import Request
from local.gce import CallRecord, Principal, UnknownFault
from local.gce.inventory import Inventory
from local.gce.simulator import FAULTS
from local.tests.gce.small_cloud import (
    GROUP,
    POLICY,
    PROJECT,
    SPOT,
    TEMPLATE,
    ZONE,
    ZONE_PATH,
    Cloud,
    group_body,
    policy_body,
)

VM = f"{ZONE_PATH}/instances/vm"
KNOWN = f"POST one of {', '.join(sorted(FAULTS))}"


def control(cloud: Cloud, method: str, name: str, body: Any = None) -> tuple[int, Any]:
    raw = json.dumps(body) if body is not None else ""
    response = cloud.simulator.handle(Request.of(method, f"/_simulator/{name}", body=raw))
    return response.status, response.json()


def test_a_fault_can_be_injected_over_http(slice_cloud: Cloud) -> None:
    assert (
        control(slice_cloud, "POST", "set_capacity", {"zone": ZONE, "family": "ct6e", "vms": 0})[0]
        == 200
    )
    slice_cloud.make_group()
    slice_cloud.clock.run_for(600)
    assert slice_cloud.vms("RUNNING") == []
    control(slice_cloud, "POST", "set_capacity", {"zone": ZONE, "family": "ct6e"})
    slice_cloud.run_until_running(2)


def test_user_actions_can_be_triggered_over_http(slice_cloud: Cloud) -> None:
    status, operation = control(
        slice_cloud, "POST", "act_as_user", {"method": "DELETE", "path": POLICY}
    )
    assert (status, operation["user"]) == (200, "alice@example.com")
    status, error = control(
        slice_cloud, "POST", "act_as_user", {"method": "DELETE", "path": POLICY}
    )
    assert (status, error["error"]["errors"][0]["reason"]) == (400, "resourceNotReady")


FEW = Inventory({ZONE: ["ct6e-standard-4t"], "us-east5-b": ["tpu7x-standard-4t"]})
IMPOSSIBLE = [
    ("set_capacity", {"zone": "mars", "family": "ct6e"}, "zone must be one of us-central1-c, us-east5-b, not \"mars\""),
    ("set_capacity", {"zone": ZONE, "family": "gpu"}, "family must be one of ct6e, tpu7x, not \"gpu\""),
    ("set_capacity", {"zone": ZONE, "family": "ct6e", "vms": "many"}, "vms must be a number or null, not \"many\""),
    ("set_capacity", {"zone": ZONE, "family": "ct6e", "vms": -1}, "vms must be 0 or more, not -1"),
    ("set_capacity", {"zone": ZONE}, "missing a required argument: 'family'; it takes (zone: 'str', family: 'str', vms: 'int | None' = None, model: 'str' = 'any') -> 'None'"),
    ("set_capacity", {"zone": ZONE, "family": "ct6e", "model": "RESERVATION_BOUND"}, "model must be one of FLEX_START, SPOT, STANDARD, any, not \"RESERVATION_BOUND\""),
    ("set_chip_quota", {"region": "mars", "family": "ct6e"}, "region must be one of us-central1, us-east5, not \"mars\""),
    ("set_count_quota", {"collection": "disks"}, "collection must be one of instanceGroupManagers, instanceTemplates, instances, resourcePolicies, not \"disks\""),
    ("set_reservation", {"reservation": "tpus", "machine_type": "ct6e-standard-4t", "vms": 1}, "reservation must be projects/P/zones/Z/reservations/N, not \"tpus\""),
    ("remove_resource", {"resource": GROUP}, "resource must be projects/P/global/images/N or "),
    ("set_org_policy", {"project": "mars"}, f"project must be one of {PROJECT}, not \"mars\""),
    ("fail_operations", {"verbs": "*.inserts"}, "verbs must be "),
    ("fail_next", {"verbs": "*", "http": 200}, "http must be an error's status, from 400 to 599, not 200"),
    ("fail_next", {"verbs": "*", "executed": 1}, "executed must be a boolean, not 1"),
    ("rate_limit", {"http": 500}, "http must be 403 or 429, not 500"),
    ("remove_permission", {"email": "me", "permission": "compute.instances.create"}, "email must be an e-mail address, not \"me\""),
    ("remove_permission", {"email": "a@b", "permission": "compute.instances.make"}, "permission must be one of "),
    ("break_interconnect", {"group": GROUP, "outcome": "MAYBE"}, "outcome must be one of ACTIVE, FAILED, NEVER, not \"MAYBE\""),
    ("act_as_user", {"method": "LOOK", "path": GROUP}, "method must be one of "),
]  # fmt: skip


@pytest.mark.parametrize("name, body, error", IMPOSSIBLE)
def test_a_fault_with_an_invalid_argument_is_an_error_that_names_valid_ones(
    cloud: Cloud, name: str, body: Any, error: str
) -> None:
    cloud.simulator.restrict(FEW)
    status, answer = control(cloud, "POST", name, body)
    assert (status, answer["error"][: len(name) + 2 + len(error)]) == (400, f"{name}: {error}")


@pytest.mark.parametrize(
    "method, name, body, status, error",
    [
        ("POST", "explode", {}, 404, f"no such fault: explode; {KNOWN}"),
        ("POST", "_find", {"path": "x"}, 404, f"no such fault: _find; {KNOWN}"),
        ("GET", "preempt", None, 404, f"no such fault: preempt; {KNOWN}"),
        ("POST", "preempt", {"instance": VM}, 409, f"there is no {VM}"),
        ("POST", "use_group", {"group": GROUP}, 409, f"there is no {GROUP}"),
    ],
)  # fmt: skip
def test_an_impossible_fault_is_an_error(
    cloud: Cloud, method: str, name: str, body: Any, status: int, error: str
) -> None:
    assert control(cloud, method, name, body) == (status, {"error": error})


def test_the_available_faults_are_listed(cloud: Cloud) -> None:
    status, faults = control(cloud, "GET", "faults")
    assert status == 200
    assert set(faults) == set(FAULTS)
    assert faults["use_group"].startswith("(group, backend_service=''): Let a backend service use")


def test_the_state_is_readable(slice_cloud: Cloud) -> None:
    slice_cloud.faults.set_capacity(ZONE, "ct6e", 0)
    slice_cloud.make_group()
    _, state = control(slice_cloud, "GET", "state")
    assert state["policies"] == [POLICY]
    assert state["templates"] == [TEMPLATE]
    assert state["groups"][0]["path"] == GROUP
    assert state["groups"][0]["waitsFor"].startswith("Waiting for resources.")
    assert state["instances"] == {}


def test_only_spot_vms_are_preempted(slice_cloud: Cloud) -> None:
    slice_cloud.make_group()
    path = f"{ZONE_PATH}/instances/{slice_cloud.run_until_running(2)[0]['name']}"
    with pytest.raises(UnknownFault, match="is STANDARD, only SPOT VMs are preempted"):
        slice_cloud.faults.preempt(path)


def test_a_vm_is_preempted_once(cloud: Cloud) -> None:
    cloud.make_parts(scheduling=SPOT)
    cloud.make_group()
    path = f"{ZONE_PATH}/instances/{cloud.run_until_running(2)[0]['name']}"
    cloud.faults.preempt(path)
    with pytest.raises(UnknownFault, match="is STOPPING"):
        cloud.faults.preempt(path)


def test_planned_errors_count_down_and_match_by_pattern(cloud: Cloud) -> None:
    cloud.faults.fail_next("resourcePolicies.*", 2, http=500, reason="internalError", message="no")
    statuses = [cloud.send("GET", path)[0] for path in (POLICY, TEMPLATE, POLICY, POLICY)]
    assert statuses == [500, 404, 500, 404]


def test_a_call_with_a_lost_answer_takes_effect(cloud: Cloud) -> None:
    cloud.faults.fail_next("resourcePolicies.insert", executed=True)
    assert cloud.send("POST", POLICY.rpartition("/")[0], policy_body())[0] == 503
    assert cloud.simulator.leftovers() == [POLICY]


def test_operations_can_be_slow(cloud: Cloud) -> None:
    cloud.faults.slow_operations("resourcePolicies.*", 600)
    operation = cloud.change("POST", POLICY.rpartition("/")[0], policy_body())
    cloud.clock.run_for(590)
    assert cloud.operation(operation)["status"] == "RUNNING"
    cloud.clock.run_for(20)
    assert cloud.operation(operation)["status"] == "DONE"


def test_a_rate_limit_ends(cloud: Cloud) -> None:
    cloud.faults.rate_limit(seconds=60)
    assert cloud.send("GET", POLICY)[0] == 403
    cloud.clock.run_for(60)
    assert cloud.send("GET", POLICY)[0] == 404
    cloud.faults.rate_limit(calls=1)
    assert [cloud.send("GET", POLICY)[0] for _ in range(2)] == [403, 404]


def test_a_rate_quota_applies_per_method_group_and_resets_every_minute(cloud: Cloud) -> None:
    cloud.clock.run_for(30)
    cloud.faults.set_rate_quota(2)
    reads = [cloud.send("GET", POLICY)[0] for _ in range(3)]
    assert reads == [404, 404, 403]
    assert cloud.send("GET", TEMPLATE)[0] == 404, "global calls are another group"
    asked = [cloud.send("POST", f"{GROUP}/listManagedInstances")[0] for _ in range(3)]
    assert asked == [404, 404, 403], "so are queries"
    cloud.clock.run_for(29)
    assert cloud.send("GET", POLICY)[0] == 403
    cloud.clock.run_for(1)
    assert cloud.send("GET", POLICY)[0] == 404


@pytest.mark.parametrize("outcome, state", [("NEVER", "ACTIVATING"), ("FAILED", "FAILED")])
def test_the_interconnect_can_fail_or_never_become_ready(
    slice_cloud: Cloud, outcome: str, state: str
) -> None:
    slice_cloud.faults.break_interconnect(GROUP, outcome)
    slice_cloud.make_group()
    slice_cloud.run_until_running(2)
    slice_cloud.clock.run_for(3600)
    applied = slice_cloud.group_status()["appliedAcceleratorTopologies"][0]
    assert applied["state"] == state
    assert ("error" in applied["stateDetails"]) is (state == "FAILED")


def test_the_limit_of_a_migs_vms_can_be_raised(slice_cloud: Cloud) -> None:
    slice_cloud.faults.set_group_limit(2304)
    path = GROUP.rpartition("/")[0]
    statuses = [slice_cloud.send("POST", path, group_body(size))[0] for size in (2305, 2304)]
    assert statuses == [400, 200]


def test_a_reservation_has_a_limited_number_of_vms(cloud: Cloud) -> None:
    reservation = f"{ZONE_PATH}/reservations/tpus"
    affinity = {"consumeReservationType": "SPECIFIC_RESERVATION", "values": ["tpus"]}
    cloud.faults.set_reservation(reservation, "ct6e-standard-4t", 2)
    cloud.faults.set_capacity(ZONE, "ct6e", 0)
    cloud.make_parts(reservationAffinity=affinity)
    cloud.make_group()
    cloud.run_until_running(2)
    cloud.settle("POST", GROUP.rpartition("/")[0], _named(cloud, "second"))
    waiting = cloud.get(GROUP.replace("slice", "second"))["status"]["bulkInstanceOperation"]
    assert "does not have available resources" in str(waiting["lastProgressCheck"])


@pytest.mark.parametrize(
    "limited, scheduling, running",
    [
        ("SPOT", SPOT, 0),
        ("SPOT", {}, 2),
        ("any", SPOT, 0),
        ("STANDARD", SPOT, 2),
        ("STANDARD", {}, 0),
    ],
    ids=str,
)
def test_the_capacity_of_a_zone_can_end_for_one_provisioning_model(
    cloud: Cloud, limited: str, scheduling: dict[str, Any], running: int
) -> None:
    cloud.faults.set_capacity(ZONE, "ct6e", 1, limited)
    cloud.make_parts(scheduling=scheduling)
    cloud.make_group()
    cloud.clock.run_for(600)
    assert len(cloud.vms("RUNNING")) == running
    cloud.faults.set_capacity(ZONE, "ct6e", model=limited)
    cloud.run_until_running(2)


def _named(cloud: Cloud, name: str) -> dict[str, Any]:
    group = cloud.get(GROUP)
    template_fields = ("instanceTemplate", "resourcePolicies", "targetSizePolicy", "targetSize")
    lifecycle = {"defaultActionOnFailure": "DO_NOTHING"}
    return {"name": name, "instanceLifecyclePolicy": lifecycle} | {
        key: group[key] for key in template_fields
    }


def test_every_call_is_recorded_including_failed_ones() -> None:
    cloud = Cloud(principals={"token": Principal("functions@example.com")})
    cloud.send("GET", POLICY, token="token")
    cloud.send("POST", POLICY.rpartition("/")[0], policy_body(), token="token")
    cloud.send("GET", "projects")
    cloud.send("GET", POLICY, token="other")
    assert cloud.simulator.calls.records == [
        CallRecord("functions@example.com", "resourcePolicies.get", False, 404),
        CallRecord("functions@example.com", "resourcePolicies.insert", True, 200),
        CallRecord("user@example.com", "unknown", False, 404),
        CallRecord("", "resourcePolicies.get", False, 401),
    ]
    assert (cloud.simulator.calls.writes(), cloud.simulator.calls.reads()) == (1, 3)


def test_list_managed_instances_counts_as_a_read(slice_cloud: Cloud) -> None:
    slice_cloud.make_group()
    slice_cloud.simulator.calls.clear()
    slice_cloud.managed()
    assert slice_cloud.simulator.calls.reads() == 1
    assert slice_cloud.simulator.calls.writes() == 0
