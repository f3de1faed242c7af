"""create_resources: from a TPUNodeGroup to its workload policy, instance template and MIG.

Triggers:

- The group was added, or its generation, pause, label or finalizer changed.
- An insert of one of its resources or a change to its MIG ended, or the insert of a VM failed.
- A resync.
- A message of label_node: VMs or Nodes contradict the condition of the MIG, or Accepted is true for a
  group that is not served any more.
- A message of tear_down, which was triggered about a group that is not being deleted.

The first invocation takes ownership (label and finalizer) and inserts policy and template, without
waiting for one before the other. A later one, when both exist, inserts the MIG. A group whose VMs are
created one by one (targetSizePolicyMode INDIVIDUAL instead of BULK) has no policy, and a user's own
template is only read. Nothing is inserted for a group with an invalid spec, for a paused one, and for
one that tpu-operator manages.

`node_groups.lifecycle.TABLE` decides about each resource. The status is written before an insert: the
entry of the resource becomes Creating (the intent), so that an invocation that dies is noticed.

The step owns the conditions Accepted, WorkloadPolicyReady, InstanceTemplateReady and
ManagedInstanceGroupReady. They report the errors of Compute Engine, except transient ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from functions.create_resources.creation_report import CreationReport
from functions.create_resources.user_template import find_template_violation
from shared.base.reasons import REASONS, Reason
from shared.frame.plan import Action, Plan, Send
from shared.frame.snapshot import Rules, whole
from shared.frame.step import Step
from shared.node_groups import readiness
from shared.node_groups.actions import Insert, TakeOwnership
from shared.node_groups.lifecycle import (
    Goal,
    ResourceAction,
    Transition,
    find_transition,
    make_observation,
)
from shared.node_groups.node_group import (
    AnyGroup,
    InstanceConfig,
    NodeGroup,
    Spec,
    UnreadableGroup,
)
from shared.node_groups.resources import (
    KINDS,
    Found,
    find_kind,
    mig_body,
    policy_body,
    template_body,
)
from shared.node_groups.snapshot import RULES
from shared.node_groups.status import (
    CONDITION_OF,
    MIG,
    POLICY,
    TEMPLATE,
    Resource,
    State,
    Status,
    Type,
)
from shared.node_groups.unreadable import restore_entries
from shared.node_groups.work import (
    GroupWork,
    WriteStatus,
    message_about,
    open_group,
    report_environment_error,
    report_retry,
)
from shared.ports.errors import CallError
from shared.ports.gce.values import ManagedInstance, Mig, Operation, Template
from shared.triggers.decode import Trigger
from shared.triggers.message import Cause


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
    if _list_violations(group, work.settings.projects):
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


def decide(observed: ObservedResources | ObservedUnreadable, now: datetime) -> Plan:
    """Decide which resources to insert, and what the status reports."""
    group = observed.group
    if group.deleting is not None:
        return _delegate_to_tear_down(group, now)
    if group.has_operator_finalizer or observed.has_operator_children:
        return Plan("ManagedElsewhere", (_report_managed_elsewhere(group, observed.status, now),))
    if isinstance(observed, ObservedUnreadable):
        known = restore_entries(observed.group, observed.status, now)
        violations = [*map(str, observed.group.violations)]
        entries = known.resources  # tear_down needs them
        return _reject(group, known, violations, entries, now)
    violations = _list_violations(observed.group, observed.projects)
    if violations:
        return _reject(group, observed.status, violations, _build_entries(observed, now), now)
    return _provision(observed, now)


def recover(work: GroupWork, error: CallError) -> Plan | None:
    """Report an environment error in the condition of the resource that the call was about.

    Errors of other calls are reported in that of the MIG, which the group's VMs depend on. After an
    event about one VM, the error is only in the log (`report_environment_error`).
    """
    condition = CONDITION_OF[find_kind(error.call) or MIG]

    def add_error(known: Status, reason: Reason) -> Status:
        message = f"{error.message} ({error.call}). {REASONS[reason]}"
        return known.with_condition(
            condition, False, reason, message, group=work.group, now=work.now
        )

    return report_environment_error(work, error, add_error)


SNAPSHOT: Rules = {
    **RULES,
    (ObservedResources, "found"): whole,
    (ObservedResources, "operations"): whole,
}
STEP = Step(
    "create_resources",
    open_group,
    observe,
    decide,
    recover,
    give_up=report_retry,
    snapshot=SNAPSHOT,
)
run = STEP.run


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
    another kind is no reason to read it: the end of its own insert will trigger the step."""
    event = work.trigger.event
    if event is None or not work.is_first_observation or kind == MIG:
        return True
    resource = work.status.resources.get(kind)
    is_creating = resource is not None and resource.state is State.CREATING
    return not is_creating or event.kind == KINDS[kind].collection


