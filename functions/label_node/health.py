"""The health of a slice: which Nodes are its own, which are ready, and what blocks the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

from functions.label_node import vm_reasons
from functions.label_node.vm_reasons import Input
from shared.base.reasons import VM_LOSSES, Reason
from shared.base.timestamps import guess_time
from shared.node_groups.membership import (
    find_vm_of_misnamed,
    is_match,
    is_vm_name,
    may_be_own,
)
from shared.node_groups.node_group import InstanceConfig, NodeGroup
from shared.node_groups.resources import machine_of
from shared.node_groups.status import MAX_PENDING, Pending, Status, Type
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.nodes import Node
from shared.triggers.decode import Trigger

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
"""The reason of a lost VM by the method of its audit log entry, the only source for it."""
UP = frozenset({"PROVISIONING", "STAGING", "RUNNING"})
HOLD_BACK = timedelta(minutes=1)
"""A Node of a complete slice that was not Ready counts as ready again only after this time, so that a
flapping Node does not cause many status writes. The sweep triggers the count that is due then."""
JOINS_FOR = timedelta(minutes=15)
"""A younger Node may have been not Ready because it was joining: `HOLD_BACK` does not apply to it."""


@dataclass(frozen=True)
class Members:
    """The Nodes and VMs of a group, as far as they were read.

    ``instances`` has the VMs that were read, by name (``None``: gone). ``has_all_vms``: these are all
    VMs of the group. ``unread_nodes`` are names of Nodes that there was no time to read.
    """

    group: NodeGroup
    status: Status
    nodes: tuple[Node, ...] = ()
    instances: Mapping[str, Instance | None] = field(default_factory=dict)
    has_all_vms: bool = False
    unread_nodes: frozenset[str] = frozenset()

    @cached_property
    def chips(self) -> int:
        """The chips of each VM; 0 if not known yet."""
        machine = machine_of(self.group, self.status.machine_type)
        return machine.chips if machine else 0

    @cached_property
    def joined(self) -> Mapping[str, Node]:
        """The VMs that have joined, each with its Node.

        The Node matches the VM or, if the VM was not read, is proved by its label.
        """
        return {node.vm: node for node in self._own_nodes}

    @cached_property
    def ready(self) -> Mapping[str, Node]:
        """Those of the joined VMs whose Nodes are ready and offer all chips."""
        return {
            vm: node
            for vm, node in self.joined.items()
            if node.is_ready and node.offers(self.chips) and not self.is_down(vm)
        }

    @cached_property
    def vms(self) -> Mapping[str, Instance]:
        """The VMs that were read and are the group's own."""
        zone, name = self.group.spec.zone, self.group.resource_name
        return {
            vm: instance
            for vm, instance in self.instances.items()
            if instance is not None and instance.is_member_of(zone, name)
        }

    @cached_property
    def misnamed(self) -> Mapping[str, Node]:
        """The Nodes whose providerID names a VM of the group and whose name is not the VM's, by VM."""
        found = ((find_vm_of_misnamed(self.group, node), node) for node in self.nodes)
        return {vm: node for vm, node in found if vm is not None}

    @cached_property
    def reported_lost(self) -> frozenset[str]:
        """The VMs whose loss the status reports."""
        return reported_lost(self.status)

    @cached_property
    def earlier(self) -> Mapping[str, Pending]:
        """What the status reports about VMs that were not ready, by VM."""
        return {
            entry.name: entry for entry in self.status.pending if entry.why in vm_reasons.SEVERITY
        }

    def is_down(self, vm: str) -> bool:
        """Whether a VM does not run or, if it was not read, is reported lost. Its Node may be Ready."""
        if vm not in self.instances:
            return vm in self.reported_lost
        instance = self.instances[vm]
        return instance is not None and instance.status not in UP

    def without_provider_id(self) -> Iterator[Node]:
        """Nodes that joined without a providerID."""
        return (
            node
            for node in self.nodes
            if not node.provider_id and self.instances.get(node.vm) is not None
        )

    def is_own(self, node: Node) -> bool:
        """Whether a Node is the group's."""
        return node.name in self._own_names

    @cached_property
    def _own_nodes(self) -> tuple[Node, ...]:
        """The group's own Nodes, ready ones last: of two Nodes of one VM the last one counts."""
        return tuple(sorted(filter(self._is_match, self.nodes), key=lambda node: node.is_ready))

    @cached_property
    def _own_names(self) -> frozenset[str]:
        return frozenset(node.name for node in self._own_nodes)

    def _is_match(self, node: Node) -> bool:
        if node.vm not in self.instances:
            return bool(node.proved_vm_id) and may_be_own(self.group, node)
        instance = self.instances[node.vm]
        return instance is not None and is_match(self.group, node, instance)


def reported_lost(known: Status) -> frozenset[str]:
    """The VMs whose loss the status reports."""
    return frozenset(entry.name for entry in known.pending if entry.why in VM_LOSSES)


