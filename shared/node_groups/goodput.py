"""Chips that are billed and not usable: those of running VMs while their slice is not Ready, by cause.

A status has the sums, and the period that lasts, which is added to them when its cause or its chips
change, and once an hour. A deletion is not counted: the user has asked for it. The chips are those of
the VMs that the status counts, so a period may begin a minute late, and a lost VM may count for a
minute longer. All functions are pure.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from shared.base.reasons import PROGRESS, VM_LOSSES, Reason
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.node_groups.resources import machine_of
from shared.node_groups.status import Status, Type, Unusable, UnusableCause

ADDED_AFTER = timedelta(hours=1)
UNUSABLE = "Unusable"
"""The decision in the log line about what was added to a sum, of which Terraform makes a metric."""


_TAKEN = VM_LOSSES | {Reason.INSUFFICIENT_CAPACITY, Reason.RESOURCE_LOST}


def find_cause(status: Status) -> UnusableCause:
    """Why the chips of a slice that is not Ready are not usable."""
    ready = status.conditions.get(Type.READY)
    # A repair begins the status again: its start is what the loss has cost.
    is_new = status.completed_at is None and status.repairs.last_at is None
    reason = ready.reason if ready is not None else Reason.PROVISIONING
    if status.retries:
        return UnusableCause.STEPS
    if reason in PROGRESS or (is_new and reason == Reason.NODE_NOT_READY):
        return UnusableCause.START if is_new else UnusableCause.COMPUTE_ENGINE
    return UnusableCause.COMPUTE_ENGINE if reason in _TAKEN else UnusableCause.USER


def add_period(group: AnyGroup, status: Status, now: datetime) -> Status:
    """The status, whose ``Ready`` is computed, with the period of its unusable chips."""
    before, chips = status.unusable, 0
    if isinstance(group, NodeGroup) and group.deleting is None and not status.is_true(Type.READY):
        machine, counts = machine_of(group, status.machine_type), status.counts
        # VMs that are slices of their own are usable without the others.
        usable = 0 if group.spec.is_bulk else counts.ready
        chips = machine.chips * max(0, counts.running - usable) if machine is not None else 0
    cause = find_cause(status) if chips else None
    # Anybody may have written the status.
    took = now - max(before.since, group.created) if before.since is not None else timedelta(0)
    if (cause, chips) == (before.cause, before.chips) and took < ADDED_AFTER:
        return status
    sums = dict(before.chip_seconds)
    added = round(max(0.0, took.total_seconds()) * before.chips)
    if added and before.cause is not None:
        sums[before.cause] = sums.get(before.cause, 0) + added
    after = Unusable(sums, cause, chips, now if chips else None)
    return replace(status, unusable=after)
