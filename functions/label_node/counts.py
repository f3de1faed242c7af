"""The health of a slice: how many of its Nodes have joined and are ready, and what blocks the others."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from functions.label_node import vm_reasons
from functions.label_node.observed_nodes import ObservedNodes
from functions.label_node.vm_reasons import VmFacts
from shared.base.reasons import VM_LOSSES, Reason
from shared.node_groups import membership
from shared.node_groups.membership import is_vm_name, may_match
from shared.node_groups.readiness import READY_AGAIN_AFTER
from shared.node_groups.status import MAX_PENDING, Counts, Pending, Status
from shared.ports.gce.values import UP, Instance
from shared.triggers.trigger import LogTrigger

LOSSES: Mapping[str, Reason] = {
    "compute.instances.preempted": Reason.PREEMPTED,
    "compute.instances.hostError": Reason.PREEMPTED,
    "compute.instances.terminateOnHostMaintenance": Reason.PREEMPTED,
    "compute.instances.guestTerminate": Reason.NODE_LOST,
    "compute.instances.instanceManagerHaltForRestart": Reason.NODE_LOST,
    "compute.instances.repair.recreateInstance": Reason.NODE_LOST,
    "compute.instances.stop": Reason.NODE_LOST,
    "compute.instances.delete": Reason.NODE_LOST,
}
"""The reason of a lost VM by the method of its audit log entry: nothing else shows a preemption."""
MAX_AGE_OF_JOINING_NODE = timedelta(minutes=15)
"""A younger Node may have been not Ready because it was joining: it counts as soon as it is ready."""


def count(observed: ObservedNodes, now: datetime) -> Status:
    """The group's status with the counts and the VMs that block readiness."""
    known, desired, joined = observed.status, observed.group.spec.node_count, len(observed.joined)
    ready = {vm for vm in observed.ready if not _was_just_not_ready(observed, vm, now)}
    pending: list[Pending] = []
    if len(ready) < desired:
        for name, vm in _build_facts(observed, now).items():
            if name not in ready:
                reason = vm_reasons.find_reason(vm)
                is_unchanged = vm.earlier is not None and vm.earlier.why == reason
                since = vm.earlier.since if vm.earlier and is_unchanged else now
                pending.append(Pending(name, reason, since))
        pending.sort(key=lambda entry: vm_reasons.SEVERITY[Reason(entry.why)])  # most severe first
    # Nodes of lost VMs remain for a while; the losses may be of VMs that were replaced since.
    lost_vms = sum(entry.why in VM_LOSSES for entry in pending)
    running = max(len(ready), min(max(known.counts.running, joined), desired - lost_vms))
    if observed.has_all_vms:
        running = sum(vm.status == "RUNNING" for vm in observed.members.values())
    failed = sum(entry.why == Reason.NODE_JOIN_TIMEOUT for entry in pending)
    counts = Counts(desired, running, joined, len(ready), failed)
    # The first `MAX_PENDING` are reported. The loss of the trigger's VM replaces the last one, because
    # events are debounced by the time of the newest loss. Other VMs must not replace an entry: those
    # that the status does not name are new at each count.
    trigger = observed.trigger
    reported = trigger.vms if isinstance(trigger, LogTrigger) else ()
    lost = [one for one in pending[MAX_PENDING:] if one.name in reported]
    return replace(known, counts=counts, pending=(*pending[: MAX_PENDING - len(lost)], *lost))


def _was_just_not_ready(observed: ObservedNodes, vm: str, now: datetime) -> bool:
    """Whether a ready Node does not count yet (`READY_AGAIN_AFTER`)."""
    entry, completed_at = observed.earlier.get(vm), observed.status.completed_at
    if entry is None or completed_at is None:
        return False
    created = observed.ready[vm].created
    if created and created > completed_at and abs(now - created) < MAX_AGE_OF_JOINING_NODE:
        return False  # the Node of a recreated VM becomes Ready for the first time
    return entry.why == Reason.NODE_NOT_READY and abs(now - entry.since) < READY_AGAIN_AFTER


