"""tear_down: delete all resources of a deleted TPUNodeGroup, then remove its finalizer.

Triggers:

- The group got its deletionTimestamp, or its finalizers changed since.
- A delete of its MIG, template or policy ended.
- A resync.
- A message of create_resources, which was triggered about a group that is being deleted.
- A message of the step itself, which continues the deletion of Nodes.

The first plan writes the status, revokes tokens and cordons Nodes. That needs no call to Compute Engine.
Then the step observes again, with another 30 seconds for calls, and deletes the MIG with its VMs. VMs
cost money, so their delete does not wait for Nodes or tokens: only the write of the status must succeed.
When the MIG is gone, template and policy are deleted, and the Node objects. When template and policy
are gone and no delete of a Node fails, the remaining tokens are revoked and the finalizer is removed.
Each invocation continues up to the next operation that takes time.

`lifecycle.TABLE` decides when a resource is gone. One of these must hold:

- It was never inserted.
- It is not found, and no insert can still create it: it has existed before, or the operation of its
  insert has failed, or 150 seconds have passed since its entry became Creating (or was set back after an
  insert was rejected).
- The resource of its name was never ours. That one is not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto

from shared.base.names import MIGS
from shared.base.reasons import REASONS, Reason
from shared.frame.plan import Action, Attempt, Batch, NamedAction, ObserveAgain, Plan, Resume, Send
from shared.frame.snapshot import Rules, whole
from shared.frame.step import SECONDS_FOR_OTHER_CALLS, Step
from shared.node_groups import readiness
from shared.node_groups.actions import (
    Delete,
    DeleteNode,
    PatchNode,
    RemoveFinalizer,
    RevokeTokens,
    WriteResults,
)
from shared.node_groups.lifecycle import (
    Goal,
    ResourceAction,
    Transition,
    announce_deletion,
    find_transition,
    is_surely_absent,
    make_observation,
)
from shared.node_groups.membership import may_be_own, proof_patch
from shared.node_groups.node_group import NodeGroup, Spec, UnreadableGroup
from shared.node_groups.resources import KINDS, Found, find_kind
from shared.node_groups.snapshot import RULES
from shared.node_groups.status import (
    MIG,
    TEMPLATE,
    Counts,
    Resource,
    State,
    Status,
    Type,
)
from shared.node_groups.unreadable import list_remaining, restore_entries
from shared.node_groups.work import (
    GroupWork,
    WriteStatus,
    message_about,
    open_group,
    report_environment_error,
    report_retry,
)
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce.values import Instance, Operation
from shared.ports.kubernetes.nodes import Node, parse_node
from shared.triggers.message import Cause


class Stage(Enum):
    """How far a deletion is, by the status. The members are in the order of the deletion."""

    UNANNOUNCED = auto()
    """tear_down has not written the status of this deletion yet. A resource may be GONE in the status
    all the same: create_resources writes that if somebody else has deleted it from a complete slice.
    That may be outdated, so `announce_deletion` resets the entry, and the resource is read again."""
    ANNOUNCED = auto()
    """The status is written, and no operation of a delete is recorded. The MIG's entry is Deleting if
    the MIG existed. Otherwise it is unchanged, such as Creating with the operation of the insert."""
    DELETING_MIG = auto()
    MIG_GONE = auto()


@dataclass(frozen=True)
class ObservedRemains:
    """A group and its resources. ``found`` and ``operations`` have only what was read, and ``None`` for
    a resource that surely does not exist (`lifecycle.is_surely_absent`)."""

    group: NodeGroup
    status: Status
    found: Mapping[str, Found | None] = field(default_factory=dict)
    operations: Mapping[str, Operation | None] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()
    instances: tuple[Instance, ...] = ()
    is_resync: bool = False
    """Whether the trigger is a resync. Only then a failed delete is retried. The end of a failed delete
    triggers the step, too: if that retried it, retries would follow each other immediately."""
    notes: tuple[str, ...] = ()
    """Errors of reads without which the deletion continues."""

    def resource(self, kind: str, now: datetime) -> Resource:
        """The entry of a resource. Without one, an insert may be in progress: Creating since now."""
        entry = self.status.resources.get(kind)
        return entry or Resource(self.group.resource_name, State.CREATING, now)


@dataclass(frozen=True)
class ObservedBeginning:
    """A group whose MIG's delete has not begun, and its Nodes.

    ``note`` is the error if the Nodes could not be read.
    """

    group: NodeGroup
    status: Status
    nodes: tuple[Node, ...] = ()
    note: str = ""

    @property
    def vm_nodes(self) -> list[Node]:
        """The Nodes that may be those of the group's VMs (`may_be_own`), sorted by name."""
        found = (node for node in self.nodes if may_be_own(self.group, node))
        return sorted(found, key=lambda node: node.name)

    @property
    def is_prepared(self) -> bool:
        """Whether nothing is left to prepare. Otherwise one attempt is made before the MIG's delete."""
        all_cordoned = all(node.is_unschedulable for node in self.vm_nodes)
        return is_announced(self.group, self.status) and all_cordoned and not self.note


