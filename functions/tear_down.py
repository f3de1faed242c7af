"""tear_down: from a deleted TPUNodeGroup to nothing left of it.

Occasions: the group got its deletionTimestamp; a delete of its MIG, template or policy ended; SYNC.

In order: Nodes cordoned (and labelled, so that they are found later), tokens revoked, the MIG with
its VMs; then template and policy side by side; then the Node objects; then the finalizer. Each
invocation goes on to the next operation that must be waited for.

Something counts as absent when Compute Engine does not know it and no create of it can be under way:
the operation that was recorded has ended or is forgotten, or, where none was recorded, the intent is
older than any invocation can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from shared.base.errors import REASONS, CallError, Reason, classify
from shared.frame.plan import Action, Attempt, Plan, Send
from shared.frame.step import Step
from shared.frame.triggers import Cause
from shared.node_groups import status
from shared.node_groups.actions import (
    Delete,
    DeleteNode,
    DeleteSecret,
    PatchNode,
    RemoveFinalizer,
    WriteResults,
)
from shared.node_groups.bootstrap import find_token
from shared.node_groups.membership import bears_name_of, proof_patch
from shared.node_groups.node_group import AnyGroup, NodeGroup, Spec, UnreadableGroup
from shared.node_groups.nodes import Node, parse_node
from shared.node_groups.resources import KINDS, MIG_COLLECTION, Found
from shared.node_groups.status import MIG, TEMPLATE, Counts, Resource, State, Status
from shared.node_groups.work import (
    GroupWork,
    WriteStatus,
    message_about,
    open_group,
    report_refusal,
)
from shared.ports.gce import Instance, Operation

SURELY_ABSENT_AFTER = timedelta(seconds=150)
"""When the newest intent is this old, no create is under way: an invocation's calls, the lag of
Compute Engine and the difference of clocks together are shorter."""


@dataclass(frozen=True)
class ObservedRemains:
    """What the step has seen; ``found`` and ``operations`` hold only what was asked for."""

    group: NodeGroup
    status: Status
    found: Mapping[str, Found | None] = field(default_factory=dict)
    operations: Mapping[str, Operation | None] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()
    instances: tuple[Instance, ...] = ()
    has_read_nodes: bool = False
    is_retry_due: bool = True
    """Whether what has failed may be tried again now: on a SYNC, whose gaps grow."""
    notes: tuple[str, ...] = ()
    """What could not be read, and was gone on without."""

    def resource(self, kind: str, now: datetime) -> Resource:
        """The entry of a resource; one that is missing has been lost: perhaps under way since now."""
        known = self.status.resources.get(kind)
        return known or Resource(self.group.resource_name, State.CREATING, now)


@dataclass(frozen=True)
class UnreadableRemains:
    """A group whose spec cannot be read."""

    group: UnreadableGroup
    status: Status


def look(work: GroupWork) -> ObservedRemains | UnreadableRemains:
    """Read what is still there of the group, in the order in which it goes."""
    group = work.group
    if isinstance(group, UnreadableGroup):
        return UnreadableRemains(group, work.status)
    seen = ObservedRemains(group, work.status, is_retry_due=work.occasion.is_sync)
    if group.deleting is None or not group.has_finalizer:
        return seen
    was_gone = _is_gone(group, work.status, MIG)
    if not was_gone:
        seen = _look_at(work, seen, MIG)
        if seen.found.get(MIG) is not None:
            return _look_at_members(work, seen)
    for kind in _last_kinds(group.spec):
        if not _is_gone(group, work.status, kind) and _may_have_changed(work, kind):
            seen = _look_at(work, seen, kind)
    if was_gone and _is_anything_left(seen):
        return seen
    return replace(seen, nodes=_list_nodes(work), has_read_nodes=True)


def _is_anything_left(seen: ObservedRemains) -> bool:
    """Nodes are read when the VMs have gone and once more at the end, not in between."""
    return any(
        not _is_gone(seen.group, seen.status, kind) and seen.found.get(kind, kind) is not None
        for kind in _last_kinds(seen.group.spec)
    )


def decide(seen: ObservedRemains | UnreadableRemains, now: datetime) -> Plan:
    """What is to be deleted next."""
    group = seen.group
    if group.deleting is None:
        message = message_about(group, Cause.FORWARDED, now)
        return Plan("NotDeleted", (Send("create_resources", (message,)),))
    if not group.has_finalizer:
        return Plan("NothingOfOurs")
    if isinstance(seen, UnreadableRemains):
        return _let_go_unread(seen, now)
    resources = _advance_all(seen, now)
    if resources[MIG].state is not State.GONE:
        return _delete_mig(seen, resources, now)
    return _delete_rest(seen, resources, now)


def _list_nodes(work: GroupWork) -> tuple[Node, ...]:
    return tuple(map(parse_node, work.cluster.list_nodes(work.group.resource_name)))


def recover(work: GroupWork, error: CallError) -> Plan | None:
    """An environment error, in the entry of what is being deleted."""
    group, now = work.group, work.now
    kinds = [MIG, *(_last_kinds(group.spec) if isinstance(group, NodeGroup) else ())]

    def describe(known: Status, reason: Reason) -> Status:
        kind = next((kind for kind in kinds if not _is_gone(group, known, kind)), MIG)
        resource = known.resources.get(kind) or Resource(group.resource_name, State.CREATING, now)
        message = f"{error.message} ({error.call}). {REASONS[reason]}"
        return known.with_resource(kind, resource.with_trouble(reason, error.reason, message, now))

    return report_refusal(work, error, describe)


STEP = Step("tear_down", open_group, look, decide, recover)
run = STEP.run


def _is_gone(group: AnyGroup, known: Status, kind: str) -> bool:
    """Found absent since the deletion began. What was written before may be create_resources' word,
    which costs nothing there if it is wrong."""
    resource = known.resources.get(kind)
    if resource is None or resource.state is not State.GONE or group.deleting is None:
        return False
    return resource.since is not None and resource.since >= group.deleting


_NOT_MADE = (State.PENDING, State.FAILED)


def _was_never_asked_for(resource: Resource, now: datetime) -> bool:
    """Its intent was never written; or the last one was taken back or refused so long ago that no
    slower rival's insert, which had an intent before that, can arrive any more."""
    is_idle = resource.state in _NOT_MADE and not resource.uri and not resource.operation
    return is_idle and (resource.since is None or _is_long_ago(resource.since, now))


