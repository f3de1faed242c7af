"""label_node: Nodes are matched to VMs, labelled and counted; ``Ready`` follows from the count.

Occasions: a Node of the group appeared, changed what matters, or went; a VM was preempted, failed,
stopped or deleted; SYNC, which lists the group's VMs in one call.

A Node is the group's when it is proved: its providerID is the VM's, the first label of its name is
the VM's name, and the group's MIG made the VM. Then its token is revoked and its labels are set,
among them one that a kubelet cannot write. A Node whose VM is gone is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from shared.base.errors import CallError
from shared.base.reasons import REASONS, Reason
from shared.frame.decode import Occasion
from shared.frame.message import BATCH, Cause
from shared.frame.plan import (
    Action,
    DeleteNode,
    DeleteSecret,
    Derive,
    Emit,
    ForOne,
    PatchNode,
    Plan,
    Send,
    Work,
    WriteStatus,
)
from shared.frame.settings import Settings
from shared.frame.step import Step, message_about
from shared.node_groups.bootstrap import find_token
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.nodes import bears_name_of, proof_patch
from shared.node_groups.resources import machine_of
from shared.node_groups.status import (
    MAX_PENDING,
    MIG,
    Condition,
    Pending,
    State,
    Status,
    Type,
    awaiting_message,
)
from shared.ports.gce.values import Instance, Mig
from shared.ports.kubernetes.events import Event
from shared.ports.kubernetes.nodes import Node, parse_node

ALREADY_SAID = timedelta(seconds=10)
"""While the group's status tells of a loss since less than this, the next VM that is lost is looked at
alone: what hundreds of them lost at once read must not grow with the square of their number."""
WIRES_UNKNOWN_AFTER = timedelta(minutes=5)
PLUGIN_LATE_AFTER = timedelta(minutes=2)
"""A Node that is Ready this long and offers no TPU lacks its device plugin."""
UNLABELLED_LATE_AFTER = timedelta(minutes=5)
"""A VM that should have registered with our label is looked for by its name after this."""

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
class Seen:
    """What the step has seen.

    ``instances`` maps the names of VMs that were asked for to what was found (``None``: gone);
    ``is_complete`` says that these are all VMs of the group. ``slice`` is the MIG, if it was asked
    whether the links are up.
    """

    group: NodeGroup
    status: Status
    occasion: Occasion
    join_timeout: timedelta
    nodes: tuple[Node, ...] = ()
    instances: Mapping[str, Instance | None] = field(default_factory=dict)
    is_complete: bool = False
    slice: Mig | None = None
    is_ours: bool = True
    """Owned, served and not being deleted: else there is nothing to count."""
    is_one_of_many: bool = False
    """Only the VM that the occasion tells of was looked at: the slice is not counted."""

    @property
    def chips(self) -> int:
        machine = machine_of(self.group, self.status.machine_type)
        return machine.chips if machine else 0

    @property
    def proved(self) -> tuple[Node, ...]:
        """The group's own Nodes: proved before or now, and not known to have lost their VM."""
        return tuple(node for node in self.nodes if self._is_ours(node))

    @property
    def ready(self) -> tuple[Node, ...]:
        return tuple(
            node
            for node in self.proved
            if node.is_ready and node.offers(self.chips) and not self.is_down(node)
        )

    def is_down(self, node: Node) -> bool:
        """A VM that is stopping, or was told to be lost, has a Node that is Ready for a while yet."""
        if node.vm not in self.instances:
            return node.vm in told_lost(self.status)
        instance = self.instances[node.vm]
        return instance is not None and instance.status not in UP

    def _is_ours(self, node: Node) -> bool:
        if node.vm not in self.instances:
            return bool(node.proved_vm_id) and bears_name_of(self.group, node)
        instance = self.instances[node.vm]
        return instance is not None and is_match(self.group, node, instance)


def told_lost(known: Status) -> frozenset[str]:
    """The VMs whose loss the status tells."""
    losses = (Reason.PREEMPTED, Reason.NODE_LOST)
    return frozenset(entry.name for entry in known.pending if entry.why in losses)


