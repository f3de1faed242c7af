"""The condition MaintenanceScheduled: maintenance that Compute Engine has announced for VMs."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from functions.label_node.observed_nodes import ObservedNodes
from shared.base.timestamps import render_time
from shared.node_groups.status import Status, Type
from shared.ports.gce.values import Instance, Maintenance
from shared.triggers.trigger import LogTrigger

ANNOUNCEMENTS = frozenset(
    {"compute.instances.upcomingMaintenance", "compute.instances.upcomingInfraMaintenance"}
)
"""The methods of the audit log's entries when maintenance is announced, begins or is over."""
_MAX_NAMED = 8
_SOON = timedelta(hours=1)
"""What begins earlier cannot wait for the hourly count of all VMs."""
_BEGIN = re.compile(r", from (\S+Z) to ")
_TYPE = Type.MAINTENANCE_SCHEDULED
_ONGOING = "Ongoing"
_REASONS = {"PENDING": "Pending", "ONGOING": _ONGOING}


def add_condition(observed: ObservedNodes, known: Status, now: datetime) -> Status:
    """``known`` with the condition, or without it if no VM has maintenance. Only all VMs show that."""
    if not observed.has_all_vms:
        return known
    announced = {name: vm for name, vm in observed.members.items() if vm.maintenance is not None}
    if not announced:
        left = {kind: one for kind, one in known.conditions.items() if kind != _TYPE}
        return replace(known, conditions=left)
    return _describe(observed, known, announced, now)


def add_announcement(observed: ObservedNodes, now: datetime) -> Status:
    """The status with the condition about the trigger's VM, if it announces what the condition does not
    have: any maintenance, one that begins earlier and soon, or that it has begun. A resync must count
    the other VMs then.

    Hundreds of VMs are announced within seconds. The first write keeps the others from a resync; a
    later window, and the end, are left to the hourly one.
    """
    trigger, known = observed.trigger, observed.status
    vm = observed.members.get(trigger.event.name) if isinstance(trigger, LogTrigger) else None
    if vm is None or vm.maintenance is None:
        return known
    before, reason = known.conditions.get(_TYPE), _find_reason(vm.maintenance)
    if before is not None:
        is_begin = reason == _ONGOING and before.reason != reason
        start, said = vm.maintenance.start, _BEGIN.search(before.message)
        is_earlier = start and said and start - now < _SOON and render_time(start) < said[1]
        if not is_begin and (before.reason == _ONGOING or not is_earlier):
            return known
    return _describe(observed, known, {vm.name: vm}, now)


def _describe(
    observed: ObservedNodes, known: Status, announced: Mapping[str, Instance], now: datetime
) -> Status:
    found = [vm.maintenance for vm in announced.values() if vm.maintenance is not None]
    # What has begun, or begins first, of several announcements.
    first = min(found, key=lambda one: (one.state != "ONGOING", describe_window(one)))
    names, more = ", ".join(sorted(announced)[:_MAX_NAMED]), len(announced) - _MAX_NAMED
    shown = f"{names} and {more} more" if more > 0 else names
    why = f" ({', '.join(first.reasons)})" if first.reasons else ""
    count = f"{'' if observed.has_all_vms else 'at least '}{len(announced)}"
    message = (
        f"Compute Engine has announced maintenance, {first.kind}{why}, {describe_window(first)}, for "
        f"{count} of {observed.group.spec.node_count} VMs: {shown}. It stops them then: save "
        "checkpoints before."
    )
    return known.with_condition(_TYPE, True, _find_reason(first), message, observed.group, now)


def _find_reason(one: Maintenance) -> str:
    return _REASONS.get(one.state, "Announced")


def render_label(one: Maintenance | None) -> str | None:
    """The value of `MAINTENANCE_LABEL`; ``None`` without maintenance that has a beginning."""
    start = one.start if one is not None else None
    return str(int(start.timestamp())) if start is not None else None


def describe_window(one: Maintenance) -> str:
    """Its window in words."""
    start, end = (render_time(at) if at is not None else "?" for at in (one.start, one.end))
    return f"from {start} to {end}"