@dataclass(frozen=True)
class UnreadableRemains:
    """A group whose spec cannot be read."""

    group: UnreadableGroup
    status: Status


Observed = ObservedBeginning | ObservedRemains | UnreadableRemains


def observe(work: GroupWork) -> Observed:
    """Read what is left of the group, in the order of its deletion."""
    group = work.group
    if isinstance(group, UnreadableGroup):
        return UnreadableRemains(group, work.status)
    observed = ObservedRemains(group, work.status, is_resync=work.trigger.is_resync)
    if group.deleting is None or not group.has_finalizer:
        return observed
    stage = find_stage(group, work.status)
    # The status must be written first. After that, each invocation tries once to cordon what is left;
    # its second observation goes on, whatever is left.
    if stage is Stage.UNANNOUNCED or (stage is Stage.ANNOUNCED and work.is_first_observation):
        beginning = _observe_beginning(work, group)
        if not beginning.is_prepared:
            return beginning
        observed = replace(observed, nodes=beginning.nodes)
    if stage is not Stage.MIG_GONE:
        observed = _observe_resource(work, observed, MIG)
        is_gone = _advance(observed, MIG, work.now).resource.state is State.GONE
        if observed.found.get(MIG) is not None and not is_gone:
            is_begun = stage is Stage.DELETING_MIG
            return observed if is_begun else _observe_nodes_and_vms(work, observed)
    # The MIG was not found, now or before, or was never ours. If it may still arrive, nothing is deleted
    # yet: then these reads only show what is gone already.
    for kind in _list_kinds_after_mig(group.spec):
        if not _is_gone(work.status, kind) and _concerns(work, kind):
            observed = _observe_resource(work, observed, kind)
    return replace(observed, nodes=_list_nodes(work))


def decide(observed: Observed, now: datetime) -> Plan:
    """Decide what to delete next."""
    if isinstance(observed, ObservedBeginning):
        return _begin(observed, now)
    group = observed.group
    if group.deleting is None:
        message = message_about(group, Cause.FORWARDED, now)
        return Plan("NotDeleted", (Send("create_resources", (message,)),))
    if not group.has_finalizer:
        return Plan("NoFinalizer")
    if isinstance(observed, UnreadableRemains):
        return _finish_unreadable(observed, now)
    transitions = _advance_all(observed, now)
    if transitions[MIG].resource.state is not State.GONE:
        return _delete_mig(observed, transitions, now)
    return _delete_rest(observed, transitions, now)


def recover(work: GroupWork, error: CallError) -> Plan | None:
    """Report an environment error.

    An error about Nodes, or one after all resources are gone, is reported in NodesJoined; one of Compute
    Engine in the entry of the resource that the call was about; any other in that of the resource that
    is deleted next.
    """
    group, now, gone = work.group, work.now, _find_gone(work)
    kinds = (MIG, *_list_kinds_after_mig(group.spec)) if isinstance(group, NodeGroup) else ()
    left = [kind for kind in kinds if kind not in gone]

    def add_error(known: Status, reason: Reason) -> Status:
        # The failed plan may have ended before it wrote which resources are gone.
        known = replace(known, resources={**known.resources, **gone})
        about = find_kind(error.call)
        kind = about if about in left else next(iter(left), None)
        message = f"{error.message} ({error.call}). {REASONS[reason]}"
        if kind is None or "/api/v1/nodes" in error.call:
            return known.with_condition(
                Type.NODES_JOINED, False, reason, message, group=group, now=now
            )
        resource = known.resources.get(kind) or Resource(group.resource_name, State.CREATING, now)
        return known.with_resource(kind, resource.with_error(reason, error.reason, message, now))

    return report_environment_error(work, error, add_error)


