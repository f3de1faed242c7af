"""The resources of a group, as far as their state does not follow from its status."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from functions.create_resources.resource_conditions import CreationReport
from shared.base.names import POLICIES, TEMPLATES
from shared.base.reasons import Reason
from shared.node_groups.node_group import NodeGroup, Spec, UnreadableGroup
from shared.node_groups.resources import KINDS, Found, find_operation, find_resource
from shared.node_groups.status import MIG, TEMPLATE, Resource, State, Status, Type
from shared.node_groups.work import GroupWork
from shared.ports.gce.values import ManagedInstance, Mig, Operation, Policy
from shared.settings import describe_unserved
from shared.triggers.trigger import LogTrigger, Trigger


@dataclass(frozen=True)
class ObservedResources:
    """A group and its resources. ``found`` has only the kinds that were read."""

    group: NodeGroup
    status: Status
    trigger: Trigger
    projects: frozenset[str]
    """The projects that this installation serves."""
    has_operator_children: bool = False
    """Whether tpu-operator has created objects for this group."""
    found: Mapping[str, Found | None] = field(default_factory=dict)
    operations: Mapping[str, Operation | None] = field(default_factory=dict)
    members: tuple[ManagedInstance, ...] = ()
    """The VMs of the MIG with their errors, if the creation or repair of one may have failed."""
    may_repeat_insert: bool = False
    """Whether this invocation inserts although an entry became Creating only seconds ago.

    Such an entry (`lifecycle.YOUNG`) is normally of another invocation that is inserting the resource
    now, so this one waits. True for the first observation of a redelivered message: then the entry is
    most probably of the earlier delivery, whose invocation has ended. Also true if the step observes a
    group again that nobody owns: the insert follows the ownership, which one invocation takes."""

    @property
    def report(self) -> CreationReport:
        """The part of the observation from which conditions follow."""
        return CreationReport(self.found, self.members)


@dataclass(frozen=True)
class ObservedUnreadable:
    """A group whose spec cannot be read."""

    group: UnreadableGroup
    status: Status
    has_operator_children: bool = False


def observe(work: GroupWork) -> ObservedResources | ObservedUnreadable:
    """Read the resources whose state does not follow from the status."""
    group, known, trigger = work.group, work.status, work.trigger
    is_left_alone = group.deleting is not None or group.has_operator_finalizer
    has_operator_children = (
        not is_left_alone
        and not group.has_finalizer
        and work.cluster.has_operator_children(
            group.namespace, group.operator_child_names, work.now
        )
    )
    if isinstance(group, UnreadableGroup):
        return ObservedUnreadable(group, known, has_operator_children)
    spec, projects = group.spec, work.settings.projects
    is_first = work.is_first_observation
    may_repeat = trigger.is_redelivered if is_first else not group.is_owned
    observed = ObservedResources(
        group, known, trigger, projects, has_operator_children, may_repeat_insert=may_repeat
    )
    if is_left_alone or has_operator_children or list_violations(group, projects):
        return observed
    condition = known.conditions.get(Type.MIG_READY)
    no_errors = ("Ready", Reason.PROVISIONING, Reason.PAUSED)
    is_error_known = condition is not None and condition.reason not in no_errors
    event = trigger.event if isinstance(trigger, LogTrigger) else None
    if event is not None and event.concerns_vm and event.has_failed and is_error_known:
        return observed  # one more VM has failed: the MIG exists, and its condition stays as it is
    found = {
        kind: _find(work, spec, kind)
        for kind in spec.resource_kinds
        if _must_read(work, spec, kind)
    }
    operations = {
        kind: find_operation(work.gce, spec, kind, entry)
        for kind, entry in known.resources.items()
        if entry.operation and kind in found and found[kind] is None
    }
    # The condition of a MIG that was read is computed without the former one. So its VMs' errors are
    # read again while it reports one: otherwise the error would seem to be over.
    members: tuple[ManagedInstance, ...] = ()
    mig, may_have_failed = found.get(MIG), event is None or event.has_failed or is_error_known
    if isinstance(mig, Mig) and may_have_failed and mig.has_unfinished_vms:
        members = work.gce.list_managed_instances(spec.project, spec.zone, group.resource_name)
    return replace(observed, found=found, operations=operations, members=members)


def _find(work: GroupWork, spec: Spec, kind: str) -> Found | None:
    if kind == TEMPLATE and spec.user_template is not None:
        return work.gce.find_template(spec.user_template)
    entry = work.status.resources.get(kind)
    if entry is not None and _is_own_insert(work, kind, entry):
        scope = KINDS[kind].scope(spec)
        place = f"regions/{scope}" if scope else "global"
        uri = f"projects/{spec.project}/{place}/{KINDS[kind].collection}/{entry.name}"
        return Policy(uri, work.group.mark)
    # The insert in a zone or region that does not exist is rejected with the field of the spec.
    is_unseen = entry is not None and entry.is_unseen
    return find_resource(work.gce, spec, kind, work.group.resource_name, may_be_nowhere=is_unseen)


def _is_own_insert(work: GroupWork, kind: str, entry: Resource) -> bool:
    """Whether the trigger says that this step's own insert of a policy or template has succeeded: what
    it made need not be read. If that is gone since, the MIG's insert fails, and it is read then."""
    event = work.trigger.event if isinstance(work.trigger, LogTrigger) else None
    if event is None or event.has_failed or kind == MIG or not work.is_first_observation:
        return False
    is_insert = event.method == f"compute.{KINDS[kind].collection}.insert"
    return is_insert and event.operation == entry.operation != ""


def _must_read(work: GroupWork, spec: Spec, kind: str) -> bool:
    """Whether the state of a resource does not follow from the status, and the trigger concerns it.

    A resource that is not read is inserted if its entry is Pending, otherwise its entry stays as it is.
    """
    known, is_first = work.status, work.is_first_observation
    entry, mig = known.resources.get(kind), known.resources.get(MIG)
    is_users_own = kind == TEMPLATE and spec.user_template is not None
    if entry is None or entry.state is State.PENDING:
        # It was not inserted, unless its entry was lost (a group with our finalizer had one), or a
        # second observation follows an insert that was answered with 409.
        is_lost = entry is None and work.group.has_finalizer
        return is_users_own or is_lost or not is_first
    event = work.trigger.event if is_first and isinstance(work.trigger, LogTrigger) else None
    if kind == MIG:
        # The end of another insert, late or delivered twice, does not change a MIG that is known.
        is_of_other = event is not None and event.kind in (POLICIES, TEMPLATES)
        return not is_of_other or not (entry.operation or entry.state is State.READY)
    if entry.state is State.READY:
        # An insert of the MIG needs the content of a user's own template. In a second observation the
        # insert of the MIG may have failed because a policy or template is missing.
        if is_users_own:
            return known.completed_at is None
        return not is_first and (mig is None or mig.state is not State.READY)
    if entry.state is State.CREATING and event is not None:
        # The end of its own insert will trigger the step.
        return event.kind == KINDS[kind].collection
    return True


def list_violations(group: NodeGroup, projects: frozenset[str]) -> list[str]:
    """The violations of the spec, each with its field."""
    violations = [str(violation) for violation in group.violations]
    project = group.spec.project
    if project not in projects:
        violations.append(describe_unserved(project, projects))
    return violations
