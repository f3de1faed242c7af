"""Entries of the audit log have the shape of real ones, at the right times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local.base.http import Request
from local.gce import Principal, Timings
from local.tests.gce.small_cloud import (
    AGENT,
    GROUP,
    NUMBER,
    POLICY,
    PROJECT,
    SPOT,
    TEMPLATE,
    ZONE,
    ZONE_PATH,
    Cloud,
    Document,
    describe,
    group_body,
    policy_body,
    template_body,
)

SAMPLES = Path(__file__).parents[3] / "tests" / "data" / "audit-log-entries.jsonl"
FUNCTIONS = "tng-functions@my-project.iam.gserviceaccount.com"
REGIONAL = TEMPLATE.replace("global", "regions/us-central1")

NOT_WRITTEN = {
    "read-instances-get": "the data access log is off",
    "read-mig-listManagedInstances": "the data access log is off",
    "disk-insert-by-group": "the simulation has no disks",
    "other-service-gke": "another service",
    "vm-setLabels-by-person": "the simulation has no change of a VM's labels",
    "dry-run-perimeter": "the simulation has no perimeters",
    "mig-patch-last": "the simulation has no patch of a MIG",
    "mig-deleteInstances-last": "simulated MIGs can only be resized",
    "sys-guestTerminate": "a simulated VM agent does not shut down its VM",
    "vm-delete-last-not-found": "a simulated MIG never deletes an absent VM",
}
"""Samples that the simulation does not write, and why."""

FREE = {
    ("protoPayload", "request"),
    ("protoPayload", "requestMetadata"),
    ("protoPayload", "metadata", "instanceMetadataDelta"),
}
"""Fields whose keys depend on the client's request."""


def samples() -> list[Document]:
    return [json.loads(line) for line in SAMPLES.read_text().splitlines()]


@pytest.fixture(scope="module")
def written() -> list[Document]:
    """Return the log of a project in which every logged event has occurred."""
    cloud = Cloud(principals={"functions": Principal(FUNCTIONS)})
    _create_resources(cloud)
    _lose_vms(cloud)
    _cause_failed_operations(cloud)
    _cause_immediate_errors(cloud)
    cloud.settle("DELETE", GROUP)
    cloud.clock.run_for(5)
    for path in (TEMPLATE, REGIONAL, POLICY):
        cloud.settle("DELETE", path)
    cloud.clock.run_for(5)
    return cloud.log


def _create_resources(cloud: Cloud) -> None:
    cloud.make_parts(scheduling=SPOT | {"instanceTerminationAction": "STOP"})
    cloud.settle("POST", REGIONAL.rpartition("/")[0], template_body())
    cloud.make_group(size=6, bulk=False, repair=True)
    cloud.run_until_running(6)
    cloud.settle("POST", f"{GROUP}/resize?size=7")
    cloud.run_until_running(7)


def _lose_vms(cloud: Cloud) -> None:
    vms = [f"{ZONE_PATH}/instances/{vm['name']}" for vm in cloud.vms("RUNNING")]
    cloud.faults.preempt(vms[0])
    cloud.faults.host_maintenance(vms[2])
    cloud.settle("POST", f"{vms[3]}/stop")
    cloud.settle("POST", f"{vms[3]}/start")
    cloud.settle("POST", f"{vms[4]}/reset")
    metadata = cloud.get(vms[5])["metadata"]
    metadata["items"].append({"key": "kubeadm-join-token", "value": "not-to-be-logged"})
    cloud.settle("POST", f"{vms[5]}/setMetadata", metadata)
    cloud.settle("POST", f"{ZONE_PATH}/instances", _single_vm())
    cloud.clock.run_for(1)
    cloud.faults.host_error(f"{ZONE_PATH}/instances/single")
    cloud.clock.run_for(600)


def _single_vm() -> Document:
    properties = template_body("ct5p-hightpu-4t")["properties"]
    machine_type = f"zones/{ZONE}/machineTypes/ct5p-hightpu-4t"
    return {"name": "single", **properties, "machineType": machine_type}


