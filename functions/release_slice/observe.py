"""Read the slices that a trigger of release_slice concerns, with their JobSets and their users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from functions.release_slice.need import find_jobset_of, find_slice_need
from shared.base.names import JOBSET_GROUP, JOBSET_KIND, JOBSET_VERSION
from shared.ports.errors import CallError
from shared.settings import Settings
from shared.slices import concurrency, create_or_release
from shared.slices.create_or_release import SliceAction
from shared.slices.jobsets import count_completed, find_end
from shared.slices.provider import Slice, Wording
from shared.slices.units import Need
from shared.slices.work import SliceWork, is_pod_of, list_jobs_on, set_trace_id
from shared.triggers.audit_log import LogEvent
from shared.triggers.message import Message
from shared.triggers.trigger import LogTrigger, ObjectTrigger

DELETE_METHOD, UPDATE_METHOD = "container.nodePools.delete", "container.nodePools.update"
"""Methods in the audit log. Of updates, only failed ones trigger this step."""


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
    existing = list(work.provider.list_all())
    jobsets = _read_jobsets(work) if existing else {}
    work.facts["slices"] = len(existing)
    limit = work.provider.concurrency_limit
    return ObservedAll(match_jobsets(work, existing, jobsets), limit, work.trigger.at)


@dataclass(frozen=True)
class ObservedSlice:
    """A slice and its JobSet (``None``: gone).

    ``wording``: the provider, used only for how its slices are called in Events. ``users`` are the Jobs
    whose Pods run on a slice that is to be deleted; ``users_error`` is the error of that read.
    ``refusal`` is the error if its release deadline cannot be written. ``job`` is the slice's Job, if it
    may have completed.
    """

    existing: Slice
    jobset: Mapping[str, Any] | None
    settings: Settings = field(repr=False)
    wording: Wording
    users: tuple[str, ...] = ()
    users_error: CallError | None = None
    refusal: str = ""
    job: Mapping[str, Any] | None = None

    def find_need(self, now: datetime) -> tuple[Need, str]:
        """Whether the JobSet needs the slice, and why not."""
        release = self.settings.suspended_release
        return find_slice_need(self.existing, self.jobset, self.job, now, release)

    def find_row(self, now: datetime) -> create_or_release.Row:
        """The row of the table for what was observed."""
        existing, since, rebuild = self.existing, self.existing.since, self.settings.lost_rebuild
        deadline = create_or_release.find_deadline(existing, now)
        situation = create_or_release.Situation(
            trigger=create_or_release.SliceTrigger.SLICE,
            need=self.find_need(now)[0],
            phase=create_or_release.find_phase(existing),
            deadline=create_or_release.Deadline.REFUSED if self.refusal else deadline,
            is_in_use=bool(self.users),
            is_rebuild_due=bool(rebuild and since is not None and now - since >= rebuild),
        )
        return create_or_release.find_row(situation)

    def is_change_due(self, now: datetime) -> bool:
        """Whether the slice needs an action."""
        return self.find_row(now).action is not SliceAction.NOTHING


@dataclass(frozen=True)
class ObservedSlices:
    """The slices that a message names: one slice, or all slices of a JobSet."""

    slices: tuple[ObservedSlice, ...]


@dataclass(frozen=True)
class ObservedCreation:
    """The end of a node pool's creation, which leaves a free slot.

    ``slices``: the one that this invocation changes. There is none if no slice needs a change, or if the
    one that was selected is gone. ``following`` are the slices that get resyncs, because they can be
    changed next.
    """

    slices: tuple[ObservedSlice, ...]
    following: tuple[Slice, ...]


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


def _observe_named(work: SliceWork, message: Message) -> ObservedSlices:
    work.facts[message.kind.lower()] = f"{message.namespace}/{message.name}"
    if message.kind == JOBSET_KIND:
        found = work.provider.list_by_jobset(message.namespace, message.name)
    else:
        one = work.provider.get(message.namespace, message.name)
        found = [] if one is None else [one]
    keys = {one.owner.jobset_key for one in found}
    jobsets = {key: work.cluster.find_jobset(*key) for key in keys}
    return ObservedSlices(
        tuple(_observe_slice(work, one) for one in match_jobsets(work, found, jobsets))
    )


def _observe_failed_update(work: SliceWork, event: LogEvent) -> ObservedFailedUpdate:
    existing = next((one for one in work.provider.list_all() if one.name == event.name), None)
    if existing is None:
        return ObservedFailedUpdate(None)
    jobset = work.cluster.find_jobset(*existing.owner.jobset_key)
    (one,) = match_jobsets(work, [existing], {existing.owner.jobset_key: jobset})
    if one.find_row(work.now).action is not SliceAction.SET_DEADLINE:
        return ObservedFailedUpdate(one)
    set_subject(work, existing.owner.jobset_key, jobset)
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
    jobsets = _read_jobsets(work) if slices or is_deletion else {}
    selected: list[Slice] = []
    if not (is_deletion and event.has_failed):
        observed = match_jobsets(work, slices, jobsets)
        selected = select_next(observed, provider.concurrency_limit, work.now)
    if is_deletion:
        jobset, existing = find_jobset_of(event.name, jobsets.values()), None
        if jobset is not None:
            namespace = jobset["metadata"]["namespace"]
            set_subject(work, (namespace, jobset["metadata"]["name"]), jobset)
            key = (namespace, event.name)
            existing = next((one for one in slices if (one.owner.namespace, one.name) == key), None)
        return ObservedDeletion(event, provider, tuple(selected), existing, jobset is not None)
    first = provider.get(selected[0].owner.namespace, selected[0].name) if selected else None
    if first is None:
        return ObservedCreation((), tuple(selected[1:]))
    work.facts["slice"] = first.name
    (one,) = match_jobsets(work, [first], jobsets)
    return ObservedCreation((_observe_slice(work, one),), tuple(selected[1:]))


def _read_jobsets(work: SliceWork) -> dict[tuple[str, str], Mapping[str, Any]]:
    """All JobSets, by namespace and name."""
    found = work.cluster.list_jobsets()
    return {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in found}


def match_jobsets(
    work: SliceWork,
    slices: Sequence[Slice],
    jobsets: Mapping[tuple[str, str], Mapping[str, Any] | None],
) -> tuple[ObservedSlice, ...]:
    """Each slice with its JobSet and, if a JobSet counts completed Jobs, with its Job. Jobs are listed
    once: those of the only JobSet, or all."""
    found = {one.owner.jobset_key: jobsets.get(one.owner.jobset_key) for one in slices}
    only = next(iter(found)) if len(found) == 1 else ()
    wanted = {one.owner.full_job for one in slices}
    jobs: dict[tuple[str, str], Mapping[str, Any]] = {}
    if any(one and not find_end(one) and count_completed(one) for one in found.values()):
        with work.best_effort():  # the end of a JobSet can be decided without its Jobs
            for job in work.cluster.list_jobs(*only):
                key = job["metadata"]["namespace"], job["metadata"]["name"]
                if key in wanted:  # of thousands, only these are kept in memory
                    jobs[key] = job
    both = work.settings, work.provider
    return tuple(
        ObservedSlice(one, found[one.owner.jobset_key], *both, job=jobs.get(one.owner.full_job))
        for one in slices
    )


def _observe_slice(work: SliceWork, one: ObservedSlice) -> ObservedSlice:
    set_trace_id(work, one.existing)
    set_subject(work, one.existing.owner.jobset_key, one.jobset)
    return with_users(work, one)


def set_subject(work: SliceWork, key: tuple[str, str], jobset: Mapping[str, Any] | None) -> None:
    """Make a JobSet the object of Events. All slices of a trigger belong to the same one.

    It may be gone, or the item of a list, which lacks some fields.
    """
    namespace, name = key
    reference = {
        "apiVersion": f"{JOBSET_GROUP}/{JOBSET_VERSION}",
        "kind": JOBSET_KIND,
        "metadata": {"namespace": namespace, "name": name, "uid": "", "resourceVersion": ""},
    }
    work.about = {**reference, **(jobset or {})}


def with_users(work: SliceWork, one: ObservedSlice) -> ObservedSlice:
    """Add the Jobs for which a deletion waits, if the slice is to be deleted when nobody uses it.

    Its own Job counts, too, because it may be writing its last checkpoint. If the slice is rebuilt for
    its own Job, of that Job's Pods only those that are being deleted count.
    """
    row, existing = one.find_row(work.now), one.existing
    is_dead = create_or_release.find_phase(existing) in create_or_release.DEAD
    if row.action is not SliceAction.DELETE or is_dead:
        return one

    def is_user(pod: Mapping[str, Any]) -> bool:
        metadata, is_rebuilt = pod["metadata"], row.event is create_or_release.REBUILDING
        is_own = is_rebuilt and is_pod_of(metadata, existing.owner)
        return not is_own or "deletionTimestamp" in metadata

    try:
        users = list_jobs_on(work.cluster, existing.name, work.now, is_user)
    except CallError as error:
        return replace(one, users_error=error)
    return replace(one, users=users)


def select_next(slices: Sequence[ObservedSlice], limit: int | None, now: datetime) -> list[Slice]:
    """The slices that need an action and can be changed now: for half of the free slots those with the
    earliest deadlines, for the others some at random (`concurrency.select`)."""
    to_change = [one.existing for one in slices if one.is_change_due(now)]
    if limit is None:
        return to_change
    never = datetime.max.replace(tzinfo=UTC)
    to_change.sort(key=lambda one: (one.release_after or never, one.name))
    slots = concurrency.count_slots(limit, (one.existing for one in slices))
    return concurrency.select(
        to_change, slots, now, lambda one: one.name, lambda one: one.owner.namespace
    )
