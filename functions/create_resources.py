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

from shared.base.errors import CallError
from shared.base.reasons import REASONS, Reason
from shared.base.topology import find_count_problem, find_machine, find_shape_problem
from shared.frame.decode import Occasion
from shared.frame.message import Cause
from shared.frame.plan import Action, Derive, Insert, Plan, Send, TakeOwnership, Work, WriteStatus
from shared.frame.settings import Settings
from shared.frame.step import Step, message_about
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.resources import (
    KINDS,
    Found,
    machine_of,
    mig_body,
    policy_body,
    template_body,
)
from shared.node_groups.status import (
    CONDITION_OF,
    MIG,
    NOUN,
    POLICY,
    TEMPLATE,
    Counts,
    Resource,
    State,
    Status,
    Type,
)
from shared.ports.classify import Kind, classify
from shared.ports.gce.values import Fault, ManagedInstance, Mig, Operation, Template

YOUNG = timedelta(seconds=5)
"""An intent younger than this is somebody's who is about to insert: leave it to them."""
RETRY_AFTER = timedelta(seconds=60)
"""What failed is tried again on a SYNC, or on any occasion that comes this long after."""
TEMPLATE_MODELS = ("", "STANDARD", "SPOT", "RESERVATION_BOUND", "FLEX_START")


@dataclass(frozen=True)
class Seen:
    """What the step has seen. ``found`` holds only the kinds that were asked for."""

    group: NodeGroup
    status: Status
    occasion: Occasion
    settings: Settings
    has_foreign_children: bool = False
    found: Mapping[str, Found | None] = field(default_factory=dict)
    operations: Mapping[str, Operation | None] = field(default_factory=dict)
    members: tuple[ManagedInstance, ...] = ()


def look(work: Work, settings: Settings) -> Seen:
    """Read what the decision needs, and no more: what stands is not asked for again."""
    group, known = work.group, work.status
    seen = Seen(group, known, work.occasion, settings)
    if group.deleting is not None or group.carries_foreign_finalizer:
        return seen
    if not group.has_finalizer and _has_foreign_children(work):
        return replace(seen, has_foreign_children=True)
    if group.spec is None or _refusals(seen):
        return seen
    found = {kind: KINDS[kind].find(work.gce, group) for kind in _to_be_read(work)}
    return replace(
        seen,
        found=found,
        operations=_operations(work, found),
        members=_members(work, found.get(MIG)),
    )


def decide(seen: Seen, now: datetime) -> Plan:
    """What is to be done about a group in this state."""
    group = seen.group
    if group.deleting is not None:
        return _hand_over(seen, now)
    if group.carries_foreign_finalizer or seen.has_foreign_children:
        return Plan("ManagedElsewhere", (WriteStatus(_managed_elsewhere),))
    refusals = _refusals(seen)
    if refusals:
        entries = _entries(seen, now) if group.spec is not None else {}
        return Plan("InvalidSpec", (WriteStatus(_refused(refusals, entries)), *_ownership(group)))
    return _provision(seen, now)


def report(error: CallError, reason: Reason) -> Derive:
    """A refusal met while reading: it stands in the condition of the resource that was asked for."""
    kinds = {"resource_policies": POLICY, "instance_templates": TEMPLATE}
    service = error.call.partition(".")[0].removeprefix("region_")
    kind = kinds.get(service, MIG)

    def derive(group: NodeGroup, known: Status, now: datetime) -> Status:
        message = f"{error.message} ({error.call}). {REASONS[reason]}"
        return known.with_condition(
            CONDITION_OF[kind], False, reason, message, group=group, now=now
        )

    return derive


STEP = Step("create_resources", look, decide, report)
run = STEP.run


def _has_foreign_children(work: Work) -> bool:
    group = work.group
    return work.cluster.has_foreign_children(group.namespace, group.foreign_child_names)


