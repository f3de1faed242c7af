"""What label_node does: pure, from what it has observed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice

from functions.label_node import health, interconnect, join_report
from functions.label_node.observe import NothingToCount
from functions.label_node.observed_nodes import ObservedNodes
from shared.frame.plan import Action, Each, Emit, Plan, Send
from shared.node_groups import readiness
from shared.node_groups.actions import DeleteNode, DeleteSecret, PatchNode
from shared.node_groups.bootstrap import find_token
from shared.node_groups.membership import (
    find_vm_of_misnamed,
    is_of_predecessor,
    may_be_own,
    proof_patch,
)
from shared.node_groups.status import MIG, State, Type
from shared.node_groups.work import WriteStatus, message_about
from shared.ports.kubernetes.events import Event
from shared.ports.kubernetes.nodes import Node
from shared.triggers import routes
from shared.triggers.message import BATCH, Cause
from shared.triggers.trigger import Trigger


def decide(observed: ObservedNodes | NothingToCount, now: datetime) -> Plan:
    """Decide what to do to the Nodes, and what the status reports."""
    if isinstance(observed, NothingToCount):
        return _decide_without_count(observed, now)
    nodes = tuple(
        Each(node.name, actions)
        for node in _order_nodes(observed.nodes, observed.trigger)
        if (actions := tuple(_plan_node(observed, node, now)))
    )
    rest = message_about(observed.group, Cause.CONTINUED, now)
    if observed.is_debounced:
        return Plan("Debounced", each=nodes, resume=rest)
    return Plan(
        _name_outcome(observed),
        each=nodes,
        resume=rest,
        after=(_build_status(observed, now), *_list_node_events(observed)),
        best_effort=tuple(_plan_triggers(observed, now)),
    )


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
    return Plan("NotServed", best_effort=(Send(routes.CREATE_RESOURCES, (message,)),))


def _order_nodes(nodes: Iterable[Node], trigger: Trigger) -> list[Node]:
    """The Nodes in the order of the plan: those that the trigger names, then the others by name.

    A message that continues a plan names Nodes that are left. There may be more of them than a message
    has room for (`message.MAX_NAMES`), so this plan goes on with all Nodes from the first name on. At
    least one Node has its actions executed, so each message begins at a later name, and the sequence
    ends even if the actions have no effect. Only the VMs of the named Nodes, and of Nodes without proof,
    are read. The others are only labelled: a resync deletes those whose VMs are gone.
    """
    if trigger.cause == Cause.CONTINUED:
        first = min(trigger.nodes, default="")
        return sorted((node for node in nodes if node.name >= first), key=lambda node: node.name)
    named = set(trigger.nodes)
    return sorted(nodes, key=lambda node: (node.name not in named, node.name))


def _plan_node(observed: ObservedNodes, node: Node, now: datetime) -> Iterator[Action]:
    if node.vm in observed.instances and observed.instances[node.vm] is None:
        if may_be_own(observed.group, node):
            yield DeleteNode(node.name, node.uid)
    elif observed.is_own(node):  # it matches its VM, or is proved and the VM was not read
        yield from _plan_proof(observed, node, now)


def _plan_proof(observed: ObservedNodes, node: Node, now: datetime) -> Iterator[Action]:
    """Revoke the VM's token, then label the Node. For a proved Node nothing is revoked any more, so the
    token would remain if the order were reversed and the second call failed."""
    instance = observed.instances.get(node.vm)
    with_tokens = observed.group.spec.joins_with_tokens  # otherwise the metadata may name any token
    if with_tokens and instance is not None and node.proved_vm_id != instance.id:
        token = find_token(instance.metadata, now)
        if token is not None:
            yield DeleteSecret(token.id, node.vm)
    patch = proof_patch(observed.group, node, observed.status.machine_type, instance)
    if patch:
        yield PatchNode(node.name, node.uid, patch)


def _name_outcome(observed: ObservedNodes) -> str:
    desired = observed.group.spec.node_count
    if len(observed.ready) >= desired:
        return "AllReady"
    return "AllJoined" if len(observed.joined) >= desired else "Counting"


def _build_status(observed: ObservedNodes, now: datetime) -> WriteStatus:
    group = observed.group
    known = health.count(observed, now)
    known = join_report.add_condition(observed, known, now)
    known = interconnect.add_condition(observed.mig, group, known, now)
    return WriteStatus(readiness.conclude(group, known, now))


def _plan_triggers(observed: ObservedNodes, now: datetime) -> Iterator[Action]:
    """Trigger the steps whose conditions contradict what this step has observed."""
    known, desired = observed.status, observed.group.spec.node_count
    with_tokens = observed.group.spec.joins_with_tokens
    stale = tuple(node.vm for node in observed.nodes if with_tokens and _is_stale(observed, node))
    if stale:
        message = message_about(observed.group, Cause.VMS_NEED_TOKENS, now, vms=stale[:BATCH])
        yield Send(routes.INJECT_TOKEN, (message,))
    have_all_joined = len(observed.joined) >= desired
    if have_all_joined and not known.is_true(Type.TOKENS_INJECTED):
        yield Send(routes.INJECT_TOKEN, (message_about(observed.group, Cause.RESYNC, now),))
    are_vms_missing = observed.has_all_vms and len(observed.vms) < desired
    mig = known.resources.get(MIG)
    if mig is None or mig.state is not State.READY:
        return
    is_contradicted_by_vms = known.is_true(Type.MIG_READY) and are_vms_missing
    is_contradicted_by_nodes = not known.is_true(Type.MIG_READY) and have_all_joined
    if is_contradicted_by_vms or is_contradicted_by_nodes:
        yield Send(routes.CREATE_RESOURCES, (message_about(observed.group, Cause.FORWARDED, now),))


def _is_stale(observed: ObservedNodes, node: Node) -> bool:
    """Whether a Node is of a predecessor of its VM: inject_token deletes it, so that the VM can join."""
    instance = observed.instances.get(node.vm)
    return instance is not None and is_of_predecessor(observed.group, node, instance)


def _list_node_events(observed: ObservedNodes) -> Iterator[Action]:
    """The Events on Nodes that do not count, at most `BATCH` of each kind: all Nodes of a large slice
    may have the same defect, and the group's own Events are written after these."""
    yield from islice(_list_nameless(observed), BATCH)
    yield from islice(_list_misnamed(observed), BATCH)


def _list_nameless(observed: ObservedNodes) -> Iterator[Emit]:
    for node in observed.without_provider_id():
        text = f"Node {node.name} joined without a ProviderID"
        yield Emit(Event("MissingProviderID", text, is_warning=True), node.raw, once=True)


def _list_misnamed(observed: ObservedNodes) -> Iterator[Emit]:
    for node in observed.nodes:
        vm = find_vm_of_misnamed(observed.group, node)
        if vm is not None:
            text = (
                f"Node {node.name} names VM {vm} in its ProviderID, but a Node must have its VM's "
                f"name: it is not counted, and not deleted with the group. Delete it and register "
                f"the kubelet as {vm} (--hostname-override; kubeadm: nodeRegistration.name)."
            )
            yield Emit(Event("NodeNameMismatch", text, is_warning=True), node.raw, once=True)
