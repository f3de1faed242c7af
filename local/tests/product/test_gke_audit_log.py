"""The steps for JobSets decode the audit log of the simulated GKE."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from local.cloud.sinks import Sinks
from local.tests.gke.small_gke import CLUSTER, NAME, PROJECT, Gke
from shared.triggers.audit_log import LogEvent
from shared.triggers.decode import decode
from shared.triggers.route import find_steps
from shared.triggers.routes import ROUTES
from shared.triggers.trigger import LogTrigger
from tests.support.harness import filters


@pytest.fixture
def gke() -> Gke:
    return Gke()


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
        operation=gke.log[-1]["operation"]["id"],
    )