def _to_be_read(work: Work) -> Iterator[str]:
    """Kinds whose state is not known: all that is neither untouched nor known to stand."""
    group, known = work.group, work.status
    assert group.spec is not None
    if _is_told_already(work):
        return
    for kind in group.spec.resource_kinds:
        resource = known.resources.get(kind)
        if resource is None or resource.state is State.PENDING:
            is_known = resource is not None or not group.has_finalizer
            is_own = kind == TEMPLATE and group.spec.template is not None
            must_read = is_own or not is_known or not work.is_first_look
        else:
            may_be_lost = not work.is_first_look and not _stands(known, MIG)
            is_settled = resource.state is State.READY and kind != MIG and not may_be_lost
            must_read = not is_settled or _is_for_body(work, kind)
        if must_read and _may_have_changed(work, kind):
            yield kind


def _may_have_changed(work: Work, kind: str) -> bool:
    """An event about one of two that are being made side by side says nothing of the other."""
    event = work.occasion.event
    if event is None or not work.is_first_look or kind == MIG:
        return True
    resource = work.status.resources.get(kind)
    is_being_made = resource is not None and resource.state is State.CREATING
    return not is_being_made or KINDS[kind].collection in event.method


def _is_told_already(work: Work) -> bool:
    """One more VM that could not be made, where the condition says already why they cannot be."""
    event, said = work.occasion.event, work.status.conditions.get(Type.MIG_READY)
    is_failure = event is not None and event.has_failed and event.concerns_vm
    return is_failure and said is not None and said.reason not in ("Ready", Reason.PROVISIONING)


def _is_for_body(work: Work, kind: str) -> bool:
    """A user's own template is read again for the body of the MIG that is made of it."""
    spec = work.group.spec
    is_own = kind == TEMPLATE and spec is not None and spec.template is not None
    return is_own and not _stands(work.status, MIG)


def _stands(known: Status, kind: str) -> bool:
    resource = known.resources.get(kind)
    return resource is not None and resource.state is State.READY


def _operations(work: Work, found: Mapping[str, Found | None]) -> dict[str, Operation | None]:
    spec = work.group.spec
    assert spec is not None
    return {
        kind: work.gce.find_operation(spec.project, KINDS[kind].scope(spec), resource.operation)
        for kind, resource in work.status.resources.items()
        if resource.operation and kind in found and found[kind] is None
    }


def _members(work: Work, found: Found | None) -> tuple[ManagedInstance, ...]:
    """The members' errors, where a VM that was to be made may have failed."""
    spec, event = work.group.spec, work.occasion.event
    assert spec is not None
    may_have_failed = event is None or event.has_failed
    if not isinstance(found, Mig) or not found.creating or not may_have_failed:
        return ()
    return work.gce.list_managed_instances(spec.project, spec.zone, work.group.resource_name)


def _hand_over(seen: Seen, now: datetime) -> Plan:
    if not seen.group.has_finalizer:
        return Plan("Deleting")
    message = message_about(seen.group, Cause.FORWARDED, now)
    return Plan("Deleting", (Send("tear_down", message),))


def _refusals(seen: Seen) -> list[str]:
    """What is wrong with the spec, in words that name the field."""
    refusals = [str(problem) for problem in seen.group.problems]
    spec = seen.group.spec
    if spec is not None and not seen.settings.serves(spec.project):
        served = ", ".join(sorted(seen.settings.projects))
        refusals.append(
            f"spec.project: {spec.project} is not served by this installation; it serves {served}"
        )
    return refusals


def _ownership(group: NodeGroup) -> tuple[Action, ...]:
    return () if group.is_owned else (TakeOwnership(),)


def _managed_elsewhere(group: NodeGroup, known: Status, now: datetime) -> Status:
    message = (
        "tpu-operator manages this group: its finalizers or children are there. "
        "Nothing is done until they are gone."
    )
    return known.with_condition(
        Type.ACCEPTED, False, Reason.MANAGED_ELSEWHERE, message, group=group, now=now
    )


