"""Managed instance groups and their VMs, from insert to deletion."""

from __future__ import annotations

from collections import Counter

import pytest

from local.gce import Timings
from local.tests.gce.small_cloud import (
    AGENT,
    FLEX,
    GROUP,
    NUMBER,
    POLICY,
    SPOT,
    TEMPLATE,
    ZONE,
    ZONE_PATH,
    Cloud,
    describe,
    group_body,
)

NOTHING_RUNS = {"running": 0, "nonExistent": 2}


def topology_state(cloud: Cloud) -> str:
    applied = cloud.group_status().get("appliedAcceleratorTopologies", [{"state": ""}])
    return str(applied[0]["state"])


def test_a_slice_is_inserted_runs_and_is_deleted(slice_cloud: Cloud) -> None:
    slice_cloud.make_group()
    slice_cloud.run_until_running(2)
    assert slice_cloud.clock.run_until(lambda: topology_state(slice_cloud) == "ACTIVE", 60)
    assert slice_cloud.group_status()["isStable"]
    slice_cloud.settle("DELETE", GROUP)
    slice_cloud.clock.run_for(5)
    slice_cloud.settle("DELETE", TEMPLATE)
    slice_cloud.settle("DELETE", POLICY)
    assert slice_cloud.simulator.leftovers() == []


def test_the_same_seed_gives_the_same_events() -> None:
    def live() -> list[dict[str, object]]:
        cloud = Cloud()
        cloud.make_parts()
        cloud.make_group()
        cloud.run_until_running(2)
        cloud.settle("DELETE", GROUP)
        return cloud.log

    assert live() == live()


def test_the_insert_of_a_mig_is_done_before_a_vm_runs(slice_cloud: Cloud) -> None:
    group = slice_cloud.make_group()
    assert not group["status"]["isStable"]
    assert group["currentActions"]["creating"] == 2
    assert slice_cloud.vms("RUNNING") == []


def test_vm_names_are_the_base_name_and_four_characters(slice_cloud: Cloud) -> None:
    slice_cloud.make_group()
    for vm in slice_cloud.run_until_running(2):
        base, _, suffix = vm["name"].rpartition("-")
        assert base == "slice"
        assert len(suffix) == 4
        assert suffix.isalnum()
        assert suffix == suffix.lower()


def test_vms_have_the_mig_and_template_that_created_them(slice_cloud: Cloud) -> None:
    slice_cloud.make_group()
    vm = slice_cloud.run_until_running(2)[0]
    instance = slice_cloud.get(f"{ZONE_PATH}/instances/{vm['name']}")
    items = {item["key"]: item["value"] for item in instance["metadata"]["items"]}
    assert items == {
        "created-by": f"projects/{NUMBER}/zones/{ZONE}/instanceGroupManagers/slice",
        "instance-template": f"projects/{NUMBER}/global/instanceTemplates/slice",
    }


def test_all_instances_config_overrides_the_template(cloud: Cloud) -> None:
    items = [{"key": "kept", "value": "template"}, {"key": "replaced", "value": "template"}]
    cloud.make_parts(metadata={"items": items}, labels={"team": "a", "kept": "yes"})
    properties = {"metadata": {"replaced": "group", "added": "group"}, "labels": {"team": "b"}}
    cloud.make_group(allInstancesConfig={"properties": properties})
    vm = cloud.run_until_running(2)[0]
    instance = cloud.get(f"{ZONE_PATH}/instances/{vm['name']}")
    shown = {item["key"]: item["value"] for item in instance["metadata"]["items"]}
    assert {key: shown[key] for key in ("kept", "replaced", "added")} == {
        "kept": "template",
        "replaced": "group",
        "added": "group",
    }
    assert instance["labels"] == {"team": "b", "kept": "yes"}


# ---------------------------------------------------------------- BULK


def test_a_bulk_mig_waits_for_capacity_for_all_vms_without_log_entries(slice_cloud: Cloud) -> None:
    slice_cloud.faults.set_capacity(ZONE, "ct6e", 1)
    slice_cloud.make_group()
    slice_cloud.clock.run_for(10)
    logged = len(slice_cloud.log)
    slice_cloud.clock.run_for(48 * 3600)
    assert len(slice_cloud.log) == logged
    status = slice_cloud.group_status()
    assert status["bulkInstanceOperation"]["inProgress"]
    assert not status["isStable"]
    assert status["currentInstanceStatuses"].items() >= NOTHING_RUNS.items()


