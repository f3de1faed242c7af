"""create_resources: from a TPUNodeGroup to its workload policy, instance template and MIG.

Occasions: the group was added; its spec, pause, label or finalizer changed; an insert of one of its
resources ended, a change to its MIG, or a VM's insert that failed; SYNC.

One invocation takes ownership and inserts what is missing and possible now: policy and template side
by side, the MIG when both stand. What Compute Engine refuses becomes a condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from shared.base.errors import REASONS, CallError, Reason, classify
from shared.frame.plan import Action, Plan, Send
from shared.frame.settings import Settings
from shared.frame.step import Step
from shared.frame.triggers import Cause, Occasion
from shared.node_groups import status
from shared.node_groups.actions import Insert, TakeOwnership
from shared.node_groups.creation_report import CreationReport
from shared.node_groups.node_group import (
    AnyGroup,
    InstanceConfig,
    NodeGroup,
    Spec,
    UnreadableGroup,
)
from shared.node_groups.own_template import find_template_problem
from shared.node_groups.resources import KINDS, Found, mig_body, policy_body, template_body
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
from shared.node_groups.work import (
    GroupWork,
    WriteStatus,
    message_about,
    open_group,
    report_refusal,
)
from shared.ports.gce import ManagedInstance, Mig, Operation, Template

YOUNG = timedelta(seconds=5)
"""An intent younger than this is somebody's who is about to insert: leave it to them."""
RETRY_AFTER = timedelta(seconds=60)
"""What failed is tried again on a SYNC, or on any occasion that comes this long after."""


@dataclass(frozen=True)
class ObservedResources:
    """What the step has seen. ``found`` holds only the kinds that were asked for."""

    group: NodeGroup
    status: Status
    occasion: Occasion
    settings: Settings
    has_foreign_children: bool = False
    found: Mapping[str, Found | None] = field(default_factory=dict)
    operations: Mapping[str, Operation | None] = field(default_factory=dict)
    members: tuple[ManagedInstance, ...] = ()

    @property
    def report(self) -> CreationReport:
        """What of it the conditions tell."""
        return CreationReport(self.found, self.members)


@dataclass(frozen=True)
class ObservedUnreadable:
    """What the step has seen of a group whose spec cannot be read."""

    group: UnreadableGroup
    status: Status
    has_foreign_children: bool = False


def look(work: GroupWork) -> ObservedResources | ObservedUnreadable:
    """Read what the decision needs, and no more: what stands is not asked for again."""
    group, known = work.group, work.status
    is_foreign = not _is_over(group) and not group.has_finalizer and _has_foreign_children(work)
    if isinstance(group, UnreadableGroup):
        return ObservedUnreadable(group, known, is_foreign)
    seen = ObservedResources(group, known, work.occasion, work.settings, is_foreign)
    if _is_over(group) or is_foreign or _violations(group, work.settings):
        return seen
    found = {
        kind: KINDS[kind].find(work.gce, group.spec, group.resource_name)
        for kind in _to_be_read(work, group.spec)
    }
    return replace(
        seen,
        found=found,
        operations=_operations(work, group.spec, found),
        members=_members(work, group.spec, found.get(MIG)),
    )


def decide(seen: ObservedResources | ObservedUnreadable, now: datetime) -> Plan:
    """What is to be done about a group in this state."""
    group = seen.group
    if group.deleting is not None:
        return _hand_over(group, now)
    if group.carries_foreign_finalizer or seen.has_foreign_children:
        return Plan("ManagedElsewhere", (_managed_elsewhere(group, seen.status, now),))
    if isinstance(seen, ObservedUnreadable):
        return _refuse(group, seen.status, [*map(str, group.problems)], {}, now)
    violations = _violations(seen.group, seen.settings)
    if violations:
        return _refuse(group, seen.status, violations, _entries(seen, now), now)
    return _provision(seen, now)


