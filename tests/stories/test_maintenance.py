"""Maintenance that Compute Engine announces."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from local.cloud.simulation import Options
from shared.base.reasons import REASONS, Reason
from shared.base.timestamps import CLOCKS_DIFFER_BY, parse_time, render_time
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE, NAME, TWO_SINGLE
from tests.support.harness import Harness
from tests.support.manifests import manifest

LABEL = "tpu-functions.dev/maintenance-at"
NOTICED = ("an hour", "ten minutes")


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
    assert labels(harness) == ["", str(int(parse_time(window(harness, vm)[0]).timestamp()))]
    faults.announce_maintenance(other, hours=9.0)
    harness.run_for(HOUR + 5 * MINUTE)
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


@pytest.mark.slow
def test_the_announcements_of_a_large_slice_cost_a_few_calls_each_and_few_lists() -> None:
    hosts = 256
    harness = helpers.ready(manifest(nodeCount=hosts, topology="8x8x16"))
    calls: Counter[str] = Counter()

    def note(step: str, call: str) -> None:
        method, _, path = call.partition(" ")
        name = path.partition("?")[0].rpartition("/")[2]
        if step == "label_node":
            calls[f"{method} {'one' if name.startswith('tng-') else name}"] += 1

    harness.hooks.before = note
    faults = harness.simulation.gce.faults
    for ongoing in (False, True):
        calls.clear()
        for vm in helpers.vms(harness):
            faults.announce_maintenance(vm, ongoing=ongoing)
        harness.run_for(5 * MINUTE)
        _, reason, message = helpers.condition_of(harness, "MaintenanceScheduled")
        assert reason == ("Ongoing" if ongoing else "Pending")
        assert f"for {hosts} of {hosts} VMs: " in message
        assert calls["GET nodes"] <= 3, "lists of all Nodes"
        assert calls["GET instances"] <= 3, "lists of all VMs"
        assert calls["PUT status"] <= 3
        assert sum(calls.values()) <= 5 * hosts
    assert len(set(labels(harness))) == 1


@pytest.mark.parametrize("change", [{}, TWO_SINGLE], ids=["BULK", "INDIVIDUAL"])
def test_the_end_of_the_vms_is_reported_an_hour_and_ten_minutes_before(
    change: dict[str, Any],
) -> None:
    harness = Harness()
    flex = {"provisioningModel": "FLEX_START", "reservation": None, "maxRunDuration": "90m"}
    helpers.ready_slice(harness, manifest(instanceConfig=flex, **change))
    group = harness.group(NAME)
    assert group is not None
    end = group["status"]["runEndsAt"]
    starts = [helpers.get(harness, vm)["lastStartTimestamp"] for vm in helpers.vms(harness)]
    assert parse_time(end) == min(map(parse_time, starts)).replace(microsecond=0) + 90 * MINUTE
    harness.run_for(85 * MINUTE)
    events = harness.simulation.admin("GET", "/api/v1/namespaces/default/events")["items"]
    told = {
        one["message"]: parse_time(end) - parse_time(one["firstTimestamp"])
        for one in events
        if one["reason"] == "RunEnds"
    }
    text = "Compute Engine ends the first of the VMs at {}, in {}: it has run for its maxRunDuration {}"
    near, late = (text.format(end, one, "then. Save checkpoints before.") for one in NOTICED)
    assert told.keys() == {near, late}
    # The group's hourly resync may come a little earlier: clocks may differ.
    assert HOUR - 2 * MINUTE <= told[near] <= HOUR + CLOCKS_DIFFER_BY
    assert 8 * MINUTE <= told[late] <= 10 * MINUTE + CLOCKS_DIFFER_BY


@pytest.mark.parametrize("change", [{}, TWO_SINGLE], ids=["BULK", "INDIVIDUAL"])
def test_the_end_of_a_reservation_is_reported_before_and_after(change: dict[str, Any]) -> None:
    harness = Harness()
    bound = {"provisioningModel": "RESERVATION_BOUND", "reservation": "tpus"}
    set_end = partial(
        harness.simulation.gce.faults.set_reservation,
        f"{helpers.ZONE}/reservations/tpus",
        "tpu7x-standard-4t",
        2,
    )
    set_end(hours=50.0)
    repaired = {"repair": "Recreate"} if not change else {}
    helpers.ready_slice(harness, manifest(instanceConfig=bound, **change, **repaired))
    set_end(hours=26.0)  # it is shortened
    harness.run_for(HOUR + MINUTE)
    (end,) = {
        parse_time(helpers.get(harness, vm)["resourceStatus"]["scheduling"]["terminationTimestamp"])
        for vm in helpers.vms(harness)
    }
    status = (harness.group(NAME) or {})["status"]
    assert status["runEndsAt"] == render_time(end)
    harness.run_for(end - harness.clock.now() - MINUTE)
    assert helpers.condition_of(harness)[:2] == ("True", "Ready")
    text = (
        f"Compute Engine ends the first of the VMs at {render_time(end)}, in {{}}: its reservation ends "
        "then. Save checkpoints before."
    )
    told = [message for _, reason, message in helpers.events(harness) if reason == "RunEnds"]
    assert told == [text.format(one) for one in ("a day", *NOTICED)]
    harness.run_for(3 * HOUR)
    status, reason, message = helpers.condition_of(harness, "NodesJoined")
    assert (status, reason) == ("False", "RunEnded")
    assert message.endswith(REASONS[Reason.RUN_ENDED])
    assert helpers.condition_of(harness)[0] == "False"
    assert harness.operations["instanceGroupManagers.delete"] == 0
    helpers.assert_deleted_completely(harness)
