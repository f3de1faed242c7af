"""The actions on a JobSet's slice, and those of a row of the table."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from shared.base.documents import Document, read_mapping
from shared.base.timestamps import render_time
from shared.frame.plan import Action, Emit, StaleObservation
from shared.ports.error_reasons import ErrorKind
from shared.ports.errors import CallError
from shared.slices import candidates, classes
from shared.slices.classes import SliceClass
from shared.slices.create_or_release import Row, SliceAction
from shared.slices.limits import Quota
from shared.slices.provider import DesiredSlice, Slice, Wording
from shared.slices.work import SliceWork

ResultT = TypeVar("ResultT")
MAX_RESERVATIONS = 8
"""How often the ledger is written if others write it at the same time, until the step observes again."""


@dataclass(frozen=True)
class ReserveSlice:
    """Reserve a slice in the ledger before it is created, because its namespace or class has a limit."""

    desired: DesiredSlice
    quota: Quota

    def apply(self, work: SliceWork) -> None:
        quota = self.quota
        for _ in range(MAX_RESERVATIONS):
            data = quota.reserve(self.desired, work.now)
            if data is None:
                break
            try:
                return work.cluster.replace_slice_ledger(quota.ledger, data)
            except CallError as error:
                if error.kind is not ErrorKind.CONFLICT:
                    raise
            ledger = work.cluster.find_slice_ledger()
            if ledger is None:
                break
            quota = replace(quota, ledger=ledger)
        raise StaleObservation("slices were reserved at the same time")

    def describe(self) -> str:
        return f"reserve the slice {self.desired.name} because {self.quota.limit.shown}"


@dataclass(frozen=True)
class UpdateClass:
    """Change what is remembered of the candidates of a class."""

    of: SliceClass
    changes: tuple[candidates.Change, ...]

    def apply(self, work: SliceWork) -> None:
        found: Document | None = self.of.raw
        for _ in range(MAX_RESERVATIONS):
            if found is None:
                break
            known = classes.parse(found).refusals
            refusals = candidates.apply(self.changes, known, work.now)
            if refusals == known:
                return None
            status = {
                **read_mapping(found, "status"),
                "refusals": [one.render() for one in refusals],
            }
            try:
                return work.cluster.replace_class_status(found, status)
            except CallError as error:
                if error.kind is not ErrorKind.CONFLICT:
                    raise
            found = work.cluster.find_slice_class(self.of.name)
        raise StaleObservation(f"{self.of.shown} was changed at the same time, or deleted")

    def describe(self) -> str:
        places = ", ".join(one.place.key for one in self.changes)
        return f"update what the status of {self.of.shown} has about {places}"


@dataclass(frozen=True)
class CreateSlice:
    """Start creating a slice."""

    desired: DesiredSlice

    def apply(self, work: SliceWork) -> None:
        _call(self, lambda: work.provider.create(self.desired))

    def describe(self) -> str:
        return f"create the slice {self.desired.name}"


@dataclass(frozen=True)
class DeleteSlice:
    """Start deleting a slice, if it is unchanged, and write an Event about that: ``started``, or
    ``if_gone`` if the slice was gone already."""

    existing: Slice
    started: Emit | None = None
    if_gone: Emit | None = None

    def apply(self, work: SliceWork) -> None:
        was_there = _call(self, lambda: work.provider.delete(self.existing))
        event = self.started if was_there else self.if_gone or self.started
        if event is not None:
            event.apply(work)

    def describe(self) -> str:
        event = f", {self.started.describe()}" if self.started is not None else ""
        return f"delete the slice {self.existing.name}{event}"


@dataclass(frozen=True)
class SetReleaseDeadline:
    """Write a slice's release deadline, or remove it (``None``). An error of a removal is only logged:
    while the owner needs the slice, its deadline has no effect."""

    existing: Slice
    release_after: datetime | None

    def apply(self, work: SliceWork) -> None:
        with work.best_effort() if self.release_after is None else nullcontext():
            _call(
                self, lambda: work.provider.set_release_deadline(self.existing, self.release_after)
            )

    def describe(self) -> str:
        if self.release_after is None:
            return f"remove the release deadline of {self.existing.name}"
        deadline = render_time(self.release_after)
        return f"set the release deadline of {self.existing.name} to {deadline}"


AnySliceAction = CreateSlice | DeleteSlice | SetReleaseDeadline


class SliceActionError(CallError):
    """The call of an action failed. Failed reads and messages raise other errors."""

    def __init__(self, action: AnySliceAction, error: CallError) -> None:
        super().__init__(error.call, error.http, error.code, error.message, error.about)
        self.action = action


def _call(action: AnySliceAction, call: Callable[[], ResultT]) -> ResultT:
    try:
        return call()
    except CallError as error:
        raise SliceActionError(action, error) from error


def build_actions(
    row: Row,
    subject: DesiredSlice | Slice | None,
    words: Mapping[str, str],
    wording: Wording,
    release_after: datetime,
) -> tuple[Action, ...]:
    """The actions of a row: its call and its Event. ``subject`` is the slice of the call, if there is
    one, ``release_after`` the deadline, if the row sets one."""
    event, if_gone = (
        Emit(template.render(wording, words), once=row.is_event_written_once) if template else None
        for template in (row.event, row.if_gone)
    )
    if row.action is SliceAction.DELETE and isinstance(subject, Slice):
        return (DeleteSlice(subject, event, if_gone),)
    events = (event,) if event is not None else ()
    if row.action is SliceAction.CREATE and isinstance(subject, DesiredSlice):
        return (CreateSlice(subject), *events)
    if row.action is SliceAction.SET_DEADLINE and isinstance(subject, Slice):
        return (SetReleaseDeadline(subject, release_after), *events)
    if row.action is SliceAction.REMOVE_DEADLINE and isinstance(subject, Slice):
        has_deadline = subject.release_after is not None
        return (SetReleaseDeadline(subject, None), *events) if has_deadline else events
    return events
