"""The sinks' filters select the step of each audit log entry, as Compute Engine writes them."""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import pytest

from local.cloud.logging_query import MAX_CHARACTERS, QueryError
from local.cloud.sinks import Sinks
from shared.triggers import route
from shared.triggers.decode import decode
from shared.triggers.route import Log
from shared.triggers.routes import ROUTES
from shared.triggers.trigger import LogTrigger, Trigger
from tests.unit.infra.terraform.log_entries import ENTRIES, EXCESS, FILTERS, POOLS, find_steps


def read_trigger(entry: Mapping[str, Any]) -> Trigger | None:
    data = base64.b64encode(json.dumps(entry).encode()).decode()
    return decode(
        json.dumps({"message": {"data": data, "messageId": "1"}}).encode(), ROUTES
    ).trigger


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
    trigger = read_trigger(entry)
    steps = () if trigger is None else route.find_steps(trigger, ROUTES)
    assert find_steps(entry) == [*steps]


def test_each_excess_entry_concerns_no_step() -> None:
    assert {ENTRIES[name]["wakes"] for name in EXCESS} == {"none"}


def table_entries(resource: str, word: str) -> Iterator[tuple[Log, dict[str, Any]]]:
    """Yield the entries of a method in each audit log, of an operation that succeeded and one that
    failed."""
    if resource == "container.nodePools":
        method = f"google.container.v1.ClusterManager.{word}"
        base, changes = POOLS["pool-create-last"]["entry"], {"methodName": method}
    else:
        kind = resource.removeprefix("compute.").replace("regionInstanceT", "instanceT")
        name = "tng-s-1a2b3c4d-x7k2" if kind == "instances" else "tng-s-1a2b3c4d"
        path = f"projects/my-project/zones/us-central1-c/{kind}/{name}"
        base, changes = ENTRIES["mig-insert-last"]["entry"], {"resourceName": path}
        changes["methodName"] = f"v1.{resource}.{word}"
    for log, (severity, code) in product(Log, {"NOTICE": 0, "ERROR": 8}.items()):
        payload = base["protoPayload"] | changes | {"status": {"code": code}}
        log_name = f"projects/my-project/logs/cloudaudit.googleapis.com%2F{log.value}"
        yield log, base | {"protoPayload": payload, "severity": severity, "logName": log_name}


ENDS = [ends for route in ROUTES.values() for ends in route.ends]
WORDS = {verb for ends in ENDS for verb in ends.verbs} | {*re.findall(r"\w+", str(FILTERS))}


@pytest.mark.parametrize("resource", dict.fromkeys(ends.resource for ends in ENDS))
def test_the_filters_select_what_the_table_of_routes_has(resource: str) -> None:
    sinks, selected = Sinks(FILTERS, lambda *_: None), set()
    for word in sorted(WORDS):
        for log, entry in table_entries(resource, word):
            trigger = read_trigger(entry)
            expected = [
                step
                for step, route in ROUTES.items()
                if isinstance(trigger, LogTrigger)
                and any(ends.log is log and ends.has(trigger.event) for ends in route.ends)
            ]
            assert sinks.find_steps(entry) == sorted(expected), (word, log, entry["severity"])
            if isinstance(trigger, LogTrigger) and expected:
                selected.add(trigger.event.method)
    assert selected == {
        method for ends in ENDS if ends.resource == resource for method in ends.methods
    }


@pytest.mark.parametrize("step", FILTERS)
def test_a_filter_fits_into_a_sink(step: str) -> None:
    assert len(FILTERS[step]) < MAX_CHARACTERS
    assert "${" not in FILTERS[step]


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


METHODS = [
    ("mig-patch-last", "compute.instanceGroupManagers.listManagedInstances"),
    ("mig-patch-last", "compute.regionInstanceGroupManagers.patch"),
    ("vm-start-last", "compute.instances.startWithEncryptionKey"),
    ("vm-stop-last", "compute.instances.deleteAccessConfig"),
    ("sys-preempted", "compute.instances.migrateOnHostMaintenance"),
]


@pytest.mark.parametrize("name, method", METHODS)
def test_a_filter_matches_whole_method_names(name: str, method: str) -> None:
    assert find_steps(changed(name, methodName=method)) == []


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
