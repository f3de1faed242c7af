"""The VMs of a group that may need a token, with the Nodes of their names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from shared.base.names import CA_HASH_KEY, TOKEN_KEY
from shared.node_groups.bootstrap import Token, ca_hash, find_token, new_token
from shared.node_groups.membership import (
    find_token_of_this_start,
    had_node,
    is_stale,
    mark_members,
    may_match,
)
from shared.node_groups.node_group import AnyGroup, Bootstrap, NodeGroup
from shared.node_groups.recovery import is_repair_begun
from shared.node_groups.status import Status, Type
from shared.node_groups.work import GroupWork
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.nodes import Node
from shared.triggers.message import BATCH
from shared.triggers.trigger import LogTrigger, Trigger

UNUSED_AFTER = timedelta(minutes=2)
"""A token this old whose VM has not joined may lack its Secret: an invocation may have ended before it
created the Secret."""
_NODES_KEPT = timedelta(seconds=10)
"""To delete a VM and insert another takes longer (in one sample the insert alone took 10.6 s): a list of
this age has each Node that the VM's predecessor left."""
READING_SHARE = 1 / 3
"""The share of the time for calls that reading may take: writing needs at least as many calls."""


@dataclass(frozen=True)
class Vm:
    """A VM of the group and the Node of its name, as far as they exist."""

    instance: Instance
    node: Node | None
    token: Token | None
    """The token in its metadata, which may have expired; ``None`` if there is none that this system has
    written (`find_token`)."""

    is_node_stale: bool = False
    """The Node remains from an earlier VM with this name."""
    had_node: bool = False
    """It certainly had a Node since it was last started: its kubelet needs no token to return."""

    @property
    def has_joined(self) -> bool:
        """Whether there is or was a Node of its name that is not stale. Only the VM can have registered
        it: an admission policy reserves such names (in infra/chart). label_node asks more of a
        Node (`membership.is_match`), and sends a message if the Node turns out to be stale."""
        return self.had_node if self.node is None else not self.is_node_stale


@dataclass(frozen=True)
class ObservedVms:
    """The VMs that the trigger names, or all VMs of the group on a resync.

    ``fresh`` has a new token for each VM that may need one: decisions are pure, so randomness is part of
    the observation.
    """

    group: NodeGroup
    bootstrap: Bootstrap
    status: Status
    trigger: Trigger
    vms: tuple[Vm, ...] = ()
    fresh: Mapping[str, Token] = field(default_factory=dict)
    ca_hash: str = field(default="", repr=False)
    unread: tuple[str, ...] = ()
    """The names of VMs that there was no time to read."""
    is_repetition: bool = False
    errors: tuple[CallError | OutOfTimeError, ...] = ()
    """The errors of VMs that could not be read."""
    have_all_joined: bool = False
    """Whether the status or the labels of enough Nodes record that the VMs have joined: then no VM was
    read."""
    injects_at_once: bool = False
    """Whether a resync injects the tokens itself: messages would read the VMs once more."""


@dataclass(frozen=True)
class NothingToInject:
    """A group whose VMs get no tokens: it is being deleted, or they join by other means.

    ``can_be_served`` is false if its spec cannot be read, or this installation does not serve its
    project.
    """

    group: AnyGroup
    status: Status
    trigger: Trigger
    can_be_served: bool = True


def observe(work: GroupWork) -> ObservedVms | NothingToInject:
    """Read the VMs and the Nodes of their names."""
    group, known = work.group, work.status
    if not isinstance(group, NodeGroup) or not work.settings.serves(group.spec.project):
        return NothingToInject(group, known, work.trigger, can_be_served=False)
    bootstrap = group.spec.bootstrap
    is_ending = group.deleting is not None or is_repair_begun(group, known)
    if is_ending or bootstrap is None:
        return NothingToInject(group, known, work.trigger)
    if not work.trigger.vms:
        return _list_vms(work, ObservedVms(group, bootstrap, known, work.trigger))
    vms, unread, errors = _read_named_vms(work, group)
    observed = ObservedVms(group, bootstrap, known, work.trigger, vms, unread=unread, errors=errors)
    return _add_secrets(work, replace(observed, is_repetition=work.is_repetition))


def _add_secrets(work: GroupWork, observed: ObservedVms) -> ObservedVms:
    """Add new tokens and the hash of the CA, without which no token is injected."""
    if not observed.vms:
        return observed
    fresh = {vm.instance.name: new_token(work.random_bytes, work.now) for vm in observed.vms}
    return replace(observed, fresh=fresh, ca_hash=_get_ca_hash(work, observed.vms))


def _get_ca_hash(work: GroupWork, vms: Sequence[Vm]) -> str:
    """The hash of the cluster's CA. It is read again if a VM has another one: then the CA that is kept
    may be from before a rotation, and another process has written the new one."""
    found = _read_ca_hash(work)
    if all(vm.instance.metadata.get(CA_HASH_KEY, found) == found for vm in vms):
        return found
    work.cluster.forget_ca_certificate()
    return _read_ca_hash(work)