SNAPSHOT: Rules = {
    **RULES,
    (ObservedRemains, "found"): whole,
    (ObservedRemains, "operations"): whole,
}
STEP = Step(
    "tear_down", open_group, observe, decide, recover, give_up=report_retry, snapshot=SNAPSHOT
)
run = STEP.run


def _find_gone(work: GroupWork) -> dict[str, Resource]:
    """The entries of the resources that are gone: as observed or, if the observation has failed, by the
    status."""
    group, observed = work.group, work.observed
    if isinstance(observed, ObservedRemains):
        transitions = _advance_all(observed, work.now)
        found = ((kind, one.resource) for kind, one in transitions.items())
        return {kind: entry for kind, entry in found if entry.state is State.GONE}
    if not isinstance(group, NodeGroup) or not is_announced(group, work.status):
        return {}
    entries = work.status.resources.items()
    return {kind: entry for kind, entry in entries if entry.state is State.GONE}


def is_announced(group: NodeGroup, known: Status) -> bool:
    """Whether tear_down has written the status of the deletion.

    A deletion increments the generation, and only tear_down then writes observedGeneration.
    """
    return known.observed_generation == group.generation


def find_stage(group: NodeGroup, known: Status) -> Stage:
    """How far the deletion is, by the status."""
    if not is_announced(group, known):
        return Stage.UNANNOUNCED
    mig = known.resources.get(MIG)
    if mig is not None and mig.state is State.GONE:
        return Stage.MIG_GONE
    is_begun = mig is not None and mig.state is State.DELETING and bool(mig.operation)
    return Stage.DELETING_MIG if is_begun else Stage.ANNOUNCED


def _observe_beginning(work: GroupWork, group: NodeGroup) -> ObservedBeginning:
    """Read the Nodes. If that fails, they are not cordoned, and the MIG is deleted all the same."""
    observed = ObservedBeginning(group, work.status)
    try:
        with work.reserve(SECONDS_FOR_OTHER_CALLS):
            return replace(observed, nodes=_list_nodes(work))
    except (CallError, OutOfTimeError) as error:
        return replace(observed, note=str(error))


def _list_nodes(work: GroupWork) -> tuple[Node, ...]:
    return tuple(map(parse_node, work.cluster.list_nodes(work.group.resource_name)))


def _is_gone(known: Status, kind: str) -> bool:
    resource = known.resources.get(kind)
    return resource is not None and resource.state is State.GONE


def _list_kinds_after_mig(spec: Spec) -> tuple[str, ...]:
    """The kinds that are deleted after the MIG, if they exist. A user's own template is not deleted."""
    kept = {MIG} if spec.user_template is None else {MIG, TEMPLATE}
    return tuple(kind for kind in spec.resource_kinds if kind not in kept)


def _concerns(work: GroupWork, kind: str) -> bool:
    """Whether the trigger can have changed the resource. Policy and template are deleted in parallel: an
    event about one says nothing about the other."""
    event = work.trigger.event
    if event is None or not work.is_first_observation:
        return True
    concerns_kind = event.kind in (KINDS[kind].collection, MIGS)
    resource = work.status.resources.get(kind)
    return concerns_kind or resource is None or resource.state is not State.DELETING


def _observe_resource(work: GroupWork, observed: ObservedRemains, kind: str) -> ObservedRemains:
    """Read a resource and its operation.

    The operation of a create is read before the resource: if it has ended by then, the resource cannot
    appear after the read.
    """
    resource = observed.resource(kind, work.now)
    if is_surely_absent(kind, resource, work.now):
        return replace(observed, found={**observed.found, kind: None})
    is_being_created = resource.state is State.CREATING
    if is_being_created:
        observed = _observe_operation(work, observed, kind, resource)
    found = KINDS[kind].find(work.gce, observed.group.spec, observed.group.resource_name)
    observed = replace(observed, found={**observed.found, kind: found})
    if found is not None and not is_being_created:
        observed = _observe_operation(work, observed, kind, resource)
    return observed


def _observe_operation(
    work: GroupWork, observed: ObservedRemains, kind: str, resource: Resource
) -> ObservedRemains:
    spec = observed.group.spec
    if not resource.operation:
        return observed
    scope = KINDS[kind].scope(spec)
    operation = work.gce.find_operation(spec.project, scope, resource.operation)
    return replace(observed, operations={**observed.operations, kind: operation})


