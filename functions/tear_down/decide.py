"""What of a deleted group to delete next."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from functions.tear_down import observe
from functions.tear_down.actions import DeleteResources, RemoveFinalizer, RevokeTokens
from shared.base.names import FINALIZER
from shared.base.reasons import REASONS, Reason
from shared.frame.plan import Action, Each, Plan, Send
from shared.node_groups import readiness, recovery
from shared.node_groups.actions import DeleteNode, PatchNode
from shared.node_groups.lifecycle import ResourceAction, Transition, begin_deletion
from shared.node_groups.membership import build_node_patch, may_match
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import MIG, Counts, Resource, State, Status, Type
from shared.node_groups.unreadable import list_remaining, restore_entries
from shared.node_groups.work import GroupWork, WriteStatus, message_about
from shared.ports.gce.values import Mig
from shared.triggers import routes
from shared.triggers.message import Cause


def decide(observed: observe.Observed, now: datetime) -> Plan:
    """Decide what to delete next."""
    if isinstance(observed, observe.ObservedBeginning):
        return _plan_beginning(observed, now)
    group = observed.group
    if group.deleting is None:
        return _plan_repair(observed, now)
    if not group.has_finalizer:
        return Plan("NoFinalizer")
    if isinstance(observed, observe.UnreadableRemains):
        return _plan_unreadable(observed, now)
    transitions = _advance_all(observed, now)
    if transitions[MIG].resource.state is not State.GONE:
        return _plan_delete_of_mig(observed, transitions, now)
    return _plan_delete_of_rest(observed, transitions, now)


def find_gone(work: GroupWork) -> dict[str, Resource]:
    """The entries of the resources that are gone: as observed or, if the observation has failed, as the
    status has them, if tear_down has written it."""
    group, observed = work.group, work.observed
    if isinstance(observed, observe.ObservedRemains):
        transitions = _advance_all(observed, work.now)
        found = ((kind, one.resource) for kind, one in transitions.items())
        return {kind: entry for kind, entry in found if entry.state is State.GONE}
    if not isinstance(group, NodeGroup) or not observe.is_deletion_begun(group, work.status):
        return {}
    entries = work.status.resources.items()
    return {kind: entry for kind, entry in entries if entry.state is State.GONE}


def _plan_beginning(observed: observe.ObservedBeginning, now: datetime) -> Plan:
    """Report the deletion, revoke the group's tokens if a VM has no proved Node, cordon the Nodes."""
    group, known = observed.group, observed.status
    joined = len(observe.list_proved(group, observed.nodes))
    cordons = [
        PatchNode(node.name, node.uid, {"spec": {"unschedulable": True}})
        for node in observed.vm_nodes
        if not node.is_unschedulable
    ]
    first: list[Action] = []
    if not observe.is_deletion_begun(group, known):
        # The first status of the deletion is without the errors of the creation.
        resources = begin_deletion(known.resources, group.resource_name, now)
        counts = known.counts if observed.note else replace(known.counts, joined=joined)
        known = replace(
            known, observed_generation=group.generation, resources=resources, counts=counts
        )
        first.append(WriteStatus(readiness.conclude(group, known, now)))
        if group.spec.joins_with_tokens and joined < group.spec.node_count:
            first.append(RevokeTokens())
    return Plan(
        "Cordoning",
        first=tuple(first),
        best_effort=tuple(cordons),
        again="the status is written; cordoning is best effort",
        note=observed.note,
        facts={"cordons": len(cordons)},
    )


