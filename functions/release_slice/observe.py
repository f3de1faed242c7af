"""Read the slices that a trigger of release_slice concerns, with their JobSets and their users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from shared.base.names import JOBSET_KIND
from shared.ports.errors import CallError
from shared.settings import Settings
from shared.slices import concurrency, create_or_release
from shared.slices.classes import SliceClass
from shared.slices.create_or_release import SliceAction
from shared.slices.kinds import get_kind
from shared.slices.provider import Slice, Wording
from shared.slices.units import Need, Unit, UnitState
from shared.slices.work import SliceWork, find_guests, list_users, read_states, set_trace_id
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
    states = read_states(work, existing, is_listed=True)
    work.facts["slices"] = len(existing)
    limit = work.provider.concurrency_limit
    matched, classes = match_states(work, existing, states), tuple[SliceClass, ...]()
    with work.best_effort():  # only their usage is counted
        classes = work.list_classes()
    return ObservedAll(matched, limit, work.trigger.at, classes)


@dataclass(frozen=True)
class ObservedSlice:
    """A slice and whether its unit needs it.

    ``wording``: the provider, used only for how its slices are called in Events. ``users`` are the Jobs
    whose Pods run on a slice that is to be deleted, ``guests`` the other units of the Pods that were
    read for this; ``users_error`` is the error of that read, or of that of what may need it.
    ``refusal`` is the error if its release deadline cannot be written.
    """

    existing: Slice
    state: UnitState
    settings: Settings = field(repr=False)
    wording: Wording
    users: tuple[str, ...] = ()
    users_error: CallError | None = None
    refusal: str = ""
    guests: tuple[Unit, ...] = ()

    def find_row(self, now: datetime) -> create_or_release.Row:
        """The row of the table for what was observed."""
        existing, since, rebuild = self.existing, self.existing.since, self.settings.lost_rebuild
        deadline = create_or_release.find_deadline(existing, now)
        situation = create_or_release.Situation(
            trigger=create_or_release.SliceTrigger.SLICE,
            need=self.state.need,
            phase=create_or_release.find_phase(existing),
            deadline=create_or_release.Deadline.REFUSED if self.refusal else deadline,
            is_in_use=bool(self.users),
            is_rebuild_due=rebuild is not None and since is not None and now - since >= rebuild,
        )
        return create_or_release.find_row(situation)

    def is_change_due(self, now: datetime) -> bool:
        """Whether the slice needs an action."""
        return self.find_row(now).action is not SliceAction.NOTHING


@dataclass(frozen=True)
class ObservedSlices:
    """The slices that a message names: one slice, or all slices of a JobSet.

    At the end of a node pool's creation, which leaves a free slot: the one that this invocation changes,
    if any, and ``following``, the slices that get resyncs, because they can be changed next.
    """

    slices: tuple[ObservedSlice, ...]
    following: tuple[Slice, ...] | None = None


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
    slice that has the pool's name now. ``has_owner``: the owner of its unit is known and exists.
    """

    event: LogEvent
    wording: Wording
    following: tuple[Slice, ...]
    existing: Slice | None
    has_owner: bool


@dataclass(frozen=True)
class ObservedAll:
    """All slices, once a minute; at most ``limit`` can change at the same time (``None``: all).

    ``at``: the time of the sweep's message. Whether a report is due is computed for this minute, because
    this run may begin later.
    """

    slices: tuple[ObservedSlice, ...]
    limit: int | None
    at: datetime
    classes: tuple[SliceClass, ...] = ()


Observed = ObservedSlices | ObservedDeletion | ObservedFailedUpdate | ObservedAll


def _observe_named(work: SliceWork, message: Message) -> ObservedSlices:
    work.facts[message.kind.lower()] = f"{message.namespace}/{message.name}"
    if message.kind == JOBSET_KIND:
        found = work.provider.list_by_owner(message.kind, message.namespace, message.name)
    else:
        one = work.provider.get(message.namespace, message.name)
        found = [] if one is None else [one]
    matched = match_states(work, found, read_states(work, found))
    observed = [_observe_slice(work, one) for one in matched]
    if message.kind != JOBSET_KIND:
        observed += [spare for one in observed for spare in _find_spares(work, one)]
    return ObservedSlices(tuple(observed))


def _find_spares(work: SliceWork, one: ObservedSlice) -> Iterator[ObservedSlice]:
    """The slices that are released instead of this one, which its own unit needs no longer and others
    use: those of the others on which no Pods run."""
    for unit in one.guests if one.state.why else ():
        own = work.provider.get(unit.namespace, unit.slice_name)
        if own is not None and own.unit == unit:
            state = UnitState(Need.NOT_NEEDED, f"{unit.shown} runs on {one.existing.name}")
            due = replace(own, release_after=work.now)
            spare = with_users(work, replace(one, existing=due, state=state, users=()))
            if not (spare.users or spare.users_error):
                yield spare


def _observe_failed_update(work: SliceWork, event: LogEvent) -> ObservedFailedUpdate:
    existing = next((one for one in work.provider.list_all() if one.name == event.name), None)
    if existing is None:
        return ObservedFailedUpdate(None)
    (one,) = match_states(work, [existing], read_states(work, [existing]))
    if one.find_row(work.now).action is not SliceAction.SET_DEADLINE:
        return ObservedFailedUpdate(one)
    set_subject(work, existing.unit, one.state)
    return ObservedFailedUpdate(with_users(work, replace(one, refusal=event.words)))