def _is_known_failure(work: GroupWork) -> bool:
    """Whether the event is another failed insert of a VM, and the condition already reports an error.
    Then nothing is read: the MIG exists, and its condition stays as it is."""
    event = work.trigger.event
    is_failure = event is not None and event.has_failed and event.concerns_vm
    return is_failure and _has_error(work.status)


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
        kind: work.gce.find_operation(spec.project, KINDS[kind].scope(spec), resource.operation)
        for kind, resource in work.status.resources.items()
        if resource.operation and kind in found and found[kind] is None
    }


def _read_members(work: GroupWork, spec: Spec, found: Found | None) -> tuple[ManagedInstance, ...]:
    """Read the MIG's members with their errors, if the creation or repair of a VM may have failed.

    The condition of a MIG that was read is computed without the former one. So while that reports an
    error, the members are read, too: otherwise the error would seem to be over.
    """
    event = work.trigger.event
    may_have_failed = event is None or event.has_failed or _has_error(work.status)
    if not isinstance(found, Mig) or not may_have_failed:
        return ()
    if not found.creating and not found.recreating:
        return ()
    return work.gce.list_managed_instances(spec.project, spec.zone, work.group.resource_name)


def _delegate_to_tear_down(group: AnyGroup, now: datetime) -> Plan:
    if not group.has_finalizer:
        return Plan("Deleting")
    message = message_about(group, Cause.FORWARDED, now)
    return Plan("Deleting", (Send("tear_down", (message,)),))


def _list_violations(group: NodeGroup, projects: frozenset[str]) -> list[str]:
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


def _report_managed_elsewhere(group: AnyGroup, known: Status, now: datetime) -> Action:
    message = (
        "tpu-operator manages this group: it has its finalizers or children. tpu-functions does "
        "nothing until they are removed. Migrate the group, or leave it to tpu-operator."
    )
    known = known.with_condition(
        Type.ACCEPTED, False, Reason.MANAGED_ELSEWHERE, message, group=group, now=now
    )
    return WriteStatus(readiness.conclude(group, known, now))


def _reject(
    group: AnyGroup,
    known: Status,
    violations: list[str],
    entries: Mapping[str, Resource],
    now: datetime,
) -> Plan:
    known = replace(known, observed_generation=group.generation, resources=dict(entries))
    advice = "Delete the group, correct the spec and apply it again."
    if not group.violations:  # only the project is not served
        advice = (
            "Add the project to this variable, and the group continues within an hour, or delete the "
            "group, correct the spec and apply it again."
        )
    message = f"{'; '.join(violations)}. {advice}"
    known = known.with_condition(
        Type.ACCEPTED, False, Reason.INVALID_SPEC, message, group=group, now=now
    )
    write = WriteStatus(readiness.conclude(group, known, now))
    # Owned, so that its deletion passes through tear_down, which knows what may exist.
    ownership = () if group.is_owned else (TakeOwnership(),)
    return Plan("InvalidSpec", (write, *ownership))


def _provision(observed: ObservedResources, now: datetime) -> Plan:
    group, known = observed.group, observed.status
    actions: list[Action] = []
    if not group.is_owned:
        # The status first: a group with our finalizer and no entries counts as one with a lost status.
        if not known.resources:
            known = _conclude(observed, known, _build_entries(observed, now), now)
            actions.append(WriteStatus(known))
        actions.append(TakeOwnership())
    transitions = _advance_all(observed, now)
    resources = {kind: transition.resource for kind, transition in transitions.items()}
    inserts = _build_inserts(observed, transitions)
    actions.append(WriteStatus(_conclude(observed, known, resources, now)))
    if inserts:
        actions += [*inserts, WriteInsertResults(observed.report)]
    return Plan(_name_outcome(observed, resources, inserts), tuple(actions))