def _refused(refusals: list[str], entries: Mapping[str, Resource]) -> Derive:
    def derive(group: NodeGroup, known: Status, now: datetime) -> Status:
        known = replace(known, observed_generation=group.generation, resources=dict(entries))
        return known.with_condition(
            Type.ACCEPTED, False, Reason.INVALID_SPEC, "; ".join(refusals), group=group, now=now
        )

    return derive


def _provision(seen: Seen, now: datetime) -> Plan:
    group, known = seen.group, seen.status
    actions: list[Action] = []
    if not group.is_owned:
        if not known.resources:
            actions.append(WriteStatus(_say(seen, _entries(seen, now))))
        actions.append(TakeOwnership())
    resources = _advance_all(seen, now)
    inserts = _inserts(seen, resources)
    actions.append(WriteStatus(_say(seen, resources)))
    if inserts:
        actions += [*inserts, WriteStatus(_say_again(seen))]
    return Plan(_outcome(seen, resources, inserts), tuple(actions))


def _outcome(seen: Seen, resources: Mapping[str, Resource], inserts: list[Action]) -> str:
    if inserts:
        return "Inserting"
    if all(resource.state is State.READY for resource in resources.values()):
        return "AllStand"
    return "Paused" if seen.group.is_paused else "Waiting"


def _entries(seen: Seen, now: datetime) -> dict[str, Resource]:
    """An entry for each resource that the spec needs.

    A group that has our finalizer and lacks one has lost its status: perhaps under way since now.
    """
    spec = seen.group.spec
    assert spec is not None
    name = seen.group.resource_name
    new = Resource(name)
    if seen.group.has_finalizer:
        new = Resource(name, State.CREATING, now)
    entries = {kind: seen.status.resources.get(kind, new) for kind in spec.resource_kinds}
    if spec.template is not None and TEMPLATE not in seen.status.resources:
        entries[TEMPLATE] = Resource(spec.template.name)
    return entries


def _advance_all(seen: Seen, now: datetime) -> dict[str, Resource]:
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


def _advance(seen: Seen, kind: str, resource: Resource, now: datetime) -> Resource:
    """Where a resource stands after what was seen; a new ``Creating`` is to be inserted."""
    found = seen.found.get(kind)
    if found is not None:
        return _stands_or_conflicts(seen, kind, resource, found, now)
    if kind == TEMPLATE and seen.group.spec is not None and seen.group.spec.template is not None:
        return _own_template_missing(seen, resource, now)
    if resource.state is State.PENDING:
        return _begin(seen, resource, now)
    if kind not in seen.found:
        return resource
    return _advance_absent(seen, kind, resource, now)


def _advance_absent(seen: Seen, kind: str, resource: Resource, now: datetime) -> Resource:
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


def _begin(seen: Seen, resource: Resource, now: datetime) -> Resource:
    return resource if seen.group.is_paused else resource.enter(State.CREATING, now)


def _stands_or_conflicts(
    seen: Seen, kind: str, resource: Resource, found: Found, now: datetime
) -> Resource:
    spec = seen.group.spec
    assert spec is not None
    if kind == TEMPLATE and spec.template is not None:
        assert isinstance(found, Template)
        problem = find_template_problem(seen.group, found)
        if problem is not None:
            return resource.fail(Reason.INVALID_TEMPLATE, "", problem, now)
    elif found.description != seen.group.mark:
        message = (
            f"{found.uri} exists and is not marked as this group's: its description must be "
            f"{seen.group.mark!r}. Delete it, or delete and apply the group."
        )
        return resource.fail(Reason.RESOURCE_CONFLICT, "alreadyExists", message, now)
    return resource.enter(State.READY, now, uri=found.uri)


def _own_template_missing(seen: Seen, resource: Resource, now: datetime) -> Resource:
    spec = seen.group.spec
    assert spec is not None
    assert spec.template is not None
    if TEMPLATE not in seen.found:
        return resource
    message = (
        f"failed to fetch external template: {spec.template.uri} does not exist; "
        "create it, and the group goes on by itself"
    )
    return resource.fail(Reason.INVALID_TEMPLATE, "notFound", message, now)


