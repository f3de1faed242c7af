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
from shared.frame.plan import Emit, Fail, Plan, join_outcomes
from shared.ports.errors import CallError
from shared.slices import lifecycle
from shared.slices.actions import build_plan
from shared.slices.lifecycle import SliceAction
from shared.slices.need import find_reason
from shared.slices.provider import Slice, SliceState, Wording
from shared.slices.work import require_send
from shared.triggers import routes
from shared.triggers.audit_log import LogEvent
from shared.triggers.message import SLICE_KIND, Cause, Message


def decide(observed: Observed, now: datetime) -> Plan:
    """Decide what to do with each observed slice, and which slices get a resync."""
    if isinstance(observed, ObservedAll):
        return _decide_to_trigger(observed, now)
    if isinstance(observed, ObservedDeletion):
        return _decide_after_deletion(observed, now)
    if isinstance(observed, ObservedFailedUpdate):
        return _decide_after_failed_update(observed, now)
    parts = tuple(decide_about_slice(one, now) for one in observed.slices)
    plan = Plan(join_outcomes(part.outcome for part in parts) or "NoSlice", parts=parts)
    if isinstance(observed, ObservedSlices):
        return plan
    messages = _messages(observed.following, now)
    return replace(
        plan,
        actions=require_send(routes.RELEASE_SLICE, messages),
        facts={"triggered": len(messages)},
    )


def _decide_to_trigger(observed: ObservedAll, now: datetime) -> Plan:
    to_report = [one.existing for one in observed.slices if is_report_due(one, observed.at)]
    messages = _messages([*select_next(observed.slices, observed.limit, now), *to_report], now)
    return Plan(
        "Swept", require_send(routes.RELEASE_SLICE, messages), facts={"triggered": len(messages)}
    )


def is_report_due(one: ObservedSlice, at: datetime) -> bool:
    """Whether the slice needs a report and no action. Reports repeat at growing intervals or, if the
    provider does not tell since when the slice has been in this state (GKE), each minute."""
    row, since = find_row(one, at), one.existing.since
    if row.action is not SliceAction.NOTHING or row.event is None:
        return False
    return since is None or backoff.is_due(since, at)


def _messages(slices: Iterable[Slice], now: datetime) -> list[Message]:
    return [
        Message(one.owner.namespace, one.name, "", Cause.RESYNC, now, kind=SLICE_KIND)
        for one in slices
    ]


def _decide_after_failed_update(observed: ObservedFailedUpdate, now: datetime) -> Plan:
    if observed.slice is None:
        return Plan("NoSlice")
    if observed.slice.refusal:
        return decide_about_slice(observed.slice, now)
    row = find_row(observed.slice, now)
    # The slice needs no deadline now, whatever the update was. Other actions wait for the next resync.
    return Plan(row.outcome if row.action is SliceAction.NOTHING else "LeftToResync")


def _decide_after_deletion(observed: ObservedDeletion, now: datetime) -> Plan:
    event = observed.event
    messages = _messages(observed.following, now)
    actions, facts = require_send(routes.RELEASE_SLICE, messages), {"triggered": len(messages)}
    if observed.has_jobset and is_superseded(event, observed.existing):
        return Plan("Superseded", actions, facts=facts)
    template = lifecycle.NOT_DELETED if event.has_failed else lifecycle.DELETED
    if observed.has_jobset:
        words = {"name": event.name, "failure": event.words}
        actions = (*actions, Emit(template.render(observed.wording, words)))
    outcome = "DeletionFailed" if event.has_failed else "DeletionSucceeded"
    return Plan(outcome, actions, event.words, facts)


def is_superseded(event: LogEvent, existing: Slice | None) -> bool:
    """Whether a late entry about the end of a deletion contradicts the slice that exists now.

    After a failed deletion there must be a slice, after a successful one none.
    """
    if event.has_failed:
        return existing is None
    return existing is not None and existing.state is not SliceState.DELETING


def decide_about_slice(one: ObservedSlice, now: datetime) -> Plan:
    error = one.users_error
    if error is not None:
        return report_environment_error(error, one.wording) or Plan("Failed", (Fail(error),))
    return build_plan(
        find_row(one, now), one.existing, _build_event_words(one, now), one.wording, now
    )


def report_environment_error(error: CallError, wording: Wording) -> Plan | None:
    """The plan for an environment error; ``None`` for one that is stale or transient."""
    if error.reason is None:
        return None
    event = lifecycle.DELETION_REFUSED.render(wording, {"failure": str(error)})
    return Plan(error.reason, (Emit(event),), note=str(error))


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