def test_a_waiting_bulk_mig_reports_the_missing_capacity(slice_cloud: Cloud) -> None:
    slice_cloud.faults.set_capacity(ZONE, "ct6e", 0)
    slice_cloud.make_group()
    check = slice_cloud.group_status()["bulkInstanceOperation"]["lastProgressCheck"]
    error = check["error"]["errors"][0]
    assert error["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    assert error["errorDetails"][0]["errorInfo"]["metadatas"]["zone"] == ZONE
    assert check["timestamp"].endswith("-08:00")


def test_a_waiting_bulk_mig_lists_its_vms_without_id_and_status(slice_cloud: Cloud) -> None:
    slice_cloud.faults.set_capacity(ZONE, "ct6e", 0)
    slice_cloud.make_group()
    managed = slice_cloud.managed()
    assert [vm["currentAction"] for vm in managed] == ["CREATING", "CREATING"]
    assert not any({"id", "instanceStatus"} & set(vm) for vm in managed)


def test_a_bulk_mig_retries_immediately_when_a_stockout_ends(slice_cloud: Cloud) -> None:
    slice_cloud.faults.set_capacity(ZONE, "ct6e", 0)
    slice_cloud.make_group()
    slice_cloud.clock.run_for(3600)
    slice_cloud.faults.set_capacity(ZONE, "ct6e")
    assert len(slice_cloud.vms("PROVISIONING")) == 2


def test_a_bulk_mig_uses_capacity_that_another_mig_released(slice_cloud: Cloud) -> None:
    slice_cloud.faults.set_capacity(ZONE, "ct6e", 2)
    slice_cloud.make_group()
    slice_cloud.run_until_running(2)
    other = f"{ZONE_PATH}/instanceGroupManagers/other"
    slice_cloud.settle("POST", GROUP.rpartition("/")[0], group_body() | {"name": "other"})
    assert slice_cloud.get(other)["status"]["bulkInstanceOperation"]["inProgress"]
    slice_cloud.settle("DELETE", GROUP)
    slice_cloud.clock.run_for(180)
    assert slice_cloud.get(other)["status"]["currentInstanceStatuses"]["running"] == 2


def test_a_waiting_bulk_mig_can_be_cancelled_by_size_zero(slice_cloud: Cloud) -> None:
    slice_cloud.faults.set_capacity(ZONE, "ct6e", 0)
    slice_cloud.make_group()
    slice_cloud.settle("POST", f"{GROUP}/resize?size=0")
    status = slice_cloud.group_status()
    assert status["isStable"]
    assert status["bulkInstanceOperation"] == {"inProgress": False}
    slice_cloud.faults.set_capacity(ZONE, "ct6e")
    slice_cloud.settle("POST", f"{GROUP}/resize?size=2")
    slice_cloud.run_until_running(2)


def test_a_waiting_bulk_mig_is_deleted_immediately(slice_cloud: Cloud) -> None:
    slice_cloud.faults.set_capacity(ZONE, "ct6e", 0)
    slice_cloud.make_group()
    slice_cloud.settle("DELETE", GROUP)
    assert slice_cloud.send("GET", GROUP)[0] == 404


def test_a_lost_vm_of_a_bulk_mig_is_not_recreated(slice_cloud: Cloud) -> None:
    slice_cloud.make_group()
    vm = slice_cloud.run_until_running(2)[0]
    slice_cloud.faults.act_as_user("DELETE", f"{ZONE_PATH}/instances/{vm['name']}")
    slice_cloud.clock.run_for(24 * 3600)
    lost = next(one for one in slice_cloud.managed() if one["name"] == vm["name"])
    assert "instanceStatus" not in lost
    status = slice_cloud.group_status()
    assert status["isStable"]
    assert status["currentInstanceStatuses"].items() >= {"running": 1, "nonExistent": 1}.items()
    assert topology_state(slice_cloud) == "INCOMPLETE"


def test_logging_of_bulk_vms_is_an_option() -> None:
    cloud = Cloud(Timings(bulk_vms_are_logged=False))
    cloud.make_parts()
    cloud.make_group()
    cloud.run_until_running(2)
    assert not any("instances.insert" in method for method in cloud.methods())


# ---------------------------------------------------------------- INDIVIDUAL


def test_an_individual_mig_creates_the_vms_that_fit_and_retries_the_rest(
    slice_cloud: Cloud,
) -> None:
    slice_cloud.faults.set_capacity(ZONE, "ct6e", 1)
    slice_cloud.make_group(bulk=False)
    slice_cloud.run_until_running(1)
    failed = next(vm for vm in slice_cloud.managed() if "id" not in vm)
    assert failed["currentAction"] == "CREATING"
    codes = [error["code"] for error in failed["lastAttempt"]["errors"]["errors"]]
    assert codes == ["ZONE_RESOURCE_POOL_EXHAUSTED"]
    slice_cloud.faults.set_capacity(ZONE, "ct6e")
    running = slice_cloud.run_until_running(2)
    assert failed["name"] in {vm["name"] for vm in running}
    assert not any("lastAttempt" in vm for vm in running)


def test_failed_creations_are_in_list_errors_and_in_the_log(slice_cloud: Cloud) -> None:
    slice_cloud.faults.set_capacity(ZONE, "ct6e", 0)
    slice_cloud.make_group(size=1, bulk=False)
    slice_cloud.clock.run_for(20)
    error = slice_cloud.get(f"{GROUP}/listErrors")["items"][0]
    assert error["error"]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert error["instanceActionDetails"]["action"] == "CREATING"
    failed = next(entry for entry in slice_cloud.log if entry["severity"] == "ERROR")
    assert describe(failed) == "v1.compute.instances.insert last"
    assert failed["protoPayload"]["status"] == {
        "code": 8,
        "message": "ZONE_RESOURCE_POOL_EXHAUSTED",
    }


def test_the_backoff_between_creations_grows_to_sixteen_minutes(slice_cloud: Cloud) -> None:
    slice_cloud.faults.set_capacity(ZONE, "ct6e", 0)
    slice_cloud.make_group(size=1, bulk=False)
    slice_cloud.clock.run_for(3600)
    first_hour = slice_cloud.methods().count("v1.compute.instances.insert first")
    slice_cloud.clock.run_for(3600)
    second_hour = slice_cloud.methods().count("v1.compute.instances.insert first") - first_hour
    assert 6 <= first_hour <= 10
    assert second_hour in (3, 4)


def test_a_repairing_mig_recreates_a_stopped_vm_with_its_name(slice_cloud: Cloud) -> None:
    slice_cloud.make_group(bulk=False, repair=True)
    vm = slice_cloud.run_until_running(2)[0]
    slice_cloud.clock.run_for(5)
    del slice_cloud.log[:]
    slice_cloud.faults.act_as_user("POST", f"{ZONE_PATH}/instances/{vm['name']}/stop")
    slice_cloud.clock.run_for(600)
    recreated = next(one for one in slice_cloud.managed() if one["name"] == vm["name"])
    assert recreated["instanceStatus"] == "RUNNING"
    assert recreated["id"] != vm["id"]
    assert Counter(slice_cloud.methods()) == {
        "v1.compute.instances.stop first": 1,
        "v1.compute.instances.stop last": 1,
        "compute.instances.repair.recreateInstance first last": 1,
        "v1.compute.instances.delete first": 1,
        "v1.compute.instances.delete last": 1,
        "v1.compute.instances.insert first": 1,
        "v1.compute.instances.insert last": 1,
        "NotifyInstanceLocation": 1,
    }


def test_a_repair_is_logged_at_its_start_with_the_reason(slice_cloud: Cloud) -> None:
    slice_cloud.make_group(bulk=False, repair=True)
    vm = slice_cloud.run_until_running(2)[0]
    slice_cloud.faults.act_as_user("POST", f"{ZONE_PATH}/instances/{vm['name']}/stop")
    slice_cloud.clock.run_until(lambda: "recreateInstance" in str(slice_cloud.methods()), 60)
    assert slice_cloud.log[-1]["protoPayload"]["status"]["message"] == (
        f"Instance Group Manager 'projects/{NUMBER}/zones/{ZONE}/instanceGroupManagers/slice' "
        f"initiated recreateInstance on instance 'projects/{NUMBER}/zones/{ZONE}/instances/"
        f"{vm['name']}'. Reason: Instance eligible for repair: instance should be RUNNING, but is "
        "STOPPING."
    )
    assert slice_cloud.vms("STOPPING")


def test_a_repairing_mig_replaces_a_deleted_vm(slice_cloud: Cloud) -> None:
    slice_cloud.make_group(bulk=False, repair=True)
    vm = slice_cloud.run_until_running(2)[0]
    slice_cloud.faults.act_as_user("DELETE", f"{ZONE_PATH}/instances/{vm['name']}")
    slice_cloud.clock.run_until(lambda: len(slice_cloud.vms("RUNNING")) == 1, 60)
    names = {one["name"] for one in slice_cloud.run_until_running(2)}
    assert vm["name"] in names


def test_a_repaired_vm_can_keep_its_id() -> None:
    cloud = Cloud(Timings(repair_keeps_id=True))
    cloud.make_parts()
    cloud.make_group(bulk=False, repair=True)
    vm = cloud.run_until_running(2)[0]
    cloud.faults.act_as_user("DELETE", f"{ZONE_PATH}/instances/{vm['name']}")
    cloud.clock.run_for(600)
    assert vm["id"] in {one["id"] for one in cloud.run_until_running(2)}


def test_recreated_vms_lose_metadata_and_vm_agent(slice_cloud: Cloud) -> None:
    slice_cloud.make_group(bulk=False, repair=True)
    vm = slice_cloud.run_until_running(2)[0]
    path = f"{ZONE_PATH}/instances/{vm['name']}"
    metadata = slice_cloud.get(path)["metadata"]
    metadata["items"].append({"key": "token", "value": "secret"})
    slice_cloud.settle("POST", f"{path}/setMetadata", metadata)
    slice_cloud.settle("DELETE", path)
    slice_cloud.clock.run_for(300)
    keys = [item["key"] for item in slice_cloud.get(path)["metadata"]["items"]]
    assert "token" not in keys
    agents = [agent for agent in slice_cloud.agents if agent.machine.name == vm["name"]]
    assert [agent.events[0] for agent in agents] == ["on", "on"]
    assert agents[0].events[-1] == "off"


def test_resize_grows_and_shrinks_an_individual_mig(slice_cloud: Cloud) -> None:
    slice_cloud.make_group(size=0, bulk=False)
    slice_cloud.settle("POST", f"{GROUP}/resize?size=3")
    slice_cloud.run_until_running(3)
    slice_cloud.settle("POST", f"{GROUP}/resize?size=1")
    slice_cloud.clock.run_for(120)
    assert len(slice_cloud.managed()) == 1


# ---------------------------------------------------------------- SPOT, FLEX_START, hosts


@pytest.mark.parametrize(
    "action, left", [("STOP", "TERMINATED"), ("DELETE", None)], ids=["stop", "delete"]
)
def test_the_termination_action_decides_how_a_preempted_vm_ends(
    action: str, left: str | None
) -> None:
    cloud = Cloud()
    cloud.make_parts(scheduling={**SPOT, "instanceTerminationAction": action})
    cloud.make_group()
    vm = cloud.run_until_running(2)[0]
    cloud.faults.preempt(f"{ZONE_PATH}/instances/{vm['name']}")
    assert cloud.vms("STOPPING")
    cloud.clock.run_for(40)
    preempted = next(one for one in cloud.managed() if one["name"] == vm["name"])
    assert preempted.get("instanceStatus") == left
    assert "compute.instances.preempted first last" in cloud.methods()
    assert topology_state(cloud) == "INCOMPLETE"


def test_flex_start_vms_are_pending_until_they_are_granted() -> None:
    cloud = Cloud(Timings(flex_start_grant_s=(400, 400)))
    cloud.make_parts(scheduling=FLEX)
    cloud.make_group()
    cloud.faults.set_capacity(ZONE, "ct6e", 9)
    cloud.clock.run_for(390)
    assert len(cloud.vms("PENDING")) == 2
    assert cloud.group_status()["currentInstanceStatuses"]["pending"] == 2
    assert cloud.methods().count("v1.compute.instances.insert first") == 2
    cloud.clock.run_for(20)
    assert len(cloud.vms("PROVISIONING")) == 2
    cloud.run_until_running(2)


def test_flex_start_vms_are_granted_all_or_none() -> None:
    cloud = Cloud(Timings(flex_start_grant_s=(10, 10)))
    cloud.faults.set_capacity(ZONE, "ct6e", 1)
    cloud.make_parts(scheduling=FLEX)
    cloud.make_group()
    cloud.clock.run_for(3600)
    assert len(cloud.vms("PENDING")) == 2
    cloud.faults.set_capacity(ZONE, "ct6e", 2)
    cloud.run_until_running(2)


def test_flex_start_vms_end_when_their_time_is_up() -> None:
    cloud = Cloud()
    cloud.make_parts(scheduling=FLEX)
    cloud.make_group()
    cloud.run_until_running(2)
    cloud.clock.run_for(3600 + 120)
    assert cloud.group_status()["currentInstanceStatuses"]["nonExistent"] == 2
    assert cloud.methods().count("v1.compute.instances.delete last") == 2


def test_the_vms_of_a_slice_restart_together_after_a_host_error(slice_cloud: Cloud) -> None:
    slice_cloud.make_group()
    vm = slice_cloud.run_until_running(2)[0]
    slice_cloud.clock.run_for(60)
    slice_cloud.faults.host_error(f"{ZONE_PATH}/instances/{vm['name']}")
    assert slice_cloud.vms("REPAIRING")
    assert topology_state(slice_cloud) == "INCOMPLETE"
    slice_cloud.run_until_running(2)
    assert topology_state(slice_cloud) == "REACTIVATING"
    slice_cloud.clock.run_for(60)
    assert topology_state(slice_cloud) == "ACTIVE"
    agent = next(agent for agent in slice_cloud.agents if agent.machine.name == vm["name"])
    assert agent.events == ["on", "off", "on"]
    events = [name for name in slice_cloud.methods() if name.startswith("compute.")]
    assert events == [
        "compute.instances.instanceManagerHaltForRestart first last",
        "compute.instances.hostError first last",
        "compute.instances.automaticRestart first last",
        "compute.instances.automaticRestart first last",
    ]


def test_a_vm_without_automatic_restart_stays_down_after_a_host_error(cloud: Cloud) -> None:
    cloud.make_parts(scheduling={"automaticRestart": False})
    cloud.make_group()
    vm = cloud.run_until_running(2)[0]
    cloud.faults.host_error(f"{ZONE_PATH}/instances/{vm['name']}")
    cloud.clock.run_for(3600)
    assert [one["name"] for one in cloud.vms("TERMINATED")] == [vm["name"]]


# ---------------------------------------------------------------- deleting


def test_the_delete_of_a_mig_is_done_after_its_vms_are_deleted(slice_cloud: Cloud) -> None:
    slice_cloud.make_group()
    slice_cloud.run_until_running(2)
    slice_cloud.clock.run_for(60)
    operation = slice_cloud.change("DELETE", GROUP)
    assert topology_state(slice_cloud) == "DEACTIVATING"
    slice_cloud.clock.run_until(lambda: not slice_cloud.managed(), 300)
    assert slice_cloud.operation(operation)["status"] == "RUNNING"
    assert slice_cloud.get(GROUP)["targetSize"] == 2
    slice_cloud.clock.run_for(15)
    assert slice_cloud.operation(operation)["status"] == "DONE"
    deletes = [entry for entry in slice_cloud.log if "instances.delete" in describe(entry)]
    callers = {entry["protoPayload"]["authenticationInfo"]["principalEmail"] for entry in deletes}
    assert callers == {AGENT}


def test_a_mig_can_be_deleted_while_it_creates_vms(slice_cloud: Cloud) -> None:
    slice_cloud.make_group()
    assert slice_cloud.vms("PROVISIONING")
    slice_cloud.settle("DELETE", GROUP)
    slice_cloud.clock.run_for(5)
    assert slice_cloud.simulator.leftovers() == [TEMPLATE, POLICY]
    cancelled = [entry for entry in slice_cloud.log if entry["severity"] == "ERROR"]
    assert [describe(entry) for entry in cancelled] == ["v1.compute.instances.insert last"] * 2


def test_template_and_policy_are_in_use_until_shortly_after_the_mig_is_deleted() -> None:
    cloud = Cloud(Timings(in_use_lag_s=(2, 2)))
    cloud.make_parts()
    cloud.make_group()
    cloud.settle("DELETE", GROUP)
    assert [cloud.send("DELETE", path)[0] for path in (TEMPLATE, POLICY)] == [400, 400]
    cloud.clock.run_for(2)
    assert [cloud.send("DELETE", path)[0] for path in (TEMPLATE, POLICY)] == [200, 200]


def test_the_delete_of_a_template_in_use_can_fail_in_the_operation() -> None:
    cloud = Cloud(Timings(in_use_refused_by="operation"))
    cloud.make_parts()
    cloud.make_group()
    operation = cloud.settle("DELETE", TEMPLATE)
    assert operation["error"]["errors"][0]["code"] == "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
    assert (operation["httpErrorStatusCode"], operation["httpErrorMessage"]) == (400, "BAD REQUEST")
    assert cloud.get(TEMPLATE)["name"] == "slice"
