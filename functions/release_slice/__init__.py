"""release_slice: delete a slice that its JobSet needs no longer, normally half a minute later.

Triggers:

- A JobSet has completed, failed or was deleted.
- A resync about a slice.
- A message of the sweep, each minute. It names no slice: the step lists all, and publishes resyncs about
  those that need an action or a report to its own topic.
- An operation of GKE has ended that created or deleted a node pool, or an update of one has failed. GKE
  changes only a few node pools at a time: the step selects some, and when an operation ends, the next.

`slices.lifecycle.ROWS` decides about each slice. A slice is not needed if its JobSet has ended or is
gone, has no such Job any more, or has been suspended for a time that is a setting. The first observation
of such a slice sets its release deadline, and the first one after the deadline deletes it, when no Pods
run on it any more. The delay lets a JobSet that is deleted and recreated under the same name keep its
slices. Of the slices that are not needed, two kinds are deleted without a delay: those that have failed
for good and have no ready Node, and those whose deadline cannot be written, when no Pods run on them.

By the setting `Settings.lost_rebuild`, a slice that a JobSet needs and that has lost Nodes for good is
deleted, so that provision_slice creates it again. That applies to TPUNodeGroups alone, because GKE does
not tell since when the Nodes of a node pool are lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from shared.base import backoff
from shared.base.names import JOBSET_KIND
from shared.frame.plan import Emit, Fail, Plan, join_outcomes
from shared.frame.settings import Settings
from shared.frame.step import Invocation, Step
from shared.ports.errors import CallError
from shared.slices import concurrency, lifecycle
from shared.slices.actions import DeleteSlice, SetReleaseDeadline, SliceActionError, build_plan
from shared.slices.lifecycle import Deadline, Row, Situation, SliceAction, SliceTrigger
from shared.slices.need import find_jobset_of, find_reason, find_slice_need, find_unneeded_time
from shared.slices.provider import Slice, SliceState, Wording
from shared.slices.work import (
    GIVEN_UP,
    QUEUED,
    RETRY_REPORTED_AFTER,
    SliceWork,
    find_environment_reason,
    is_out_of_slots,
    jobset_reference,
    list_jobs_on,
    require_send,
    set_trace_id,
    slice_work_fields,
)
from shared.triggers.audit_log import LogEvent
from shared.triggers.message import SLICE_KIND, Cause, Message

NAME = "release_slice"

DELETE_METHOD, UPDATE_METHOD = "container.nodePools.delete", "container.nodePools.update"
"""Methods in the audit log. Of updates, only failed ones trigger this step."""


@dataclass(frozen=True)
class ObservedSlice:
    """A slice and its JobSet (``None``: gone).

    ``wording``: the provider, used only for how its slices are called in Events. ``users`` are the Jobs
    whose Pods run on a slice that is to be deleted; ``users_error`` is the error of that read.
    ``refusal`` is the error if its release deadline cannot be written.
    """

    existing: Slice
    jobset: Mapping[str, Any] | None
    settings: Settings = field(repr=False)
    wording: Wording
    users: tuple[str, ...] = ()
    users_error: CallError | None = None
    refusal: str = ""


@dataclass(frozen=True)
class ObservedSlices:
    """The slices that a message names: one slice, or all slices of a JobSet."""

    slices: tuple[ObservedSlice, ...]


@dataclass(frozen=True)
class ObservedCreation:
    """The end of a node pool's creation, which leaves a free slot.

    ``first`` is the slice that this invocation changes; ``None``: no slice needs a change, or the one
    that was selected is gone.
    ``following`` are the slices that get resyncs, because they can be changed next.
    """

    first: ObservedSlice | None
    following: tuple[Slice, ...]

    @property
    def slices(self) -> tuple[ObservedSlice, ...]:
        """The slices about which the step decides."""
        return () if self.first is None else (self.first,)


@dataclass(frozen=True)
class ObservedFailedUpdate:
    """A node pool whose update has failed. ``slice`` is ``None`` if the pool is gone.

    If the pool needs a deadline, the update may have been its write. Then ``slice.refusal`` is set, and
    the pool is deleted without a deadline, as soon as no Pods run on it.
    """

    slice: ObservedSlice | None


@dataclass(frozen=True)
class ObservedDeletion:
    """The end of a node pool's deletion.

    ``following`` are the slices that get resyncs, because they can be changed next. ``existing``: the
    slice that has the pool's name now. ``has_jobset``: the pool's JobSet still exists.
    """

    event: LogEvent
    wording: Wording
    following: tuple[Slice, ...]
    existing: Slice | None
    has_jobset: bool


@dataclass(frozen=True)
class ObservedAll:
    """All slices, once a minute; at most ``limit`` can change at the same time (``None``: all).

    ``at``: the time of the sweep's message. Whether a report is due is computed for this minute, because
    this run may begin later.
    """

    slices: tuple[ObservedSlice, ...]
    limit: int | None
    at: datetime


Observed = ObservedSlices | ObservedCreation | ObservedDeletion | ObservedFailedUpdate | ObservedAll


def open_slices(invocation: Invocation, is_first_observation: bool) -> SliceWork:
    """The work on slices. Raises `NothingToDo`."""
    return SliceWork(**slice_work_fields(invocation, is_first_observation=is_first_observation))


def observe(work: SliceWork) -> Observed:
    """Read what the decision needs: a JobSet's slices, one slice, an operation's end, or all slices."""
    message, event = work.trigger.message, work.trigger.event
    if message is not None:
        return _observe_named(work, message)
    if event is None:  # a message of the sweep, which names no object
        return _observe_all(work)
    work.facts["slice"] = event.name
    if event.method == UPDATE_METHOD:
        return _observe_failed_update(work, event)
    return _observe_operation(work, event)


def decide(observed: Observed, now: datetime) -> Plan:
    """Decide what to do with each observed slice, and which slices get a resync."""
    if isinstance(observed, ObservedAll):
        return _decide_to_trigger(observed, now)
    if isinstance(observed, ObservedDeletion):
        return _decide_after_deletion(observed, now)
    if isinstance(observed, ObservedFailedUpdate):
        return _decide_after_failed_update(observed, now)
    parts = tuple(_decide_about_slice(one, now) for one in observed.slices)
    plan = Plan(join_outcomes(part.outcome for part in parts) or "NoSlice", parts=parts)
    if isinstance(observed, ObservedSlices):
        return plan
    messages = _messages(observed.following, now)
    return replace(plan, actions=require_send(NAME, messages), facts={"triggered": len(messages)})


def recover(work: SliceWork, error: CallError) -> Plan | None:
    """Report an environment error.

    A slice whose release deadline cannot be written is deleted as soon as no Pods run on it. Otherwise
    it would never be deleted.
    """
    if not isinstance(error, SliceActionError):
        return None
    if is_out_of_slots(error, work.provider):
        return Plan(QUEUED, note=str(error))
    action = error.action
    if isinstance(action, SetReleaseDeadline) and find_environment_reason(error) is not None:
        return _release_without_deadline(work, action.existing, str(error))
    return _report_environment_error(error, work.provider)


def report_retry(work: SliceWork, error: Exception) -> Plan:
    """Report a transient error that only the sweep retries, on the JobSet of its slice."""
    existing = _find_slice_of(work, error)
    if existing is None:
        return Plan(GIVEN_UP)
    jobset = work.cluster.find_jobset(*_jobset_key(existing))
    if not is_retry_reported(_build_observed(work, existing, jobset), work.now):
        return Plan(GIVEN_UP)
    _set_subject(work, existing, jobset)
    event = lifecycle.DELETION_RETRIED.render(work.provider, {"failure": str(error)})
    return Plan(GIVEN_UP, (Emit(event, once=True),))


# Two recoveries: if a deadline cannot be written, the slice is deleted instead, and that may fail, too.
STEP = Step(NAME, open_slices, observe, decide, recover, recoveries=2, give_up=report_retry)
run = STEP.run


def _release_without_deadline(work: SliceWork, existing: Slice, refusal: str) -> Plan:
    # Only the plans for ObservedSlices and ObservedCreation set deadlines. For an ObservedFailedUpdate
    # the deadline counts as refused already.
    observed: ObservedSlices | ObservedCreation = work.observed
    one = next(one for one in observed.slices if one.existing == existing)
    return _decide_about_slice(_with_users(work, replace(one, refusal=refusal)), work.now)


def _find_slice_of(work: SliceWork, error: Exception) -> Slice | None:
    """The slice of the action that failed; for a failed read, the slice that the message names."""
    action = error.action if isinstance(error, SliceActionError) else None
    if isinstance(action, DeleteSlice | SetReleaseDeadline):
        return action.existing
    message = work.trigger.message
    if message is None or message.kind != SLICE_KIND:
        return None
    return work.provider.get(message.namespace, message.name)


def is_retry_reported(one: ObservedSlice, now: datetime) -> bool:
    """Whether a transient error is reported: the slice has been due for release for ten minutes.

    If the JobSet is gone and no release deadline could be written, nothing tells since when the slice
    has been due. Then only the log has the error: to report it immediately would also report the normal
    answer "running incompatible operation", which GKE gives for some minutes while it changes the pool
    or the cluster.
    """
    suspended_release = one.settings.suspended_release
    if find_reason(one.existing, one.jobset, now, suspended_release) is None:
        return False
    since = find_unneeded_time(one.existing, one.jobset, suspended_release)
    return since is not None and now - since >= RETRY_REPORTED_AFTER


def _observe_all(work: SliceWork) -> ObservedAll:
    slices = list(work.provider.list_all())
    jobsets = list(work.cluster.list_jobsets()) if slices else []
    work.facts["slices"] = len(slices)
    observed = _with_jobsets(work, slices, jobsets)
    return ObservedAll(observed, work.provider.concurrency_limit, work.trigger.at)


def _with_jobsets(
    work: SliceWork, slices: Iterable[Slice], jobsets: Iterable[Mapping[str, Any]]
) -> tuple[ObservedSlice, ...]:
    by_name = _index(jobsets)
    return tuple(_build_observed(work, one, by_name.get(_jobset_key(one))) for one in slices)


def _index(jobsets: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in jobsets}


def _build_observed(
    work: SliceWork, existing: Slice, jobset: Mapping[str, Any] | None
) -> ObservedSlice:
    return ObservedSlice(existing, jobset, work.settings, work.provider)


def _jobset_key(existing: Slice) -> tuple[str, str]:
    return existing.owner.namespace, existing.owner.jobset


def _decide_to_trigger(observed: ObservedAll, now: datetime) -> Plan:
    to_report = [one.existing for one in observed.slices if is_report_due(one, observed.at)]
    messages = _messages([*_select_next(observed.slices, observed.limit, now), *to_report], now)
    return Plan("Swept", require_send(NAME, messages), facts={"triggered": len(messages)})


def is_report_due(one: ObservedSlice, at: datetime) -> bool:
    """Whether the slice needs a report and no action. Reports repeat at growing intervals or, if the
    provider does not tell since when the slice has been in this state (GKE), each minute."""
    row, since = _find_row(one, at), one.existing.since
    if row.action is not SliceAction.NOTHING or row.event is None:
        return False
    return since is None or backoff.is_due(since, at)


def is_change_due(one: ObservedSlice, now: datetime) -> bool:
    """Whether the slice needs an action."""
    return _find_row(one, now).action is not SliceAction.NOTHING


def has_work(one: ObservedSlice, now: datetime) -> bool:
    """Whether the slice needs an action or a report, so that this step sends resyncs about it to itself
    (for ``kubectl tng explain``)."""
    return is_change_due(one, now) or _find_row(one, now).event is not None


def _select_next(slices: Sequence[ObservedSlice], limit: int | None, now: datetime) -> list[Slice]:
    """The slices that need an action and can be changed now."""
    to_change = [one.existing for one in slices if is_change_due(one, now)]
    if limit is None:
        return to_change
    slots = concurrency.count_slots(limit, (one.existing for one in slices))
    return select(to_change, slots, now)


def select(slices: Iterable[Slice], slots: int, now: datetime) -> list[Slice]:
    """Select slices for the free slots: half of them by the earliest deadline, the others at random
    (`concurrency.select`)."""
    waiting = sorted(
        slices, key=lambda one: (one.release_after or datetime.max.replace(tzinfo=UTC), one.name)
    )
    return concurrency.select(
        waiting, slots, now, lambda one: one.name, lambda one: one.owner.namespace
    )


def _messages(slices: Iterable[Slice], now: datetime) -> list[Message]:
    return [
        Message(one.owner.namespace, one.name, "", Cause.RESYNC, now, kind=SLICE_KIND)
        for one in slices
    ]


def _observe_named(work: SliceWork, message: Message) -> ObservedSlices:
    work.facts[message.kind.lower()] = f"{message.namespace}/{message.name}"
    if message.kind == JOBSET_KIND:
        found = work.provider.list_by_jobset(message.namespace, message.name)
    else:
        one = work.provider.get(message.namespace, message.name)
        found = [] if one is None else [one]
    jobsets = {key: work.cluster.find_jobset(*key) for key in {_jobset_key(one) for one in found}}
    slices = tuple(_observe_slice(work, one, jobsets[_jobset_key(one)]) for one in found)
    return ObservedSlices(slices)


def _observe_slice(
    work: SliceWork, existing: Slice, jobset: Mapping[str, Any] | None
) -> ObservedSlice:
    set_trace_id(work, existing)
    _set_subject(work, existing, jobset)
    return _with_users(work, _build_observed(work, existing, jobset))


def _set_subject(work: SliceWork, existing: Slice, jobset: Mapping[str, Any] | None) -> None:
    """Make the slice's JobSet the object of Events. All slices of a trigger belong to the same one."""
    work.about = {**jobset_reference(*_jobset_key(existing)), **(jobset or {})}


