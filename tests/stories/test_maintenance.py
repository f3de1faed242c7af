"""Maintenance that Compute Engine announces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from local.cloud.simulation import Options
from shared.base.timestamps import parse_time, render_time
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE, NAME, TWO_SINGLE
from tests.support.harness import Harness
from tests.support.manifests import manifest

LABEL = "tpu-functions.dev/maintenance-at"


def labels(harness: Harness) -> list[str]:
    found = (one["metadata"]["labels"].get(LABEL, "") for one in helpers.nodes(harness).values())
    return sorted(found)


def window(harness: Harness, vm: str) -> tuple[str, str]:
    found = helpers.get(harness, vm)["resourceStatus"]["upcomingMaintenance"]
    start, end = (parse_time(found[key]) for key in ("windowStartTime", "windowEndTime"))
    return render_time(start), render_time(end)


@pytest.mark.parametrize("sinks", [True, False], ids=["by events", "by the hourly look alone"])
@pytest.mark.parametrize("change", [{}, TWO_SINGLE], ids=["BULK", "INDIVIDUAL"])
def test_announced_maintenance_is_a_condition_until_it_is_over(
    change: dict[str, Any], sinks: bool
) -> None:
    harness = Harness(replace(Options(), sinks=sinks))
    helpers.ready_slice(harness, manifest(**change))
    wait = 2 * MINUTE if sinks else HOUR + 5 * MINUTE
    vm, other = helpers.vms(harness)
    faults = harness.simulation.gce.faults
    faults.announce_maintenance(vm, hours=48.0)
    harness.run_for(wait)
    start, end = window(harness, vm)
    text = (
        f"Compute Engine has announced maintenance, SCHEDULED (PLANNED_UPDATE), from {start} to {end}, "
        f"for 1 of 2 VMs: {helpers.vm_name(vm)}. It stops them then: save checkpoints before."
    )
    assert helpers.condition_of(harness, "MaintenanceScheduled") == ("True", "Pending", text)
    assert helpers.condition_of(harness)[:2] == ("True", "Ready")
    assert ("Warning", "MaintenanceScheduled", text) in helpers.events(harness)
    stamp = str(int(parse_time(start).timestamp()))
    assert labels(harness) == ["", stamp]
    faults.announce_maintenance(vm, hours=0.0, ongoing=True)
    harness.run_for(wait)
    assert helpers.condition_of(harness, "MaintenanceScheduled")[:2] == ("True", "Ongoing")
    faults.announce_maintenance(other, hours=9.0)
    harness.run_for(wait)
    _, reason, message = helpers.condition_of(harness, "MaintenanceScheduled")
    names = ", ".join(sorted(map(helpers.vm_name, (vm, other))))
    assert reason == "Ongoing"
    assert f"for 2 of 2 VMs: {names}. " in message
    for one in (vm, other):
        faults.end_maintenance(one)
    harness.run_for(HOUR + 5 * MINUTE)
    assert harness.condition(NAME, "MaintenanceScheduled") == {}
    assert labels(harness) == ["", ""]
    assert helpers.events(harness)[-1][1] in ("MaintenanceOver", "SliceIdle")
    assert "MaintenanceOver" in [reason for _, reason, _ in helpers.events(harness)]
    assert helpers.condition_of(harness)[:2] == ("True", "Ready")