def _is_long_ago(intent: datetime, now: datetime) -> bool:
    return now - intent >= SURELY_ABSENT_AFTER


def _last_kinds(spec: Spec) -> tuple[str, ...]:
    """What is deleted after the MIG: a template that the user brought is not ours to delete."""
    own = spec.own_template is not None
    return tuple(
        kind for kind in spec.resource_kinds if kind != MIG and not (own and kind == TEMPLATE)
    )


def _may_have_changed(work: GroupWork, kind: str) -> bool:
    """An event about one of two that are being deleted side by side says nothing of the other."""
    event = work.occasion.event
    if event is None or not work.is_first_look:
        return True
    is_of_other = KINDS[kind].collection not in event.method and MIG_COLLECTION not in event.method
    resource = work.status.resources.get(kind)
    return not is_of_other or resource is None or resource.state is not State.DELETING


def _look_at(work: GroupWork, seen: ObservedRemains, kind: str) -> ObservedRemains:
    """Read a resource, and before it the operation that makes it: a create that is seen to have
    ended cannot bring the resource after it was looked for."""
    resource = seen.resource(kind, work.now)
    if _was_never_asked_for(resource, work.now):
        return replace(seen, found={**seen.found, kind: None})
    is_being_made = resource.state is State.CREATING
    if is_being_made:
        seen = _look_at_operation(work, seen, kind, resource)
    found = KINDS[kind].find(work.gce, seen.group.spec, seen.group.resource_name)
    seen = replace(seen, found={**seen.found, kind: found})
    if found is not None and not is_being_made:
        seen = _look_at_operation(work, seen, kind, resource)
    return seen


