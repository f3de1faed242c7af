"""The health of a slice: which Nodes are its own, which are ready, and what holds the others up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

from shared.base.reasons import Reason, find_advice
from shared.frame.decode import Occasion
from shared.node_groups.membership import bears_name_of, is_match
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.readiness import awaiting_message
from shared.node_groups.resources import machine_of
from shared.node_groups.status import MAX_PENDING, Pending, Status, Type
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.nodes import Node

PLUGIN_LATE_AFTER = timedelta(minutes=2)
"""A Node that is Ready this long and offers no TPU lacks its device plugin."""
LOSSES: Mapping[str, str] = {
    "compute.instances.preempted": Reason.PREEMPTED,
    "compute.instances.hostError": Reason.PREEMPTED,
    "compute.instances.terminateOnHostMaintenance": Reason.PREEMPTED,
    "compute.instances.guestTerminate": Reason.NODE_LOST,
    "compute.instances.instanceManagerHaltForRestart": Reason.NODE_LOST,
    "compute.instances.repair.recreateInstance": Reason.NODE_LOST,
    "compute.instances.stop": Reason.NODE_LOST,
    "compute.instances.delete": Reason.NODE_LOST,
}
"""What becomes of a VM, by the entry that tells of it: known from no other place."""
UP = frozenset({"PROVISIONING", "STAGING", "RUNNING"})
WAITS = "PENDING"
"""A VM of flex start waits for capacity, for days if need be."""


@dataclass(frozen=True)
class Members:
    """The Nodes and VMs of a group, as far as they were read.

    ``instances`` maps the names of VMs that were asked for to what was found (``None``: gone);
    ``is_complete`` says that these are all VMs of the group.
    """

    group: NodeGroup
    status: Status
    nodes: tuple[Node, ...] = ()
    instances: Mapping[str, Instance | None] = field(default_factory=dict)
    is_complete: bool = False

    @cached_property
    def chips(self) -> int:
        """Chips of each VM; 0 while that is not known."""
        machine = machine_of(self.group, self.status.machine_type)
        return machine.chips if machine else 0

    @cached_property
    def proved(self) -> Mapping[str, Node]:
        """The group's own Nodes by VM: proved before or now, and not known to have lost their VM."""
        return {node.vm: node for node in self._own_nodes}

    @cached_property
    def ready(self) -> Mapping[str, Node]:
        """Those of `proved` that are ready, with all chips."""
        return {
            vm: node
            for vm, node in self.proved.items()
            if node.is_ready and node.offers(self.chips) and not self.is_down(node)
        }

    @cached_property
    def reported_lost(self) -> frozenset[str]:
        """The VMs whose loss the status reports."""
        return reported_lost(self.status)

    def is_down(self, node: Node) -> bool:
        """Whether its VM is stopping, or was reported lost: the Node stays Ready for a while yet."""
        if node.vm not in self.instances:
            return node.vm in self.reported_lost
        instance = self.instances[node.vm]
        return instance is not None and instance.status not in UP

    def without_provider_id(self) -> Iterator[Node]:
        """Nodes that joined without saying on which VM."""
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
        """Ready ones last: of two Nodes of one VM, of which one must be outdated, they count."""
        return tuple(sorted(filter(self._is_match, self.nodes), key=lambda node: node.is_ready))

    @cached_property
    def _own_names(self) -> frozenset[str]:
        return frozenset(node.name for node in self._own_nodes)

    def _is_match(self, node: Node) -> bool:
        if node.vm not in self.instances:
            return bool(node.proved_vm_id) and bears_name_of(self.group, node)
        instance = self.instances[node.vm]
        return instance is not None and is_match(self.group, node, instance)


def reported_lost(known: Status) -> frozenset[str]:
    """The VMs whose loss the status reports."""
    losses = (Reason.PREEMPTED, Reason.NODE_LOST)
    return frozenset(entry.name for entry in known.pending if entry.why in losses)


def count(
    seen: Members, occasion: Occasion, join_timeout: timedelta, known: Status, now: datetime
) -> Status:
    """``known`` with the counts, the VMs that hold the slice up, and NodesJoined."""
    known = _count(seen, occasion, join_timeout, known, now)
    return _describe_joined(seen, known, now)


def _count(
    seen: Members, occasion: Occasion, join_timeout: timedelta, known: Status, now: datetime
) -> Status:
    proved, ready = len(seen.proved), len(seen.ready)
    is_whole = ready >= seen.group.spec.node_count
    pending = () if is_whole else tuple(_pending(seen, occasion, join_timeout, known, now))
    running = known.counts.running
    if seen.is_complete:
        running = sum(vm is not None and vm.status == "RUNNING" for vm in seen.instances.values())
    failed = sum(entry.why == Reason.NODE_JOIN_TIMEOUT for entry in pending)
    counts = replace(
        known.counts,
        desired=seen.group.spec.node_count,
        running=max(running, proved) if not seen.is_complete else running,
        joined=proved,
        ready=ready,
        failed=failed,
    )
    return replace(known, counts=counts, pending=pending[:MAX_PENDING])


