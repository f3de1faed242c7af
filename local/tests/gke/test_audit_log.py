"""The audit log of the simulated GKE, and how the steps for JobSets decode it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from local.cloud.sinks import Sinks
from local.tests.gke.small_gke import CLUSTER, NAME, POOL, POOLS, PROJECT, ZONE, Gke, pool_body
from shared.triggers.audit_log import LogEvent
from shared.triggers.decode import decode
from shared.triggers.route import find_steps
from shared.triggers.routes import ROUTES
from shared.triggers.trigger import LogTrigger
from tests.support.harness import filters


@pytest.fixture
def gke() -> Gke:
    return Gke()


def test_an_operation_has_two_entries(gke: Gke) -> None:
    gke.settle(gke.create())
    gke.settle(gke.change("PUT", POOL, {"labels": {"labels": {"a": "b"}}}))
    gke.settle(gke.change("DELETE"))
    gke.clock.run_for(10)
    methods = ("CreateNodePool", "UpdateNodePool", "DeleteNodePool")
    assert gke.entries() == [f"{name} {end}" for name in methods for end in ("first", "last")]


def test_the_last_entry_of_a_failed_operation_has_the_error(gke: Gke) -> None:
    gke.faults.set_capacity(ZONE, "ct6e-standard", 0)
    gke.settle(gke.create())
    gke.clock.run_for(10)
    assert gke.entries() == ["CreateNodePool first", "CreateNodePool last (8)"]
    assert [entry["severity"] for entry in gke.log] == ["NOTICE", "ERROR"]


def test_an_immediate_error_has_one_entry(gke: Gke) -> None:
    gke.send("POST", POOLS, {"nodePool": pool_body(name="A")})
    gke.clock.run_for(10)
    gke.send("DELETE", POOL)
    gke.send("GET", POOL)
    gke.clock.run_for(10)
    assert gke.entries() == ["CreateNodePool (3)", "DeleteNodePool (5)"]
    names = [entry["resource"]["labels"]["nodepool_name"] for entry in gke.log]
    assert names == ["A", NAME]


def test_an_entry_names_the_pool_the_caller_and_the_request(gke: Gke) -> None:
    gke.create()
    gke.clock.run_for(10)
    (entry,) = gke.log
    assert entry["resource"] == {
        "type": "gke_nodepool",
        "labels": {
            "project_id": PROJECT,
            "location": "us-east5",
            "cluster_name": CLUSTER,
            "nodepool_name": NAME,
        },
    }
    payload = entry["protoPayload"]
    assert payload["serviceName"] == "container.googleapis.com"
    assert payload["methodName"] == "google.container.v1.ClusterManager.CreateNodePool"
    assert payload["authenticationInfo"] == {"principalEmail": "user@example.com"}
    assert payload["request"]["nodePool"]["name"] == NAME
    assert payload["response"]["status"] == "PENDING"
    assert entry["operation"]["producer"] == "container.googleapis.com"


def decoded(entry: dict[str, Any]) -> LogTrigger | None:
    data = base64.b64encode(json.dumps(entry).encode()).decode()
    trigger = decode(json.dumps({"message": {"data": data}}).encode(), ROUTES).trigger
    assert trigger is None or isinstance(trigger, LogTrigger)
    return trigger


def test_the_last_entries_of_operations_trigger_the_steps_for_jobsets(gke: Gke) -> None:
    gke.settle(gke.create())
    gke.settle(gke.change("DELETE"))
    gke.clock.run_for(10)
    sinks = Sinks(filters(), lambda *_: None)
    both = ["provision_slice", "release_slice"]
    assert [sinks.find_steps(entry) for entry in gke.log] == [[], both, [], both]
    for entry in gke.log:
        trigger = decoded(entry)
        assert sinks.find_steps(entry) == ([*find_steps(trigger, ROUTES)] if trigger else [])


def test_the_last_entry_of_a_creation_is_decoded_with_gkes_message(gke: Gke) -> None:
    gke.faults.fail_operations("nodePools.create", message="Out of luck.")
    gke.settle(gke.create())
    gke.clock.run_for(10)
    trigger = decoded(gke.log[-1])
    assert trigger is not None
    assert trigger.event == LogEvent(
        "container.nodePools.create",
        PROJECT,
        "us-east5",
        NAME,
        "nodePools",
        has_failed=True,
        words="Out of luck.",
        cluster=CLUSTER,
    )
