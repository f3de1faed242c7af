"""Which groups get a resync in this minute, and from which steps."""

import hashlib
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from functions.sweep.observe import ObservedGroups
from shared.base import backoff
from shared.base.reasons import Reason
from shared.base.signing_requests import MAX_REQUESTS_OF_TOKEN, TOO_OLD_AFTER, SigningRequest
from shared.frame.plan import Each, Fail, Plan, Send
from shared.node_groups import recovery, status
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.node_groups.status import (
    MIG,
    RUN_END_NOTICES,
    TEMPLATE,
    Resource,
    State,
    Status,
    Type,
)
from shared.node_groups.work import message_about
from shared.triggers import routes
from shared.triggers.message import BATCH, SWEEP_KIND, Cause, Message, message_about_requests

SETTLED_EVERY_MINUTES = 60
REPAIRED_EACH_MINUTE_FOR = timedelta(minutes=30)
"""So long after a repair is due each run triggers tear_down, which waits for a stable MIG."""
RETRIED_EACH_MINUTE_FOR = timedelta(minutes=8)
"""So long after a group's last progress each run triggers its steps with a transient error, and
`OTHERS_EVERY_MINUTES` its other steps. For as long, a group without one is due in each run, too
(`backoff.is_due`)."""
OTHERS_EVERY_MINUTES = 5
"""Their events may be lost, and progress of others would put them off without end."""
_ORDER = (
    routes.CREATE_RESOURCES,
    routes.INJECT_TOKEN,
    routes.APPROVE_JOIN,
    routes.LABEL_NODE,
    routes.TEAR_DOWN,
)
MAX_SKIPPED = 20
"""How many skipped objects the log line names at most."""
_SPEC_CONDITIONS = (Type.ACCEPTED, Type.POLICY_READY, Type.TEMPLATE_READY, Type.MIG_READY)
MIN_REQUEST_AGE = timedelta(seconds=30)
"""Younger requests are left out: the relay publishes new ones itself."""


def decide(observed: ObservedGroups, now: datetime) -> Plan:
    """Trigger the steps that have work on groups, and the steps of JobSets."""
    run = Message("", "", "", Cause.SWEEP, observed.at, kind=SWEEP_KIND)  # it names no object
    sends = [_build_send(step, [run]) for step in observed.listing_steps]
    if observed.failure is not None:
        return Plan("Failed", each=tuple(sends), after=(Fail(observed.failure),))
    topics: dict[str, list[Message]] = {}
    skipped = list(observed.unparsable)
    due: list[tuple[datetime, AnyGroup, tuple[str, ...]]] = []
    for group in observed.groups:
        try:
            known = status.parse_of(group)
            steps = find_due_steps(group, known, observed.at)
            due.append((last_progress(group, known), group, steps))
        except Exception as error:  # noqa: BLE001 - a bug that one group meets must not stop the others
            skipped.append(f"{group.key}: {type(error).__name__}: {error}")
    # In the order of a slice's life, and groups that have waited longest first: if the rate quota does
    # not suffice for all, it must not be spent on looking at what still waits.
    for _, group, steps in sorted(due, key=lambda one: one[0]):
        for step in steps:
            topics.setdefault(step, []).append(message_about(group, Cause.RESYNC, now))
    triggered = {step: len(topics[step]) for step in _ORDER if step in topics}
    topics[routes.APPROVE_JOIN] = list(_build_requests(observed.requests, now))
    sends += (_build_send(step, topics[step]) for step in _ORDER if topics.get(step))
    facts: dict[str, Any] = {"groups": len(observed.groups), "triggered": triggered}
    if skipped:
        facts["skipped"] = skipped[:MAX_SKIPPED]
    note = str(observed.requests_failure or "")
    needs_attention = bool(skipped or note)
    return Plan("Swept", each=tuple(sends), note=note, facts=facts, needs_attention=needs_attention)