def _pending(
    seen: Members, occasion: Occasion, join_timeout: timedelta, known: Status, now: datetime
) -> Iterator[Pending]:
    """The VMs that hold the slice up; the time of a reason that was known before is kept."""
    before = {entry.name: entry for entry in known.pending}
    for name, why in _reasons(seen, occasion, join_timeout, before, now).items():
        entry = before.get(name)
        same = entry is not None and entry.why == why
        yield entry if same and entry is not None else Pending(name, why, now)


def _reasons(
    seen: Members,
    occasion: Occasion,
    join_timeout: timedelta,
    before: Mapping[str, Pending],
    now: datetime,
) -> dict[str, str]:
    """Each VM's reason: what befell it, else what its Node lacks, else that it has not joined."""
    ready, proved = seen.ready, seen.proved
    reasons: dict[str, str] = {}
    for name, entry in before.items():
        if name not in ready and not _is_outdated(seen, entry):
            reasons[name] = entry.why
    for name, why in _losses(seen, occasion):
        if name not in ready:
            reasons[name] = why
    for name, node in proved.items():
        if name not in ready and reasons.get(name) != Reason.PREEMPTED:
            reasons[name] = _why_not_ready(seen, node, now)
    for name, instance in seen.instances.items():
        if name in proved or name in ready or name in reasons or instance is None:
            continue
        reasons[name] = _why_not_joined(seen, instance, join_timeout, now)
    return dict(sorted(reasons.items(), key=lambda item: _GRAVITY.index(item[1])))


_GRAVITY = (
    Reason.PREEMPTED,
    Reason.NODE_LOST,
    Reason.NODE_JOIN_TIMEOUT,
    Reason.DEVICE_PLUGIN_MISSING,
    Reason.NODE_NOT_READY,
    Reason.AWAITING_NODE_JOIN,
)


def _is_outdated(seen: Members, entry: Pending) -> bool:
    """What was known of a VM before, and is seen better now, or concerns a VM that is no more."""
    if entry.why not in _GRAVITY:
        return True
    if entry.name not in seen.instances:
        return seen.is_complete and entry.why not in (Reason.PREEMPTED, Reason.NODE_LOST)
    instance = seen.instances[entry.name]
    is_loss = entry.why in (Reason.PREEMPTED, Reason.NODE_LOST)
    return not is_loss or (instance is not None and instance.status in UP)


def _losses(seen: Members, occasion: Occasion) -> Iterator[tuple[str, str]]:
    event = occasion.event
    if event is not None:
        instance = seen.instances.get(event.name)
        started = instance.started if instance is not None else None
        is_old = started is not None and started > occasion.at
        if not is_old:
            yield event.name, LOSSES.get(event.method, Reason.NODE_LOST)
    if seen.status.completed_at is None:
        return
    before = {entry.name: entry.why for entry in seen.status.pending}
    for node in seen.nodes:
        if node.vm in seen.instances and seen.instances[node.vm] is None:
            why = before.get(node.vm)
            yield node.vm, why if why in _GRAVITY else Reason.NODE_LOST


def _why_not_ready(seen: Members, node: Node, now: datetime) -> str:
    if seen.is_down(node):
        return Reason.NODE_LOST
    if not node.is_ready or node.offers(seen.chips):
        return Reason.NODE_NOT_READY
    is_late = node.ready_since is not None and now - node.ready_since >= PLUGIN_LATE_AFTER
    return Reason.DEVICE_PLUGIN_MISSING if is_late else Reason.NODE_NOT_READY


def _why_not_joined(
    seen: Members, instance: Instance, join_timeout: timedelta, now: datetime
) -> str:
    if instance.status == WAITS:
        return Reason.AWAITING_NODE_JOIN
    if instance.status not in UP and seen.status.completed_at is not None:
        return Reason.NODE_LOST
    started = instance.started or instance.created
    is_late = started is not None and now - started >= join_timeout
    return Reason.NODE_JOIN_TIMEOUT if is_late else Reason.AWAITING_NODE_JOIN


def _describe_joined(seen: Members, known: Status, now: datetime) -> Status:
    counts = known.counts
    if counts.joined >= counts.desired:
        message = f"All {counts.desired} nodes have joined the cluster"
        return known.with_condition(
            Type.NODES_JOINED, True, "Joined", message, group=seen.group, now=now
        )
    missing = counts.desired - counts.joined
    reason = _why_missing(seen, known)
    message = awaiting_message(missing, counts.desired) + _nameless(seen)
    names = ", ".join(entry.name for entry in known.pending if entry.why == reason)
    if reason != Reason.AWAITING_NODE_JOIN:
        message += f"; {names or 'VMs are gone'}. {find_advice(reason)}"
    return known.with_condition(
        Type.NODES_JOINED, False, reason, message, group=seen.group, now=now
    )


def _why_missing(seen: Members, known: Status) -> str:
    """The gravest reason among the VMs that have not joined; a loss if the slice was complete."""
    told = [entry.why for entry in known.pending if entry.name not in seen.proved]
    if told:
        return told[0]
    return Reason.NODE_LOST if known.completed_at else Reason.AWAITING_NODE_JOIN


def _nameless(seen: Members) -> str:
    """Nodes that joined without saying on which VM, in tpu-operator's words."""
    count = len(list(seen.without_provider_id()))
    return f" ({count} nodes joined with missing ProviderID)" if count else ""
