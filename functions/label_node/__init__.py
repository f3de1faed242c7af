"""label_node: match Nodes to VMs, label and count them, and report what keeps the slice from Ready.

Triggers:

- A Node of the group was added, changed or deleted.
- A VM was preempted, failed, stopped or deleted.
- A resync, which lists the group's VMs.
- A message of approve_join about VMs that cannot join.
- A message of the step itself that names the Nodes for which the last invocation had no time.

A VM has joined if a Node matches it (`membership.is_match`): the Node's providerID is the VM's, its name
up to the first dot is the VM's name, and it does not remain from a predecessor of the VM. The VM must
have been created by the group's MIG, and must have got a token of ours, unless VMs join by other means.
What is done to a Node depends on its VM:

- The VM was read, and the Node matches: the step revokes the VM's token, then sets the Node's labels and
  taints. One label, the VM's id, proves the match; a kubelet cannot write it. When the VM of a Node with
  this proof is read again, the Node must still match, but needs no token in the metadata any more.
- The VM was not read now, and the Node has the proof: it counts as matching. Its labels are corrected,
  and nothing is revoked.
- The VM is gone: a Node with its name is deleted, unless its providerID names something else
  (`membership.may_be_own`).
- Any other Node is left alone.

Nodes are listed by the resource-name label. Kubelets that join with our tokens register with it. The
step labels other Nodes. A Node that has no label yet, or has lost it, is read by its name.

The step owns the conditions NodesJoined (tear_down writes it during a deletion) and InterconnectReady.
It triggers inject_token for VMs whose Nodes remain from predecessors, and both inject_token and
create_resources if their conditions contradict what it has observed. A group that is not served any
more, but accepted, is such a contradiction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from functions.label_node import health, interconnect, join_report
from functions.label_node.health import Members, reported_lost
from shared.base.reasons import REASONS, VM_LOSSES, Reason
from shared.frame.plan import Action, Batch, Emit, ForOne, NamedAction, Plan, Resume, Send
from shared.frame.snapshot import Rules, whole
from shared.frame.step import Step
from shared.node_groups import readiness
from shared.node_groups.actions import DeleteNode, DeleteSecret, PatchNode
from shared.node_groups.bootstrap import find_token
from shared.node_groups.membership import (
    find_vm_of_misnamed,
    is_of_predecessor,
    is_vm_name,
    may_be_own,
    proof_patch,
)
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.node_groups.snapshot import RULES
from shared.node_groups.status import MIG, State, Status, Type
from shared.node_groups.work import (
    GroupWork,
    WriteStatus,
    message_about,
    open_group,
    report_environment_error,
    report_retry,
)
from shared.ports.errors import CallError
from shared.ports.gce.values import Instance, Mig
from shared.ports.kubernetes.events import Event
from shared.ports.kubernetes.nodes import Node, parse_node
from shared.triggers.decode import Trigger
from shared.triggers.message import BATCH, Cause

DEBOUNCE = timedelta(seconds=10)
"""After a loss has been reported, an event about any VM within this time reads only that VM, and writes
no status. If many VMs are lost together, each would otherwise read all others. The price: only the event
says that a VM was preempted, so a VM that is preempted within this time is later counted as
``NodeLost``."""
FEW = 4
"""More VMs than this are read from one list. Lists may lag, so missing VMs are then read one by one."""
UNLABELLED_LATE_AFTER = timedelta(minutes=5)
"""A Node that should have the resource-name label, and is not listed by it, is read by name when its VM
has run for this long."""


@dataclass(frozen=True)
class ObservedNodes:
    """A group's VMs and Nodes. ``mig`` was read only if its interconnect matters now."""

    members: Members
    trigger: Trigger
    join_timeout: timedelta
    mig: Mig | None = None
    is_debounced: bool = False
    """Whether only the VM that the trigger names was read: a later trigger counts the slice."""

    @property
    def group(self) -> NodeGroup:
        return self.members.group

    @property
    def status(self) -> Status:
        return self.members.status