def count(members: Members, trigger: Trigger, join_timeout: timedelta, now: datetime) -> Status:
    """The group's status with the counts and the VMs that block readiness."""
    known, desired, joined = members.status, members.group.spec.node_count, len(members.joined)
    ready = {vm for vm in members.ready if not _is_held_back(members, vm, now)}
    pending: list[Pending] = []
    if len(ready) < desired:
        inputs = _gather(members, trigger, join_timeout, now)
        pending = _list_pending({name: vm for name, vm in inputs.items() if name not in ready})
    running = max(known.counts.running, joined)
    if members.has_all_vms:
        running = sum(vm.status == "RUNNING" for vm in members.vms.values())
    failed = sum(entry.why == Reason.NODE_JOIN_TIMEOUT for entry in pending)
    counts = replace(
        known.counts,
        desired=desired,
        running=running,
        joined=joined,
        ready=len(ready),
        failed=failed,
    )
    return replace(known, counts=counts, pending=_select(pending, trigger))


def _is_held_back(members: Members, vm: str, now: datetime) -> bool:
    """Whether a ready Node does not count yet (`HOLD_BACK`)."""
    entry, completed_at = members.earlier.get(vm), members.status.completed_at
    if entry is None or completed_at is None:
        return False
    created = guess_time(members.ready[vm].raw["metadata"].get("creationTimestamp"))
    if created and created > completed_at and abs(now - created) < JOINS_FOR:
        return False  # the Node of a recreated VM becomes Ready for the first time
    return entry.why == Reason.NODE_NOT_READY and abs(now - entry.since) < HOLD_BACK


def _select(pending: Sequence[Pending], trigger: Trigger) -> tuple[Pending, ...]:
    """The entries for the status: the first `MAX_PENDING`, of which the loss of the trigger's VM
    replaces the last one.

    label_node debounces events by the time of the newest loss. Other VMs must not replace an entry:
    those that the status does not name are new at each count.
    """
    event = trigger.event
    lost = [one for one in pending[MAX_PENDING:] if event is not None and one.name == event.name]
    return (*pending[: MAX_PENDING - len(lost)], *lost)


def _list_pending(inputs: Mapping[str, Input]) -> list[Pending]:
    """The VMs with reasons, the most severe ones first. An unchanged reason keeps its time."""
    found = []
    for name, vm in inputs.items():
        reason = vm_reasons.find_reason(vm)
        is_unchanged = vm.earlier is not None and vm.earlier.why == reason
        since = vm.earlier.since if vm.earlier and is_unchanged else vm.now
        found.append(Pending(name, reason, since))
    return sorted(found, key=lambda entry: vm_reasons.SEVERITY[Reason(entry.why)])


def _gather(
    members: Members, trigger: Trigger, join_timeout: timedelta, now: datetime
) -> dict[str, Input]:
    """What is known about each VM: those that the status reports first, then those that are lost now."""
    known, source = members.status, members.group.spec.source
    max_run_s = source.max_run_s if isinstance(source, InstanceConfig) else 0
    nodes_joined = known.conditions.get(Type.NODES_JOINED)
    missing_since = nodes_joined.since if nodes_joined and not nodes_joined.is_true else now
    is_rejection = trigger.cause in vm_reasons.JOIN_REASONS
    rejected = dict.fromkeys(trigger.vms, Reason(trigger.cause)) if is_rejection else {}
    losses = _find_loss_of_event(members, trigger)
    gone = dict.fromkeys(_list_gone(members, trigger) if known.completed_at is not None else ())
    kept = [entry.name for entry in members.earlier.values() if not _is_outdated(members, entry)]
    return {
        name: Input(
            now=now,
            join_timeout=join_timeout,
            chips=members.chips,
            max_run=timedelta(seconds=max_run_s) if max_run_s else None,
            completed_at=known.completed_at,
            all_joined_until=missing_since,
            earlier=members.earlier.get(name),
            is_outdated=name not in kept,
            event_loss=losses.get(name),
            is_gone=name in gone,
            join_reason=rejected.get(name),
            is_own=name in members.vms,
            is_down=members.is_down(name),
            instance=members.instances.get(name),
            node=members.joined.get(name),
            is_misnamed=name in members.misnamed,
        )
        for name in dict.fromkeys((*kept, *losses, *gone, *members.joined, *members.vms))
    }


def _is_outdated(members: Members, entry: Pending) -> bool:
    """Whether an earlier entry no longer holds: the VM runs again, was read, or is gone."""
    is_loss = entry.why in VM_LOSSES
    if entry.name not in members.instances:
        return members.has_all_vms and not is_loss
    instance = members.instances[entry.name]
    return not is_loss or (instance is not None and instance.status in UP)


def _find_loss_of_event(members: Members, trigger: Trigger) -> dict[str, Reason]:
    """The loss that the trigger's event reports, by VM, unless the VM was started after the event."""
    event = trigger.event
    if event is None:
        return {}
    instance = members.instances.get(event.name)
    if instance is not None and instance.started is not None and instance.started > trigger.at:
        return {}
    return {event.name: LOSSES.get(event.method, Reason.NODE_LOST)}


def _list_gone(members: Members, trigger: Trigger) -> Iterator[str]:
    """The VMs that do not exist or whose Node was deleted."""
    for node in members.nodes:
        is_read = node.vm in members.instances
        if is_read and members.instances[node.vm] is None and may_be_own(members.group, node):
            yield node.vm
    names = {*(node.name for node in members.nodes), *members.unread_nodes}
    for name in trigger.nodes:
        vm = name.partition(".")[0]
        is_own = is_vm_name(members.group, vm)
        if is_own and name not in names and vm not in members.vms:
            yield vm