def _build_facts(observed: ObservedNodes, now: datetime) -> dict[str, VmFacts]:
    """What is known about each VM: those that the status reports first, then those that are lost now."""
    known, trigger = observed.status, observed.trigger
    is_rejection = trigger.cause in vm_reasons.REJECTIONS
    rejected = dict.fromkeys(trigger.vms, Reason(trigger.cause)) if is_rejection else {}
    # After a repair, the last events about the former VMs arrive.
    is_new = known.repairs.last_at is not None and known.completed_at is None
    losses = _read_loss(trigger, observed.instances) if isinstance(trigger, LogTrigger) else {}
    losses = {} if is_new and not any(map(observed.instances.get, losses)) else losses
    if known.completed_at is None:
        # An event may be about a VM that never was a member. It counts if the VM is one of those that
        # are known, or may be one that no count has named yet: it was not read, and not all are known.
        own = {*observed.members, *observed.earlier, *observed.joined}
        is_whole = len(own) >= observed.group.spec.node_count
        losses = {
            vm: loss
            for vm, loss in losses.items()
            if vm in own or not (is_whole or observed.instances.get(vm))
        }
    gone = dict.fromkeys(_list_gone(observed) if known.completed_at is not None else ())
    mismatched = {*(vm for vm, _ in observed.misnamed), *observed.with_other_provider_id}
    outdated = {name for name, entry in observed.earlier.items() if _is_outdated(observed, entry)}
    deleted = observed.vms_of_deleted_nodes if observed.group.spec.joins_with_tokens else ()
    had_node = {
        name
        for name, vm in observed.members.items()
        if name not in observed.stale
        and (
            membership.had_node(observed.group, known, vm, now)
            or (name in deleted and membership.had_node_at(known, vm, trigger.at, now))
        )
    }
    still = (name for name in observed.earlier if name not in outdated)
    started = {name: vm.started for name, vm in observed.instances.items() if vm is not None}
    return {
        name: VmFacts(
            now=now,
            join_timeout=observed.join_timeout,
            chips=observed.chips,
            end=known.find_end(now, started.get(name)),
            completed_at=known.completed_at,
            earlier=observed.earlier.get(name),
            is_outdated=name in outdated,
            event_loss=losses.get(name),
            is_gone=name in gone,
            new_rejection=rejected.get(name),
            exists=name in observed.members,
            is_down=observed.is_down(name),
            instance=observed.instances.get(name),
            node=observed.joined.get(name),
            had_node=name in had_node,
            is_mismatched=name in mismatched,
        )
        for name in dict.fromkeys((*still, *losses, *gone, *observed.joined, *observed.members))
    }


def _read_loss(trigger: LogTrigger, instances: Mapping[str, Instance | None]) -> dict[str, Reason]:
    """The VM whose loss the trigger's event reports; empty if it was started again after the event, or
    runs because the operation has failed."""
    event, vm = trigger.event, instances.get(trigger.event.name)
    is_running_again = vm is not None and vm.started is not None and vm.started > trigger.at
    has_no_effect = event.has_failed and vm is not None and vm.status in UP
    return (
        {}
        if is_running_again or has_no_effect
        else {event.name: LOSSES.get(event.method, Reason.NODE_LOST)}
    )


def _is_outdated(observed: ObservedNodes, entry: Pending) -> bool:
    """Whether an earlier entry no longer holds.

    A loss holds until its VM runs again, or a list without it has all VMs of the slice; any other reason
    until its VM is read, or is missing in a list of all VMs.
    """
    is_loss = entry.why in VM_LOSSES
    if entry.name not in observed.instances:
        is_whole = len(observed.members) >= observed.group.spec.node_count
        return observed.has_all_vms and (is_whole or not is_loss)
    instance = observed.instances[entry.name]
    return not is_loss or (instance is not None and instance.status in UP)


def _list_gone(observed: ObservedNodes) -> Iterator[str]:
    """The VMs that do not exist and, of those that were read, the ones that are no members and whose
    Node was deleted."""
    for node in observed.nodes:
        is_read = node.vm in observed.instances
        if is_read and observed.instances[node.vm] is None and may_match(observed.group, node):
            yield node.vm
    names = {*(node.name for node in observed.nodes), *observed.unread_nodes}
    for name in observed.trigger.nodes:
        vm = name.partition(".")[0]
        is_read = vm in observed.instances and is_vm_name(observed.group, vm)
        if is_read and name not in names and vm not in observed.members:
            yield vm