def look(work: Work, settings: Settings) -> Seen:
    """Read the group's Nodes, the VMs that the occasion concerns, and at the end the MIG."""
    group = work.group
    seen = Seen(group, work.status, work.occasion, settings.join_timeout)
    is_served = group.spec is not None and settings.serves(group.spec.project)
    if group.deleting is not None or not group.is_owned or not is_served:
        return replace(seen, is_ours=False)
    if is_told_already(work.occasion, work.status, work.now):
        return _look_at_one(work, seen)
    nodes = {node.name: node for node in map(parse_node, _list_nodes(work))}
    instances = _instances(work, nodes)
    found = work.cluster.find_nodes(_unlisted(work, nodes, instances))
    nodes |= {name: parse_node(raw) for name, raw in found.items() if raw is not None}
    _ask_for_missing(work, nodes, instances)
    seen = replace(
        seen,
        nodes=tuple(nodes.values()),
        instances=instances,
        is_complete=work.occasion.is_sync,
    )
    return replace(seen, slice=_ask_for_wires(work, seen))


def decide(seen: Seen, now: datetime) -> Plan:
    """What is to be done about the Nodes, and what they make of the slice."""
    group = seen.group
    if not seen.is_ours:
        return Plan("Deleting" if group.deleting else "NotOurs")
    actions = list(_node_actions(seen, now))
    if seen.is_one_of_many:
        return Plan("ToldAlready", tuple(actions))
    actions.append(WriteStatus(_say(seen)))
    actions += _wake_others(seen, now)
    actions += _complaints(seen)
    return Plan(_outcome(seen), tuple(actions))


def report(error: CallError, reason: Reason) -> Derive:
    """A refusal of the world. It says nothing of the Nodes: a ready slice stays ready."""

    def derive(group: NodeGroup, known: Status, now: datetime) -> Status:
        if known.is_true(Type.NODES_JOINED):
            return known
        message = f"{error.message} ({error.call}). {REASONS[reason]}"
        return known.with_condition(Type.NODES_JOINED, False, reason, message, group=group, now=now)

    return derive


STEP = Step("label_node", look, decide, report)
run = STEP.run


def is_told_already(occasion: Occasion, known: Status, now: datetime) -> bool:
    """Hundreds of VMs can be lost in a second; one that says so speaks for all.

    How many they are is counted by the next that comes later, by the changes of their Nodes, or by
    the sweep.
    """
    if occasion.event is None or not occasion.event.concerns_vm:
        return False
    ready = known.conditions.get(Type.READY)
    newest = max((entry.since for entry in known.pending), default=None)
    is_loss_told = ready is not None and ready.reason in (Reason.PREEMPTED, Reason.NODE_LOST)
    return is_loss_told and newest is not None and now - newest < ALREADY_SAID


def _look_at_one(work: Work, seen: Seen) -> Seen:
    """The VM that the occasion tells of, and the Node of its name."""
    spec, (vm,) = work.group.spec, work.occasion.vms
    assert spec is not None
    instance = work.gce.find_instance(spec.project, spec.zone, vm)
    raw = work.cluster.find_node(vm)
    nodes = (parse_node(raw),) if raw is not None else ()
    return replace(seen, nodes=nodes, instances={vm: instance}, is_one_of_many=True)


def _list_nodes(work: Work) -> list[dict[str, object]]:
    return work.cluster.list_nodes(work.group.resource_name)


def _instances(work: Work, nodes: Mapping[str, Node]) -> dict[str, Instance | None]:
    """The VMs to look at: all on a SYNC, else those of the occasion and of Nodes not yet proved.

    A Node that has changed, of a VM that was told to be lost, may show that the VM is back.
    """
    spec, name = work.group.spec, work.group.resource_name
    assert spec is not None
    if work.occasion.is_sync:
        found = work.gce.list_instances(spec.project, spec.zone, name)
        return {vm.name: vm for vm in found if vm.is_member_of(spec.zone, name)}
    unproved = {node.vm for node in nodes.values() if not node.proved_vm_id}
    changed = {name.partition(".")[0] for name in work.occasion.nodes}
    wanted = unproved | set(work.occasion.vms) | (changed & told_lost(work.status))
    return {vm: work.gce.find_instance(spec.project, spec.zone, vm) for vm in sorted(wanted)}