def recover(work: GroupWork, error: CallError) -> Plan | None:
    """A refusal met while reading: it stands in the condition of the resource that was asked for."""
    kinds = {"resource_policies": POLICY, "instance_templates": TEMPLATE}
    service = error.call.partition(".")[0].removeprefix("region_")
    condition = CONDITION_OF[kinds.get(service, MIG)]

    def describe(known: Status, reason: Reason) -> Status:
        message = f"{error.message} ({error.call}). {REASONS[reason]}"
        return known.with_condition(
            condition, False, reason, message, group=work.group, now=work.now
        )

    return report_refusal(work, error, describe)


STEP = Step("create_resources", open_group, look, decide, recover)
run = STEP.run


def _is_over(group: AnyGroup) -> bool:
    """Being deleted, or tpu-operator's: nothing is created."""
    return group.deleting is not None or group.carries_foreign_finalizer


def _has_foreign_children(work: GroupWork) -> bool:
    group = work.group
    return work.cluster.has_foreign_children(group.namespace, group.foreign_child_names)


def _to_be_read(work: GroupWork, spec: Spec) -> Iterator[str]:
    """Kinds whose state is not known: all that is neither untouched nor known to stand."""
    group, known = work.group, work.status
    if _is_told_already(work):
        return
    for kind in spec.resource_kinds:
        resource = known.resources.get(kind)
        if resource is None or resource.state is State.PENDING:
            is_known = resource is not None or not group.has_finalizer
            is_own = kind == TEMPLATE and spec.own_template is not None
            must_read = is_own or not is_known or not work.is_first_look
        else:
            may_be_lost = not work.is_first_look and not _stands(known, MIG)
            is_settled = resource.state is State.READY and kind != MIG and not may_be_lost
            must_read = not is_settled or _is_for_body(work, spec, kind)
        if must_read and _may_have_changed(work, kind):
            yield kind


def _may_have_changed(work: GroupWork, kind: str) -> bool:
    """An event about one of two that are being made side by side says nothing of the other."""
    event = work.occasion.event
    if event is None or not work.is_first_look or kind == MIG:
        return True
    resource = work.status.resources.get(kind)
    is_being_made = resource is not None and resource.state is State.CREATING
    return not is_being_made or KINDS[kind].collection in event.method


def _is_told_already(work: GroupWork) -> bool:
    """One more VM that could not be made, where the condition says already why they cannot be."""
    event, said = work.occasion.event, work.status.conditions.get(Type.MIG_READY)
    is_failure = event is not None and event.has_failed and event.concerns_vm
    return is_failure and said is not None and said.reason not in ("Ready", Reason.PROVISIONING)


def _is_for_body(work: GroupWork, spec: Spec, kind: str) -> bool:
    """A user's own template is read again for the body of the MIG that is made of it."""
    is_own = kind == TEMPLATE and spec.own_template is not None
    return is_own and not _stands(work.status, MIG)


def _stands(known: Status, kind: str) -> bool:
    resource = known.resources.get(kind)
    return resource is not None and resource.state is State.READY


def _operations(
    work: GroupWork, spec: Spec, found: Mapping[str, Found | None]
) -> dict[str, Operation | None]:
    return {
        kind: work.gce.find_operation(spec.project, KINDS[kind].scope(spec), resource.operation)
        for kind, resource in work.status.resources.items()
        if resource.operation and kind in found and found[kind] is None
    }


def _members(work: GroupWork, spec: Spec, found: Found | None) -> tuple[ManagedInstance, ...]:
    """The members' errors, where a VM that was to be made may have failed."""
    event = work.occasion.event
    may_have_failed = event is None or event.has_failed
    if not isinstance(found, Mig) or not found.creating or not may_have_failed:
        return ()
    return work.gce.list_managed_instances(spec.project, spec.zone, work.group.resource_name)


def _hand_over(group: AnyGroup, now: datetime) -> Plan:
    if not group.has_finalizer:
        return Plan("Deleting")
    message = message_about(group, Cause.FORWARDED, now)
    return Plan("Deleting", (Send("tear_down", (message,)),))


def _violations(group: NodeGroup, settings: Settings) -> list[str]:
    """What is wrong with the spec, in words that name the field."""
    violations = [str(problem) for problem in group.problems]
    project = group.spec.project
    if not settings.serves(project):
        served = ", ".join(sorted(settings.projects))
        violations.append(
            f"spec.project: {project} is not served by this installation; it serves {served}"
        )
    return violations


