"""Decide about a waiting Pod's slice by the table of slices, and which Pods get a resync."""

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from functions.provision_slice import observe, waiting
from shared.base.timestamps import render_time
from shared.frame.plan import Action, Emit, Plan
from shared.ports.errors import CallError
from shared.ports.kubernetes.events import Event
from shared.slices import candidates, create_or_release
from shared.slices.actions import (
    AnySliceAction,
    CreateSlice,
    ReserveSlice,
    UpdateClass,
    build_actions,
)
from shared.slices.kinds import Leader
from shared.slices.provider import RELEASE_AFTER, NameConflict, Slice
from shared.slices.units import Need, find_wait_start
from shared.slices.work import build_send
from shared.triggers import routes
from shared.triggers.message import POD_KIND

_ON_THE_OWNER = (create_or_release.NEXT_CANDIDATE, create_or_release.EXHAUSTED)
_MAX_WORDS = 300
"""The characters of the cloud's words about one candidate in an Event."""
_RESOURCE = re.compile(r"^([A-Za-z]+: )?(VM \S+ of )?projects/\S+: ")


def decide(observed: observe.Observed, now: datetime) -> Plan:
    """Decide what to do for the Pod, or which Pods get a resync."""
    if isinstance(observed, observe.ObservedQueue):
        due = list(observed.due)
        if observed.slots is not None:
            due = waiting.select_leaders(due, observed.slots, now)
        facts = {"waiting": observed.waiting, "triggered": len(due)}
        others = build_send(routes.PROVISION_SLICE, observed.others)
        return Plan("Swept", first=(*_build_resyncs(due, now), *others), facts=facts)
    if isinstance(observed, observe.ObservedOperation):
        plan = add_resyncs(_plan_after_operation(observed, now), observed, now)
        granted = tuple(UpdateClass(of, (forget,)) for of, forget in observed.granted)
        return replace(plan, best_effort=(*granted, *plan.best_effort))
    return _plan_pod(observed, now)


def _build_resyncs(leaders: Iterable[Leader], now: datetime) -> tuple[Action, ...]:
    messages = [waiting.build_message(leader, now) for leader in leaders]
    return build_send(routes.PROVISION_SLICE, messages)


def _plan_after_operation(observed: observe.ObservedOperation, now: datetime) -> Plan:
    event = observed.event
    if event.method != observe.CREATE_METHOD:
        if event.has_failed:  # release_slice reports it on the JobSet
            return Plan("DeletionFailed", note=event.words)
        if observed.waiting_pod is None:
            return Plan("NoPod")
        return _plan_pod(observed.waiting_pod, now)
    if not observed.has_pod:
        return Plan("NoPod")
    updates: tuple[Action, ...] = ()
    if observed.waiting_pod is not None:
        plan = _plan_pod(observed.waiting_pod, now)
        if plan.outcome == "NextCandidate":
            return plan
        updates = tuple(one for one in plan.first if isinstance(one, UpdateClass))
    outcome = "CreationFailed" if event.has_failed else "CreationSucceeded"
    template = create_or_release.NOT_CREATED if event.has_failed else create_or_release.CREATED
    words = {"name": event.name, "failure": event.words}
    event_of = Emit(template.render(observed.wording, words), once=True)
    return Plan(outcome, first=(*updates, event_of))


def add_resyncs(
    plan: Plan, observed: observe.ObservedOperation, now: datetime, *, rejected: str = ""
) -> Plan:
    """Add resyncs for the Pods that may try next, after the changes of the plan. ``rejected`` is the
    name of the slice whose creation has just been rejected, if any."""
    if observed.others is None:
        return plan
    changed = [
        action.desired.name if isinstance(action, CreateSlice) else action.existing.name
        for action in plan.first
        if isinstance(action, AnySliceAction)
    ]
    left, selected = waiting.select_next(observed.others, changed, now, rejected=rejected)
    facts = {**plan.facts, "without_slice": left, "triggered": len(selected)}
    return replace(plan, after=(*plan.after, *_build_resyncs(selected, now)), facts=facts)