def _read_ca_hash(work: GroupWork) -> str:
    try:
        return ca_hash(work.cluster.get_ca_certificate(work.now))
    except ValueError as error:
        work.cluster.forget_ca_certificate()
        raise CallError("read the cluster's CA", 422, "Invalid", str(error)) from error


def _read_named_vms(
    work: GroupWork, group: NodeGroup
) -> tuple[tuple[Vm, ...], tuple[str, ...], tuple[CallError | OutOfTimeError, ...]]:
    """The VMs, the names of those that there was no time to read, and the errors of the others.

    The first VM is always read, so each invocation makes progress, however slow the calls are.
    """
    found: dict[str, tuple[Instance, Node | None]] = {}
    errors: list[CallError | OutOfTimeError] = []
    names, unread = work.trigger.vms, tuple[str, ...]()
    with work.reserve(work.remaining_s() * (1 - READING_SHARE)):
        for index, name in enumerate(names):
            if index and not work.has_time():
                unread = names[index:]
                break
            try:
                instance = work.gce.find_instance(group.spec.project, group.spec.zone, name)
                if instance is None or _is_duplicate(work, instance):
                    continue
                node = _find_node(work, group, instance)
            except CallError as error:
                errors.append(error.of(name))
            except OutOfTimeError as error:
                errors.append(OutOfTimeError(f"{name}: {error}"))
            else:
                found[name] = instance, node
    instances = {name: instance for name, (instance, _) in found.items()}
    nodes = {name: node for name, (_, node) in found.items() if node is not None}
    return _build_vms(work, group, instances, nodes), unread, tuple(errors)


def _is_duplicate(work: GroupWork, instance: Instance) -> bool:
    """Whether another delivery of this event has given the VM its token, or does so now. If that is
    interrupted, its message is redelivered, and later a resync finds the token unused."""
    trigger, token = work.trigger, find_token(instance.metadata, work.now)
    if not isinstance(trigger, LogTrigger) or not trigger.is_first_attempt or work.is_repetition:
        return False
    if token is None:
        return work.gce.is_being_written(instance, work.now)
    is_young = work.now - token.given < UNUSED_AFTER
    return is_young and find_token_of_this_start(instance, work.now) is not None


def _find_node(work: GroupWork, group: NodeGroup, instance: Instance) -> Node | None:
    """The Node of the VM's name. While the VMs of a new group are created, it is searched for in one
    list: kubelets register with the label. Later the label of a stale Node may have been removed."""
    name, known = instance.name, work.status
    is_new = known.completed_at is None and known.counts.joined == 0
    has_token = TOKEN_KEY in instance.metadata or work.is_repetition
    if not is_new or has_token or not isinstance(work.trigger, LogTrigger):
        return work.cluster.find_node(name)
    place = group.resource_name, group.spec.node_count
    nodes = work.cluster.list_recent_nodes(*place, work.now, _NODES_KEPT)
    return next((node for node in nodes if node.name == name), None)


def _build_vms(
    work: GroupWork,
    group: NodeGroup,
    instances: Mapping[str, Instance],
    nodes: Mapping[str, Node],
) -> tuple[Vm, ...]:
    """The VMs that the MIG lists as its members. A new one may not be listed yet: the next resync
    injects its token."""
    marked = mark_members(work, group, instances, nodes.values())
    members = [vm for vm in marked.values() if vm is not None and vm.is_member]
    return tuple(
        Vm(
            instance,
            node := nodes.get(instance.name),
            find_token(instance.metadata, work.now),
            node is not None and is_stale(group, node, instance),
            had_node(group, work.status, instance, work.now),
        )
        for instance in members
    )


def _list_vms(work: GroupWork, unread: ObservedVms) -> ObservedVms:
    group, spec, name = unread.group, unread.group.spec, unread.group.resource_name
    known, desired = unread.status, spec.node_count
    # label_node has just counted them, and asks for the condition.
    is_new = known.is_true(Type.NODES_JOINED) and not known.is_true(Type.TOKENS_INJECTED)
    if is_new and known.counts.joined >= desired:
        return replace(unread, have_all_joined=True)
    nodes = {node.vm: node for node in work.cluster.list_nodes(name, desired)}
    joined = [one for one in nodes.values() if one.proved_vm_id and may_match(group, one)]
    if sum(not node.is_silent for node in joined) >= desired:
        return replace(unread, have_all_joined=True)
    place = spec.project, spec.zone, name
    listed = {vm.name: vm for vm in work.gce.list_instances(*place, desired)}
    is_retried = any(retry.step == work.step for retry in work.status.retries)
    if not is_retried or len(listed) > BATCH:
        return replace(unread, vms=_build_vms(work, group, listed, nodes))
    # After a transient error, such as a rate limit, their tokens are injected now. A Node may lack the
    # label.
    for vm in sorted(listed.keys() - nodes.keys()):
        node = work.cluster.find_node(vm)
        if node is not None:
            nodes[vm] = node
    vms = _build_vms(work, group, listed, nodes)
    return _add_secrets(work, replace(unread, vms=vms, injects_at_once=True))
