"""Which resources of a group to insert, and what its status reports then."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from functions.create_resources import bodies, observe
from functions.create_resources.actions import InsertCall, InsertResources, TakeOwnership
from functions.create_resources.user_template import find_template_violation
from shared.base.reasons import Reason
from shared.frame.plan import Action, Plan, Send
from shared.node_groups import lifecycle, readiness, recovery
from shared.node_groups.node_group import AnyGroup, InstanceConfig, NodeGroup
from shared.node_groups.status import MIG, POLICY, TEMPLATE, Resource, State, Status, Type
from shared.node_groups.unreadable import restore_entries
from shared.node_groups.work import WriteStatus, message_about
from shared.ports.gce.values import Template
from shared.triggers import routes
from shared.triggers.message import Cause


def decide(observed: observe.ObservedResources | observe.ObservedUnreadable, now: datetime) -> Plan:
    """Decide which resources to insert, and what the status reports."""
    group, known = observed.group, observed.status
    if group.deleting is not None:
        forward = Send(routes.TEAR_DOWN, (message_about(group, Cause.FORWARDED, now),))
        return Plan("Deleting", best_effort=(forward,) if group.has_finalizer else ())
    if group.has_operator_finalizer or observed.has_operator_children:
        message = (
            "tpu-operator manages this group: it has its finalizers or children. Until they are "
            "removed, tpu-functions creates and repairs nothing. Migrate the group, or leave it to "
            "tpu-operator."
        )
        reason = Reason.MANAGED_ELSEWHERE
        known = known.with_condition(Type.ACCEPTED, False, reason, message, group, now)
        return Plan("ManagedElsewhere", first=(WriteStatus(readiness.conclude(group, known, now)),))
    if isinstance(observed, observe.ObservedUnreadable):
        known = restore_entries(observed.group, known, now)  # tear_down needs the entries
        return _plan_rejection(group, known, [*map(str, group.violations)], now)
    violations = observe.list_violations(observed.group, observed.projects)
    if violations:
        known = replace(known, resources={**known.resources, **_build_entries(observed, now)})
        return _plan_rejection(group, known, violations, now)
    return _plan_inserts(observed, now)


def _plan_rejection(group: AnyGroup, known: Status, violations: list[str], now: datetime) -> Plan:
    advice = "Delete the group, correct the spec and apply it again."
    if isinstance(group, NodeGroup) and group.given is not None:
        advice = "Change it back, or delete the group and apply it again."
    elif not group.violations:  # only the project is not served
        advice = "Add the project to this variable, and the group continues within an hour"
        entries = known.resources.items()
        if all(lifecycle.is_surely_absent(kind, entry, now) for kind, entry in entries):
            advice += ", or delete the group, correct the spec and apply it again."
        else:  # they may be another installation's
            advice += ". Until then its resources there are not deleted, even if the group is."
    message = f"{'; '.join(violations)}. {advice}"
    known = replace(known, observed_generation=group.generation)
    known = known.with_condition(Type.ACCEPTED, False, Reason.INVALID_SPEC, message, group, now)
    write = WriteStatus(readiness.conclude(group, known, now))
    # Owned, so that its deletion passes through tear_down, which knows what may exist.
    return Plan("InvalidSpec", first=(write,) if group.is_owned else (write, TakeOwnership()))


def _plan_inserts(observed: observe.ObservedResources, now: datetime) -> Plan:
    group, known = observed.group, observed.status
    entries = _build_entries(observed, now)
    transitions = {
        kind: _advance(observed, kind, entry, now) for kind, entry in entries.items() if kind != MIG
    }
    # The MIG refers to the others.
    is_blocked = any(one.resource.state is not State.READY for one in transitions.values())
    transitions[MIG] = _advance(observed, MIG, entries[MIG], now, is_blocked=is_blocked)
    resources = {kind: one.resource for kind, one in transitions.items()}
    if known.pending and transitions[MIG].action is lifecycle.ResourceAction.INSERT:
        # What is pending are VMs of the MIG that is gone: they are no losses of the new one.
        conditions = {**known.conditions}
        conditions.pop(Type.NODES_JOINED, None)
        known = replace(known, conditions=conditions, pending=())
    # Inserts follow only for the intents (Creating) that this status has. It is written by
    # compare-and-swap: if another invocation has written the status since, nothing is inserted.
    write = WriteStatus(_conclude(observed, known, resources, now))
    actions: list[Action] = [write]
    # The status first: a group with our finalizer and no entries counts as one with a lost status. An
    # intent without ownership that is not repeated is of an invocation that takes ownership next. Until
    # then nothing is inserted, because the group's deletion would not pass through tear_down.
    is_being_taken = not group.is_owned and any(
        entry.state is State.CREATING
        and not entry.operation
        and transitions[kind].action is lifecycle.ResourceAction.WAIT
        for kind, entry in known.resources.items()
        if kind in transitions and not (kind == MIG and is_blocked)
    )
    if not group.is_owned and not is_being_taken:
        actions.append(TakeOwnership())
    inserts = tuple(
        InsertCall(kind, group.spec, body)
        for kind, one in transitions.items()
        if one.action is lifecycle.ResourceAction.INSERT and not is_being_taken
        if (body := _build_body(observed, kind)) is not None
    )
    if inserts:
        actions.append(InsertResources(inserts, observed.report))
        outcome = "Inserting"
    elif all(resource.state is State.READY for resource in resources.values()):
        outcome = "ResourcesReady"
    else:
        outcome = "Paused" if group.is_paused else "Waiting"
    is_changed = observed.trigger.cause in (Cause.SPEC_CHANGED, Cause.METADATA_CHANGED)
    if is_changed and recovery.is_repair_due(group, write.status, now):
        # Not after other messages: one of tear_down, which did not find the slice lost, would return.
        forward = Send(routes.TEAR_DOWN, (message_about(group, Cause.FORWARDED, now),))
        return Plan(outcome, first=tuple(actions), best_effort=(forward,))
    return Plan(outcome, first=tuple(actions))


def _build_entries(observed: observe.ObservedResources, now: datetime) -> dict[str, Resource]:
    """An entry for each resource that the spec needs.

    The entries of a new group are Pending. A group that has our finalizer and no entry has lost its
    status, and an insert may be in progress: its new entry is Creating since now. For an entry that has
    just become Creating the step normally waits (`lifecycle.YOUNG`). For this one it inserts immediately
    (`lifecycle.Guard.LOST`): at worst Compute Engine answers 409.
    """
    group, spec = observed.group, observed.group.spec
    new = Resource(group.resource_name)
    if group.has_finalizer:
        new = Resource(group.resource_name, State.CREATING, now)
    entries = {kind: observed.status.resources.get(kind, new) for kind in spec.resource_kinds}
    if spec.user_template is not None and TEMPLATE not in observed.status.resources:
        entries[TEMPLATE] = Resource(spec.user_template.name)
    return entries


def _conclude(
    observed: observe.ObservedResources,
    known: Status,
    resources: Mapping[str, Resource],
    now: datetime,
) -> Status:
    known = replace(known, resources={**known.resources, **resources})
    known = observed.report.add_conditions(observed.group, known, now)
    return readiness.conclude(observed.group, known, now)


def _advance(
    observed: observe.ObservedResources,
    kind: str,
    entry: Resource,
    now: datetime,
    *,
    is_blocked: bool = False,
) -> lifecycle.Transition:
    spec, found = observed.group.spec, observed.found.get(kind)
    violation = None
    if spec.user_template is not None and isinstance(found, Template):
        violation = find_template_violation(spec, found)
    reads = observed.found, observed.operations
    observation = replace(
        lifecycle.make_observation(observed.group, kind, entry, *reads, violation=violation or ""),
        is_resync=observed.trigger.is_resync,
        may_repeat_insert=observed.may_repeat_insert,
        is_blocked=is_blocked,
        was_complete=observed.status.completed_at is not None,
        has_no_entry=kind not in observed.status.resources,
    )
    return lifecycle.find_transition(lifecycle.Goal.CREATE, entry, observation, now)


def _build_body(observed: observe.ObservedResources, kind: str) -> dict[str, object] | None:
    """The body of an insert; ``None`` for a user's own template: `lifecycle.TABLE` never inserts it."""
    group, source = observed.group, observed.group.spec.source
    if kind == POLICY:
        return bodies.policy_body(group)
    if kind == TEMPLATE:
        return bodies.template_body(group, source) if isinstance(source, InstanceConfig) else None
    template = observed.found.get(TEMPLATE)
    return bodies.mig_body(group, template if isinstance(template, Template) else None)