def _plan_pod(observed: observe.ObservedPod | observe.ObservedImpossible, now: datetime) -> Plan:
    if isinstance(observed, observe.ObservedImpossible):
        if observed.has_opted_out:
            return Plan("OptedOut")
        if not observed.is_leader:
            return Plan("NotWaiting", note=observed.message)
        event = create_or_release.CREATION_REFUSED.render(
            observed.wording, {"failure": observed.message}
        )
        return Plan("InputRefused", first=(Emit(event, once=True),), note=observed.message)
    desired, existing, quota = observed.desired, observed.existing, observed.quota
    full = quota.find_full(desired, now) if quota is not None else None
    situation = create_or_release.Situation(
        trigger=create_or_release.SliceTrigger.POD_RESYNC
        if observed.is_resync
        else create_or_release.SliceTrigger.POD,
        need=observed.need,
        phase=create_or_release.find_phase(existing),
        is_in_use=bool(observed.users),
        is_paused=observed.is_paused,
        is_full=full is not None,
        is_exhausted=observed.is_exhausted,
        is_next_due=observed.move is not None,
    )
    words = {
        "limit": full.limit.shown[0].upper() + full.limit.shown[1:] if full else "",
        "used": full.show_used(now) if full else "",
        "name": desired.name,
        "size": desired.size,
        "unit": desired.unit.shown,
        "owner": f"{desired.unit.kind} {desired.unit.owner}",
        "user": next(iter(observed.users), ""),
        "others": "".join(f", and Pods of {one} run on it" for one in observed.users),
        "conflict": "",
        "failure": "",
        **describe_candidates(observed, now),
    }
    if isinstance(existing, NameConflict):
        words |= {"name": existing.name, "conflict": existing.description}
    elif isinstance(existing, Slice):
        # The advice for the reason is for people who create groups: here a class does.
        failure = cut_words(existing.message) if existing.class_name else existing.message
        words |= {"name": existing.name, "failure": failure}
        start = find_wait_start(observed.leader.demand)
        situation = replace(
            situation,
            is_as_asked=observe.is_as_asked(existing, desired),
            deadline=create_or_release.find_deadline(existing, now),
            # The rows use it on resyncs alone, since GKE's ages are read only then.
            is_unfit=not observed.leader.demand.request
            and now - max(start, existing.since or start) >= waiting.UNFIT_AFTER,
        )
    row = create_or_release.find_row(situation)
    if row.event is not create_or_release.UNFIT and not observed.leader.claim.is_leader:
        is_missing = existing is None and observed.need is Need.NEEDED
        report = Emit(create_or_release.WITHOUT_LEADER.render(observed.wording, words), once=True)
        reports = (report,) if is_missing else ()
        return Plan("NotWaiting", first=reports, note="its leader does not wait")
    subject = existing if isinstance(existing, Slice) else desired
    actions = build_actions(row, subject, words, observed.wording, now + RELEASE_AFTER)
    if row.action is create_or_release.SliceAction.CREATE and quota is not None:
        actions = (ReserveSlice(desired, quota), *actions)
    if row.event in _ON_THE_OWNER:
        actions += _emit_on_owner(observed, row.event.render(observed.wording, words))
    is_next = row.event is create_or_release.NEXT_CANDIDATE
    changes = observed.move.changes if is_next and observed.move else observed.changes
    of = observed.of
    if of is None or candidates.apply(changes, of.refusals, now) == of.refusals:
        return Plan(row.outcome, first=actions)
    update = UpdateClass(of, changes)
    if isinstance(existing, Slice) and existing.has_vms:  # it saves the next try a claim
        return Plan(row.outcome, first=actions, best_effort=(update,))
    is_written = existing is not None or row.action is create_or_release.SliceAction.CREATE
    return Plan(row.outcome, first=(update, *actions) if is_written else actions)


def plan_refused_call(
    plan: Plan, observed: observe.ObservedPod, error: CallError, now: datetime
) -> Plan:
    """The plan after a creation that was rejected, with what is remembered of the candidate, and a
    message about the Pod if another one may be asked."""
    of, desired = observed.of, observed.desired
    place, shape = desired.place, desired.shape
    if of is None or error.reason not in candidates.REFUSALS:
        return plan
    asker = desired.asker
    record = candidates.RecordRefusal(place, shape, asker, error.reason, error.message)
    update = UpdateClass(of, (record,))
    left = replace(of, refusals=candidates.apply((record,), of.refusals, now))
    next_place = candidates.choose(left, observed.eligible, shape, asker, now)
    facts = {**plan.facts, "refusal": error.reason}
    if next_place is None:
        tried = describe_candidates(replace(observed, of=left), now)
        event = create_or_release.EXHAUSTED.render(
            observed.wording, {**tried, "size": desired.size}
        )
        reports = (Emit(event, once=True), *_emit_on_owner(observed, event))
        return replace(plan, first=(update, *reports), facts=facts)
    words = {"candidate": place.key, "size": desired.size, "next_": next_place.key}
    event = create_or_release.NEXT_CANDIDATE.render(
        observed.wording, {**words, "refusal": cut_words(error.message)}
    )
    after = _build_resyncs([observed.leader], now)
    first: tuple[Action, ...] = (update, Emit(event), *_emit_on_owner(observed, event))
    return replace(plan, outcome="NextCandidate", first=first, after=after, facts=facts)


def _emit_on_owner(observed: observe.ObservedPod, event: Event) -> tuple[Action, ...]:
    """An Event also on the Pod's workload."""
    owner = observed.owner or {}
    is_pod = owner.get("kind") in (None, POD_KIND)
    return () if is_pod else (Emit(event, about=owner, once=True),)


def describe_candidates(observed: observe.ObservedPod, now: datetime) -> dict[str, str]:
    """The words of Events about candidates, of which a request reports those about refusals."""
    of, move, existing = observed.of, observed.move, observed.existing
    if of is None:
        return {"waits": ""}
    shape, keys = observed.desired.shape, [one.key for one in observed.eligible]
    known = [
        one
        for one in of.refusals
        if one.shape == shape and one.candidate in keys and one.until > now
    ]
    refusals = (f"{one.candidate}: {cut_words(one.message)}" for one in known)
    until = min((one.until for one in known), default=now)
    words = {
        "class_": of.shown,
        "refusals": "; ".join(refusals),
        "until": render_time(until),
        "waits": f"; {of.waited}" if of.waited else "",
    }
    if move is None or not isinstance(existing, Slice) or existing.place is None:
        return words
    record = next((one for one in move.changes if isinstance(one, candidates.RecordRefusal)), None)
    refusal = record.message if record else "the class does not have it any more"
    moved = {"candidate": existing.place.key, "next_": move.place.key}
    return {**words, **moved, "refusal": cut_words(refusal)}


def cut_words(message: str) -> str:
    """The beginning of a message without resource and advice, because Events are short."""
    text = candidates.without_advice(_RESOURCE.sub("", message))
    return text if len(text) <= _MAX_WORDS else f"{text[:_MAX_WORDS]}..."
