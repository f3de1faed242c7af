"""Decide about each observed slice by the table of slices, and which slices get a resync."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from functions.release_slice import observe
from functions.release_slice.observe import ObservedSlice
from functions.release_slice.usage import plan_usage
from shared.base import backoff
from shared.frame.plan import Each, Emit, Fail, Plan, join_outcomes
from shared.ports.errors import CallError
from shared.slices import create_or_release
from shared.slices.actions import build_actions
from shared.slices.provider import RELEASE_AFTER, Slice, SliceState, Wording
from shared.slices.units import Need
from shared.slices.work import build_send
from shared.triggers import routes
from shared.triggers.audit_log import LogEvent
from shared.triggers.message import SLICE_KIND, Cause, Message


def decide(observed: observe.Observed, now: datetime) -> Plan:
    """Decide what to do with each observed slice, and which slices get a resync."""
    if isinstance(observed, observe.ObservedAll):
        to_change = observe.select_next(observed.slices, observed.limit, now)
        to_report = [one.existing for one in observed.slices if is_report_due(one, observed.at)]
        slices = [one.existing for one in observed.slices]
        writes = tuple(plan_usage(observed.classes, slices, now))
        plan = _plan_resyncs("Swept", [*to_change, *to_report], now)
        kept = [one for one in observed.slices if one.state.need is Need.NEEDED]
        errors = dict.fromkeys(one.users_error for one in kept if one.users_error is not None)
        return replace(plan, best_effort=writes, errors=tuple(errors))
    if isinstance(observed, observe.ObservedDeletion):
        return _plan_after_deletion(observed, now)
    if isinstance(observed, observe.ObservedFailedUpdate):
        return _plan_after_failed_update(observed.slice, now)
    each = tuple(plan_slice(one, now) for one in observed.slices)
    outcome = join_outcomes(one.outcome for one in each) or "NoSlice"
    if observed.following is None:
        return Plan(outcome, each=each)
    return replace(_plan_resyncs(outcome, observed.following, now), each=each)


def _plan_resyncs(outcome: str, slices: Sequence[Slice], now: datetime) -> Plan:
    messages = [
        Message(one.unit.namespace, one.name, "", Cause.RESYNC, now, kind=SLICE_KIND)
        for one in slices
    ]
    sends = build_send(routes.RELEASE_SLICE, messages)
    return Plan(outcome, first=sends, facts={"triggered": len(messages)})


def is_report_due(one: ObservedSlice, at: datetime) -> bool:
    """Whether the slice needs a report and no action. Reports repeat at growing intervals or, if the
    provider does not tell since when the slice has been in this state (GKE), each minute."""
    row, since = one.find_row(at), one.existing.since
    if row.action is not create_or_release.SliceAction.NOTHING or row.event is None:
        return False
    return since is None or backoff.is_due(since, at)


def _plan_after_failed_update(one: ObservedSlice | None, now: datetime) -> Plan:
    if one is None:
        return Plan("NoSlice")
    if one.refusal:
        return plan_slice(one, now).to_plan()
    # The slice needs no deadline now, whatever the update was. Other actions wait for the next resync.
    return Plan("LeftToResync" if one.is_change_due(now) else one.find_row(now).outcome)


def _plan_after_deletion(observed: observe.ObservedDeletion, now: datetime) -> Plan:
    event = observed.event
    if observed.has_owner and is_superseded(event, observed.existing):
        return _plan_resyncs("Superseded", observed.following, now)
    outcome = "DeletionFailed" if event.has_failed else "DeletionSucceeded"
    template = create_or_release.NOT_DELETED if event.has_failed else create_or_release.DELETED
    words = {"name": event.name, "failure": event.words}
    report = Emit(template.render(observed.wording, words))
    plan = _plan_resyncs(outcome, observed.following, now)
    return replace(plan, after=(report,) if observed.has_owner else (), note=event.words)


def is_superseded(event: LogEvent, existing: Slice | None) -> bool:
    """Whether a late entry about the end of a deletion contradicts the slice that exists now.

    After a failed deletion there must be a slice, after a successful one none.
    """
    if event.has_failed:
        return existing is None
    return existing is not None and existing.state is not SliceState.DELETING


def plan_slice(one: ObservedSlice, now: datetime) -> Each:
    """What is done to one slice."""
    existing, error = one.existing, one.users_error
    if error is not None:
        report = plan_report(existing.name, error, one.wording)
        return report or Each(existing.name, (Fail(error),), "Failed")
    why = one.state.why
    if one.refusal:
        nobody = f"no {existing.unit.kind} needs it"
        why = f"{nobody}, and its release deadline cannot be written: {one.refusal}"
    user = next(iter(one.users), "")
    words = {"name": existing.name, "failure": existing.message, "user": user, "why": why}
    row = one.find_row(now)
    # An owner may be applied again when it is gone, which takes until its Pods have ended.
    release_after = now + RELEASE_AFTER * (2 if one.state.is_ending else 1)
    actions = build_actions(row, existing, words, one.wording, release_after)
    return Each(existing.name, actions, row.outcome)


def plan_report(name: str, error: CallError, wording: Wording) -> Each | None:
    """The report of an environment error about a slice; ``None`` for a stale or transient error."""
    if error.reason is None:
        return None
    event = create_or_release.DELETION_REFUSED.render(wording, {"failure": str(error)})
    return Each(name, (Emit(event),), error.reason, note=str(error))
