"""What is left of a group that is being deleted, as far as its deletion has come."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from shared.base.fields import count
from shared.base.names import FINALIZER, MIGS
from shared.base.reasons import Reason
from shared.frame.execution import SECONDS_FOR_OTHER_CALLS
from shared.frame.plan import StepRefused
from shared.node_groups import lifecycle, recovery
from shared.node_groups.membership import may_match
from shared.node_groups.node_group import NodeGroup, UnreadableGroup
from shared.node_groups.resources import KINDS, Found, find_operation, find_resource
from shared.node_groups.status import MIG, TEMPLATE, Resource, State, Status
from shared.node_groups.work import GroupWork
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce.values import Instance, ManagedInstance, Mig, Operation
from shared.ports.kubernetes.nodes import Node
from shared.settings import describe_unserved
from shared.triggers.message import Cause
from shared.triggers.trigger import LogTrigger

_LONGEST_INVOCATION = timedelta(seconds=30)
"""An invocation sends no call later than this after its last observation."""


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
    members: tuple[ManagedInstance, ...] = ()
    """The VMs of the MIG of a group that is not being deleted, if it may have to be repaired."""
    is_resync: bool = False
    """Whether the trigger is a resync. Only then a failed delete is retried. The end of a failed delete
    triggers the step, too: if that retried it, retries would follow each other immediately."""
    is_continuation: bool = False
    """Whether the trigger was redelivered or continues a plan: then the invocation that was deleting the
    Nodes has ended."""
    vms_left: frozenset[str] = frozenset()
    """VMs that exist although the MIG is gone, and whose kubelets may report. Their Nodes are kept."""
    has_unread_vms: bool = False
    """Whether ``vms_left`` has VMs that there was no time to read."""
    notes: tuple[str, ...] = ()
    """Errors of reads without which the deletion continues."""

    def resource(self, kind: str, now: datetime) -> Resource:
        """The entry of a resource. Without one, an insert may be in progress: Creating since now."""
        entry = self.status.resources.get(kind)
        return entry or Resource(self.group.resource_name, State.CREATING, now)

    def are_nodes_being_deleted(self, now: datetime) -> bool:
        """Whether another invocation may be deleting the Nodes at this moment: it has just written that
        the MIG is gone."""
        mig = self.status.resources.get(MIG)
        if self.is_continuation or not is_deletion_begun(self.group, self.status) or mig is None:
            return False
        since = mig.since if mig.state is State.GONE else None
        return since is not None and abs(now - since) < _LONGEST_INVOCATION


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
        """The Nodes that may be those of the group's VMs (`may_match`), sorted by name."""
        found = (node for node in self.nodes if may_match(self.group, node))
        return sorted(found, key=lambda node: node.name)

    @property
    def is_prepared(self) -> bool:
        """Whether nothing is left to prepare. Otherwise one attempt is made before the MIG's delete."""
        all_cordoned = all(node.is_unschedulable for node in self.vm_nodes)
        return is_deletion_begun(self.group, self.status) and all_cordoned and not self.note


@dataclass(frozen=True)
class UnreadableRemains:
    """A group whose spec cannot be read."""

    group: UnreadableGroup
    status: Status


Observed = ObservedBeginning | ObservedRemains | UnreadableRemains