def _with_users(work: SliceWork, one: ObservedSlice) -> ObservedSlice:
    """Add the Jobs for which a deletion waits, if the slice is to be deleted when nobody uses it.

    Its own Job counts, too, because it may be writing its last checkpoint. If the slice is rebuilt for
    its own Job, of that Job's Pods only those that are ending count (`list_jobs_on`).
    """
    row, existing = _find_row(one, work.now), one.existing
    if row.action is not SliceAction.DELETE or lifecycle.find_phase(existing) in lifecycle.DEAD:
        return one
    owner = existing.owner if row.event is lifecycle.REBUILDING else None
    try:
        users = list_jobs_on(work.cluster, existing.name, work.now, replaced_for=owner)
    except CallError as error:
        return replace(one, users_error=error)
    return replace(one, users=users)


def _observe_failed_update(work: SliceWork, event: LogEvent) -> ObservedFailedUpdate:
    existing = next((one for one in work.provider.list_all() if one.name == event.name), None)
    if existing is None:
        return ObservedFailedUpdate(None)
    jobset = work.cluster.find_jobset(*_jobset_key(existing))
    one = _build_observed(work, existing, jobset)
    if _find_row(one, work.now).action is not SliceAction.SET_DEADLINE:
        return ObservedFailedUpdate(one)
    _set_subject(work, existing, jobset)
    return ObservedFailedUpdate(_with_users(work, replace(one, refusal=event.words)))


