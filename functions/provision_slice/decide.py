"""Decide about a waiting Pod's slice by the table of slices, and which Pods get a resync."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from functions.provision_slice import observe, waiting
from shared.frame.plan import Action, Emit, Plan
from shared.slices import create_or_release
from shared.slices.actions import AnySliceAction, CreateSlice, ReserveSlice, build_actions
from shared.slices.kinds import Leader
from shared.slices.provider import RELEASE_AFTER, NameConflict, Slice
from shared.slices.units import find_wait_start
from shared.slices.work import build_send
from shared.triggers import routes


def decide(observed: observe.Observed, now: datetime) -> Plan:
    """Decide what to do for the Pod, or which Pods get a resync."""
    if isinstance(observed, observe.ObservedQueue):
        due = list(observed.due)
        if observed.slots is not None:
            due = waiting.select_leaders(due, observed.slots, now)
        facts = {"waiting": observed.waiting, "triggered": len(due)}
        return Plan("Swept", first=_build_resyncs(due, now), facts=facts)
    if isinstance(observed, observe.ObservedOperation):
        return add_resyncs(_plan_after_operation(observed, now), observed, now)
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
    outcome = "CreationFailed" if event.has_failed else "CreationSucceeded"
    template = create_or_release.NOT_CREATED if event.has_failed else create_or_release.CREATED
    words = {"name": event.name, "failure": event.words}
    return Plan(outcome, first=(Emit(template.render(observed.wording, words), once=True),))


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
    return replace(plan, after=_build_resyncs(selected, now), facts=facts)


def _plan_pod(observed: observe.ObservedPod | observe.ObservedImpossible, now: datetime) -> Plan:
    if isinstance(observed, observe.ObservedImpossible):
        if observed.has_opted_out:
            return Plan("OptedOut")
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
    )
    words = {
        "limit": full.limit.shown[0].upper() + full.limit.shown[1:] if full else "",
        "used": full.show_used(now) if full else "",
        "name": desired.name,
        "size": desired.size,
        "unit": desired.unit.shown,
        "owner": f"{desired.unit.kind} {desired.unit.owner}",
        "user": next(iter(observed.users), ""),
        "conflict": "",
        "failure": "",
    }
    if isinstance(existing, NameConflict):
        words |= {"name": existing.name, "conflict": existing.description}
    elif isinstance(existing, Slice):
        words |= {"name": existing.name, "failure": existing.message}
        start = find_wait_start(observed.leader.demand)
        situation = replace(
            situation,
            is_as_asked=observe.is_as_asked(existing, desired),
            deadline=create_or_release.find_deadline(existing, now),
            # The rows use it on resyncs alone, since GKE's ages are read only then.
            is_unfit=now - max(start, existing.since or start) >= observe.UNFIT_AFTER,
        )
    row = create_or_release.find_row(situation)
    subject = existing if isinstance(existing, Slice) else desired
    actions = build_actions(row, subject, words, observed.wording, now + RELEASE_AFTER)
    if row.action is create_or_release.SliceAction.CREATE and quota is not None:
        actions = (ReserveSlice(desired, quota), *actions)
    return Plan(row.outcome, first=actions)