def observe(work: GroupWork) -> Observed:
    """Read what is left of the group, in the order of its deletion: the Nodes, to cordon them; the MIG;
    and when that is gone, policy, template and Nodes."""
    group = work.group
    if isinstance(group, UnreadableGroup):
        return UnreadableRemains(group, work.status)
    trigger = work.trigger
    observed = ObservedRemains(
        group,
        work.status,
        is_resync=trigger.is_resync,
        is_continuation=trigger.is_redelivered or trigger.cause == Cause.CONTINUED,
    )
    if group.deleting is None:
        return _observe_repair(work, observed)
    if not group.has_finalizer:
        return observed
    # A status that tear_down has not written may be outdated, also about a resource that it calls GONE:
    # create_resources has found that somebody else had deleted it. So the resource is read again.
    has_begun = is_deletion_begun(group, work.status)
    mig = work.status.resources.get(MIG) if has_begun else None
    is_mig_gone = mig is not None and mig.state is State.GONE
    is_mig_deleting = mig is not None and mig.state is State.DELETING and mig.operation
    # The status must be written first. After that, each invocation tries once to cordon what is left;
    # its second observation goes on, whatever is left.
    if not has_begun or (work.is_first_observation and not is_mig_gone and not is_mig_deleting):
        beginning = ObservedBeginning(group, work.status)
        try:
            with work.reserve(SECONDS_FOR_OTHER_CALLS):
                beginning = replace(beginning, nodes=_list_nodes(work))
        except (CallError, OutOfTimeError) as error:
            # The Nodes are not cordoned, and the MIG is deleted all the same.
            beginning = replace(beginning, note=str(error))
        if not beginning.is_prepared:
            return beginning
        observed = replace(observed, nodes=beginning.nodes)
    # Anybody may have written GONE. It is believed only while policy or template are being deleted,
    # which begins after a read has not found the MIG. If something uses them, it may be the MIG: a late
    # insert has created it since.
    deleting = [one for _, one in _list_deleting(work.status)]
    is_in_use = any(one.error and one.error.reason == Reason.IN_USE for one in deleting)
    if not is_mig_gone or not deleting or is_in_use:
        observed = _observe_resource(work, observed, MIG)
        is_gone = advance(observed, MIG, work.now).resource.state is State.GONE
        if observed.found.get(MIG) is not None and not is_gone:
            return observed if is_mig_deleting else _observe_nodes_and_vms(work, observed)
    # The MIG was not found, now or before, or was never ours. If it may still arrive, nothing is deleted
    # yet: then these reads only show what is gone already.
    kinds = list_kinds(group, work.status)
    for kind in kinds[1:]:
        if _is_first_end(work, kind):
            # The last end lists the Nodes that are left.
            ended = replace(work.status.resources[kind], operation="")
            return replace(observed, status=observed.status.with_resource(kind, ended))
        if _must_read(work, kind):
            observed = _observe_resource(work, observed, kind)
    # Before the finalizer is removed, what only the status calls gone is read.
    is_all_gone = all(
        advance(observed, kind, work.now).resource.state is State.GONE for kind in kinds
    )
    if is_all_gone:
        for kind in kinds[1:]:
            if kind not in observed.found:
                observed = _observe_resource(work, observed, kind)
    observed = replace(observed, nodes=_list_nodes(work))
    if is_all_gone and not group.spec.joins_with_tokens:
        # Their kubelets do not set the label, and label_node sets none during the deletion. Or their
        # names have a domain.
        with work.reserve(SECONDS_FOR_OTHER_CALLS), work.best_effort():
            others = work.cluster.list_unlabelled_nodes(group.resource_name)
            observed = replace(observed, nodes=(*observed.nodes, *others))
    return _observe_vms_left(work, observed)


def _observe_repair(work: GroupWork, observed: ObservedRemains) -> ObservedRemains:
    """Read the MIG of a group that is not being deleted, if it is being deleted for a repair, or a
    repair is due. The Nodes are read when it is gone."""
    group, known = observed.group, work.status
    if recovery.is_repair_begun(group, known):
        observed = _observe_resource(work, observed, MIG)
        if observed.found.get(MIG) is None:
            return _observe_vms_left(work, replace(observed, nodes=_list_nodes(work)))
        return _observe_members(work, observed)
    spec, name = group.spec, group.resource_name
    if not recovery.is_repair_due(group, known, work.now) or not work.settings.serves(spec.project):
        return observed
    found = work.gce.find_mig(spec.project, spec.zone, name)
    return _observe_members(work, replace(observed, found={MIG: found}))


