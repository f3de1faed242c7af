"""What release_slice does: pure, from what it has observed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from functions.release_slice.observe import (
    Observed,
    ObservedAll,
    ObservedDeletion,
    ObservedFailedUpdate,
    ObservedSlice,
    ObservedSlices,
    find_row,
    select_next,
)
from shared.base import backoff
from shared.frame.plan import Each, Emit, Fail, Plan, join_outcomes
from shared.ports.errors import CallError
from shared.slices import lifecycle
from shared.slices.actions import build_actions
from shared.slices.lifecycle import SliceAction
from shared.slices.need import find_reason
from shared.slices.provider import Slice, SliceState, Wording
from shared.slices.work import build_send
from shared.triggers import routes
from shared.triggers.audit_log import LogEvent
from shared.triggers.message import SLICE_KIND, Cause, Message


def decide(observed: Observed, now: datetime) -> Plan:
    """Decide what to do with each observed slice, and which slices get a resync."""
    if isinstance(observed, ObservedAll):
        return _plan_resyncs(observed, now)
    if isinstance(observed, ObservedDeletion):
        return _plan_after_deletion(observed, now)
    if isinstance(observed, ObservedFailedUpdate):
        return _plan_after_failed_update(observed, now)
    slices = tuple(plan_slice(one, now) for one in observed.slices)
    plan = Plan(join_outcomes(one.outcome for one in slices) or "NoSlice", each=slices)
    if isinstance(observed, ObservedSlices):
        return plan
    messages = _build_messages(observed.following, now)
    return replace(
        plan, first=build_send(routes.RELEASE_SLICE, messages), facts={"triggered": len(messages)}
    )


def _plan_resyncs(observed: ObservedAll, now: datetime) -> Plan:
    to_report = [one.existing for one in observed.slices if is_report_due(one, observed.at)]
    messages = _build_messages(
        [*select_next(observed.slices, observed.limit, now), *to_report], now
    )
    return Plan(
        "Swept",
        first=build_send(routes.RELEASE_SLICE, messages),
        facts={"triggered": len(messages)},
    )


def is_report_due(one: ObservedSlice, at: datetime) -> bool:
    """Whether the slice needs a report and no action. Reports repeat at growing intervals or, if the
    provider does not tell since when the slice has been in this state (GKE), each minute."""
    row, since = find_row(one, at), one.existing.since
    if row.action is not SliceAction.NOTHING or row.event is None:
        return False
    return since is None or backoff.is_due(since, at)


def _build_messages(slices: Iterable[Slice], now: datetime) -> list[Message]:
    return [
        Message(one.owner.namespace, one.name, "", Cause.RESYNC, now, kind=SLICE_KIND)
        for one in slices
    ]


def _plan_after_failed_update(observed: ObservedFailedUpdate, now: datetime) -> Plan:
    if observed.slice is None:
        return Plan("NoSlice")
    if observed.slice.refusal:
        return plan_slice(observed.slice, now).to_plan()
    row = find_row(observed.slice, now)
    # The slice needs no deadline now, whatever the update was. Other actions wait for the next resync.
    return Plan(row.outcome if row.action is SliceAction.NOTHING else "LeftToResync")


def _plan_after_deletion(observed: ObservedDeletion, now: datetime) -> Plan:
    event = observed.event
    messages = _build_messages(observed.following, now)
    sends, facts = build_send(routes.RELEASE_SLICE, messages), {"triggered": len(messages)}
    if observed.has_jobset and is_superseded(event, observed.existing):
        return Plan("Superseded", first=sends, facts=facts)
    template = lifecycle.NOT_DELETED if event.has_failed else lifecycle.DELETED
    words = {"name": event.name, "failure": event.words}
    return Plan(
        "DeletionFailed" if event.has_failed else "DeletionSucceeded",
        first=sends,
        after=(Emit(template.render(observed.wording, words)),) if observed.has_jobset else (),
        note=event.words,
        facts=facts,
    )


def is_superseded(event: LogEvent, existing: Slice | None) -> bool:
    """Whether a late entry about the end of a deletion contradicts the slice that exists now.

    After a failed deletion there must be a slice, after a successful one none.
    """
    if event.has_failed:
        return existing is None
    return existing is not None and existing.state is not SliceState.DELETING


def plan_slice(one: ObservedSlice, now: datetime) -> Each:
    """What is done to one slice."""
    name, error = one.existing.name, one.users_error
    if error is not None:
        return plan_report(name, error, one.wording) or Each(name, (Fail(error),), "Failed")
    row = find_row(one, now)
    words = _build_event_words(one, now)
    return Each(name, build_actions(row, one.existing, words, one.wording, now), row.outcome)


def plan_report(name: str, error: CallError, wording: Wording) -> Each | None:
    """The report of an environment error about a slice; ``None`` for a stale or transient error."""
    if error.reason is None:
        return None
    event = lifecycle.DELETION_REFUSED.render(wording, {"failure": str(error)})
    return Each(name, (Emit(event),), error.reason, note=str(error))


def _build_event_words(one: ObservedSlice, now: datetime) -> dict[str, str]:
    """The values for the placeholders in the texts of Events."""
    why = find_reason(one.existing, one.jobset, now, one.settings.suspended_release)
    if one.refusal:
        why = f"no JobSet needs it, and its release deadline cannot be written: {one.refusal}"
    return {
        "name": one.existing.name,
        "failure": one.existing.message,
        "user": next(iter(one.users), ""),
        "why": why or "",
    }