def _observe_operation(work: SliceWork, event: LogEvent) -> ObservedSlices | ObservedDeletion:
    """Read all slices, and select those that use the free slots. They are selected here and not in
    ``decide``, because the first one's Nodes and Pods are read.

    Both steps of JobSets get the end of each operation. After a creation, this step changes a slice in
    the same invocation, and provision_slice only publishes resyncs. After a deletion it is the reverse.
    After a deletion that has failed, no slice is selected: deletions that fail immediately would trigger
    each other.
    """
    provider, is_deletion = work.provider, event.method == DELETE_METHOD
    slices = list(provider.list_all(with_nodes=False))
    states = read_states(work, slices, is_listed=True, deleted=event.name if is_deletion else "")
    selected: list[Slice] = []
    if not (is_deletion and event.has_failed):
        observed = match_states(work, slices, states)
        selected = select_next(observed, provider.concurrency_limit, work.now, least=1)
    if is_deletion:
        existing = None
        unit = next((one for one in states if one.slice_name == event.name), None)
        has_owner = unit is not None and states[unit].owner is not None
        if unit is not None and has_owner:
            set_subject(work, unit, states[unit])
            key = (unit.namespace, event.name)
            existing = next((one for one in slices if (one.unit.namespace, one.name) == key), None)
        return ObservedDeletion(event, provider, tuple(selected), existing, has_owner)
    first = provider.get(selected[0].unit.namespace, selected[0].name) if selected else None
    if first is None:
        return ObservedSlices((), tuple(selected[1:]))
    work.facts["slice"] = first.name
    if first.unit not in states:
        states = read_states(work, [first])
    (one,) = match_states(work, [first], states)
    return ObservedSlices((_observe_slice(work, one),), tuple(selected[1:]))


def match_states(
    work: SliceWork, slices: Sequence[Slice], states: Mapping[Unit, UnitState]
) -> tuple[ObservedSlice, ...]:
    """Each slice with the state of its unit."""
    matched = ((one, states[one.unit]) for one in slices)
    return tuple(
        ObservedSlice(one, state, work.settings, work.provider, users_error=state.error)
        for one, state in matched
    )


def _observe_slice(work: SliceWork, one: ObservedSlice) -> ObservedSlice:
    set_trace_id(work, one.existing)
    set_subject(work, one.existing.unit, one.state)
    return with_users(work, one)


def set_subject(work: SliceWork, unit: Unit, state: UnitState) -> None:
    """Make the owner the object of Events. All slices of a trigger belong to the same one.

    It may be gone, or the item of a list, which lacks some fields.
    """
    api_version = get_kind(unit.kind).api_version
    if not api_version:
        work.about = {}  # of a later version: no Event
        return
    reference = {
        "apiVersion": api_version,
        "kind": unit.kind,
        "metadata": {
            "namespace": unit.namespace,
            "name": unit.owner,
            "uid": "",
            "resourceVersion": "",
        },
    }
    work.about = {**reference, **(state.owner or {})}


def with_users(work: SliceWork, one: ObservedSlice) -> ObservedSlice:
    """Add the Jobs for which a deletion waits, if the slice is to be deleted when nobody uses it.

    Its own Job counts, too, because it may be writing its last checkpoint. If the slice is rebuilt for
    its own Job, of that Job's Pods only those that are being deleted count.
    """
    row, existing = one.find_row(work.now), one.existing
    is_dead = create_or_release.find_phase(existing) in create_or_release.DEAD
    if row.action is not SliceAction.DELETE or is_dead:
        return one

    read: list[Mapping[str, Any]] = []

    def is_user(pod: Mapping[str, Any]) -> bool:
        read.append(pod)
        is_rebuilt, unit = row.event is create_or_release.REBUILDING, existing.unit
        is_own = is_rebuilt and get_kind(unit.kind).names_unit(pod, unit)
        return not is_own or "deletionTimestamp" in pod["metadata"]

    try:
        users = list_users(work.cluster, existing.name, work.now, is_user)
    except CallError as error:
        return replace(one, users_error=error)
    guests = dict.fromkeys(unit for unit, _ in find_guests(read, existing.unit))
    return replace(one, users=users, guests=tuple(guests))


def select_next(
    slices: Sequence[ObservedSlice],
    limit: int | None,
    now: datetime,
    least: int = concurrency.MIN_SELECTED,
) -> list[Slice]:
    """The slices that need an action and can be changed now: for half of the free slots those with the
    earliest deadlines, for the others some at random (`concurrency.select`)."""
    to_change = [one.existing for one in slices if one.is_change_due(now)]
    if limit is None:
        return to_change
    never = datetime.max.replace(tzinfo=UTC)
    to_change.sort(key=lambda one: (one.release_after or never, one.name))
    slots = concurrency.count_slots(limit, (one.existing for one in slices), least)
    return concurrency.select(to_change, slots, now, lambda one: (one.unit.namespace, one.name))