def _look_at_operation(
    work: GroupWork, seen: ObservedRemains, kind: str, resource: Resource
) -> ObservedRemains:
    spec = seen.group.spec
    if not resource.operation:
        return seen
    scope = KINDS[kind].scope(spec)
    operation = work.gce.find_operation(spec.project, scope, resource.operation)
    return replace(seen, operations={**seen.operations, kind: operation})


def _look_at_members(work: GroupWork, seen: ObservedRemains) -> ObservedRemains:
    """Nodes and VMs, once before the MIG's delete begins. They are cordoned and their tokens revoked
    where that can be done; what cannot be read holds up no delete of VMs that cost money."""
    if seen.resource(MIG, work.now).state is State.DELETING:
        return seen
    try:
        seen = replace(seen, nodes=_list_nodes(work))
        return _look_at_unproved(work, seen)
    except CallError as error:
        return replace(seen, notes=(*seen.notes, str(error)))


def _look_at_unproved(work: GroupWork, seen: ObservedRemains) -> ObservedRemains:
    """The VMs, where Nodes are missing or not proved yet."""
    group, spec = seen.group, seen.group.spec
    if sum(bool(node.proved_vm_id) for node in seen.nodes) >= spec.node_count:
        return seen
    name = group.resource_name
    instances = tuple(
        instance
        for instance in work.gce.list_instances(spec.project, spec.zone, name)
        if instance.is_member_of(spec.zone, name)
    )
    listed = {node.vm for node in seen.nodes}
    unlisted = [instance.name for instance in instances if instance.name not in listed]
    asked_for = work.cluster.find_nodes(unlisted)
    found = [parse_node(raw) for raw in asked_for.values() if raw is not None]
    left = len(unlisted) - len(asked_for)
    note = (f"no time to look for the Nodes of {left} VMs by name",) if left else ()
    return replace(
        seen,
        instances=instances,
        nodes=(*seen.nodes, *found),
        notes=(*seen.notes, *note),
    )


def _let_go_unread(seen: UnreadableRemains, now: datetime) -> Plan:
    """A spec that cannot be read names no place: nothing can have been made from it."""
    states = {resource.state for resource in seen.status.resources.values()}
    if states <= {State.PENDING, State.GONE}:
        return Plan("Done", (RemoveFinalizer(),))
    write = WriteStatus(status.conclude(seen.group, seen.status, now))
    return Plan("Unreadable", (write,), "; ".join(map(str, seen.group.problems)))


def _advance_all(seen: ObservedRemains, now: datetime) -> dict[str, Resource]:
    kinds = (MIG, *_last_kinds(seen.group.spec))
    return {kind: _advance(seen, kind, seen.resource(kind, now), now) for kind in kinds}


def _advance(seen: ObservedRemains, kind: str, resource: Resource, now: datetime) -> Resource:
    """Gone, if it is surely absent; else as it stands, with what its last operation said."""
    if kind not in seen.found:
        return resource
    operation = seen.operations.get(kind)
    found = seen.found[kind]
    if found is None:
        is_absent = _is_surely_absent(resource, operation, now)
        return resource.enter(State.GONE, now) if is_absent else resource
    if found.description != seen.group.mark:
        return _without_mark(seen, resource, found, now)
    if resource.state is State.GONE:
        return resource.enter(State.READY, now, uri=found.uri)
    if operation is not None and operation.fault is not None:
        fault = operation.fault
        verdict = classify(fault.http, fault.code, fault.message)
        reason = verdict.reason or Reason.REFUSED
        return resource.with_trouble(reason, fault.code, fault.message, now)
    return resource


def _without_mark(
    seen: ObservedRemains, resource: Resource, found: Found, now: datetime
) -> Resource:
    """It bears our name and not our mark: not ours, unless it was, and somebody has edited it."""
    if not resource.uri:
        return resource.enter(State.GONE, now)
    message = (
        f"{found.uri} is not marked as this group's any more: its description must be "
        f"{seen.group.mark!r}. Restore that, or delete the resource."
    )
    return resource.with_trouble(Reason.RESOURCE_CONFLICT, "", message, now)


