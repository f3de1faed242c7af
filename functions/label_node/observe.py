"""The Nodes of a group, and the VMs that the trigger concerns."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from functions.label_node.maintenance_condition import ANNOUNCEMENTS
from functions.label_node.observed_nodes import ObservedNodes
from shared.base.reasons import VM_LOSSES
from shared.frame.execution import SECONDS_FOR_OTHER_CALLS
from shared.node_groups.membership import is_vm_name, mark_members
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.node_groups.recovery import is_repair_begun
from shared.node_groups.status import Status, Type
from shared.node_groups.work import GroupWork
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.nodes import Node
from shared.triggers.message import Cause
from shared.triggers.trigger import LogTrigger, Trigger

DEBOUNCE = timedelta(seconds=10)
"""After a loss has been reported, an event about any VM within this time reads only that VM, and writes
no status. If many VMs are lost together, each would otherwise read all others. The price: only the event
says that a VM was preempted, so a VM that is preempted within this time is later counted as
``NodeLost``."""
FEW = 4
"""More VMs than this are read from one list. Lists may lag, so missing VMs are then read one by one."""
UNLABELLED_LATE_AFTER = timedelta(minutes=5)
"""A Node that should have the resource-name label, and is not listed by it, is read by name when its VM
has run for this long. If VMs join by other means, Nodes are read by name at once; after this time, one
that is not found by its VM's name is looked for among all Nodes of the cluster."""


@dataclass(frozen=True)
class NothingToCount:
    """A group that is being deleted (outcome ``Deleting``), not served (``NotServed``) or not owned
    (``NotOwned``), or whose VMs are being deleted for a repair (``Repairing``).

    ``can_be_served`` is false if its spec cannot be read, or this installation does not serve its
    project.
    """

    group: AnyGroup
    status: Status
    can_be_served: bool = True


def observe(work: GroupWork) -> ObservedNodes | NothingToCount:
    """Read the group's Nodes, the VMs that the trigger concerns, and the MIG if it is needed."""
    group, settings = work.group, work.settings
    is_served = isinstance(group, NodeGroup) and settings.serves(group.spec.project)
    if not isinstance(group, NodeGroup) or not is_served:
        return NothingToCount(group, work.status, can_be_served=False)
    is_left = not group.is_owned or is_repair_begun(group, work.status)
    if group.deleting is not None or is_left:
        return NothingToCount(group, work.status)
    observed = ObservedNodes(group, work.status, work.trigger, settings.join_timeout)
    if is_debounced(work.trigger, work.status, work.now):
        (vm,) = work.trigger.vms  # an event about a VM names exactly one
        found_vm = work.gce.find_instance(group.spec.project, group.spec.zone, vm)
        node = work.cluster.find_node(vm)
        own = (node,) if node is not None else ()
        instances = mark_members(work, group, {vm: found_vm}, own)
        return replace(observed, nodes=own, instances=instances, is_debounced=True)
    listed = work.cluster.list_nodes(group.resource_name, group.spec.node_count)
    nodes = {node.name: node for node in listed}
    instances = _read_instances(work, observed, nodes)
    unlisted = list(_list_unlabelled(work, group, nodes, instances))
    found = work.cluster.find_nodes(unlisted)
    nodes |= {name: one for name, one in found.items() if one is not None}
    if not group.spec.joins_with_tokens and work.trigger.is_resync:
        absent = (instances.get(name) for name, one in found.items() if one is None)
        if any(_is_late(work, vm) for vm in absent):
            # The name of a Node may have a domain after the VM's.
            with work.reserve(SECONDS_FOR_OTHER_CALLS), work.best_effort():
                others = work.cluster.list_unlabelled_nodes(group.resource_name)
                nodes |= {node.name: node for node in others}
    # The VMs of Nodes that have none in ``instances`` yet, one by one. On a resync the list of VMs may
    # lag, so absence there proves nothing. Otherwise these are the VMs of Nodes without proof that were
    # read by name.
    missing = {
        node.vm
        for node in nodes.values()
        if node.vm not in instances
        and is_vm_name(group, node.vm)
        and (work.trigger.is_resync or not node.proved_vm_id)
    }
    instances |= _find_instances(work, group, sorted(missing))
    instances = mark_members(work, group, instances, nodes.values())
    observed = replace(
        observed,
        nodes=tuple(nodes.values()),
        instances=instances,
        has_all_vms=work.trigger.is_resync,
        unread_nodes=frozenset(unlisted) - found.keys(),
    )
    # The MIG of a BULK group whose Nodes are all ready reports the interconnect: it is read on each
    # resync, and on any other trigger until the interconnect is up.
    spec = group.spec
    is_known_up = work.status.is_true(Type.INTERCONNECT_READY) and not work.trigger.is_resync
    if not spec.is_bulk or is_known_up or len(observed.ready) < spec.node_count:
        return observed
    mig = work.gce.find_mig(spec.project, spec.zone, group.resource_name)
    return replace(observed, mig=mig)


