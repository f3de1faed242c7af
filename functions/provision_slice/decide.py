"""What provision_slice does: pure, from what it has observed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from functions.provision_slice.observe import (
    CREATE_METHOD,
    UNFIT_AFTER,
    Observed,
    ObservedImpossible,
    ObservedOperation,
    ObservedPod,
    ObservedQueue,
    is_as_asked,
)
from shared.frame.plan import Emit, Plan
from shared.slices import lifecycle
from shared.slices.actions import AnySliceAction, CreateSlice, build_actions
from shared.slices.jobsets import Leader
from shared.slices.lifecycle import Situation, SliceTrigger
from shared.slices.need import find_pod_need
from shared.slices.provider import NameConflict, Slice
from shared.slices.waiting import build_message, find_wait_start, select_leaders, select_next
from shared.slices.work import build_send
from shared.triggers import routes
from shared.triggers.message import Message


def decide(observed: Observed, now: datetime) -> Plan:
    """Decide what to do for the Pod, or which Pods get a resync."""
    if isinstance(observed, ObservedQueue):
        return _plan_resyncs(observed, now)
    if isinstance(observed, ObservedOperation):
        return with_next(_plan_after(observed, now), observed, now)
    return _plan_pod(observed, now)


def _plan_resyncs(observed: ObservedQueue, now: datetime) -> Plan:
    due: Sequence[Leader] = observed.due
    if observed.slots is not None:
        due = select_leaders(due, observed.slots, now)
    facts = {"waiting": observed.waiting, "triggered": len(due)}
    return Plan(
        "Swept", first=build_send(routes.PROVISION_SLICE, _build_messages(due, now)), facts=facts
    )


def _build_messages(leaders: Iterable[Leader], now: datetime) -> list[Message]:
    return [build_message(leader, now) for leader in leaders]


def _plan_after(observed: ObservedOperation, now: datetime) -> Plan:
    event, wording = observed.event, observed.wording
    if event.method != CREATE_METHOD:
        if event.has_failed:  # release_slice reports it on the JobSet
            return Plan("DeletionFailed", note=event.words)
        if observed.waiting_pod is None:
            return Plan("NoPod")
        return _plan_pod(observed.waiting_pod, now)
    if not observed.has_pod:
        return Plan("NoPod")
    template = lifecycle.NOT_CREATED if event.has_failed else lifecycle.CREATED
    pod_event = template.render(wording, {"name": event.name, "failure": event.words})
    outcome = "CreationFailed" if event.has_failed else "CreationSucceeded"
    return Plan(outcome, first=(Emit(pod_event, once=True),))


def with_next(
    plan: Plan, observed: ObservedOperation, now: datetime, *, rejected: str = ""
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
    left, selected = select_next(observed.others, changed, now, rejected=rejected)
    facts = {"without_slice": left, "triggered": len(selected)}
    sends = build_send(routes.PROVISION_SLICE, _build_messages(selected, now))
    return replace(plan, after=sends, facts={**plan.facts, **facts})


def _plan_pod(observed: ObservedPod | ObservedImpossible, now: datetime) -> Plan:
    if isinstance(observed, ObservedImpossible):
        if observed.has_opted_out:
            return Plan("OptedOut")
        event = lifecycle.CREATION_REFUSED.render(observed.wording, {"failure": observed.message})
        return Plan("InputRefused", first=(Emit(event, once=True),), note=observed.message)
    existing = observed.existing
    row = lifecycle.find_row(build_situation(observed, now))
    subject = existing if isinstance(existing, Slice) else observed.desired
    words = _build_event_words(observed)
    return Plan(row.outcome, first=build_actions(row, subject, words, observed.wording, now))


def build_situation(observed: ObservedPod, now: datetime) -> Situation:
    """What was observed, in the columns of the lifecycle table."""
    existing = observed.existing
    situation = Situation(
        trigger=SliceTrigger.POD_RESYNC if observed.is_resync else SliceTrigger.POD,
        need=find_pod_need(observed.leader, observed.jobset),
        phase=lifecycle.find_phase(existing),
        is_in_use=bool(observed.users),
        is_paused=observed.is_paused,
    )
    if not isinstance(existing, Slice):
        return situation
    start = find_wait_start(observed.leader)
    is_unfit = now - max(start, existing.since or start) >= UNFIT_AFTER
    return replace(
        situation,
        is_as_asked=is_as_asked(existing, observed.desired),
        deadline=lifecycle.find_deadline(existing, now),
        is_unfit=is_unfit,  # the rows use it on resyncs alone, since GKE's ages are read only then
    )


def _build_event_words(observed: ObservedPod) -> dict[str, str]:
    """The values for the placeholders in the texts of Events."""
    desired, existing = observed.desired, observed.existing
    return {
        "name": desired.name if existing is None else existing.name,
        "size": desired.size,
        "job": desired.owner.job,
        "jobset": desired.owner.jobset,
        "user": next(iter(observed.users), ""),
        "conflict": existing.description if isinstance(existing, NameConflict) else "",
        "failure": existing.message if isinstance(existing, Slice) else "",
    }