def _observe_members(work: GroupWork, observed: ObservedRemains) -> ObservedRemains:
    """List the VMs of the MIG, if Compute Engine changes nothing now."""
    group, found = observed.group, observed.found[MIG]
    if not isinstance(found, Mig) or not found.is_stable:
        return observed
    place = group.spec.project, group.spec.zone, group.resource_name
    return replace(observed, members=work.gce.list_managed_instances(*place))


def _observe_vms_left(work: GroupWork, observed: ObservedRemains) -> ObservedRemains:
    """Read the VMs that exist although the MIG is gone, of Nodes whose kubelets may report: they were
    not its members. The list still shows what was deleted seconds ago, so they are read by name."""
    group, spec = observed.group, observed.group.spec
    names = {node.vm for node in observed.nodes if may_match(group, node) and not node.is_silent}
    if not names:
        return observed
    place = spec.project, spec.zone, group.resource_name
    listed = work.gce.list_instances(*place, spec.node_count)
    names &= {vm.name for vm in listed}
    found = work.gce.find_instances(spec.project, spec.zone, sorted(names))
    left = names - {name for name, vm in found.items() if vm is None}
    return replace(observed, vms_left=frozenset(left), has_unread_vms=len(found) < len(names))


def is_deletion_begun(group: NodeGroup, known: Status) -> bool:
    """Whether tear_down has written the status of the deletion.

    A deletion increments the generation, and only tear_down then writes observedGeneration.
    """
    return known.observed_generation == group.generation


def _list_nodes(work: GroupWork) -> tuple[Node, ...]:
    hosts = work.group.spec.node_count if isinstance(work.group, NodeGroup) else 0
    return tuple(work.cluster.list_nodes(work.group.resource_name, hosts))


def list_kinds(group: NodeGroup, known: Status) -> tuple[str, ...]:
    """The kinds that are deleted, the MIG first: what the spec needs and what the status has recorded.
    A user's own template is not deleted."""
    template, not_listed = known.resources.get(TEMPLATE), {MIG}
    is_recorded = template is not None and template.name == group.resource_name
    if group.spec.user_template is not None and not is_recorded:
        not_listed.add(TEMPLATE)
    kinds = dict.fromkeys((*group.spec.resource_kinds, *known.resources))
    return (MIG, *(kind for kind in kinds if kind not in not_listed))


def _is_first_end(work: GroupWork, kind: str) -> bool:
    """Whether the trigger is the end of this delete, and the other one is in progress: its end triggers
    the step, too, and then both are read. Until then the entry has no operation."""
    operations = {one: entry.operation for one, entry in _list_deleting(work.status)}
    event = work.trigger.event if isinstance(work.trigger, LogTrigger) else None
    is_end = event is not None and event.kind == KINDS[kind].collection and not event.has_failed
    are_both = kind in operations and len(operations) > 1 and all(operations.values())
    return is_end and are_both and work.is_first_observation


def _list_deleting(known: Status) -> list[tuple[str, Resource]]:
    """The entries of policy and template that are being deleted."""
    found = known.resources.items()
    return [(kind, one) for kind, one in found if kind != MIG and one.state is State.DELETING]


def _must_read(work: GroupWork, kind: str) -> bool:
    """Whether a policy or template is not gone yet, and the trigger can have changed it. They are
    deleted in parallel: an event about one says nothing about the other."""
    entry, trigger = work.status.resources.get(kind), work.trigger
    if entry is not None and entry.state is State.GONE:
        return False
    if entry is None or entry.state is not State.DELETING or not work.is_first_observation:
        return True
    event = trigger.event if isinstance(trigger, LogTrigger) else None
    return event is None or not entry.operation or event.kind in (KINDS[kind].collection, MIGS)