def _unlisted(
    work: Work, nodes: Mapping[str, Node], instances: Mapping[str, Instance | None]
) -> Iterator[str]:
    """Names of Nodes that do not bear our label and may yet be ours. Where there is no time for all
    of them, each SYNC begins with another one.
    """
    listed = {node.vm for node in nodes.values()}
    yield from (name for name in work.occasion.nodes if name not in nodes)
    if not work.occasion.is_sync:
        return
    registers_labelled = work.group.spec is not None and work.group.spec.bootstrap is not None
    names = list(instances)
    start = int.from_bytes(work.random_bytes(2)) % max(1, len(names))
    for name in (*names[start:], *names[:start]):
        instance = instances[name]
        if name in listed or instance is None or instance.status != "RUNNING":
            continue
        late = instance.started and work.now - instance.started >= UNLABELLED_LATE_AFTER
        if late or not registers_labelled:
            yield name


def _ask_for_missing(
    work: Work, nodes: Mapping[str, Node], instances: dict[str, Instance | None]
) -> None:
    """Nothing is done about a Node on an absence in a list (it may lag): the VM is asked for.

    So is the VM of a Node that was read by its name, outside of a SYNC.
    """
    spec = work.group.spec
    assert spec is not None
    for node in nodes.values():
        is_known = bool(node.proved_vm_id) and not work.occasion.is_sync
        if node.vm not in instances and not is_known:
            instances[node.vm] = work.gce.find_instance(spec.project, spec.zone, node.vm)


def _ask_for_wires(work: Work, seen: Seen) -> Mig | None:
    """GCE is asked once all Nodes are ready, until it has said so, and again on a SYNC."""
    spec = work.group.spec
    assert spec is not None
    wired = work.status.is_true(Type.SLICE_WIRED) and not work.occasion.is_sync
    if not spec.is_bulk or wired or len(seen.ready) < spec.node_count:
        return None
    return work.gce.find_mig(spec.project, spec.zone, work.group.resource_name)


def is_match(group: NodeGroup, node: Node, instance: Instance) -> bool:
    """Whether this Node runs on this VM, and the VM is the group's."""
    spec = group.spec
    assert spec is not None
    return (
        node.provider_id == f"gce://{spec.project}/{spec.zone}/{instance.name}"
        and node.vm == instance.name
        and instance.is_member_of(spec.zone, group.resource_name)
        and not _is_of_predecessor(group, node, instance)
    )


def _is_of_predecessor(group: NodeGroup, node: Node, instance: Instance) -> bool:
    """Whether the Node tells of a VM that had this one's name before.

    Where VMs join by other means, nobody removes what a predecessor has left: the new kubelet takes
    it over, and it is the new VM's from the kubelet's first report on.
    """
    if instance.created is None or node.created >= instance.created:
        return False
    bootstraps = group.spec is not None and group.spec.bootstrap is not None
    return bootstraps or node.heard_of is None or node.heard_of < instance.created


def _node_actions(seen: Seen, now: datetime) -> Iterator[Action]:
    for node in seen.nodes:
        if node.vm in seen.instances and seen.instances[node.vm] is None:
            if bears_name_of(seen.group, node):
                yield DeleteNode(node.name, node.uid)
        elif node in seen.proved and (actions := tuple(_prove(seen, node, now))):
            yield ForOne(actions)


def _prove(seen: Seen, node: Node, now: datetime) -> Iterator[Action]:
    """Revoke the token first: a Node that bears the proof needs no further look at its VM."""
    instance = seen.instances.get(node.vm)
    if instance is not None and node.proved_vm_id != instance.id:
        token = find_token(instance.metadata, now)
        if token is not None:
            yield DeleteSecret(token.id, node.vm)
    vm_id = instance.id if instance is not None else node.proved_vm_id
    patch = proof_patch(seen.group, node, seen.status.machine_type, vm_id)
    if patch:
        yield PatchNode(node.name, node.uid, patch)


def _outcome(seen: Seen) -> str:
    assert seen.group.spec is not None
    wanted = seen.group.spec.node_count
    if len(seen.ready) >= wanted:
        return "AllReady"
    return "AllJoined" if len(seen.proved) >= wanted else "Counting"


def _say(seen: Seen) -> Derive:
    def derive(group: NodeGroup, known: Status, now: datetime) -> Status:
        known = _count(seen, known, now)
        known = _say_joined(seen, group, known, now)
        return _say_wired(seen, group, known, now)

    return derive


def _count(seen: Seen, known: Status, now: datetime) -> Status:
    assert seen.group.spec is not None
    proved, ready = len(seen.proved), len(seen.ready)
    is_whole = ready >= seen.group.spec.node_count
    pending = () if is_whole else tuple(_pending(seen, known, now))
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