def _cause_failed_operations(cloud: Cloud) -> None:
    single = f"{ZONE_PATH}/instances/single"
    cloud.settle("POST", f"{single}/stop")
    cloud.faults.set_capacity(ZONE, "ct5p", 0)
    cloud.settle("POST", f"{single}/start")
    for verb, http in (
        ("resourcePolicies.insert", 400),
        ("instanceGroupManagers.insert", 400),
        ("instanceGroupManagers.resize", 412),
        ("instanceGroupManagers.delete", 500),
        ("instances.setMetadata", 409),
    ):
        cloud.faults.fail_operations(verb, http=http)
    other = {"name": "other"}
    cloud.settle("POST", POLICY.rpartition("/")[0], policy_body() | other)
    cloud.settle("POST", GROUP.rpartition("/")[0], group_body(bulk=False) | other)
    cloud.settle("POST", f"{GROUP}/resize?size=9")
    cloud.settle("DELETE", GROUP)
    cloud.settle("POST", f"{single}/setMetadata", cloud.get(single)["metadata"])


def _cause_immediate_errors(cloud: Cloud) -> None:
    cloud.faults.remove_permission(FUNCTIONS, "compute.instanceGroupManagers.create")
    cloud.send("POST", TEMPLATE.rpartition("/")[0], template_body())
    cloud.send("POST", GROUP.rpartition("/")[0], group_body(), token="functions")
    body = group_body()
    body["name"] = "bulk"
    cloud.settle("POST", GROUP.rpartition("/")[0], body)
    cloud.send("DELETE", POLICY)
    cloud.settle("DELETE", GROUP.replace("slice", "bulk"))


def key(entry: Document) -> str:
    """Return an entry's method without the API version, its location, and its result."""
    method = describe(entry).removeprefix("v1.").removeprefix("beta.")
    status = entry["protoPayload"].get("status", {}).get("message", "")
    word = "" if "operation" in entry and ".repair." in method else status
    return f"{method} {entry['severity']} {word}".strip()