@dataclass(frozen=True)
class NothingToCount:
    """A group that is being deleted (outcome ``Deleting``), not served (``NotServed``) or not owned
    (``NotOwned``).

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
    if group.deleting is not None or not group.is_owned:
        return NothingToCount(group, work.status)
    timeout = settings.join_timeout
    if is_debounced(work.trigger, work.status, work.now):
        members = _read_one(work, group)
        return ObservedNodes(members, work.trigger, timeout, is_debounced=True)
    nodes = {node.name: node for node in map(parse_node, _list_nodes(work))}
    instances = _read_instances(work, group, nodes)
    unlisted = list(_list_unlabelled(work, group, nodes, instances))
    found = work.cluster.find_nodes(unlisted)
    nodes |= {name: parse_node(raw) for name, raw in found.items() if raw is not None}
    _read_missing_instances(work, group, nodes, instances)
    members = Members(
        group,
        work.status,
        tuple(nodes.values()),
        instances,
        has_all_vms=work.trigger.is_resync,
        unread_nodes=frozenset(unlisted) - found.keys(),
    )
    return ObservedNodes(members, work.trigger, timeout, _find_mig_for_interconnect(work, members))


def decide(observed: ObservedNodes | NothingToCount, now: datetime) -> Plan:
    """Decide what to do to the Nodes, and what the status reports."""
    if isinstance(observed, NothingToCount):
        return _decide_without_count(observed, now)
    node_actions = _build_batch(observed, now)
    if observed.is_debounced:
        return Plan("Debounced", (node_actions,))
    actions: tuple[Action | Batch, ...] = (
        node_actions,
        _count(observed, now),
        *_trigger_others(observed.members, now),
        *_list_node_events(observed.members),
    )
    return Plan(_name_outcome(observed.members), actions)


def recover(work: GroupWork, error: CallError) -> Plan | None:
    """Report an environment error in NodesJoined. If that is true, it stays so, because the error proves
    nothing about the Nodes: then the error is recorded like a transient one."""

    def add_error(known: Status, reason: Reason) -> Status | None:
        if known.is_true(Type.NODES_JOINED):
            return None
        message = f"{error.message} ({error.call}). {REASONS[reason]}"
        return known.with_condition(
            Type.NODES_JOINED, False, reason, message, group=work.group, now=work.now
        )

    return report_environment_error(work, error, add_error)


SNAPSHOT: Rules = {**RULES, (Members, "instances"): whole}
STEP = Step(
    "label_node", open_group, observe, decide, recover, give_up=report_retry, snapshot=SNAPSHOT
)
run = STEP.run


def _decide_without_count(observed: NothingToCount, now: datetime) -> Plan:
    if observed.group.deleting is not None:
        return Plan("Deleting")
    if observed.can_be_served:
        return Plan("NotOwned")
    # Only create_resources reports this. It has not yet if the group was accepted before the project was
    # removed from the settings, or by a version that could read the spec.
    if not observed.status.is_true(Type.ACCEPTED):
        return Plan("NotServed")
    message = message_about(observed.group, Cause.FORWARDED, now)
    return Plan("NotServed", (Send("create_resources", (message,)),))


def is_debounced(trigger: Trigger, known: Status, now: datetime) -> bool:
    """Whether the count is left to a later trigger: another event, a change of a Node or a resync.

    True for an event about one VM, if Ready reports a loss of any VM, and the newest loss was reported
    less than `DEBOUNCE` ago.
    """
    if trigger.event is None or not trigger.event.concerns_vm:
        return False
    ready = known.conditions.get(Type.READY)
    # `Status.pending` names the VMs that keep the group from Ready, lost ones included.
    losses = (entry.since for entry in known.pending if entry.why in VM_LOSSES)
    newest = max(losses, default=None)
    has_loss = ready is not None and ready.reason in VM_LOSSES
    return has_loss and newest is not None and abs(now - newest) < DEBOUNCE


def _read_one(work: GroupWork, group: NodeGroup) -> Members:
    """Read the VM that the event names, and the Node of its name."""
    (vm,) = work.trigger.vms  # an event about a VM names exactly one
    instance = work.gce.find_instance(group.spec.project, group.spec.zone, vm)
    raw = work.cluster.find_node(vm)
    nodes = (parse_node(raw),) if raw is not None else ()
    return Members(group, work.status, nodes, {vm: instance})


def _list_nodes(work: GroupWork) -> list[dict[str, object]]:
    return work.cluster.list_nodes(work.group.resource_name)


def _read_instances(
    work: GroupWork, group: NodeGroup, nodes: Mapping[str, Node]
) -> dict[str, Instance | None]:
    """Read all VMs on a resync, otherwise the VMs of the trigger and of Nodes without proof.

    The VMs of some Nodes with proof are read again:

    - of Nodes that a message of this step names: a Node is deleted only if its VM is gone now;
    - of a changed Node whose VM is reported lost: the VM may be back;
    - without bootstrap tokens, of a Node that has rebooted since its proof: it may be another VM.
    """
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
        named &= reported_lost(work.status)
    wanted = unproved | set(work.trigger.vms) | named
    listed = _list_instances(work, group) if len(wanted) > FEW else {}
    found = {vm: listed[vm] for vm in sorted(wanted) if vm in listed}
    return {**found, **_find_instances(work, group, sorted(wanted - found.keys()))}


def _list_instances(work: GroupWork, group: NodeGroup) -> dict[str, Instance]:
    spec, name = group.spec, group.resource_name
    found = work.gce.list_instances(spec.project, spec.zone, name)
    return {vm.name: vm for vm in found if vm.is_member_of(spec.zone, name)}


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
        late = instance.started and work.now - instance.started >= UNLABELLED_LATE_AFTER
        if late or not registers_with_label:
            yield name


def _read_missing_instances(
    work: GroupWork,
    group: NodeGroup,
    nodes: Mapping[str, Node],
    instances: dict[str, Instance | None],
) -> None:
    """Read one by one the VMs of Nodes that have none in ``instances``, and add them.

    On a resync the list of VMs may lag, so absence there proves nothing. Otherwise these are the VMs of
    Nodes without proof that were read by name, after `_read_instances`.
    """
    missing = {
        node.vm
        for node in nodes.values()
        if node.vm not in instances
        and is_vm_name(group, node.vm)
        and (work.trigger.is_resync or not node.proved_vm_id)
    }
    instances |= _find_instances(work, group, sorted(missing))


def _find_mig_for_interconnect(work: GroupWork, members: Members) -> Mig | None:
    """Read the MIG of a BULK group whose Nodes are all ready: on each resync, and on any other trigger
    until its interconnect is up."""
    group, spec = members.group, members.group.spec
    is_known_ready = members.status.is_true(Type.INTERCONNECT_READY) and not work.trigger.is_resync
    if not spec.is_bulk or is_known_ready or len(members.ready) < spec.node_count:
        return None
    return work.gce.find_mig(spec.project, spec.zone, group.resource_name)


def _build_batch(observed: ObservedNodes, now: datetime) -> Batch:
    """The actions on Nodes. Without time for all, a message to this step names the next Nodes (at most
    `MAX_NAMES`) and continues the batch."""
    members = observed.members
    actions = tuple(
        NamedAction(node.name, ForOne(actions))
        for node in _order_nodes(members.nodes, observed.trigger)
        if (actions := tuple(_node_actions(members, node, now)))
    )
    message = message_about(members.group, Cause.CONTINUED, now)
    return Batch(actions, Resume(STEP.name, message, names_nodes=True))


def _order_nodes(nodes: Iterable[Node], trigger: Trigger) -> list[Node]:
    """The Nodes of the batch, in order: those that the trigger names, then the others by name.

    A message that continues a batch names Nodes that are left. There may be more of them than a message
    has room for (`message.MAX_NAMES`), so the batch goes on with all Nodes from the first name on. At
    least one action is executed, so each message begins at a later name, and the sequence ends even if
    the actions have no effect. Only the VMs of the named Nodes, and of Nodes without proof, are read.
    The others are only labelled: a resync deletes those whose VMs are gone.
    """
    if trigger.cause == Cause.CONTINUED:
        first = min(trigger.nodes, default="")
        return sorted((node for node in nodes if node.name >= first), key=lambda node: node.name)
    named = set(trigger.nodes)
    return sorted(nodes, key=lambda node: (node.name not in named, node.name))


def _node_actions(members: Members, node: Node, now: datetime) -> Iterator[Action]:
    if node.vm in members.instances and members.instances[node.vm] is None:
        if may_be_own(members.group, node):
            yield DeleteNode(node.name, node.uid)
    elif members.is_own(node):  # it matches its VM, or is proved and the VM was not read
        yield from _prove(members, node, now)


def _prove(members: Members, node: Node, now: datetime) -> Iterator[Action]:
    """Revoke the VM's token, then label the Node. For a proved Node nothing is revoked any more, so the
    token would remain if the order were reversed and the second call failed."""
    instance = members.instances.get(node.vm)
    with_tokens = members.group.spec.joins_with_tokens  # otherwise the metadata may name any token
    if with_tokens and instance is not None and node.proved_vm_id != instance.id:
        token = find_token(instance.metadata, now)
        if token is not None:
            yield DeleteSecret(token.id, node.vm)
    patch = proof_patch(members.group, node, members.status.machine_type, instance)
    if patch:
        yield PatchNode(node.name, node.uid, patch)


def _name_outcome(members: Members) -> str:
    desired = members.group.spec.node_count
    if len(members.ready) >= desired:
        return "AllReady"
    return "AllJoined" if len(members.joined) >= desired else "Counting"


def _count(observed: ObservedNodes, now: datetime) -> WriteStatus:
    group, members = observed.group, observed.members
    known = health.count(members, observed.trigger, observed.join_timeout, observed.status, now)
    known = join_report.add_condition(members, known, now)
    known = interconnect.add_condition(observed.mig, group, known, now)
    return WriteStatus(readiness.conclude(group, known, now))


def _trigger_others(members: Members, now: datetime) -> Iterator[Action]:
    """Trigger the steps whose conditions contradict what this step has observed."""
    known, desired = members.status, members.group.spec.node_count
    with_tokens = members.group.spec.joins_with_tokens
    stale = tuple(node.vm for node in members.nodes if with_tokens and _is_stale(members, node))
    if stale:
        message = message_about(members.group, Cause.VMS_NEED_TOKENS, now, vms=stale[:BATCH])
        yield Send("inject_token", (message,))
    have_all_joined = len(members.joined) >= desired
    if have_all_joined and not known.is_true(Type.TOKENS_INJECTED):
        yield Send("inject_token", (message_about(members.group, Cause.RESYNC, now),))
    are_vms_missing = members.has_all_vms and len(members.vms) < desired
    mig = known.resources.get(MIG)
    if mig is None or mig.state is not State.READY:
        return
    is_contradicted_by_vms = known.is_true(Type.MIG_READY) and are_vms_missing
    is_contradicted_by_nodes = not known.is_true(Type.MIG_READY) and have_all_joined
    if is_contradicted_by_vms or is_contradicted_by_nodes:
        yield Send("create_resources", (message_about(members.group, Cause.FORWARDED, now),))


def _is_stale(members: Members, node: Node) -> bool:
    """Whether a Node is of a predecessor of its VM: inject_token deletes it, so that the VM can join."""
    instance = members.instances.get(node.vm)
    return instance is not None and is_of_predecessor(members.group, node, instance)


def _list_node_events(members: Members) -> Iterator[Action]:
    """The Events on Nodes that do not count, at most `BATCH` of each kind: all Nodes of a large slice
    may have the same defect, and the group's own Events are written after these."""
    yield from islice(_list_nameless(members), BATCH)
    yield from islice(_list_misnamed(members), BATCH)


def _list_nameless(members: Members) -> Iterator[Emit]:
    for node in members.without_provider_id():
        text = f"Node {node.name} joined without a ProviderID"
        yield Emit(Event("MissingProviderID", text, is_warning=True), node.raw, once=True)


def _list_misnamed(members: Members) -> Iterator[Emit]:
    for node in members.nodes:
        vm = find_vm_of_misnamed(members.group, node)
        if vm is not None:
            text = (
                f"Node {node.name} names VM {vm} in its ProviderID, but a Node must have its VM's "
                f"name: it is not counted, and not deleted with the group. Delete it and register "
                f"the kubelet as {vm} (--hostname-override; kubeadm: nodeRegistration.name)."
            )
            yield Emit(Event("NodeNameMismatch", text, is_warning=True), node.raw, once=True)