def find_template_problem(group: NodeGroup, template: Template) -> str | None:
    """What makes a user's own template unfit for this group, or ``None``."""
    spec = group.spec
    assert spec is not None
    problem = _find_template_fault(template)
    machine = find_machine(template.machine_type)
    if problem is None and machine is not None:
        problem = find_shape_problem(spec.topology, machine) or find_count_problem(
            spec.topology, machine, spec.node_count, spec.mode
        )
    return f"invalid external template: {problem}" if problem else None


def _find_template_fault(template: Template) -> str | None:
    model, action = template.provisioning_model, template.termination_action
    faults = {
        f'machine type "{template.machine_type}" is not supported': find_machine(
            template.machine_type
        )
        is None,
        "scheduling properties must be specified": not template.has_scheduling,
        f'provisioning model "{model}" is not supported': model not in TEMPLATE_MODELS,
        "maintenance policy must be TERMINATE": template.maintenance != "TERMINATE",
        "instance termination action must be DELETE when provisioning model is "
        "RESERVATION_BOUND": model == "RESERVATION_BOUND" and action != "DELETE",
        "a specific reservation must be named when provisioning model is RESERVATION_BOUND": model
        == "RESERVATION_BOUND"
        and template.reservation_type != "SPECIFIC_RESERVATION",
        "a boot disk must be specified": not template.has_boot_disk,
    }
    return next((text for text, is_so in faults.items() if is_so), None)


def _inserts(seen: Seen, resources: Mapping[str, Resource]) -> list[Action]:
    stand = all(
        resource.state is State.READY for kind, resource in resources.items() if kind != MIG
    )
    return [
        Insert(kind, _body(seen, kind))
        for kind, resource in resources.items()
        if (stand or kind != MIG) and _is_newly_intended(seen, kind, resource)
    ]


def _is_newly_intended(seen: Seen, kind: str, resource: Resource) -> bool:
    """An intent of this very invocation. It is written before the insert, and only if the group is
    still as it was seen: so no insert can come after somebody has found the resource absent."""
    is_intent = resource.state is State.CREATING and not resource.operation
    is_new = resource != seen.status.resources.get(kind)
    return is_intent and is_new and not seen.group.is_paused


def _body(seen: Seen, kind: str) -> dict[str, object]:
    if kind == POLICY:
        return policy_body(seen.group)
    if kind == TEMPLATE:
        return template_body(seen.group)
    template = seen.found.get(TEMPLATE)
    return mig_body(seen.group, template if isinstance(template, Template) else None)


def _say(seen: Seen, resources: Mapping[str, Resource]) -> Derive:
    def derive(group: NodeGroup, known: Status, now: datetime) -> Status:
        return _describe(seen, group, replace(known, resources=dict(resources)), now)

    return derive


def _say_again(seen: Seen) -> Derive:
    def derive(group: NodeGroup, known: Status, now: datetime) -> Status:
        return _describe(seen, group, known, now)

    return derive


def _describe(seen: Seen, group: NodeGroup, known: Status, now: datetime) -> Status:
    """The conditions of this step, from the resources' entries and what was seen of the MIG."""
    spec = group.spec
    assert spec is not None
    known = replace(
        _with_machine(seen, group, known),
        observed_generation=group.generation,
        counts=_counts(seen, known.counts, spec.node_count),
    )
    known = known.with_condition(
        Type.ACCEPTED, True, "Accepted", "The spec is valid", group=group, now=now
    )
    for kind, resource in known.resources.items():
        said = _say_of(seen, kind, resource)
        if said is not None:
            status, reason, message = said
            known = known.with_condition(
                CONDITION_OF[kind], status, reason, message, group=group, now=now
            )
    return known