def _decide_after_failed_update(observed: ObservedFailedUpdate, now: datetime) -> Plan:
    if observed.slice is None:
        return Plan("NoSlice")
    if observed.slice.refusal:
        return _decide_about_slice(observed.slice, now)
    row = _find_row(observed.slice, now)
    # The slice needs no deadline now, whatever the update was. Other actions wait for the next resync.
    return Plan(row.outcome if row.action is SliceAction.NOTHING else "LeftToResync")


def _observe_operation(work: SliceWork, event: LogEvent) -> ObservedCreation | ObservedDeletion:
    """Read all slices, and select those that use the free slots. They are selected here and not in
    ``decide``, because the first one is read again.

    Both steps of JobSets get the end of each operation. After a creation, this step changes a slice in
    the same invocation, and provision_slice only publishes resyncs. After a deletion it is the reverse.
    After a deletion that has failed, no slice is selected: deletions that fail immediately would trigger
    each other.
    """
    provider, is_deletion = work.provider, event.method == DELETE_METHOD
    slices = list(provider.list_all(with_nodes=False))
    jobsets = list(work.cluster.list_jobsets()) if slices or is_deletion else []
    observed = _with_jobsets(work, slices, jobsets)
    if is_deletion and event.has_failed:
        return _observe_deletion(work, event, slices, jobsets, following=())
    following = tuple(_select_next(observed, provider.concurrency_limit, work.now))
    if is_deletion:
        return _observe_deletion(work, event, slices, jobsets, following)
    first = provider.get(following[0].owner.namespace, following[0].name) if following else None
    if first is None:
        return ObservedCreation(None, following[1:])
    work.facts["slice"] = first.name
    jobset = _index(jobsets).get(_jobset_key(first))
    return ObservedCreation(_observe_slice(work, first, jobset), following[1:])