def _pending(seen: Seen, known: Status, now: datetime) -> Iterator[Pending]:
    """The VMs that hold the slice up; the time of a reason that was known before is kept."""
    before = {entry.name: entry for entry in known.pending}
    for name, why in _reasons(seen, before, now).items():
        entry = before.get(name)
        same = entry is not None and entry.why == why
        yield entry if same and entry is not None else Pending(name, why, now)


def _reasons(seen: Seen, before: Mapping[str, Pending], now: datetime) -> dict[str, str]:
    """Each VM's reason: what befell it, else what its Node lacks, else that it has not joined."""
    ready = {node.vm for node in seen.ready}
    proved = {node.vm: node for node in seen.proved}
    reasons: dict[str, str] = {}
    for name, entry in before.items():
        if name not in ready and not _is_outdated(seen, entry):
            reasons[name] = entry.why
    for name, why in _losses(seen):
        if name not in ready:
            reasons[name] = why
    for name, node in proved.items():
        if name not in ready and reasons.get(name) != Reason.PREEMPTED:
            reasons[name] = _why_not_ready(seen, node, now)
    for name, instance in seen.instances.items():
        if name in proved or name in ready or name in reasons or instance is None:
            continue
        reasons[name] = _why_not_joined(seen, instance, now)
    return dict(sorted(reasons.items(), key=lambda item: _GRAVITY.index(item[1])))


_GRAVITY = (
    Reason.PREEMPTED,
    Reason.NODE_LOST,
    Reason.NODE_JOIN_TIMEOUT,
    Reason.DEVICE_PLUGIN_MISSING,
    Reason.NODE_NOT_READY,
    Reason.AWAITING_NODE_JOIN,
)


def _is_outdated(seen: Seen, entry: Pending) -> bool:
    """What was known of a VM before, and is seen better now, or concerns a VM that is no more."""
    if entry.why not in _GRAVITY:
        return True
    if entry.name not in seen.instances:
        return seen.is_complete and entry.why not in (Reason.PREEMPTED, Reason.NODE_LOST)
    instance = seen.instances[entry.name]
    is_loss = entry.why in (Reason.PREEMPTED, Reason.NODE_LOST)
    return not is_loss or (instance is not None and instance.status in UP)


def _losses(seen: Seen) -> Iterator[tuple[str, str]]:
    event = seen.occasion.event
    if event is not None:
        instance = seen.instances.get(event.name)
        started = instance.started if instance is not None else None
        is_old = started is not None and started > seen.occasion.at
        if not is_old:
            yield event.name, LOSSES.get(event.method, Reason.NODE_LOST)
    if seen.status.completed_at is None:
        return
    for node in seen.nodes:
        if node.vm in seen.instances and seen.instances[node.vm] is None:
            yield node.vm, _reason_before(seen, node.vm) or Reason.NODE_LOST


def _reason_before(seen: Seen, vm: str) -> str:
    return next((entry.why for entry in seen.status.pending if entry.name == vm), "")


def _why_not_ready(seen: Seen, node: Node, now: datetime) -> str:
    if seen.is_down(node):
        return Reason.NODE_LOST
    if not node.is_ready or node.offers(seen.chips):
        return Reason.NODE_NOT_READY
    is_late = node.ready_since is not None and now - node.ready_since >= PLUGIN_LATE_AFTER
    return Reason.DEVICE_PLUGIN_MISSING if is_late else Reason.NODE_NOT_READY


def _why_not_joined(seen: Seen, instance: Instance, now: datetime) -> str:
    if instance.status == WAITS:
        return Reason.AWAITING_NODE_JOIN
    if instance.status not in UP and seen.status.completed_at is not None:
        return Reason.NODE_LOST
    started = instance.started or instance.created
    is_late = started is not None and now - started >= seen.join_timeout
    return Reason.NODE_JOIN_TIMEOUT if is_late else Reason.AWAITING_NODE_JOIN


def _say_joined(seen: Seen, group: NodeGroup, known: Status, now: datetime) -> Status:
    counts = known.counts
    if counts.joined >= counts.desired:
        message = f"All {counts.desired} nodes have joined the cluster"
        return known.with_condition(
            Type.NODES_JOINED, True, "Joined", message, group=group, now=now
        )
    missing = counts.desired - counts.joined
    reason = _why_missing(seen, known)
    message = awaiting_message(missing, counts.desired) + _nameless(seen)
    names = ", ".join(entry.name for entry in known.pending if entry.why == reason)
    if reason != Reason.AWAITING_NODE_JOIN:
        message += f"; {names or 'VMs are gone'}. {REASONS[Reason(reason)]}"
    return known.with_condition(Type.NODES_JOINED, False, reason, message, group=group, now=now)