def _managed_elsewhere(group: AnyGroup, known: Status, now: datetime) -> Action:
    message = (
        "tpu-operator manages this group: its finalizers or children are there. "
        "Nothing is done until they are gone."
    )
    known = known.with_condition(
        Type.ACCEPTED, False, Reason.MANAGED_ELSEWHERE, message, group=group, now=now
    )
    return WriteStatus(status.conclude(group, known, now))


def _refuse(
    group: AnyGroup,
    known: Status,
    violations: list[str],
    entries: Mapping[str, Resource],
    now: datetime,
) -> Plan:
    known = replace(known, observed_generation=group.generation, resources=dict(entries))
    known = known.with_condition(
        Type.ACCEPTED, False, Reason.INVALID_SPEC, "; ".join(violations), group=group, now=now
    )
    write = WriteStatus(status.conclude(group, known, now))
    return Plan("InvalidSpec", (write, *_ownership(group)))


def _ownership(group: AnyGroup) -> tuple[Action, ...]:
    return () if group.is_owned else (TakeOwnership(),)


def _provision(seen: ObservedResources, now: datetime) -> Plan:
    group, known = seen.group, seen.status
    actions: list[Action] = []
    if not group.is_owned:
        if not known.resources:
            known = _describe(seen, known, _entries(seen, now), now)
            actions.append(WriteStatus(known))
        actions.append(TakeOwnership())
    resources = _advance_all(seen, now)
    inserts = _inserts(seen, resources)
    actions.append(WriteStatus(_describe(seen, known, resources, now)))
    if inserts:
        actions += [*inserts, WriteCreated(seen.report)]
    return Plan(_outcome(seen, resources, inserts), tuple(actions))


def _describe(
    seen: ObservedResources, known: Status, resources: Mapping[str, Resource], now: datetime
) -> Status:
    known = replace(known, resources=dict(resources))
    return status.conclude(seen.group, seen.report.describe(seen.group, known, now), now)


@dataclass(frozen=True)
class WriteCreated:
    """Write what has become of the inserts."""

    report: CreationReport = field(repr=False)

    def apply(self, work: GroupWork) -> None:
        if isinstance(work.group, NodeGroup):
            work.status = self.report.describe(work.group, work.status, work.now)
        work.conclude()

    def describe(self) -> str:
        return "write the status, if it has changed"


def _outcome(
    seen: ObservedResources, resources: Mapping[str, Resource], inserts: list[Action]
) -> str:
    if inserts:
        return "Inserting"
    if all(resource.state is State.READY for resource in resources.values()):
        return "AllStand"
    return "Paused" if seen.group.is_paused else "Waiting"


def _entries(seen: ObservedResources, now: datetime) -> dict[str, Resource]:
    """An entry for each resource that the spec needs.

    A group that has our finalizer and lacks one has lost its status: perhaps under way since now.
    """
    spec = seen.group.spec
    name = seen.group.resource_name
    new = Resource(name)
    if seen.group.has_finalizer:
        new = Resource(name, State.CREATING, now)
    entries = {kind: seen.status.resources.get(kind, new) for kind in spec.resource_kinds}
    if spec.own_template is not None and TEMPLATE not in seen.status.resources:
        entries[TEMPLATE] = Resource(spec.own_template.name)
    return entries


def _advance_all(seen: ObservedResources, now: datetime) -> dict[str, Resource]:
    entries = _entries(seen, now)
    resources = {
        kind: _advance(seen, kind, resource, now)
        for kind, resource in entries.items()
        if kind != MIG
    }
    stand = all(resource.state is State.READY for resource in resources.values())
    group = entries[MIG]
    may_advance = stand or group.state not in (State.PENDING, State.FAILED)
    resources[MIG] = _advance(seen, MIG, group, now) if may_advance else group
    return resources


