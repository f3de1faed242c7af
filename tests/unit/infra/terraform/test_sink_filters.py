"""The sinks' filters select the step of each audit log entry, as Compute Engine writes them."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest

from local.cloud.logging_query import MAX_CHARACTERS, QueryError
from local.cloud.sinks import Sinks
from shared.triggers import route
from shared.triggers.decode import decode
from shared.triggers.routes import ROUTES
from tests.unit.infra.terraform.log_entries import ENTRIES, EXCESS, FILTERS, POOLS, find_steps


def changed(name: str, **payload: Any) -> dict[str, Any]:
    """Return an entry of the file with other fields in its payload."""
    entry: dict[str, Any] = copy.deepcopy(ENTRIES[name]["entry"])
    entry["protoPayload"] |= payload
    return entry


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_triggers_only_the_step_that_it_concerns(name: str) -> None:
    row = ENTRIES[name]
    expected = EXCESS[name][0] if name in EXCESS else row["wakes"]
    assert find_steps(row["entry"]) == ([] if expected == "none" else [expected])


@pytest.mark.parametrize("name", POOLS)
def test_an_entry_about_a_node_pool_triggers_the_steps_that_it_concerns(name: str) -> None:
    assert find_steps(POOLS[name]["entry"]) == POOLS[name]["wakes"]


@pytest.mark.parametrize("name", [*ENTRIES, *POOLS])
def test_a_filter_selects_the_same_steps_as_the_functions_do(name: str) -> None:
    entry = {**ENTRIES, **POOLS}[name]["entry"]
    data = base64.b64encode(json.dumps(entry).encode()).decode()
    push = json.dumps({"message": {"data": data, "messageId": "1"}}).encode()
    trigger = decode(push, ROUTES).trigger
    steps = () if trigger is None else route.find_steps(trigger, ROUTES)
    assert find_steps(entry) == [*steps]


def test_each_excess_entry_concerns_no_step() -> None:
    assert {ENTRIES[name]["wakes"] for name in EXCESS} == {"none"}


def test_each_step_that_audit_logs_trigger_has_a_filter() -> None:
    groups = {"create_resources", "inject_token", "label_node", "tear_down"}
    assert set(FILTERS) == {*groups, "provision_slice", "release_slice"}


@pytest.mark.parametrize("step", FILTERS)
def test_a_filter_fits_into_a_sink(step: str) -> None:
    assert len(FILTERS[step]) < MAX_CHARACTERS
    assert "${" not in FILTERS[step]


def test_a_failed_insert_of_a_vm_triggers_create_resources() -> None:
    entry = changed("vm-insert-by-group-last", status={"code": 8, "message": "STOCKOUT"})
    assert find_steps(entry | {"severity": "ERROR"}) == ["create_resources"]


@pytest.mark.parametrize("version", ["v1.", "beta.", "alpha.", ""])
def test_a_filter_ignores_the_version_of_the_api(version: str) -> None:
    entry = changed("mig-insert-last", methodName=f"{version}compute.instanceGroupManagers.insert")
    assert find_steps(entry) == ["create_resources"]


VM = "projects/my-project/zones/us-central1-c/instances/"
NAMES: list[Any] = [
    pytest.param("tng-s-1a2b3c4d-x7k2", ["inject_token"], id="the shortest name"),
    pytest.param(f"tng-{'s' * 45}-1a2b3c4d-x7k2", ["inject_token"], id="the longest name"),
    pytest.param("tng-s-1a2b3c4g-x7k2", [], id="no hexadecimal digit"),
    pytest.param("tng-s-1a2b3c4-x7k2", [], id="seven digits"),
    pytest.param("tng-s-1a2b3c4d-x7k", [], id="three characters"),
    pytest.param("tng-s-1a2b3c4d-x7k2-x", [], id="a suffix"),
    pytest.param("tng-s-1a2b3c4d", [], id="no member of a group"),
    pytest.param("my-tng-s-1a2b3c4d-x7k2", [], id="a prefix"),
    pytest.param("tng--1a2b3c4d-x7k2", [], id="no group"),
]


@pytest.mark.parametrize("name,steps", NAMES)
def test_only_the_vm_names_of_this_systems_migs_pass(name: str, steps: list[str]) -> None:
    assert find_steps(changed("vm-insert-by-group-last", resourceName=VM + name)) == steps


METHODS: list[Any] = [
    pytest.param("mig-patch-last", "compute.instanceGroupManagers.recreateInstances", True),
    pytest.param("mig-patch-last", "compute.instanceGroupManagers.setInstanceTemplate", True),
    pytest.param("mig-patch-last", "compute.instanceGroupManagers.listManagedInstances", False),
    pytest.param("mig-patch-last", "compute.regionInstanceGroupManagers.patch", False),
    pytest.param("vm-start-last", "compute.instances.startWithEncryptionKey", False),
    pytest.param("vm-stop-last", "compute.instances.deleteAccessConfig", False),
    pytest.param("template-delete-last", "compute.regionInstanceTemplates.delete", True),
    pytest.param("sys-preempted", "compute.instances.instanceManagerHaltForRestart", True),
    pytest.param("sys-preempted", "compute.instances.migrateOnHostMaintenance", False),
]


@pytest.mark.parametrize("name,method,passes", METHODS, ids=lambda value: str(value))
def test_a_filter_matches_whole_method_names(name: str, method: str, passes: bool) -> None:
    expected = [ENTRIES[name]["wakes"]] if passes else []
    assert find_steps(changed(name, methodName=method)) == expected


def test_a_system_event_in_the_activity_log_does_not_pass() -> None:
    entry = changed("sys-preempted")
    assert find_steps(entry | {"logName": ENTRIES["vm-stop-last"]["entry"]["logName"]}) == []


def test_a_sink_publishes_the_entry_with_its_time_as_the_sole_attribute() -> None:
    published: list[Any] = []
    sinks = Sinks(FILTERS, lambda *message: published.append(message))
    entry = ENTRIES["mig-insert-last"]["entry"]
    sinks.on_log_entry(entry)
    ((step, data, attributes),) = published
    assert (step, json.loads(data)) == ("create_resources", entry)
    assert attributes == {"logging.googleapis.com/timestamp": entry["timestamp"]}


def test_an_entry_that_passes_two_filters_is_published_twice() -> None:
    published: list[Any] = []
    both = {"a": "operation.last=true", "b": "operation.last=true", "c": "operation.last=false"}
    sinks = Sinks(both, lambda *message: published.append(message))
    sinks.on_log_entry(ENTRIES["mig-insert-last"]["entry"])
    assert [step for step, _, _ in published] == ["a", "b"]


def test_an_invalid_filter_is_an_error() -> None:
    with pytest.raises(QueryError):
        Sinks({"a": "operation.last="}, lambda *_: None)