def _why_missing(seen: Seen, known: Status) -> str:
    """The gravest reason among the VMs that have not joined; a loss if the slice was complete."""
    joined = {node.vm for node in seen.proved}
    told = [entry.why for entry in known.pending if entry.name not in joined]
    if told:
        return told[0]
    return Reason.NODE_LOST if known.completed_at else Reason.AWAITING_NODE_JOIN


def _nameless(seen: Seen) -> str:
    """Nodes that joined without saying on which VM, in tpu-operator's words."""
    count = len(list(_without_provider_id(seen)))
    return f" ({count} nodes joined with missing ProviderID)" if count else ""


def _without_provider_id(seen: Seen) -> Iterable[Node]:
    return (
        node
        for node in seen.nodes
        if not node.provider_id and seen.instances.get(node.vm) is not None
    )


def _say_wired(seen: Seen, group: NodeGroup, known: Status, now: datetime) -> Status:
    """Whether the links between the chips are up: a slice of several hosts only."""
    spec = group.spec
    assert spec is not None
    if not spec.is_bulk:
        return known
    if known.counts.ready < known.counts.desired:
        message = "Compute Engine is asked when all nodes are ready"
        return known.with_condition(
            Type.SLICE_WIRED, None, "Incomplete", message, group=group, now=now
        )
    if seen.slice is None:
        return known
    return _say_links(seen.slice, group, known, now)


def _say_links(found: Mig, group: NodeGroup, known: Status, now: datetime) -> Status:
    states = set(found.topologies.values())
    before = known.conditions.get(Type.SLICE_WIRED)
    if states == {"ACTIVE"}:
        said: tuple[bool | None, str, str] = (True, "Active", "The links between the chips are up")
    elif states:
        word = ", ".join(sorted(states))
        said = (False, "NotActive", f"Compute Engine says that the links are {word}")
    elif _is_asked_long(before, now):
        said = (None, "Unknown", "Compute Engine says nothing of the links; not waiting for it")
    else:
        said = (False, "Asking", "Waiting for Compute Engine to say that the links are up")
    status, reason, message = said
    return known.with_condition(Type.SLICE_WIRED, status, reason, message, group=group, now=now)


def _is_asked_long(before: Condition | None, now: datetime) -> bool:
    if before is None:
        return False
    return before.reason == "Unknown" or (
        before.reason == "Asking" and now - before.since >= WIRES_UNKNOWN_AFTER
    )


def _wake_others(seen: Seen, now: datetime) -> Iterator[Action]:
    """Work of other steps that this one has come upon."""
    assert seen.group.spec is not None
    wanted = seen.group.spec.node_count
    bootstraps = seen.group.spec.bootstrap is not None
    stale = tuple(node.vm for node in seen.nodes if bootstraps and _is_stale(seen, node))
    if stale:
        message = message_about(seen.group, Cause.VMS_NEED_TOKENS, now, vms=stale[:BATCH])
        yield Send("inject_token", message)
    is_last = len(seen.proved) >= wanted
    if is_last and not seen.status.is_true(Type.TOKENS_INJECTED):
        yield Send("inject_token", message_about(seen.group, Cause.SYNC, now))
    vms_are_missing = seen.is_complete and len(seen.instances) < wanted
    group = seen.status.resources.get(MIG)
    stands = group is not None and group.state is State.READY
    is_unsaid = is_last and not seen.status.is_true(Type.MIG_READY)
    is_news = vms_are_missing and seen.status.is_true(Type.MIG_READY)
    if stands and (is_news or is_unsaid):
        yield Send("create_resources", message_about(seen.group, Cause.FORWARDED, now))


def _is_stale(seen: Seen, node: Node) -> bool:
    """A Node of a predecessor of its VM: inject_token removes it and lets the VM join."""
    instance = seen.instances.get(node.vm)
    return instance is not None and _is_of_predecessor(seen.group, node, instance)


def _complaints(seen: Seen) -> Iterator[Action]:
    for node in _without_provider_id(seen):
        text = f"Node {node.name} joined without a ProviderID"
        yield Emit(Event("MissingProviderID", text, is_warning=True), node.raw)
