"""Transient errors that last: after ten minutes the group says so, until they are over."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness import Harness
from tests.manifests import manifest
from tests.stories import life
from tests.stories.life import HOUR, MINUTE, NAME

FOREVER = 100_000


def retries(harness: Harness) -> list[dict[str, Any]]:
    """``status.retries``."""
    group = harness.group(NAME)
    assert group is not None
    found: list[dict[str, Any]] = group["status"].get("retries", [])
    return found


def status_writes(harness: Harness) -> int:
    return harness.simulation.kube.calls.count(resource="tpunodegroups", subresource="status")


CASES = {
    "the MIG cannot be made": ("instanceGroupManagers.insert", "create_resources"),
    "tokens cannot be written": ("instances.setMetadata", "inject_token"),
    "VMs cannot be listed": ("instances.list", "label_node"),
}


@pytest.mark.parametrize("verb, step", CASES.values(), ids=CASES)
def test_a_transient_error_is_reported_after_ten_minutes_and_cleared_when_it_ends(
    verb: str, step: str
) -> None:
    harness = Harness()
    faults = harness.simulation.gce.faults
    faults.fail_next(verb, calls=FOREVER, http=503)
    harness.apply(manifest())
    harness.run_for(9 * MINUTE)
    assert "has failed since" not in life.condition_of(harness)[2]
    harness.run_for(20 * MINUTE)
    message = life.condition_of(harness)[2]
    assert f"{step} has failed since 20" in message
    assert "503" in message
    assert "and is retried" in message
    before = status_writes(harness)
    harness.run_for(HOUR)
    intents = 12 if step == "create_resources" else 0
    assert status_writes(harness) - before <= intents
    faults.fail_next(verb, calls=0)
    life.until_ready(harness, timeout=2 * HOUR)
    harness.run_for(30 * MINUTE)
    assert retries(harness) == []
    assert life.condition_of(harness) == ("True", "Ready", "All nodes are ready")
    life.assert_deleted_completely(harness)


def test_a_deletion_without_an_answer_reports_that() -> None:
    harness = Harness()
    life.ready_slice(harness, manifest())
    faults = harness.simulation.gce.faults
    faults.fail_next("instanceGroupManagers.delete", calls=FOREVER, http=503)
    harness.delete(NAME)
    harness.run_for(30 * MINUTE)
    status, reason, message = life.condition_of(harness)
    assert (status, reason) == ("False", "DeletingMIG")
    assert message.startswith(
        "Waiting for ManagedInstanceGroup to be deleted. tear_down has failed since 20"
    )
    faults.fail_next("instanceGroupManagers.delete", calls=0)
    life.until_gone(harness)
    assert harness.leftovers() == []


def test_a_ready_slice_stays_ready_while_its_hourly_resync_fails() -> None:
    harness = Harness()
    life.ready_slice(harness, manifest())
    faults = harness.simulation.gce.faults
    faults.fail_next("instances.list", calls=FOREVER, http=503)
    harness.run_for(2 * HOUR)
    status, reason, message = life.condition_of(harness)
    assert (status, reason) == ("True", "Ready")
    assert message.startswith("All nodes are ready. label_node has failed since 20")
    faults.fail_next("instances.list", calls=0)
    harness.run_for(HOUR)
    assert life.condition_of(harness) == ("True", "Ready", "All nodes are ready")
    assert retries(harness) == []


def test_nothing_is_written_about_retries_while_there_is_no_error() -> None:
    harness = Harness()
    life.ready_slice(harness, manifest())
    before = status_writes(harness)
    harness.simulation.gce.faults.fail_next("instances.list", calls=1, http=503)
    harness.run_for(3 * HOUR)
    assert status_writes(harness) - before == 2
    before = status_writes(harness)
    harness.run_for(3 * HOUR)
    assert status_writes(harness) == before
