"""Single VMs: metadata, power, VM agents."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import compute_v1

from local.gce import Timings
from local.tests.gce.small_cloud import (
    PROJECT,
    TEMPLATE,
    ZONE,
    ZONE_PATH,
    Cloud,
    Document,
    template_body,
)

VM = f"{ZONE_PATH}/instances/vm"
EMPTY = "x4iOk7cA2GY="


def body(**fields: Any) -> Document:
    machine_type = f"zones/{ZONE}/machineTypes/ct6e-standard-4t"
    return {"name": "vm", **template_body()["properties"], "machineType": machine_type, **fields}


@pytest.fixture
def running() -> Cloud:
    """A project with one running VM."""
    cloud = Cloud(Timings(metadata_propagation_s=(2, 2)))
    cloud.settle("POST", f"{ZONE_PATH}/instances", body())
    cloud.clock.run_for(1)
    assert cloud.get(VM)["status"] == "RUNNING"
    return cloud


def write(cloud: Cloud, **items: str) -> Document:
    metadata = cloud.get(VM)["metadata"]
    metadata["items"] = [{"key": key, "value": value} for key, value in items.items()]
    return cloud.change("POST", f"{VM}/setMetadata", metadata)


def finish(cloud: Cloud, operation: Document) -> None:
    cloud.clock.run_until(lambda: cloud.operation(operation)["status"] == "DONE", 60)


def test_a_vm_passes_provisioning_and_staging_before_running(cloud: Cloud) -> None:
    seen: list[str] = []

    def watch() -> bool:
        status = cloud.get(VM)["status"]
        if seen[-1:] != [status]:
            seen.append(status)
        return bool(status == "RUNNING")

    cloud.change("POST", f"{ZONE_PATH}/instances", body())
    assert cloud.clock.run_until(watch, 120)
    assert seen == ["PROVISIONING", "STAGING", "RUNNING"]


def test_an_insert_operation_can_be_done_shortly_before_the_vm_runs() -> None:
    cloud = Cloud(Timings(running_after_insert_s=(0.5, 0.5)))
    cloud.settle("POST", f"{ZONE_PATH}/instances", body())
    assert cloud.get(VM)["status"] == "STAGING"
    assert cloud.agents == []
    cloud.clock.run_for(0.5)
    assert cloud.get(VM)["status"] == "RUNNING"
    assert cloud.agents[0].events == ["on"]


def test_set_metadata_replaces_the_whole_list(running: Cloud) -> None:
    finish(running, write(running, a="1", b="2"))
    finish(running, write(running, b="3"))
    assert running.get(VM)["metadata"]["items"] == [{"key": "b", "value": "3"}]


def test_new_metadata_is_visible_when_the_operation_is_done(running: Cloud) -> None:
    operation = write(running, a="1")
    assert "items" not in running.get(VM)["metadata"]
    finish(running, operation)
    assert running.get(VM)["metadata"]["items"] == [{"key": "a", "value": "1"}]


def test_the_metadata_fingerprint_is_a_function_of_the_content(running: Cloud) -> None:
    def fingerprint() -> str:
        return str(running.get(VM)["metadata"]["fingerprint"])

    assert fingerprint() == EMPTY
    finish(running, write(running, a="1"))
    once = fingerprint()
    finish(running, write(running, a="2"))
    assert fingerprint() not in (EMPTY, once)
    finish(running, write(running, a="1"))
    assert fingerprint() == once


def test_the_vm_agent_sees_metadata_a_little_later(running: Cloud) -> None:
    agent = running.agents[0]
    finish(running, write(running, a="1"))
    assert dict(agent.machine.attributes()) == {}
    running.clock.run_for(2)
    assert dict(agent.machine.attributes()) == {"a": "1"}
    assert agent.events == ["on", "metadata a"]


def test_metadata_can_be_set_while_a_vm_is_down(running: Cloud) -> None:
    running.settle("POST", f"{VM}/stop")
    finish(running, write(running, a="1"))
    running.settle("POST", f"{VM}/start")
    running.clock.run_for(1)
    agent = running.agents[0]
    assert dict(agent.machine.attributes()) == {"a": "1"}
    assert agent.events == ["on", "off", "on"]


def test_the_vm_agent_is_the_same_after_stop_start_and_reset(running: Cloud) -> None:
    running.settle("POST", f"{VM}/stop")
    assert running.get(VM)["status"] == "TERMINATED"
    assert "lastStopTimestamp" in running.get(VM)
    running.settle("POST", f"{VM}/start")
    running.clock.run_for(1)
    running.settle("POST", f"{VM}/reset")
    assert [agent.events for agent in running.agents] == [["on", "off", "on", "off", "on"]]


def test_a_vm_agent_loses_power_when_its_vm_is_deleted(running: Cloud) -> None:
    running.change("DELETE", VM)
    assert running.agents[0].events == ["on", "off"]
    assert running.get(VM)["status"] == "STOPPING"


def test_a_started_vm_has_a_new_start_time_and_the_old_id(running: Cloud) -> None:
    before = running.get(VM)
    running.settle("POST", f"{VM}/stop")
    running.settle("POST", f"{VM}/start")
    running.clock.run_for(1)
    after = running.get(VM)
    assert after["id"] == before["id"]
    assert after["lastStartTimestamp"] > before["lastStartTimestamp"]


def test_start_of_a_running_vm_changes_nothing(running: Cloud) -> None:
    before = running.get(VM)
    running.settle("POST", f"{VM}/start")
    assert running.get(VM) == before


def test_a_stopped_vm_loses_its_host(running: Cloud) -> None:
    running.settle("POST", f"{VM}/stop")
    running.faults.set_capacity(ZONE, "ct6e", 0)
    operation = running.settle("POST", f"{VM}/start")
    assert operation["error"]["errors"][0]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert operation["httpErrorMessage"] == "SERVICE UNAVAILABLE"
    assert running.get(VM)["status"] == "TERMINATED"
    running.faults.set_capacity(ZONE, "ct6e", 1)
    assert "error" not in running.settle("POST", f"{VM}/start")


def test_a_delete_overtakes_a_stop(running: Cloud) -> None:
    stop = running.change("POST", f"{VM}/stop")
    running.settle("DELETE", VM)
    assert running.operation(stop)["error"]["errors"][0]["code"] == "OPERATION_CANCELED_BY_USER"
    assert running.simulator.leftovers() == []


def test_a_delete_overtakes_a_reset_for_good(running: Cloud) -> None:
    running.change("POST", f"{VM}/reset")
    running.settle("DELETE", VM)
    running.clock.run_for(60)
    assert running.agents[0].events == ["on", "off"]


def test_the_serial_port_has_the_output_of_the_vm_agent(
    running: Cloud,
) -> None:
    machine = running.agents[0].machine
    machine.write_serial("boot\n")
    machine.write_serial("ready\n")
    answer = running.get(f"{VM}/serialPort")
    assert (answer["contents"], answer["next"]) == ("boot\nready\n", "11")


def test_guest_attributes_can_be_read_by_namespace(running: Cloud) -> None:
    running.agents[0].machine.set_guest_attribute("tpu", "state", "joined")
    client = running.client("InstancesClient")
    request = {"project": PROJECT, "zone": ZONE, "instance": "vm", "query_path": "tpu/"}
    attributes = client.get_guest_attributes(request)
    assert [item.value for item in attributes.query_value.items] == ["joined"]


def test_the_fields_of_an_insert_override_those_of_the_template(cloud: Cloud) -> None:
    cloud.settle("POST", TEMPLATE.rpartition("/")[0], template_body(labels={"from": "template"}))
    cloud.client("InstancesClient").insert_unary(
        {
            "project": PROJECT,
            "zone": ZONE,
            "instance_resource": compute_v1.Instance(name="vm", labels={"from": "vm"}),
            "source_instance_template": TEMPLATE,
        }
    )
    shown = cloud.get(VM)
    assert shown["labels"] == {"from": "vm"}
    assert shown["machineType"].endswith(f"zones/{ZONE}/machineTypes/ct6e-standard-4t")


def test_two_vms_have_two_addresses(cloud: Cloud) -> None:
    cloud.settle("POST", f"{ZONE_PATH}/instances", body())
    cloud.settle("POST", f"{ZONE_PATH}/instances", body(name="two"))
    items = cloud.get(f"{ZONE_PATH}/instances/two"), cloud.get(VM)
    assert len({item["networkInterfaces"][0]["networkIP"] for item in items}) == 2