def _plan_repair(observed: observe.Observed, now: datetime) -> Plan:
    """Delete the MIG of a lost slice, then its Nodes. create_resources creates it again."""
    group, known = observed.group, observed.status
    message = message_about(group, Cause.FORWARDED, now)
    forward = (Send(routes.CREATE_RESOURCES, (message,)),)
    if not isinstance(observed, observe.ObservedRemains) or MIG not in observed.found:
        return Plan("NotDeleted", best_effort=forward)
    spec, found = observed.group.spec, observed.found[MIG]
    own = found if isinstance(found, Mig) and found.description == observed.group.mark else None
    delete = DeleteResources((MIG,), spec)
    is_lost = recovery.is_lost(observed.group, found, observed.members)
    if not recovery.is_repair_begun(group, known):
        if not is_lost:
            if own is not None and not own.is_stable:
                return Plan("Waiting")  # for Compute Engine, which may be restoring the slice
            return Plan("NotLost", best_effort=forward)
        write = WriteStatus(readiness.conclude(group, recovery.begin_repair(known, now), now))
        # A slice that was never complete has VMs with valid tokens.
        revoke = (RevokeTokens(),) if spec.joins_with_tokens else ()
        return Plan("Repairing", first=(write, *revoke, delete))
    mig = observe.advance(observed, MIG, now)
    if mig.resource.state is State.GONE:
        rest = message_about(group, Cause.CONTINUED, now)
        nodes = tuple(_plan_nodes(observed))
        # The entry stays Deleting, so that a message that continues deletes the other Nodes.
        known = known.with_resource(MIG, replace(known.resources[MIG], error=None))
        known = replace(known, counts=Counts(known.counts.desired))
        write = WriteStatus(readiness.conclude(group, known, now))
        rebuild = () if observed.has_unread_vms else forward  # the sweep repeats this step
        return Plan("Recreating", first=(write,), each=nodes, resume=rest, if_all_succeeded=rebuild)
    is_delete_due = mig.action is ResourceAction.DELETE
    is_new = own is not None and own.waits_as_a_whole
    if is_delete_due and not is_lost and (observed.members or is_new):
        # The status is older than the MIG (the cluster was restored), or the VMs run again.
        known = known.with_resource(MIG, known.resources[MIG].enter(State.READY, now))
        write = WriteStatus(readiness.conclude(group, known, now))
        return Plan("NotLost", first=(write,), best_effort=forward)
    write = WriteStatus(readiness.conclude(group, known.with_resource(MIG, mig.resource), now))
    is_empty = own is not None and own.is_stable and not observed.members
    if is_delete_due and (is_lost or is_empty):
        return Plan("Repairing", first=(write, delete))
    return Plan(_name_wait([mig]), first=(write,))


def _plan_nodes(observed: observe.ObservedRemains) -> Iterator[Each]:
    """Delete the Nodes whose VMs are gone with the MIG."""
    for node in observed.nodes:
        is_left = node.is_deleting or node.vm in observed.vms_left
        if may_match(observed.group, node) and not is_left:
            yield Each(node.name, (DeleteNode(node.name, node.uid),))


def _plan_unreadable(observed: observe.UnreadableRemains, now: datetime) -> Plan:
    """Remove the finalizer if the status has no resource that may exist.

    Otherwise a user must delete the resources and then remove the finalizer: ``Ready`` says which. This
    step cannot see whether they are gone, since it does not know their project and zone.
    """
    known = restore_entries(observed.group, observed.status, now)
    if not list_remaining(observed.group, known):
        return Plan("Done", first=(RemoveFinalizer(),))
    write = WriteStatus(readiness.conclude(observed.group, known, now))
    note = "; ".join(map(str, observed.group.violations))
    return Plan("Unreadable", first=(write,), note=note)


def _advance_all(observed: observe.ObservedRemains, now: datetime) -> dict[str, Transition]:
    mig = observe.advance(observed, MIG, now)
    is_blocked = mig.resource.state is not State.GONE
    _, *kinds = observe.list_kinds(observed.group, observed.status)
    return {MIG: mig} | {
        kind: observe.advance(observed, kind, now, is_blocked=is_blocked) for kind in kinds
    }


def _plan_delete_of_mig(
    observed: observe.ObservedRemains, transitions: Mapping[str, Transition], now: datetime
) -> Plan:
    note, write = "; ".join(observed.notes), _build_status(observed, transitions, now)
    if transitions[MIG].action is not ResourceAction.DELETE:
        return Plan(_name_wait([transitions[MIG]]), first=(write,), note=note)
    return Plan(
        "DeletingMIG",
        first=(write, DeleteResources((MIG,), observed.group.spec)),
        best_effort=tuple(_plan_labels(observed)),
        note=note,
    )