def _observe_nodes_and_vms(work: GroupWork, observed: ObservedRemains) -> ObservedRemains:
    """Read Nodes and VMs before the MIG's delete begins, unless each VM has a Node with proof:
    `_announce` has counted these in ``counts.joined``. If it could not read the Nodes, the count is that
    of label_node, which sets the proof of each Node that it counts.

    Without the VMs, a Node that lacks the resource-name label cannot be found at the end. An error or a
    timeout of these reads does not delay the delete.
    """
    have_all_joined = observed.status.counts.joined >= observed.group.spec.node_count
    if have_all_joined:
        return observed
    try:
        with work.reserve(SECONDS_FOR_OTHER_CALLS):
            observed = replace(observed, nodes=observed.nodes or _list_nodes(work))
            return _observe_unproved(work, observed)
    except (CallError, OutOfTimeError) as error:
        return replace(observed, notes=(*observed.notes, str(error)))


def _observe_unproved(work: GroupWork, observed: ObservedRemains) -> ObservedRemains:
    """Read the VMs, if Nodes are missing or not proved yet."""
    group, spec = observed.group, observed.group.spec
    if len(_list_proved(group, observed.nodes)) >= spec.node_count:
        return observed
    name = group.resource_name
    instances = tuple(
        instance
        for instance in work.gce.list_instances(spec.project, spec.zone, name)
        if instance.is_member_of(spec.zone, name)
    )
    listed = {node.vm for node in observed.nodes}
    unlisted = [instance.name for instance in instances if instance.name not in listed]
    by_name = work.cluster.find_nodes(unlisted)
    found = [parse_node(raw) for raw in by_name.values() if raw is not None]
    left = len(unlisted) - len(by_name)
    note = (f"no time to read the Nodes of {left} VMs by name",) if left else ()
    return replace(
        observed,
        instances=instances,
        nodes=(*observed.nodes, *found),
        notes=(*observed.notes, *note),
    )


def _list_proved(group: NodeGroup, nodes: Iterable[Node]) -> frozenset[str]:
    """The VMs with proved Nodes. label_node has revoked their tokens."""
    return frozenset(node.vm for node in nodes if node.proved_vm_id and may_be_own(group, node))


def _begin(observed: ObservedBeginning, now: datetime) -> Plan:
    """Report the deletion, revoke the group's tokens if a VM has no proved Node, cordon the Nodes."""
    group = observed.group
    proved = _list_proved(group, observed.nodes)
    may_have_tokens = group.spec.joins_with_tokens and len(proved) < group.spec.node_count
    is_first = not is_announced(group, observed.status)
    cordons = tuple(
        NamedAction(
            node.name, Attempt(PatchNode(node.name, node.uid, {"spec": {"unschedulable": True}}))
        )
        for node in observed.vm_nodes
        if not node.is_unschedulable
    )
    actions: tuple[Action | Batch, ...] = (
        *((WriteStatus(_announce(observed, len(proved), now)),) if is_first else ()),
        *((Attempt(RevokeTokens()),) if is_first and may_have_tokens else ()),
        Batch(cordons),
        ObserveAgain("the status is written; cordoning is best effort"),
    )
    return Plan("Cordoning", actions, observed.note, {"cordons": len(cordons)})


def _announce(observed: ObservedBeginning, joined: int, now: datetime) -> Status:
    """The first status of a deletion: without the errors of the creation."""
    group, known = observed.group, observed.status
    resources = announce_deletion(known.resources, group.resource_name, now)
    counts = known.counts if observed.note else replace(known.counts, joined=joined)
    known = replace(known, observed_generation=group.generation, resources=resources, counts=counts)
    return readiness.conclude(group, known, now)


def _finish_unreadable(observed: UnreadableRemains, now: datetime) -> Plan:
    """Remove the finalizer if the status has no resource that may exist.

    Otherwise a user must delete the resources and then remove the finalizer: ``Ready`` says which. This
    step cannot see whether they are gone, since it does not know their project and zone.
    """
    known = restore_entries(observed.group, observed.status, now)
    if not list_remaining(observed.group, known):
        return Plan("Done", (RemoveFinalizer(),))
    write = WriteStatus(readiness.conclude(observed.group, known, now))
    return Plan("Unreadable", (write,), "; ".join(map(str, observed.group.violations)))