def is_debounced(trigger: Trigger, known: Status, now: datetime) -> bool:
    """Whether the count is left to a later trigger: another event, a change of a Node or a resync.

    True for an event about one VM that announces maintenance, or if Ready reports a loss of any VM, and
    the newest loss was reported less than `DEBOUNCE` ago.
    """
    if not isinstance(trigger, LogTrigger) or not trigger.event.concerns_vm:
        return False
    if trigger.event.method in ANNOUNCEMENTS:
        return True
    ready = known.conditions.get(Type.READY)
    # `Status.pending` names the VMs that keep the group from Ready, lost ones included.
    losses = (entry.since for entry in known.pending if entry.why in VM_LOSSES)
    newest = max(losses, default=None)
    has_loss = ready is not None and ready.reason in VM_LOSSES
    return has_loss and newest is not None and abs(now - newest) < DEBOUNCE


def _read_instances(
    work: GroupWork, observed: ObservedNodes, nodes: Mapping[str, Node]
) -> dict[str, Instance | None]:
    """Read all VMs on a resync, otherwise those of the trigger and of Nodes without proof.

    The VMs of some Nodes with proof are read again:

    - of Nodes that a message of this step names: a Node is deleted only if its VM is gone now;
    - of a changed Node whose VM is reported lost: the VM may be back;
    - of a Node that is gone: the VM may run, and need a token;
    - without bootstrap tokens, of a Node that has rebooted since its proof: it may be another VM.
    """
    group = observed.group
    if work.trigger.is_resync:
        return dict(_list_instances(work, group))
    unproved = {
        node.vm
        for node in nodes.values()
        if not node.proved_vm_id and is_vm_name(group, node.vm)  # anyone can set the label
    }
    if not group.spec.joins_with_tokens:
        unproved |= {node.vm for node in nodes.values() if node.has_rebooted}
    named = {name.partition(".")[0] for name in work.trigger.nodes}
    if work.trigger.cause != Cause.CONTINUED:
        missing = {vm for vm in named if is_vm_name(group, vm)} - {one.vm for one in nodes.values()}
        named &= observed.reported_lost
        named |= missing
    wanted = unproved | set(work.trigger.vms) | named
    listed = _list_instances(work, group) if len(wanted) > FEW else {}
    found = {vm: listed[vm] for vm in sorted(wanted) if vm in listed}
    return {**found, **_find_instances(work, group, sorted(wanted - found.keys()))}


def _list_instances(work: GroupWork, group: NodeGroup) -> dict[str, Instance]:
    spec = group.spec
    place = spec.project, spec.zone, group.resource_name
    return {vm.name: vm for vm in work.gce.list_instances(*place, spec.node_count)}


def _find_instances(
    work: GroupWork, group: NodeGroup, names: list[str]
) -> dict[str, Instance | None]:
    """Read VMs one by one. There may not be time for all if they are many: then each invocation starts
    at a random one."""
    spec = group.spec
    if len(names) > FEW:
        names = work.rotate(names)
    return work.gce.find_instances(spec.project, spec.zone, names)


def _list_unlabelled(
    work: GroupWork,
    group: NodeGroup,
    nodes: Mapping[str, Node],
    instances: Mapping[str, Instance | None],
) -> Iterator[str]:
    """Nodes to be read by name: they lack the resource-name label and may belong to the group.

    There may not be time for all, so each resync starts at a random one.
    """
    listed = {node.vm for node in nodes.values()}
    yield from (name for name in work.trigger.nodes if name not in nodes)
    if not work.trigger.is_resync:
        return
    registers_with_label = group.spec.joins_with_tokens  # their kubelets set it
    for name in work.rotate(list(instances)):
        instance = instances[name]
        if name in listed or instance is None or instance.status != "RUNNING":
            continue
        if _is_late(work, instance) or not registers_with_label:
            yield name


def _is_late(work: GroupWork, vm: Instance | None) -> bool:
    started = vm.started if vm is not None else None
    return started is not None and work.now - started >= UNLABELLED_LATE_AFTER
