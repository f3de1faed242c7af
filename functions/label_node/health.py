"""The health of a slice: which Nodes are its own, which are ready, and what blocks the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

from shared.base.reasons import VM_LOSSES, Reason
from shared.base.timestamps import CLOCKS_DIFFER_BY, guess_time
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

PLUGIN_LATE_AFTER = timedelta(minutes=2)
"""A Node that is Ready this long and offers no TPU lacks its device plugin."""
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
STARTS_FOR = timedelta(minutes=5)
"""How long a new Node may take to start its network and its device plugin (a guess). A Node of a slice
that was never complete is reported as not Ready only after this time."""
UP = frozenset({"PROVISIONING", "STAGING", "RUNNING"})
HOLD_BACK = timedelta(minutes=1)
"""A Node of a complete slice that was not Ready counts as ready again only after this time, so that a
flapping Node does not cause many status writes. The sweep triggers the count that is due then."""
JOINS_FOR = timedelta(minutes=15)
"""A younger Node may have been not Ready because it was joining: `HOLD_BACK` does not apply to it."""
JOINS_WITHIN = timedelta(minutes=10)
"""A VM of a complete slice was started at most this long before the slice was complete (a guess, for
VMs that no longer exist)."""
_JOIN_REASONS = (Reason.JOIN_DENIED, Reason.JOIN_NOT_APPROVED)
"""The reasons that ``approve_join`` reports for VMs. They are also the causes of its messages."""
WAITS = "PENDING"
"""The status of a flex-start VM that waits for capacity, perhaps for days."""


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
            if node.is_ready and node.offers(self.chips) and not self.is_down(node)
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

    def is_down(self, node: Node) -> bool:
        """Whether the Node's VM does not run or is reported lost. The Node may still be Ready."""
        if node.vm not in self.instances:
            return node.vm in self.reported_lost
        instance = self.instances[node.vm]
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


def count(
    members: Members, trigger: Trigger, join_timeout: timedelta, known: Status, now: datetime
) -> Status:
    """``known`` with the counts and the VMs that block readiness."""
    return _Count(members, trigger, join_timeout, known, now).build()