def _conclude(
    observed: ObservedResources, known: Status, resources: Mapping[str, Resource], now: datetime
) -> Status:
    known = replace(known, resources=dict(resources))
    return readiness.conclude(
        observed.group, observed.report.add_conditions(observed.group, known, now), now
    )


@dataclass(frozen=True)
class WriteInsertResults:
    """Write the status with the results of the inserts.

    `Insert` has stored each result in the entry of its resource in ``work.status``: the conditions
    follow from the entries and from what was observed.
    """

    report: CreationReport = field(repr=False)

    def apply(self, work: GroupWork) -> None:
        if isinstance(work.group, NodeGroup):
            work.status = self.report.add_conditions(work.group, work.status, work.now)
        work.conclude_and_write()

    def describe(self) -> str:
        return "write the results of the inserts"


def _name_outcome(
    observed: ObservedResources, resources: Mapping[str, Resource], inserts: list[Action]
) -> str:
    if inserts:
        return "Inserting"
    if all(resource.state is State.READY for resource in resources.values()):
        return "ResourcesReady"
    return "Paused" if observed.group.is_paused else "Waiting"


def _build_entries(observed: ObservedResources, now: datetime) -> dict[str, Resource]:
    """An entry for each resource that the spec needs.

    The entries of a new group are Pending. A group that has our finalizer and no entry has lost its
    status, and an insert may be in progress: its new entry is Creating since now. It is inserted
    immediately (the rows of `lifecycle.TABLE` for Creating and `Guard.LOST`), and not first in 5 seconds
    like one that was read from the status: at worst Compute Engine answers 409.
    """
    spec = observed.group.spec
    name = observed.group.resource_name
    new = Resource(name)
    if observed.group.has_finalizer:
        new = Resource(name, State.CREATING, now)
    entries = {kind: observed.status.resources.get(kind, new) for kind in spec.resource_kinds}
    if spec.user_template is not None and TEMPLATE not in observed.status.resources:
        entries[TEMPLATE] = Resource(spec.user_template.name)
    return entries


def _advance_all(observed: ObservedResources, now: datetime) -> dict[str, Transition]:
    """The next state of each resource; the MIG waits until the others are Ready."""
    entries = _build_entries(observed, now)
    transitions = {
        kind: _advance(observed, kind, resource, now)
        for kind, resource in entries.items()
        if kind != MIG
    }
    are_ready = all(one.resource.state is State.READY for one in transitions.values())
    transitions[MIG] = _advance(observed, MIG, entries[MIG], now, is_blocked=not are_ready)
    return transitions


def _advance(
    observed: ObservedResources,
    kind: str,
    resource: Resource,
    now: datetime,
    *,
    is_blocked: bool = False,
) -> Transition:
    observation = make_observation(
        observed.group,
        kind,
        resource,
        observed.found,
        observed.operations,
        violation=_find_violation(observed, kind),
        is_resync=observed.trigger.is_resync,
        may_repeat_insert=observed.may_repeat_insert,
        is_blocked=is_blocked,
        was_complete=observed.status.completed_at is not None,
        has_no_entry=kind not in observed.status.resources,
    )
    return find_transition(Goal.CREATE, resource, observation, now)


def _find_violation(observed: ObservedResources, kind: str) -> str:
    """The violations of the user's own template, if the group has one."""
    spec, found = observed.group.spec, observed.found.get(kind)
    if spec.user_template is None or not isinstance(found, Template):
        return ""
    return find_template_violation(spec, found) or ""


def _build_inserts(
    observed: ObservedResources, transitions: Mapping[str, Transition]
) -> list[Action]:
    """The inserts for which this invocation sets Creating.

    The status is written first, by compare-and-swap: if another step has written it since, nothing
    is inserted.
    """
    return [
        Insert(kind, observed.group.spec, body)
        for kind, transition in transitions.items()
        if transition.action is ResourceAction.INSERT
        if (body := _build_body(observed, kind)) is not None
    ]


def _build_body(observed: ObservedResources, kind: str) -> dict[str, object] | None:
    """The body of an insert; ``None`` for a user's own template: `lifecycle.TABLE` never inserts it."""
    source = observed.group.spec.source
    if kind == POLICY:
        return policy_body(observed.group)
    if kind == TEMPLATE:
        return template_body(observed.group, source) if isinstance(source, InstanceConfig) else None
    template = observed.found.get(TEMPLATE)
    return mig_body(observed.group, template if isinstance(template, Template) else None)