def _build_requests(requests: Iterable[SigningRequest], now: datetime) -> Iterator[Message]:
    """The messages about requests for which a kubelet may wait or that another has approved, in batches.

    Only the newest of each token are in them, so that a flood by one token does not delay other VMs.
    """
    by_token: dict[str, list[SigningRequest]] = {}
    for request in requests:
        is_open = not request.is_decided or request.is_approved_elsewhere
        if is_open and MIN_REQUEST_AGE <= now - request.created < TOO_OLD_AFTER:
            by_token.setdefault(request.token_id, []).append(request)
    names = [
        request.name
        for made in by_token.values()
        for request in sorted(made, key=lambda one: one.created)[-MAX_REQUESTS_OF_TOKEN:]
    ]
    batches = [names[start : start + BATCH] for start in range(0, len(names), BATCH)]
    for batch in batches:
        yield message_about_requests(Cause.JOIN_REQUESTED, now, batch)


def _build_send(step: str, messages: list[Message]) -> Each:
    """Publish to a step's topic. An error does not stop the other topics."""
    return Each(step, (Send(step, tuple(messages)),))


def find_due_steps(group: AnyGroup, known: Status, at: datetime) -> tuple[str, ...]:
    """The steps to which the run of this minute publishes a resync about a group.

    While a transient error is recent, mostly only the steps that have one: an event has normally
    triggered the others, and a resync of those would use up the rate quota that the first lack.
    """
    steps, repair_at = list_steps(group, known), recovery.find_repair_time(group, known)
    is_repair_due = recovery.is_repair_due(group, known, at)
    if is_repair_due:
        steps = (*steps, routes.TEAR_DOWN)
    retried = tuple(retry.step for retry in known.retries if retry.step in steps)
    # A repair is due, all VMs are to be counted soon after a first announcement, or an Event about the
    # end of the VMs is due.
    announced, end = known.conditions.get(Type.MAINTENANCE_SCHEDULED), known.run_ends
    notices = () if end is None else tuple(end - notice for notice in RUN_END_NOTICES)
    moments = (repair_at, announced.since if announced is not None else None, *notices)
    minute = at.replace(second=0, microsecond=0)  # a run begins at any second of its minute
    is_new = any(one is not None and timedelta() <= minute - one < backoff.TICK for one in moments)
    due = steps if is_new or is_due(group, known, at) else ()
    if is_repair_due and repair_at is not None and at - repair_at < REPAIRED_EACH_MINUTE_FOR:
        due = due or (routes.TEAR_DOWN,)  # no log entry reports that a MIG has become stable
    is_recent = at - last_progress(group, known) < RETRIED_EACH_MINUTE_FOR
    is_turn_of_others = (_minute(at) - _spread(group)) % OTHERS_EVERY_MINUTES == 0
    return retried if retried and is_recent and not (due and is_turn_of_others) else due


def list_steps(group: AnyGroup, known: Status) -> tuple[str, ...]:
    """The steps that may have work with a group in this state, and those that are being retried."""
    if group.deleting is not None:
        return (routes.TEAR_DOWN,)
    retried = [retry.step for retry in known.retries]
    if recovery.is_repair_begun(group, known):
        # tear_down triggers create_resources when it deletes the Nodes: earlier, they would be left.
        return tuple(dict.fromkeys((routes.TEAR_DOWN, *retried)))
    steps: list[str] = []
    mig, counts = known.resources.get(MIG), known.counts
    has_mig = mig is not None and mig.state is State.READY
    is_mig_ready, was_complete = known.is_true(Type.MIG_READY), known.completed_at is not None
    have_all_joined = known.is_true(Type.NODES_JOINED)
    # A rejection by create_resources may be outdated: the project may be served again.
    is_rejected = any(_is_not_true(known, kind) for kind in _SPEC_CONDITIONS)
    if not group.is_owned or mig is None or not is_mig_ready or is_rejected:
        steps.append(routes.CREATE_RESOURCES)
    if was_complete or (has_mig and is_mig_ready):
        # All VMs have been created. A slice that was complete is counted whatever its MIG reports,
        # because the event of a loss may be lost.
        if has_mig and (not have_all_joined or _is_not_true(known, Type.TOKENS_INJECTED)):
            steps.append(routes.INJECT_TOKEN)
        steps.append(routes.LABEL_NODE)
    elif has_mig and not (isinstance(group, NodeGroup) and group.spec.is_bulk):
        # VMs are being created one by one (a BULK group has none before it has all), and
        # create_resources counts those that run. If more VMs run than have joined, one may need a token.
        # If more VMs run than Nodes are ready, a Node may have joined or become ready since; if fewer
        # do, a VM is lost.
        if counts.running > counts.joined and not have_all_joined:
            steps.append(routes.INJECT_TOKEN)
        is_limited = known.run_ends is not None or Type.MAINTENANCE_SCHEDULED in known.conditions
        if counts.running != counts.ready or is_limited:
            steps.append(routes.LABEL_NODE)
    return tuple(dict.fromkeys((*steps, *retried)))


