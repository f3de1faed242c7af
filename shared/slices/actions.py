"""The actions of a plan about a JobSet's slice, and the plan of a row of the lifecycle table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from shared.base.timestamps import render_time
from shared.frame.plan import Action, Attempt, Emit, Plan, Work
from shared.ports.errors import CallError
from shared.ports.kubernetes.events import Event
from shared.slices.lifecycle import Row, SliceAction
from shared.slices.provider import RELEASE_AFTER, DesiredSlice, Slice, Wording
from shared.slices.work import SliceWork


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
    """Start deleting a slice, if it is unchanged."""

    existing: Slice

    def apply(self, work: SliceWork) -> None:
        def delete() -> None:
            work.is_gone = not work.provider.delete(self.existing)

        _call(self, delete)

    def describe(self) -> str:
        return f"delete the slice {self.existing.name}"


@dataclass(frozen=True)
class SetReleaseDeadline:
    """Write a slice's release deadline, or remove it (``None``)."""

    existing: Slice
    release_after: datetime | None

    def apply(self, work: SliceWork) -> None:
        _call(self, lambda: work.provider.set_release_deadline(self.existing, self.release_after))

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


def _call(action: AnySliceAction, call: Callable[[], None]) -> None:
    try:
        call()
    except CallError as error:
        raise SliceActionError(action, error) from error


@dataclass(frozen=True, kw_only=True)
class EmitDeletion(Emit):
    """Write the Event about a deletion that has started, or another if the slice was gone."""

    if_gone: Event

    def apply(self, work: Work) -> None:
        is_gone = isinstance(work, SliceWork) and work.is_gone
        Emit(self.if_gone if is_gone else self.event, self.about, self.once).apply(work)


def build_plan(
    row: Row,
    subject: DesiredSlice | Slice | None,
    words: Mapping[str, str],
    wording: Wording,
    now: datetime,
) -> Plan:
    """The plan of a row. ``subject`` is the slice of its action, if there is one."""
    actions = (*_list_calls(row.action, subject, now), *_list_events(row, words, wording))
    return Plan(row.outcome, actions)


def _list_calls(
    action: SliceAction, subject: DesiredSlice | Slice | None, now: datetime
) -> Iterator[Action]:
    if isinstance(subject, DesiredSlice):
        if action is SliceAction.CREATE:
            yield CreateSlice(subject)
    elif subject is not None:
        if action is SliceAction.DELETE:
            yield DeleteSlice(subject)
        elif action is SliceAction.SET_DEADLINE:
            yield SetReleaseDeadline(subject, now + RELEASE_AFTER)
        elif action is SliceAction.REMOVE_DEADLINE and subject.release_after is not None:
            # Best effort: while a JobSet needs the slice, its deadline has no effect.
            yield Attempt(SetReleaseDeadline(subject, None))


def _list_events(row: Row, words: Mapping[str, str], wording: Wording) -> Iterator[Action]:
    if row.event is None:
        return
    event, once = row.event.render(wording, words), row.is_event_written_once
    if row.if_gone is None:
        yield Emit(event, once=once)
    else:
        yield EmitDeletion(event, once=once, if_gone=row.if_gone.render(wording, words))