def shape(value: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Return the paths of all keys and the types of their values."""
    if path in FREE:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from shape(inner, (*path, name))
    else:
        yield f"{'.'.join(path)}: {type(value).__name__}"


@pytest.mark.parametrize(
    "sample",
    [sample for sample in samples() if sample["name"] not in NOT_WRITTEN],
    ids=lambda sample: sample["name"],
)
def test_entries_have_the_shape_of_real_ones(sample: Document, written: list[Document]) -> None:
    expected = set(shape(sample["entry"]))
    same = [entry for entry in written if key(entry) == key(sample["entry"])]
    assert same, f"no entry is {key(sample['entry'])}"
    shapes = [set(shape(entry)) for entry in same]
    assert expected in shapes, expected.symmetric_difference(shapes[0])


def test_the_number_of_samples_is_unchanged() -> None:
    assert len(samples()) == 56
    assert set(NOT_WRITTEN) < {sample["name"] for sample in samples()}


def test_no_entry_has_a_value_of_metadata(written: list[Document]) -> None:
    assert "not-to-be-logged" not in json.dumps(written)


def test_set_metadata_names_the_keys_it_changed(slice_cloud: Cloud) -> None:
    slice_cloud.settle("POST", f"{ZONE_PATH}/instances", _single_vm())
    slice_cloud.clock.run_for(5)
    path = f"{ZONE_PATH}/instances/single"

    def write(**items: str) -> Document:
        metadata = slice_cloud.get(path)["metadata"]
        metadata["items"] = [{"key": key, "value": value} for key, value in items.items()]
        slice_cloud.settle("POST", f"{path}/setMetadata", metadata)
        slice_cloud.clock.run_for(5)
        delta: Document = slice_cloud.log[-1]["protoPayload"]["metadata"]["instanceMetadataDelta"]
        return delta

    assert write(a="1", b="1") == {"addedMetadataKeys": ["a", "b"]}
    assert write(b="2", c="1") == {
        "addedMetadataKeys": ["c"],
        "modifiedMetadataKeys": ["b"],
        "deletedMetadataKeys": ["a"],
    }


def test_the_first_entries_of_the_migs_agent_have_the_project_number(slice_cloud: Cloud) -> None:
    slice_cloud.make_group()
    slice_cloud.run_until_running(2)
    slice_cloud.clock.run_for(5)
    inserts = [entry for entry in slice_cloud.log if "instances.insert" in describe(entry)]
    first, last = (
        next(entry for entry in inserts if entry["operation"].get(position))
        for position in ("first", "last")
    )
    assert first["protoPayload"]["resourceName"].startswith(f"projects/{NUMBER}/")
    assert last["protoPayload"]["resourceName"].startswith(f"projects/{PROJECT}/")
    assert first["protoPayload"]["requestMetadata"] == {
        "callerSuppliedUserAgent": "GCE Managed Instance Group"
    }
    name = first["protoPayload"]["resourceName"].rpartition("/")[2]
    group_id = slice_cloud.get(GROUP)["id"]
    located = f"projects/{NUMBER}/locations/{ZONE}"
    assert first["protoPayload"]["request"]["links"] == [
        {
            "type": "MEMBER_OF",
            "source": f"{located}/instanceGroupManagers/slice@{group_id}",
            "target": f"{located}/instances/{name}",
        }
    ]


def test_an_entry_names_its_caller(slice_cloud: Cloud) -> None:
    slice_cloud.make_group(bulk=False)
    vm = slice_cloud.run_until_running(2)[0]
    slice_cloud.faults.act_as_user("DELETE", f"{ZONE_PATH}/instances/{vm['name']}")
    slice_cloud.clock.run_for(120)
    callers = {
        (describe(entry), entry["protoPayload"]["authenticationInfo"].get("principalEmail"))
        for entry in slice_cloud.log
    }
    assert callers >= {
        ("v1.compute.instanceGroupManagers.insert first", "user@example.com"),
        ("v1.compute.instances.insert first", AGENT),
        ("v1.compute.instances.delete last", "alice@example.com"),
    }


def test_the_method_has_the_api_version_that_was_called(cloud: Cloud) -> None:
    path = f"/compute/beta/{POLICY.rpartition('/')[0]}"
    cloud.simulator.handle(Request.of("POST", path, body=json.dumps(policy_body())))
    cloud.clock.run_for(10)
    assert cloud.methods()[0] == "beta.compute.resourcePolicies.insert first"


def test_entries_arrive_after_the_delay_and_keep_their_timestamp() -> None:
    cloud = Cloud(Timings(log_delay_s=(1.5, 1.5)))
    cloud.change("POST", POLICY.rpartition("/")[0], policy_body())
    cloud.clock.run_for(1.4)
    assert cloud.log == []
    cloud.clock.run_for(0.2)
    assert cloud.log[0]["timestamp"] == "2026-01-01T00:00:00.000000Z"
    assert cloud.log[0]["receiveTimestamp"] == "2026-01-01T00:00:01.500000Z"


def test_successful_and_failed_reads_are_not_logged(cloud: Cloud) -> None:
    cloud.send("GET", POLICY)
    cloud.send("GET", f"{ZONE_PATH}/instances")
    cloud.clock.run_for(10)
    assert cloud.log == []


def test_a_call_with_a_lost_answer_is_logged_without_an_error(cloud: Cloud) -> None:
    cloud.faults.fail_next("resourcePolicies.insert", executed=True)
    status, _ = cloud.send("POST", POLICY.rpartition("/")[0], policy_body())
    cloud.clock.run_for(10)
    assert status == 503
    assert [entry["severity"] for entry in cloud.log] == ["NOTICE", "NOTICE"]
