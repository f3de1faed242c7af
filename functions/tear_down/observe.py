"""What tear_down reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto

from shared.base.names import MIGS
from shared.frame.execution import SECONDS_FOR_OTHER_CALLS
from shared.node_groups.lifecycle import (
    Goal,
    Transition,
    find_transition,
    is_surely_absent,
    make_observation,
)
from shared.node_groups.membership import may_be_own
from shared.node_groups.node_group import NodeGroup, Spec, UnreadableGroup
from shared.node_groups.resources import KINDS, Found, find_operation
from shared.node_groups.status import MIG, TEMPLATE, Resource, State, Status
from shared.node_groups.work import GroupWork
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce.values import Instance, Operation
from shared.ports.kubernetes.nodes import Node, parse_node
from shared.triggers.trigger import LogTrigger


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
        is_gone = advance(observed, MIG, work.now).resource.state is State.GONE
        if observed.found.get(MIG) is not None and not is_gone:
            is_begun = stage is Stage.DELETING_MIG
            return observed if is_begun else _observe_nodes_and_vms(work, observed)
    # The MIG was not found, now or before, or was never ours. If it may still arrive, nothing is deleted
    # yet: then these reads only show what is gone already.
    for kind in list_kinds_after_mig(group.spec):
        if not _is_gone(work.status, kind) and _concerns(work, kind):
            observed = _observe_resource(work, observed, kind)
    return replace(observed, nodes=_list_nodes(work))


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


def list_kinds_after_mig(spec: Spec) -> tuple[str, ...]:
    """The kinds that are deleted after the MIG, if they exist. A user's own template is not deleted."""
    kept = {MIG} if spec.user_template is None else {MIG, TEMPLATE}
    return tuple(kind for kind in spec.resource_kinds if kind not in kept)


def _concerns(work: GroupWork, kind: str) -> bool:
    """Whether the trigger can have changed the resource. Policy and template are deleted in parallel: an
    event about one says nothing about the other."""
    trigger = work.trigger
    if not isinstance(trigger, LogTrigger) or not work.is_first_observation:
        return True
    concerns_kind = trigger.event.kind in (KINDS[kind].collection, MIGS)
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
    if not resource.operation:
        return observed
    operation = find_operation(work.gce, observed.group.spec, kind, resource)
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
    if len(list_proved(group, observed.nodes)) >= spec.node_count:
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


def list_proved(group: NodeGroup, nodes: Iterable[Node]) -> frozenset[str]:
    """The VMs with proved Nodes. label_node has revoked their tokens."""
    return frozenset(node.vm for node in nodes if node.proved_vm_id and may_be_own(group, node))


def advance(
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