def _advance_all(observed: ObservedRemains, now: datetime) -> dict[str, Transition]:
    mig = _advance(observed, MIG, now)
    is_blocked = mig.resource.state is not State.GONE
    kinds = _list_kinds_after_mig(observed.group.spec)
    return {MIG: mig} | {
        kind: _advance(observed, kind, now, is_blocked=is_blocked) for kind in kinds
    }


def _advance(
    observed: ObservedRemains, kind: str, now: datetime, *, is_blocked: bool = False
) -> Transition:
    resource = observed.resource(kind, now)
    observation = make_observation(
        observed.group,
        kind,
        resource,
        observed.found,
        observed.operations,
        is_resync=observed.is_resync,
        is_blocked=is_blocked,
    )
    return find_transition(Goal.TEAR_DOWN, resource, observation, now)


def _delete_mig(
    observed: ObservedRemains, transitions: Mapping[str, Transition], now: datetime
) -> Plan:
    note, write = "; ".join(observed.notes), _write(observed, transitions, now)
    if transitions[MIG].action is not ResourceAction.DELETE:
        return Plan(_name_wait([transitions[MIG]]), (write,), note)
    labels = Batch(tuple(_label_nodes(observed)))
    delete = (write, Delete(MIG, observed.group.spec), WriteResults())
    return Plan("DeletingMIG", (*delete, labels), note)


def _name_wait(transitions: Iterable[Transition]) -> str:
    """The outcome while nothing is deleted, by what is left."""
    left = [one for one in transitions if one.resource.state is not State.GONE]
    if any(_may_still_be_created(one) for one in left):
        return "AwaitingCreate"
    return "DeleteFailed" if any(one.resource.error for one in left) else "AwaitingDelete"


def _may_still_be_created(one: Transition) -> bool:
    """Whether the deletion waits because an insert may be in progress: also if the last one was
    rejected, since another invocation may have begun the next. With the action REPORT, it was found."""
    is_uncreated = one.resource.state in (State.PENDING, State.FAILED, State.CREATING)
    return is_uncreated and one.action is not ResourceAction.REPORT


def _label_nodes(observed: ObservedRemains) -> Iterator[NamedAction]:
    """Label and cordon the Nodes without proof or without our labels.

    The patch sets the resource-name label, too, by which Nodes are listed at the end. The Nodes need not
    match their VMs (`membership.is_match`): both are about to be deleted.
    """
    members = {instance.name: instance for instance in observed.instances}
    machine_type = observed.status.machine_type
    for node in observed.nodes:
        if node.vm not in members or not may_be_own(observed.group, node):
            continue
        patch = dict(proof_patch(observed.group, node, machine_type, members[node.vm]))
        if not node.is_unschedulable:
            patch["spec"] = {**patch.get("spec", {}), "unschedulable": True}
        if patch:
            yield NamedAction(node.name, Attempt(PatchNode(node.name, node.uid, patch)))


def _revoke_all(observed: ObservedRemains) -> Iterator[Action]:
    """Revoke all tokens of the group. Its VMs are gone, so inject_token writes no other one. An
    invocation that read a VM before may still create a Secret, which is valid for an hour at most."""
    if observed.group.spec.joins_with_tokens:
        yield Attempt(RevokeTokens())


def _delete_rest(
    observed: ObservedRemains, transitions: Mapping[str, Transition], now: datetime
) -> Plan:
    write = _write(observed, transitions, now)
    nodes = tuple(
        NamedAction(node.name, DeleteNode(node.name, node.uid))
        for node in observed.nodes
        if may_be_own(observed.group, node) and not node.is_deleting
    )
    again = Resume(STEP.name, message_about(observed.group, Cause.CONTINUED, now))
    delete_nodes = Batch(nodes, again, is_required=True)
    if all(one.resource.state is State.GONE for one in transitions.values()):
        # A status is of use only if a failure or the time stops the plan at the Nodes: otherwise
        # the group is gone after it.
        last_write = (write,) if nodes else ()
        end = (*_revoke_all(observed), RemoveFinalizer())
        return Plan("Done", (*last_write, delete_nodes, *end))
    deletes = [
        Delete(kind, observed.group.spec)
        for kind, transition in transitions.items()
        if transition.action is ResourceAction.DELETE
    ]
    if not deletes:
        return Plan(_name_wait(transitions.values()), (write, delete_nodes))
    return Plan("DeletingRest", (write, *deletes, WriteResults(), delete_nodes))


def _write(
    observed: ObservedRemains, transitions: Mapping[str, Transition], now: datetime
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