def _name_wait(transitions: Iterable[Transition]) -> str:
    """The outcome while nothing is deleted, by what is left."""
    left = [one for one in transitions if one.resource.state is not State.GONE]
    for one in left:
        # An insert may be in progress: also if the last one was rejected, since another invocation may
        # have begun the next. With the action REPORT, the resource was found.
        is_uncreated = one.resource.state in (State.PENDING, State.FAILED, State.CREATING)
        if is_uncreated and one.action is not ResourceAction.REPORT:
            return "AwaitingCreate"
    return "DeleteFailed" if any(one.resource.error for one in left) else "AwaitingDelete"


def _plan_labels(observed: observe.ObservedRemains) -> Iterator[PatchNode]:
    """Label and cordon the Nodes of the VMs that were read, as far as something is missing.

    The patch sets the resource-name label, too, by which Nodes are listed at the end. The Nodes need not
    match their VMs (`membership.is_match`): both are about to be deleted.
    """
    vms = {instance.name: instance for instance in observed.instances}
    machine_type = observed.status.machine_type
    for node in observed.nodes:
        if node.vm not in vms or not may_match(observed.group, node):
            continue
        patch = dict(build_node_patch(observed.group, node, machine_type, vms[node.vm]))
        if not node.is_unschedulable:
            patch["spec"] = {**patch.get("spec", {}), "unschedulable": True}
        if patch:
            yield PatchNode(node.name, node.uid, patch)


def _plan_delete_of_rest(
    observed: observe.ObservedRemains, transitions: Mapping[str, Transition], now: datetime
) -> Plan:
    group, write = observed.group, _build_status(observed, transitions, now)
    nodes = tuple(_plan_nodes(observed))
    rest = message_about(observed.group, Cause.CONTINUED, now)
    is_all_gone = all(one.resource.state is State.GONE for one in transitions.values())
    # Nodes that another invocation may be deleting are left to it. A resync then stops before the
    # finalizer. The event about the last delete deletes the Nodes, too: after it, only a resync would
    # remove the finalizer.
    if nodes and observed.are_nodes_being_deleted(now) and (observed.is_resync or not is_all_gone):
        if is_all_gone:
            return Plan("AwaitingNodes", first=(write,))
        nodes = ()
    if is_all_gone:
        if observed.has_unread_vms:
            return Plan("AwaitingNodes", first=(write,), each=nodes, resume=rest)
        # The VMs are gone, so inject_token writes no other token. An invocation that read a VM before
        # may still create a Secret, which is valid for an hour at most.
        revocations = (RevokeTokens(),) if observed.group.spec.joins_with_tokens else ()
        reports = _report_others(group, write.status, now)
        # A status is of use only if a failure or the time stops the plan at the Nodes: otherwise
        # the group is gone after it.
        return Plan(
            "Done",
            first=(write,) if nodes else (),
            each=nodes,
            resume=rest,
            if_all_succeeded=(*revocations, *reports, RemoveFinalizer()),
        )
    kinds = tuple(
        kind
        for kind, transition in transitions.items()
        if transition.action is ResourceAction.DELETE
    )
    return Plan(
        "DeletingRest" if kinds else _name_wait(transitions.values()),
        first=(write, DeleteResources(kinds, observed.group.spec)) if kinds else (write,),
        each=nodes,
        resume=rest,
    )


def _report_others(group: NodeGroup, known: Status, now: datetime) -> Iterator[WriteStatus]:
    """Report who keeps the object. No step writes its status after this."""
    others = [name for name in group.finalizers if name != FINALIZER]
    if others:
        reason = Reason.OTHER_FINALIZERS
        text = f"{', '.join(others)}: {REASONS[reason]}"
        yield WriteStatus(known.with_condition(Type.READY, False, reason, text, group, now))


def _build_status(
    observed: observe.ObservedRemains, transitions: Mapping[str, Transition], now: datetime
) -> WriteStatus:
    known = observed.status
    resources = {kind: transition.resource for kind, transition in transitions.items()}
    if resources[MIG].state is State.GONE:
        known = replace(known, counts=Counts(known.counts.desired), pending=())
    known = replace(
        known,
        observed_generation=observed.group.generation,
        resources={**known.resources, **resources},
    )
    return WriteStatus(readiness.conclude(observed.group, known, now))