def _is_surely_absent(resource: Resource, operation: Operation | None, now: datetime) -> bool:
    """Absent, and no create can be under way. An operation that was forgotten, or has ended well,
    may have made it a moment ago, where it is not seen yet; one that failed has made nothing."""
    if resource.state in _NOT_MADE:
        return resource.since is None or _is_long_ago(resource.since, now)
    if resource.state is not State.CREATING:
        return True
    if operation is not None and operation.fault is not None:
        return True
    if operation is not None and not operation.is_done:
        return False
    return resource.since is not None and _is_long_ago(resource.since, now)


def _delete_mig(seen: ObservedRemains, resources: dict[str, Resource], now: datetime) -> Plan:
    group, note = resources[MIG], "; ".join(seen.notes)
    if seen.found.get(MIG) is None:
        return Plan("AwaitingCreate", (_write(seen, resources, now),), note)
    if not _is_due(seen, MIG, group):
        return Plan("AwaitingDelete", (_write(seen, resources, now),), note)
    resources[MIG] = group.enter(State.DELETING, now)
    attempts = [Attempt(action) for action in (*_cordon(seen), *_revoke(seen, now))]
    actions: list[Action] = [_write(seen, resources, now), *attempts]
    return Plan("DeletingMIG", (*actions, Delete(MIG, seen.group.spec), WriteResults()), note)


def _is_due(seen: ObservedRemains, kind: str, resource: Resource) -> bool:
    """It is there and ours, and no delete of it is under way or has just failed."""
    found, operation = seen.found.get(kind), seen.operations.get(kind)
    if found is None or found.description != seen.group.mark:
        return False
    if resource.state is not State.DELETING or operation is None:
        return True
    return operation.is_done and (operation.fault is None or seen.is_retry_due)


def _cordon(seen: ObservedRemains) -> Iterator[Action]:
    """Nothing new is scheduled there; and Nodes not labelled yet are, to be found at the end."""
    members = {instance.name: instance for instance in seen.instances}
    for node in seen.nodes:
        if not bears_name_of(seen.group, node):
            continue
        patch: dict[str, dict[str, object]] = {}
        if not node.proved_vm_id and node.vm in members:
            machine_type = seen.status.machine_type
            patch = dict(proof_patch(seen.group, node, machine_type, members[node.vm].id))
        if not node.is_unschedulable:
            patch["spec"] = {**patch.get("spec", {}), "unschedulable": True}
        if patch:
            yield PatchNode(node.name, node.uid, patch)


def _revoke(seen: ObservedRemains, now: datetime) -> Iterator[Action]:
    proved = {node.vm for node in seen.nodes if node.proved_vm_id}
    for instance in seen.instances:
        token = find_token(instance.metadata, now)
        if token is not None and instance.name not in proved:
            yield DeleteSecret(token.id, instance.name)


def _delete_rest(seen: ObservedRemains, resources: dict[str, Resource], now: datetime) -> Plan:
    actions: list[Action] = [
        DeleteNode(node.name, node.uid) for node in seen.nodes if bears_name_of(seen.group, node)
    ]
    left = [kind for kind, resource in resources.items() if resource.state is not State.GONE]
    if not left and not seen.has_read_nodes:
        again = message_about(seen.group, Cause.FORWARDED, now)
        return Plan("AwaitingNodes", (_write(seen, resources, now), Send("tear_down", (again,))))
    if not left and not actions:
        return Plan("Done", (RemoveFinalizer(),))
    if not left:
        return Plan("Done", (*actions, _write(seen, resources, now), RemoveFinalizer()))
    due = [kind for kind in left if _is_due(seen, kind, resources[kind])]
    for kind in due:
        resources[kind] = resources[kind].enter(State.DELETING, now)
    actions.append(_write(seen, resources, now))
    if due:
        actions += [*(Delete(kind, seen.group.spec) for kind in due), WriteResults()]
    return Plan("DeletingRest" if due else "AwaitingDelete", tuple(actions))


def _write(seen: ObservedRemains, resources: Mapping[str, Resource], now: datetime) -> WriteStatus:
    known = seen.status
    if resources[MIG].state is State.GONE:
        known = replace(known, counts=Counts(known.counts.desired), pending=())
    known = replace(known, resources={**known.resources, **resources})
    return WriteStatus(status.conclude(seen.group, known, now))