def _observe_resource(work: GroupWork, observed: ObservedRemains, kind: str) -> ObservedRemains:
    """Read a resource and its operation.

    The operation of a create is read before the resource: if it has ended by then, the resource cannot
    appear after the read.
    """
    resource = observed.resource(kind, work.now)
    is_absent = lifecycle.is_surely_absent(
        kind, resource, work.now
    )  # if nobody has edited the status
    project, settings = observed.group.spec.project, work.settings
    if not settings.serves(project):
        if is_absent:
            return replace(observed, found={**observed.found, kind: None})
        is_deleting = observed.group.deleting is not None
        text = (
            f"{describe_unserved(project, settings.projects)}. Nothing is deleted there. Add the "
            f"project to this variable, and the {'deletion' if is_deleting else 'repair'} continues "
            "within half an hour."
        )
        if is_deleting:
            text += (
                f" If the resources {resource.name} are another installation's, remove the finalizer "
                f"{FINALIZER}."
            )
        raise StepRefused(Reason.INVALID_SPEC, text)
    is_being_created = resource.state is State.CREATING
    if is_being_created:
        observed = _observe_operation(work, observed, kind, resource)
    group, given = observed.group, observed.group.given
    found: Found | None = None
    try:
        found = find_resource(
            work.gce, group.spec, kind, group.resource_name, may_be_nowhere=resource.is_unseen
        )
    except CallError as error:
        if not is_absent or error.reason is None:
            raise
    if found is None and given is not None and work.settings.serves(given.project):
        # The recorded place can be wrong. What is found at the spec's is recorded, and deleted then.
        found = find_resource(work.gce, given, kind, group.resource_name, may_be_nowhere=True)
        corrected = replace(resource, uri=found.uri if found is not None else resource.uri)
        observed = replace(observed, status=observed.status.with_resource(kind, corrected))
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
    """Read Nodes and VMs before the MIG's delete begins, unless each VM has a Node with proof.

    ``counts.joined`` is the number of Nodes with proof, as the first status of the deletion has it. If
    the Nodes could not be read for that status, it is label_node's, which counts no other Nodes.

    Without the VMs, a Node that lacks the resource-name label cannot be found at the end if VMs join
    with tokens. An error or a timeout of these reads does not delay the delete.
    """
    group, spec, name = observed.group, observed.group.spec, observed.group.resource_name
    if observed.status.counts.joined >= spec.node_count:
        return observed
    try:
        with work.reserve(SECONDS_FOR_OTHER_CALLS):
            observed = replace(observed, nodes=observed.nodes or _list_nodes(work))
            if len(list_proved(group, observed.nodes)) >= spec.node_count:
                return observed
            mig = observed.found.get(MIG)
            if isinstance(mig, Mig) and mig.waits_as_a_whole:
                return observed
            place = spec.project, spec.zone, name
            instances = work.gce.list_instances(*place, spec.node_count)
            listed = {node.vm for node in observed.nodes}
            unlisted = [instance.name for instance in instances if instance.name not in listed]
            by_name = work.cluster.find_nodes(unlisted)
    except (CallError, OutOfTimeError) as error:
        return replace(observed, notes=(*observed.notes, str(error)))
    found = [node for node in by_name.values() if node is not None]
    left = len(unlisted) - len(by_name)
    note = (f"no time to read the Nodes of {count(left, 'VM')} by name",) if left else ()
    return replace(
        observed,
        instances=instances,
        nodes=(*observed.nodes, *found),
        notes=(*observed.notes, *note),
    )


def list_proved(group: NodeGroup, nodes: Iterable[Node]) -> frozenset[str]:
    """The VMs with proved Nodes. label_node has revoked their tokens."""
    return frozenset(node.vm for node in nodes if node.proved_vm_id and may_match(group, node))


def advance(
    observed: ObservedRemains, kind: str, now: datetime, *, is_blocked: bool = False
) -> lifecycle.Transition:
    resource = observed.resource(kind, now)
    observation = lifecycle.make_observation(
        observed.group, kind, resource, observed.found, observed.operations
    )
    observation = replace(observation, is_resync=observed.is_resync, is_blocked=is_blocked)
    return lifecycle.find_transition(lifecycle.Goal.TEAR_DOWN, resource, observation, now)