def _counts(seen: Seen, known: Counts, desired: int) -> Counts:
    """The members' list tells also how many run: by that the sweep knows whom else to wake."""
    running = sum(member.status == "RUNNING" for member in seen.members)
    return replace(known, desired=desired, running=running if seen.members else known.running)


def _with_machine(seen: Seen, group: NodeGroup, known: Status) -> Status:
    assert group.spec is not None
    config, template = group.spec.instance, seen.found.get(TEMPLATE)
    if config is not None:
        return replace(
            known, machine_type=config.machine_type, provisioning_model=config.provisioning_model
        )
    if isinstance(template, Template):
        machine = machine_of(group, template.machine_type)
        return replace(
            known,
            machine_type=machine.machine_type if machine else "",
            provisioning_model=template.provisioning_model or "STANDARD",
        )
    return known


_READY_WORDS = {
    POLICY: "WorkloadPolicy provisioned successfully",
    TEMPLATE: "InstanceTemplate provisioned successfully",
    MIG: "ManagedInstanceGroup provisioned successfully",
}


def _say_of(seen: Seen, kind: str, resource: Resource) -> tuple[bool, str, str] | None:
    """Status, reason and message of a resource's condition; ``None``: as it was."""
    noun = NOUN[kind]
    if resource.state is State.READY:
        return _say_of_standing(seen, kind)
    if resource.state is State.GONE:
        text = f"The {noun} {resource.name} is gone. {REASONS[Reason.RESOURCE_LOST]}"
        return False, Reason.RESOURCE_LOST, text
    if resource.trouble is not None:
        trouble = resource.trouble
        code = f" ({trouble.code})" if trouble.code else ""
        advice = REASONS[Reason(trouble.reason)]
        return False, trouble.reason, f"{noun} {resource.name}: {trouble.message}{code}. {advice}"
    if seen.group.is_paused:
        return False, Reason.PAUSED, REASONS[Reason.PAUSED]
    if resource.state is State.PENDING:
        return False, Reason.PROVISIONING, f"The {noun} {resource.name} is to be made"
    return False, Reason.PROVISIONING, f"Compute Engine is making the {noun} {resource.name}"


def _say_of_standing(seen: Seen, kind: str) -> tuple[bool, str, str] | None:
    found = seen.found.get(kind)
    if isinstance(found, Mig):
        return _say_of_mig(seen, found)
    if kind == MIG:
        return None
    spec = seen.group.spec
    if kind == TEMPLATE and spec is not None and spec.template is not None:
        return True, "ExternalTemplate", f"Using {spec.template.uri}"
    return True, "Ready", _READY_WORDS[kind]


def _say_of_mig(seen: Seen, found: Mig) -> tuple[bool, str, str]:
    spec = seen.group.spec
    assert spec is not None
    if found.target_size != spec.node_count:
        text = (
            f"{found.uri} has targetSize {found.target_size}, the spec wants {spec.node_count}. "
            f"Somebody resized it: resize it back, or delete and apply the group."
        )
        return False, Reason.RESOURCE_CONFLICT, text
    is_being_made = found.is_bulk_in_progress or (
        found.creating > 0 and seen.status.completed_at is None
    )
    faults = [*found.faults, *(fault for member in seen.members for fault in member.faults)]
    telling = _telling_fault(faults) if found.is_bulk_in_progress or found.creating else None
    if telling is not None:
        reason, fault = telling
        text = f"{found.uri}: {fault.message} ({fault.code}). {REASONS[reason]}"
        return False, reason, text
    if is_being_made:
        count = found.creating or spec.node_count
        return False, Reason.PROVISIONING, f"Waiting for Compute Engine to create {count} VMs"
    return True, "Ready", _READY_WORDS[MIG]


def _telling_fault(faults: list[Fault]) -> tuple[Reason, Fault] | None:
    for fault in faults:
        verdict = classify(fault.http, fault.code, fault.message)
        if verdict.kind is not Kind.OURS and verdict.reason is not None:
            return verdict.reason, fault
    return None
