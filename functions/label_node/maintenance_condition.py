"""The condition MaintenanceScheduled: maintenance that Compute Engine has announced for VMs."""

from dataclasses import replace
from datetime import datetime

from functions.label_node.observed_nodes import ObservedNodes
from shared.base.names import MAINTENANCE_LABEL
from shared.base.timestamps import render_time
from shared.node_groups.status import Status, Type
from shared.ports.gce.values import Instance, Maintenance
from shared.triggers.trigger import LogTrigger

ANNOUNCEMENTS = frozenset(
    {"compute.instances.upcomingMaintenance", "compute.instances.upcomingInfraMaintenance"}
)
"""The methods of the audit log's entries when maintenance is announced, begins or is over."""
_MAX_NAMED = 8
_TYPE = Type.MAINTENANCE_SCHEDULED
_REASONS = {"PENDING": "Pending", "ONGOING": "Ongoing"}


def add_condition(observed: ObservedNodes, known: Status, now: datetime) -> Status:
    """``known`` with the condition, or without it if no VM has maintenance. Only all VMs show that."""
    if not observed.has_all_vms:
        return known
    announced = {name: vm for name, vm in observed.members.items() if vm.maintenance is not None}
    if not announced:
        left = {kind: one for kind, one in known.conditions.items() if kind != _TYPE}
        return replace(known, conditions=left)
    found = [vm.maintenance for vm in announced.values() if vm.maintenance is not None]
    # What has begun, or begins first, of several announcements.
    first = min(found, key=lambda one: (one.state != "ONGOING", describe_window(one)))
    names, more = ", ".join(sorted(announced)[:_MAX_NAMED]), len(announced) - _MAX_NAMED
    shown = f"{names} and {more} more" if more > 0 else names
    why = f" ({', '.join(first.reasons)})" if first.reasons else ""
    message = (
        f"Compute Engine has announced maintenance, {first.kind}{why}, {describe_window(first)}, for "
        f"{len(announced)} of {observed.group.spec.node_count} VMs: {shown}. It stops them then: save "
        "checkpoints before."
    )
    reason = _REASONS.get(first.state, "Announced")
    return known.with_condition(_TYPE, True, reason, message, observed.group, now)


def is_news(observed: ObservedNodes) -> bool:
    """Whether the trigger announces what the condition does not have, so that all VMs must be read. Of a
    slice whose VMs have the same maintenance, only the first entries do."""
    trigger = observed.trigger
    if not isinstance(trigger, LogTrigger) or trigger.event.method not in ANNOUNCEMENTS:
        return False
    vm: Instance | None = observed.instances.get(trigger.event.name)
    known = observed.status.conditions.get(_TYPE)
    if vm is None or vm.maintenance is None:
        return known is not None
    reason = _REASONS.get(vm.maintenance.state, "Announced")
    if known is None or known.reason != reason:
        return True
    node = observed.joined.get(trigger.event.name)
    label = node.labels.get(MAINTENANCE_LABEL) if node is not None else None
    return label not in (None, render_label(vm.maintenance))


def render_label(one: Maintenance | None) -> str | None:
    """The value of `MAINTENANCE_LABEL`; ``None`` without maintenance that has a beginning."""
    start = one.start if one is not None else None
    return str(int(start.timestamp())) if start is not None else None


def describe_window(one: Maintenance) -> str:
    """Its window in words."""
    start, end = (render_time(at) if at is not None else "?" for at in (one.start, one.end))
    return f"from {start} to {end}"
