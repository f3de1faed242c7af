"""What create_resources does: pure, from what it has observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from functions.create_resources.actions import Insert, InsertResources, TakeOwnership
from functions.create_resources.observe import (
    ObservedResources,
    ObservedUnreadable,
    list_violations,
)
from functions.create_resources.user_template import find_template_violation
from shared.base.reasons import Reason
from shared.frame.plan import Action, Plan, Send
from shared.node_groups import readiness
from shared.node_groups.lifecycle import (
    Goal,
    ResourceAction,
    Transition,
    find_transition,
    make_observation,
)
from shared.node_groups.node_group import AnyGroup, InstanceConfig
from shared.node_groups.resources import mig_body, policy_body, template_body
from shared.node_groups.status import MIG, POLICY, TEMPLATE, Resource, State, Status, Type
from shared.node_groups.unreadable import restore_entries
from shared.node_groups.work import WriteStatus, message_about
from shared.ports.gce.values import Template
from shared.triggers import routes
from shared.triggers.message import Cause


def decide(observed: ObservedResources | ObservedUnreadable, now: datetime) -> Plan:
    """Decide which resources to insert, and what the status reports."""
    group = observed.group
    if group.deleting is not None:
        return _plan_tear_down(group, now)
    if group.has_operator_finalizer or observed.has_operator_children:
        write = _build_managed_elsewhere(group, observed.status, now)
        return Plan("ManagedElsewhere", first=(write,))
    if isinstance(observed, ObservedUnreadable):
        known = restore_entries(observed.group, observed.status, now)
        violations = [*map(str, observed.group.violations)]
        entries = known.resources  # tear_down needs them
        return _plan_rejection(group, known, violations, entries, now)
    violations = list_violations(observed.group, observed.projects)
    if violations:
        return _plan_rejection(
            group, observed.status, violations, _build_entries(observed, now), now
        )
    return _plan_inserts(observed, now)


def _plan_tear_down(group: AnyGroup, now: datetime) -> Plan:
    if not group.has_finalizer:
        return Plan("Deleting")
    message = message_about(group, Cause.FORWARDED, now)
    return Plan("Deleting", best_effort=(Send(routes.TEAR_DOWN, (message,)),))


def _build_managed_elsewhere(group: AnyGroup, known: Status, now: datetime) -> Action:
    message = (
        "tpu-operator manages this group: it has its finalizers or children. tpu-functions does "
        "nothing until they are removed. Migrate the group, or leave it to tpu-operator."
    )
    known = known.with_condition(
        Type.ACCEPTED, False, Reason.MANAGED_ELSEWHERE, message, group=group, now=now
    )
    return WriteStatus(readiness.conclude(group, known, now))


def _plan_rejection(
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
    return Plan("InvalidSpec", first=(write, *ownership))


def _plan_inserts(observed: ObservedResources, now: datetime) -> Plan:
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
        actions.append(InsertResources(inserts, observed.report))
    return Plan(_name_outcome(observed, resources, inserts), first=tuple(actions))


def _conclude(
    observed: ObservedResources, known: Status, resources: Mapping[str, Resource], now: datetime
) -> Status:
    known = replace(known, resources=dict(resources))
    return readiness.conclude(
        observed.group, observed.report.add_conditions(observed.group, known, now), now
    )


def _name_outcome(
    observed: ObservedResources, resources: Mapping[str, Resource], inserts: tuple[Insert, ...]
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
) -> tuple[Insert, ...]:
    """The inserts for which this invocation sets Creating.

    The status is written first, by compare-and-swap: if another step has written it since, nothing
    is inserted.
    """
    return tuple(
        Insert(kind, observed.group.spec, body)
        for kind, transition in transitions.items()
        if transition.action is ResourceAction.INSERT
        if (body := _build_body(observed, kind)) is not None
    )


def _build_body(observed: ObservedResources, kind: str) -> dict[str, object] | None:
    """The body of an insert; ``None`` for a user's own template: `lifecycle.TABLE` never inserts it."""
    source = observed.group.spec.source
    if kind == POLICY:
        return policy_body(observed.group)
    if kind == TEMPLATE:
        return template_body(observed.group, source) if isinstance(source, InstanceConfig) else None
    template = observed.found.get(TEMPLATE)
    return mig_body(observed.group, template if isinstance(template, Template) else None)