def _is_not_true(known: Status, kind: Type) -> bool:
    return kind in known.conditions and not known.is_true(kind)


def is_due(group: AnyGroup, known: Status, at: datetime) -> bool:
    """Whether a resync is due in this minute: once an hour if the group is settled, else at growing
    intervals. Its uid spreads groups that have begun to wait together over the minutes."""
    own = _spread(group)
    if is_settled(group, known):
        return (_minute(at) - own) % SETTLED_EVERY_MINUTES == 0
    # VMs of a BULK group run and others are being created, perhaps after a long wait for capacity.
    mig = known.conditions.get(Type.MIG_READY)
    is_creating = mig is not None and mig.reason == Reason.PROVISIONING and known.counts.running > 0
    if is_creating and isinstance(group, NodeGroup) and group.spec.is_bulk:
        return True
    return backoff.is_due(last_progress(group, known), at, own / 2**32)


def _minute(at: datetime) -> int:
    return int(at.timestamp() // 60)


def _spread(group: AnyGroup) -> int:
    """A number of 32 bits that spreads groups over the minutes."""
    return int.from_bytes(hashlib.sha256(group.uid.encode()).digest()[:4], "big")


def is_settled(group: AnyGroup, known: Status) -> bool:
    """Whether there is nothing to do until an event.

    The group is Ready, or its spec is invalid, or Compute Engine rejects a request (400), which it does
    again for the same spec; or it is paused and has no resource of its own. Its label
    and finalizer are set, and no step has a transient error.
    """
    if group.deleting is not None or not group.is_owned or known.retries:
        return False
    # By our rules or by Compute Engine's.
    conditions = [known.conditions.get(kind) for kind in _SPEC_CONDITIONS]
    is_refused = any(one.is_rejected for one in known.resources.values())
    is_rejected = any(one is not None and one.reason == Reason.INVALID_SPEC for one in conditions)
    if is_rejected or is_refused:
        return known.observed_generation == group.generation
    if known.is_true(Type.READY):
        return True
    if not group.is_paused:
        return False
    has_users_own = isinstance(group, NodeGroup) and group.spec.user_template is not None
    return all(
        resource.state in (State.PENDING, State.GONE)
        for kind, resource in known.resources.items()
        if not (has_users_own and kind == TEMPLATE)  # it is only read
    )


def last_progress(group: AnyGroup, known: Status) -> datetime:
    """The time of the last change. The first occurrence of an error is one; that it persists, or that
    the failed call is repeated, is not."""
    moments = [group.created, group.deleting]
    moments += [condition.since for condition in known.conditions.values()]
    moments += [entry.since for entry in known.pending]
    moments += [retry.since for retry in known.retries]
    moments += [
        resource.error.since if resource.error else resource.since
        for resource in known.resources.values()
        if not _is_retried(known, resource)
    ]
    return max(moment for moment in moments if moment is not None)


def _is_retried(known: Status, resource: Resource) -> bool:
    """Whether the resource's last change belongs to a call that is being retried: it was set to Creating
    or Deleting before the call, or set back to Pending after the call had failed."""
    step = {
        State.PENDING: routes.CREATE_RESOURCES,
        State.CREATING: routes.CREATE_RESOURCES,
        State.DELETING: routes.TEAR_DOWN,
    }.get(resource.state)
    return any(retry.step == step for retry in known.retries)
