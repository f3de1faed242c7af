"""What release_slice reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from shared.base.names import JOBSET_KIND
from shared.ports.errors import CallError
from shared.settings import Settings
from shared.slices import concurrency, lifecycle
from shared.slices.lifecycle import Deadline, Row, Situation, SliceAction, SliceTrigger
from shared.slices.need import find_jobset_of, find_slice_need
from shared.slices.provider import Slice, Wording
from shared.slices.work import SliceWork, jobset_reference, list_jobs_on, set_trace_id
from shared.triggers.audit_log import LogEvent
from shared.triggers.message import Message
from shared.triggers.trigger import LogTrigger, ObjectTrigger

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


def observe(work: SliceWork) -> Observed:
    """Read what the decision needs: a JobSet's slices, one slice, an operation's end, or all slices."""
    match work.trigger:
        case ObjectTrigger(message):
            return _observe_named(work, message)
        case LogTrigger(event):
            work.facts["slice"] = event.name
            if event.method == UPDATE_METHOD:
                return _observe_failed_update(work, event)
            return _observe_operation(work, event)
    return _observe_all(work)


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
    return tuple(build_observed(work, one, by_name.get(jobset_key(one))) for one in slices)


def _index(jobsets: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in jobsets}


def build_observed(
    work: SliceWork, existing: Slice, jobset: Mapping[str, Any] | None
) -> ObservedSlice:
    return ObservedSlice(existing, jobset, work.settings, work.provider)


def jobset_key(existing: Slice) -> tuple[str, str]:
    return existing.owner.namespace, existing.owner.jobset


def is_change_due(one: ObservedSlice, now: datetime) -> bool:
    """Whether the slice needs an action."""
    return find_row(one, now).action is not SliceAction.NOTHING


def select_next(slices: Sequence[ObservedSlice], limit: int | None, now: datetime) -> list[Slice]:
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


def _observe_named(work: SliceWork, message: Message) -> ObservedSlices:
    work.facts[message.kind.lower()] = f"{message.namespace}/{message.name}"
    if message.kind == JOBSET_KIND:
        found = work.provider.list_by_jobset(message.namespace, message.name)
    else:
        one = work.provider.get(message.namespace, message.name)
        found = [] if one is None else [one]
    jobsets = {key: work.cluster.find_jobset(*key) for key in {jobset_key(one) for one in found}}
    slices = tuple(_observe_slice(work, one, jobsets[jobset_key(one)]) for one in found)
    return ObservedSlices(slices)


def _observe_slice(
    work: SliceWork, existing: Slice, jobset: Mapping[str, Any] | None
) -> ObservedSlice:
    set_trace_id(work, existing)
    set_subject(work, existing, jobset)
    return with_users(work, build_observed(work, existing, jobset))


def set_subject(work: SliceWork, existing: Slice, jobset: Mapping[str, Any] | None) -> None:
    """Make the slice's JobSet the object of Events. All slices of a trigger belong to the same one."""
    work.about = {**jobset_reference(*jobset_key(existing)), **(jobset or {})}


def with_users(work: SliceWork, one: ObservedSlice) -> ObservedSlice:
    """Add the Jobs for which a deletion waits, if the slice is to be deleted when nobody uses it.

    Its own Job counts, too, because it may be writing its last checkpoint. If the slice is rebuilt for
    its own Job, of that Job's Pods only those that are ending count (`list_jobs_on`).
    """
    row, existing = find_row(one, work.now), one.existing
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
    jobset = work.cluster.find_jobset(*jobset_key(existing))
    one = build_observed(work, existing, jobset)
    if find_row(one, work.now).action is not SliceAction.SET_DEADLINE:
        return ObservedFailedUpdate(one)
    set_subject(work, existing, jobset)
    return ObservedFailedUpdate(with_users(work, replace(one, refusal=event.words)))


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
    following = tuple(select_next(observed, provider.concurrency_limit, work.now))
    if is_deletion:
        return _observe_deletion(work, event, slices, jobsets, following)
    first = provider.get(following[0].owner.namespace, following[0].name) if following else None
    if first is None:
        return ObservedCreation(None, following[1:])
    work.facts["slice"] = first.name
    jobset = _index(jobsets).get(jobset_key(first))
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


def find_row(one: ObservedSlice, now: datetime) -> Row:
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