def _advance(seen: ObservedResources, kind: str, resource: Resource, now: datetime) -> Resource:
    """Where a resource stands after what was seen; a new ``Creating`` is to be inserted."""
    found = seen.found.get(kind)
    if found is not None:
        return _stands_or_conflicts(seen, resource, found, now)
    if kind == TEMPLATE and seen.group.spec.own_template is not None:
        return _own_template_missing(seen, resource, now)
    if resource.state is State.PENDING:
        return _begin(seen, resource, now)
    if kind not in seen.found:
        return resource
    return _advance_absent(seen, kind, resource, now)


def _advance_absent(
    seen: ObservedResources, kind: str, resource: Resource, now: datetime
) -> Resource:
    if resource.state is State.FAILED:
        is_due = resource.since is None or now - resource.since >= RETRY_AFTER
        return _begin(seen, resource, now) if is_due or seen.occasion.is_sync else resource
    if resource.state in (State.READY, State.GONE):
        if seen.status.completed_at is not None:
            return resource.enter(State.GONE, now)
        return _begin(seen, resource, now)
    if not resource.operation:
        is_young = resource.since is not None and now - resource.since < YOUNG
        return resource if is_young else _begin(seen, resource, now)
    operation = seen.operations.get(kind)
    if operation is None or (operation.is_done and operation.fault is None):
        return _begin(seen, resource, now)
    return _failed_operation(resource, operation, now)


def _failed_operation(resource: Resource, operation: Operation, now: datetime) -> Resource:
    fault = operation.fault
    if fault is None:
        return resource
    verdict = classify(fault.http, fault.code, fault.message)
    return resource.fail(verdict.reason or Reason.REFUSED, fault.code, fault.message, now)


def _begin(seen: ObservedResources, resource: Resource, now: datetime) -> Resource:
    return resource if seen.group.is_paused else resource.enter(State.CREATING, now)


def _stands_or_conflicts(
    seen: ObservedResources, resource: Resource, found: Found, now: datetime
) -> Resource:
    if seen.group.spec.own_template is not None and isinstance(found, Template):
        problem = find_template_problem(seen.group.spec, found)
        if problem is not None:
            return resource.fail(Reason.INVALID_TEMPLATE, "", problem, now)
    elif found.description != seen.group.mark:
        message = (
            f"{found.uri} exists and is not marked as this group's: its description must be "
            f"{seen.group.mark!r}. Delete it, or delete and apply the group."
        )
        return resource.fail(Reason.RESOURCE_CONFLICT, "alreadyExists", message, now)
    return resource.enter(State.READY, now, uri=found.uri)


def _own_template_missing(seen: ObservedResources, resource: Resource, now: datetime) -> Resource:
    own = seen.group.spec.own_template
    if TEMPLATE not in seen.found or own is None:
        return resource
    message = (
        f"failed to fetch external template: {own.uri} does not exist; "
        "create it, and the group goes on by itself"
    )
    return resource.fail(Reason.INVALID_TEMPLATE, "notFound", message, now)


def _inserts(seen: ObservedResources, resources: Mapping[str, Resource]) -> list[Action]:
    stand = all(
        resource.state is State.READY for kind, resource in resources.items() if kind != MIG
    )
    return [
        Insert(kind, seen.group.spec, body)
        for kind, resource in resources.items()
        if (stand or kind != MIG) and _is_newly_intended(seen, kind, resource)
        if (body := _body(seen, kind)) is not None
    ]


def _is_newly_intended(seen: ObservedResources, kind: str, resource: Resource) -> bool:
    """An intent of this very invocation. It is written before the insert, and only if the group is
    still as it was seen: so no insert can come after somebody has found the resource absent."""
    is_intent = resource.state is State.CREATING and not resource.operation
    is_new = resource != seen.status.resources.get(kind)
    return is_intent and is_new and not seen.group.is_paused


def _body(seen: ObservedResources, kind: str) -> dict[str, object] | None:
    """The body of an insert; ``None`` for a template that the user has made."""
    source = seen.group.spec.source
    if kind == POLICY:
        return policy_body(seen.group)
    if kind == TEMPLATE:
        return template_body(seen.group, source) if isinstance(source, InstanceConfig) else None
    template = seen.found.get(TEMPLATE)
    return mig_body(seen.group, template if isinstance(template, Template) else None)
