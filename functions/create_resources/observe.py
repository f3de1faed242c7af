"""What create_resources reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from functions.create_resources.creation_report import CreationReport
from shared.base.reasons import Reason
from shared.node_groups.node_group import NodeGroup, Spec, UnreadableGroup
from shared.node_groups.resources import KINDS, Found, find_operation
from shared.node_groups.status import MIG, TEMPLATE, Resource, State, Status, Type
from shared.node_groups.work import GroupWork
from shared.ports.gce.values import ManagedInstance, Mig, Operation
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
    may_repeat_insert: bool = False
    """Whether this invocation inserts although an entry became Creating only seconds ago.

    Normally another invocation has just written such an entry (`lifecycle.YOUNG`) and is inserting the
    resource now, so this one waits. It need not wait if its message is a redelivery: most probably the
    entry is of the earlier delivery, whose invocation has ended. In a second observation it must wait:
    an entry that was not there in the first one is of an invocation that still runs."""

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
    group, known = work.group, work.status
    is_left_alone = group.deleting is not None or group.has_operator_finalizer
    may_have_children = not is_left_alone and not group.has_finalizer
    has_operator_children = may_have_children and _has_operator_children(work)
    if isinstance(group, UnreadableGroup):
        return ObservedUnreadable(group, known, has_operator_children)
    observed = ObservedResources(
        group,
        known,
        work.trigger,
        work.settings.projects,
        has_operator_children,
        may_repeat_insert=work.trigger.is_redelivered and work.is_first_observation,
    )
    if is_left_alone or has_operator_children:
        return observed
    if list_violations(group, work.settings.projects):
        return observed
    found = {
        kind: KINDS[kind].find(work.gce, group.spec, group.resource_name)
        for kind in _list_kinds_to_read(work, group.spec)
    }
    return replace(
        observed,
        found=found,
        operations=_read_operations(work, group.spec, found),
        members=_read_members(work, group.spec, found.get(MIG)),
    )


def _has_operator_children(work: GroupWork) -> bool:
    group = work.group
    return work.cluster.has_operator_children(group.namespace, group.operator_child_names)


def _list_kinds_to_read(work: GroupWork, spec: Spec) -> Iterator[str]:
    """The kinds whose state does not follow from the status, as far as the trigger concerns them.

    A kind that is not read is inserted if its entry is Pending, otherwise its entry stays as it is.
    """
    if _is_known_failure(work):
        return
    for kind in spec.resource_kinds:
        resource = work.status.resources.get(kind)
        if resource is None or resource.state is State.PENDING:
            must_read = not _is_known_absent(work, spec, kind)
        else:
            must_read = not _is_known_ready(work, spec, kind, resource)
        if must_read and _concerns(work, kind):
            yield kind


def _is_known_absent(work: GroupWork, spec: Spec, kind: str) -> bool:
    """Whether the status shows that a resource without an entry, or with a Pending one, does not exist.
    Then it is inserted without a read.

    It may exist if it is a user's own template, if its entry was lost (the group has our finalizer, so
    there was one), and in a second observation: the answer to an insert may have been 409.
    """
    is_users_own = kind == TEMPLATE and spec.user_template is not None
    is_status_lost = kind not in work.status.resources and work.group.has_finalizer
    return work.is_first_observation and not is_users_own and not is_status_lost


def _is_known_ready(work: GroupWork, spec: Spec, kind: str, resource: Resource) -> bool:
    """Whether the status shows that a policy or template exists; false for a MIG.

    While there is no MIG, a second observation reads both: the insert of the MIG may have failed because
    one is missing. A user's own template is read until the slice has been complete once
    (``completed_at``): an insert of the MIG needs its content.
    """
    if kind == MIG or resource.state is not State.READY:
        return False
    if kind == TEMPLATE and spec.user_template is not None:
        return work.status.completed_at is not None
    return _has_mig(work.status) or work.is_first_observation


def _concerns(work: GroupWork, kind: str) -> bool:
    """Whether the resource is read after this trigger. While it is being inserted, an event about
    another kind does not require reading it: the end of its own insert will trigger the step."""
    trigger = work.trigger
    if not isinstance(trigger, LogTrigger) or not work.is_first_observation or kind == MIG:
        return True
    resource = work.status.resources.get(kind)
    is_creating = resource is not None and resource.state is State.CREATING
    return not is_creating or trigger.event.kind == KINDS[kind].collection


def _is_known_failure(work: GroupWork) -> bool:
    """Whether the event is another failed insert of a VM, and the condition already reports an error.
    Then nothing is read: the MIG exists, and its condition stays as it is."""
    match work.trigger:
        case LogTrigger(event):
            return event.has_failed and event.concerns_vm and _has_error(work.status)
    return False


def _has_error(known: Status) -> bool:
    """Whether the status reports an error of the MIG or its VMs."""
    condition = known.conditions.get(Type.MIG_READY)
    no_errors = ("Ready", Reason.PROVISIONING, Reason.PAUSED)
    return condition is not None and condition.reason not in no_errors


def _has_mig(known: Status) -> bool:
    mig = known.resources.get(MIG)
    return mig is not None and mig.state is State.READY


def _read_operations(
    work: GroupWork, spec: Spec, found: Mapping[str, Found | None]
) -> dict[str, Operation | None]:
    """Read the recorded operations of resources that were read and do not exist."""
    return {
        kind: find_operation(work.gce, spec, kind, resource)
        for kind, resource in work.status.resources.items()
        if resource.operation and kind in found and found[kind] is None
    }


def _read_members(work: GroupWork, spec: Spec, found: Found | None) -> tuple[ManagedInstance, ...]:
    """Read the MIG's members with their errors, if the creation or repair of a VM may have failed.

    The condition of a MIG that was read is computed without the former one. So while that reports an
    error, the members are read, too: otherwise the error would seem to be over.
    """
    trigger = work.trigger
    is_success = isinstance(trigger, LogTrigger) and not trigger.event.has_failed
    may_have_failed = not is_success or _has_error(work.status)
    if not isinstance(found, Mig) or not may_have_failed:
        return ()
    if not found.creating and not found.recreating:
        return ()
    return work.gce.list_managed_instances(spec.project, spec.zone, work.group.resource_name)


def list_violations(group: NodeGroup, projects: frozenset[str]) -> list[str]:
    """The violations of the spec, each with its field."""
    violations = [str(violation) for violation in group.violations]
    project = group.spec.project
    if project not in projects:
        served = ", ".join(sorted(projects))
        violations.append(
            f"spec.project: {project} is not served by this installation; it serves {served} "
            "(Terraform's variable projects)"
        )
    return violations