def _observe_deletion(
    work: SliceWork,
    event: LogEvent,
    slices: Iterable[Slice],
    jobsets: Iterable[Mapping[str, Any]],
    following: tuple[Slice, ...],
) -> ObservedDeletion:
    jobset, existing = find_jobset_of(event.name, jobsets), None
    if jobset is not None:
        work.about = {**jobset_reference(), **jobset}
        key = (jobset["metadata"]["namespace"], event.name)
        existing = next((one for one in slices if (one.owner.namespace, one.name) == key), None)
    return ObservedDeletion(event, work.provider, following, existing, jobset is not None)


def _decide_after_deletion(observed: ObservedDeletion, now: datetime) -> Plan:
    event = observed.event
    messages = _messages(observed.following, now)
    actions, facts = require_send(NAME, messages), {"triggered": len(messages)}
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


def _decide_about_slice(one: ObservedSlice, now: datetime) -> Plan:
    error = one.users_error
    if error is not None:
        return _report_environment_error(error, one.wording) or Plan("Failed", (Fail(error),))
    return build_plan(
        _find_row(one, now), one.existing, _build_event_words(one, now), one.wording, now
    )


def _report_environment_error(error: CallError, wording: Wording) -> Plan | None:
    """The plan for an environment error; ``None`` for one that is stale or transient."""
    reason = find_environment_reason(error)
    if reason is None:
        return None
    event = lifecycle.DELETION_REFUSED.render(wording, {"failure": str(error)})
    return Plan(reason, (Emit(event),), note=str(error))


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


def _find_row(one: ObservedSlice, now: datetime) -> Row:
    return lifecycle.find_row(build_situation(one, now))


def build_situation(one: ObservedSlice, now: datetime) -> Situation:
    """What was observed, in the columns of the lifecycle table."""
    existing, since = one.existing, one.existing.since
    rebuild_after = one.settings.lost_rebuild
    is_rebuild_due = bool(rebuild_after and since is not None and now - since >= rebuild_after)
    return Situation(
        trigger=SliceTrigger.SLICE,
        need=find_slice_need(existing, one.jobset, now, one.settings.suspended_release),
        phase=lifecycle.find_phase(existing),
        deadline=Deadline.REFUSED if one.refusal else lifecycle.find_deadline(existing, now),
        is_in_use=bool(one.users),
        is_rebuild_due=is_rebuild_due,
    )