@dataclass(frozen=True)
class _Count:
    """One count of a slice, from the observation, the trigger and the earlier status."""

    members: Members
    trigger: Trigger
    join_timeout: timedelta
    known: Status
    now: datetime

    def build(self) -> Status:
        """The earlier status with this count."""
        members, known = self.members, self.known
        desired, joined, ready = members.group.spec.node_count, len(members.joined), len(self.ready)
        pending = () if ready >= desired else tuple(self._pending())
        running = max(known.counts.running, joined)
        if members.has_all_vms:
            running = sum(vm.status == "RUNNING" for vm in members.vms.values())
        failed = sum(entry.why == Reason.NODE_JOIN_TIMEOUT for entry in pending)
        counts = replace(
            known.counts,
            desired=desired,
            running=running,
            joined=joined,
            ready=ready,
            failed=failed,
        )
        return replace(known, counts=counts, pending=self._select(pending))

    @cached_property
    def ready(self) -> Mapping[str, Node]:
        """The ready Nodes by VM, without those that are held back (`HOLD_BACK`)."""
        return {vm: node for vm, node in self.members.ready.items() if not self._is_held_back(vm)}

    def _is_held_back(self, vm: str) -> bool:
        entry, completed_at = self.before.get(vm), self.known.completed_at
        if entry is None or completed_at is None:
            return False
        created = guess_time(self.members.ready[vm].raw["metadata"].get("creationTimestamp"))
        if created and created > completed_at and abs(self.now - created) < JOINS_FOR:
            return False  # the Node of a recreated VM becomes Ready for the first time
        return entry.why == Reason.NODE_NOT_READY and abs(self.now - entry.since) < HOLD_BACK

    @cached_property
    def before(self) -> Mapping[str, Pending]:
        """The VMs that blocked readiness before."""
        return {entry.name: entry for entry in self.known.pending if entry.why in _BY_SEVERITY}

    def _pending(self) -> Iterator[Pending]:
        """The VMs that block readiness. An unchanged reason keeps its time."""
        for name, why in self._reasons().items():
            entry = self.before.get(name)
            yield entry if entry is not None and entry.why == why else Pending(name, why, self.now)

    def _select(self, pending: Sequence[Pending]) -> tuple[Pending, ...]:
        """The entries for the status: the first `MAX_PENDING`, of which the loss of the trigger's VM
        replaces the last one.

        label_node debounces events by the time of the newest loss. Other VMs must not replace an entry:
        those that the status does not name are new at each count.
        """
        event = self.trigger.event
        lost = [
            one for one in pending[MAX_PENDING:] if event is not None and one.name == event.name
        ]
        return (*pending[: MAX_PENDING - len(lost)], *lost)

    def _reasons(self) -> dict[str, str]:
        """The reason of each VM: its loss, otherwise its Node's problem, otherwise why it has not
        joined."""
        members, ready = self.members, self.ready
        reasons = {
            name: entry.why for name, entry in self.before.items() if not self._is_outdated(entry)
        }
        reasons |= dict(self._losses())
        for name, node in members.joined.items():
            if reasons.get(name) not in (Reason.PREEMPTED, Reason.MAX_RUN_DURATION_REACHED):
                reasons[name] = self._why_not_ready(node)
        for name, instance in members.vms.items():
            if name not in members.joined and name not in reasons:
                reasons[name] = self._why_not_joined(instance)
        waiting = ((name, why) for name, why in reasons.items() if name not in ready)
        return dict(sorted(waiting, key=lambda item: _BY_SEVERITY.index(item[1])))

    def _is_outdated(self, entry: Pending) -> bool:
        """Whether an earlier entry no longer holds: the VM runs again, was read, or is gone."""
        is_loss = entry.why in VM_LOSSES
        if entry.name not in self.members.instances:
            return self.members.has_all_vms and not is_loss
        instance = self.members.instances[entry.name]
        return not is_loss or (instance is not None and instance.status in UP)

    def _losses(self) -> Iterator[tuple[str, str]]:
        event = self.trigger.event
        if event is not None:
            instance = self.members.instances.get(event.name)
            started = instance.started if instance is not None else None
            if started is None or started <= self.trigger.at:
                yield event.name, self._why_lost(event.name, LOSSES.get(event.method))
        if self.known.completed_at is None:
            return
        for name in self._gone_vms():
            entry = self.before.get(name)
            yield name, entry.why if entry is not None else self._why_lost(name)

    def _gone_vms(self) -> Iterator[str]:
        """The VMs of a complete slice that do not exist or whose Node was deleted."""
        for node in self.members.nodes:
            is_gone = self.members.instances.get(node.vm, node) is None
            if is_gone and may_be_own(self.members.group, node):
                yield node.vm
        names = {*(node.name for node in self.members.nodes), *self.members.unread_nodes}
        for name in self.trigger.nodes:
            vm = name.partition(".")[0]
            is_own = is_vm_name(self.members.group, vm)
            if is_own and name not in names and vm not in self.members.vms:
                yield vm

    def _why_lost(self, name: str, why: str | None = None) -> str:
        """The reason of a lost VM. The log does not tell the end at maxRunDuration from other ends, so
        the VM's age decides."""
        if why == Reason.PREEMPTED:
            return why
        source = self.members.group.spec.source
        run = timedelta(seconds=source.max_run_s) if isinstance(source, InstanceConfig) else None
        if not run:
            return Reason.NODE_LOST
        instance = self.members.instances.get(name)
        if instance is not None and instance.started is not None:
            started, margin = instance.started, CLOCKS_DIFFER_BY
        elif self.known.completed_at is not None:
            started, margin = self.known.completed_at, JOINS_WITHIN
        else:
            return Reason.NODE_LOST
        has_ended = self.now - started >= run - min(margin, run / 4)
        return Reason.MAX_RUN_DURATION_REACHED if has_ended else Reason.NODE_LOST

    def _why_not_ready(self, node: Node) -> str:
        if self.members.is_down(node):
            return self._why_lost(node.vm)
        is_late = node.ready_since is not None and self.now - node.ready_since >= PLUGIN_LATE_AFTER
        if node.is_ready and not node.offers(self.members.chips) and is_late:
            return Reason.DEVICE_PLUGIN_MISSING
        return Reason.AWAITING_NODE_JOIN if self._is_starting(node) else Reason.NODE_NOT_READY

    def _is_starting(self, node: Node) -> bool:
        """Whether the Node is new and its slice was never complete: it need not be Ready yet."""
        created = guess_time(node.raw["metadata"].get("creationTimestamp"))
        is_new = created is not None and abs(self.now - created) < STARTS_FOR
        return is_new and self.known.completed_at is None

    def _why_not_joined(self, instance: Instance) -> str:
        was_complete = self.known.completed_at is not None
        if instance.status == WAITS:
            return Reason.AWAITING_NODE_JOIN
        if instance.status not in UP and was_complete:
            return self._why_lost(instance.name)
        if instance.name in self.members.misnamed:
            return Reason.NODE_NAME_MISMATCH
        join_reason = self._why_not_approved(instance.name)
        if join_reason is not None and instance.status in UP:
            return join_reason
        started = instance.started or instance.created
        if started is None:
            return Reason.AWAITING_NODE_JOIN
        if was_complete and started < self._complete_until(instance.name) - CLOCKS_DIFFER_BY:
            return Reason.NODE_DELETED
        is_late = self.now - started >= self.join_timeout
        return Reason.NODE_JOIN_TIMEOUT if is_late else Reason.AWAITING_NODE_JOIN

    def _why_not_approved(self, vm: str) -> Reason | None:
        """The reason that ``approve_join`` has reported for the VM, kept until the VM has joined."""
        if vm in self.trigger.vms and self.trigger.cause in _JOIN_REASONS:
            return Reason(self.trigger.cause)
        entry = self.before.get(vm)
        return Reason(entry.why) if entry is not None and entry.why in _JOIN_REASONS else None

    def _complete_until(self, name: str) -> datetime:
        """Until when the VM certainly had a Node. If it runs and was started before, its Node was
        deleted."""
        entry = self.before.get(name)
        if entry is not None and entry.why in (*VM_LOSSES, Reason.NODE_DELETED):
            return entry.since
        joined = self.known.conditions.get(Type.NODES_JOINED)
        return self.now if joined is None or joined.is_true else joined.since


_BY_SEVERITY = (
    Reason.PREEMPTED,
    Reason.MAX_RUN_DURATION_REACHED,
    Reason.NODE_LOST,
    Reason.NODE_DELETED,
    Reason.NODE_NAME_MISMATCH,
    *_JOIN_REASONS,
    Reason.NODE_JOIN_TIMEOUT,
    Reason.DEVICE_PLUGIN_MISSING,
    Reason.NODE_NOT_READY,
    Reason.AWAITING_NODE_JOIN,
)
