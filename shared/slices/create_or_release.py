"""When a JobSet's slice is created, replaced and released: one table, for both steps.

``provision_slice`` decides for a Pod that waits for the slice, ``release_slice`` for the slice itself.
Each builds a `Situation` from its observation. Exactly one row of `ROWS` matches it: the rows exclude
each other, so their order does not matter. docs/reference/slice-lifecycle.md is rendered from them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from shared.base.names import POOL_LABEL, SYSTEM_NAMESPACE
from shared.ports.kubernetes.events import Event
from shared.slices.provider import RELEASE_AFTER, NameConflict, Slice, SliceState, Wording
from shared.slices.units import Need

PAUSED_KEY = "paused"
"""The key in the ConfigMap ``jobsets``. While it is "true", in any spelling, nothing is created."""


class SliceTrigger(StrEnum):
    """The trigger of the decision."""

    POD = "Pod"
    """The Pod is unschedulable, or an operation on its slice has ended."""
    POD_RESYNC = "resync"
    """The Pod still waits, without an event."""
    SLICE = "slice"
    """The slice is checked: its JobSet or an operation has ended, or it is a resync."""


class Phase(StrEnum):
    """The phase of the slice; `PHASES` describes each."""

    ABSENT = "Absent"
    CONFLICT = "Conflict"
    PROVISIONING = "Provisioning"
    READY = "Ready"
    RECOVERING = "Recovering"
    DEGRADED = "Degraded"
    LOST = "Lost"
    UNCREATED = "Uncreated"
    DELETING = "Deleting"


PHASES: dict[Phase, str] = {
    Phase.ABSENT: "There is no slice.",
    Phase.CONFLICT: "Something that is not the Job's slice has its name.",
    Phase.PROVISIONING: "It is being created or changed.",
    Phase.READY: "It is complete.",
    Phase.RECOVERING: "It has failed, and its provider tries again by itself.",
    Phase.DEGRADED: "It has failed for good; some of its Nodes are ready.",
    Phase.LOST: "It has failed for good; none of its Nodes is ready.",
    Phase.UNCREATED: "Its creation has failed: it never had a Node.",
    Phase.DELETING: "It is being deleted.",
}


class Deadline(StrEnum):
    """The release deadline that is written on the slice."""

    NONE = "none"
    FOREIGN = "foreign"
    """Later than any that this system writes: it is overwritten."""
    AHEAD = "ahead"
    DUE = "due"
    REFUSED = "refused"
    """The provider refuses to write it."""


class SliceAction(StrEnum):
    """The action on the slice."""

    NOTHING = "nothing"
    CREATE = "create it"
    DELETE = "delete it"
    SET_DEADLINE = "set its release deadline"
    REMOVE_DEADLINE = "remove its release deadline, if any"


VARYING = re.compile(
    r"\b[0-9]+(?:[.][0-9]+)?s\b|\b(?:gke|operation)-[a-z0-9-]+|\b[0-9]+ minutes?\b"
    r"|\bhas [0-9]+ slices? with [0-9]+ chips?\b|\b(?:after|at|by) [0-9]{4}-[0-9:TZ-]+"
    r"|; the last slices of this class waited .*"
)
"""The parts of messages that differ in repetitions: durations, names of GKE's VMs and operations, what
a namespace has, times, waits."""


@dataclass(frozen=True)
class EventTemplate:
    """An Event about a slice. ``message`` is a format string."""

    reason: str
    message: str
    is_warning: bool = False
    has_prefix: bool = True
    """Whether the reason begins with the provider's prefix."""

    def render(self, wording: Wording, words: Mapping[str, str]) -> Event:
        """The Event, with a provider's prefix and noun."""
        reason = f"{wording.event_prefix}{self.reason}" if self.has_prefix else self.reason
        message = self.message.format(noun=wording.noun, **words)
        return Event(reason, message, self.is_warning, key=VARYING.sub("", message))


CREATING = EventTemplate("CreationStarted", "Creating {noun} {name}, {size}, for {unit}{waits}")
PAUSED = EventTemplate(
    "SlicePaused",
    f'No slice is created: the ConfigMap {SYSTEM_NAMESPACE}/jobsets has {PAUSED_KEY}: "true". '
    "Remove this key to continue",
    has_prefix=False,
)
LIMITED = EventTemplate(
    "SliceLimitReached",
    "{limit} and {used}: the Pod gets its slice, {noun} {name} ({size}), when others are released",
    has_prefix=False,
)
EXHAUSTED = EventTemplate(
    "CandidatesRefused",
    "No candidate of {class_} has {size}: {refusals}. The next try is after {until}{waits}",
    is_warning=True,
    has_prefix=False,
)
NEXT_CANDIDATE = EventTemplate(
    "CandidateRefused",
    "{candidate} has no slice of {size}: {refusal}. {next_} is tried next",
    has_prefix=False,
)
OWNER_GONE = EventTemplate(
    "CreationFailed",
    "{owner} does not exist or is being deleted, so that no slice is created for its Pods. If it was "
    "deleted without them, delete their controller, too, and apply it again",
    is_warning=True,
)
WITHOUT_LEADER = EventTemplate(
    "CreationFailed",
    "{noun} {name} does not exist, and is created when the first Pod of {unit} waits for it. If that "
    "Pod runs elsewhere or has ended, delete {owner} and apply it again",
    is_warning=True,
)
CONFLICTING = EventTemplate(
    "CreationFailed",
    "The Pod's slice needs the name {name}, but {conflict} has this name. Delete that one, or give "
    "{owner} another name",
    is_warning=True,
)
DIFFERENT_IN_USE = EventTemplate(
    "CreationFailed",
    "{noun} {name} is not what the Pod asks for ({size}), and Pods of {user} run on it: it is "
    "replaced when they have ended",
    is_warning=True,
)
FAILING = EventTemplate("NotReady", "{noun} {name}: {failure}", is_warning=True)
REPLACING_DIFFERENT = EventTemplate(
    "DeletionStarted",
    "Deleting {noun} {name} to create it again: the Pod asks for {size} with other properties or "
    "Node labels than it has",
)
REPLACING_LOST = EventTemplate(
    "DeletionStarted", "Deleting {noun} {name} to create it again: {failure}"
)
UNFIT = EventTemplate(
    "Unfit",
    "{noun} {name} exists, but the scheduler finds no Node of it for the Pod{others}: compare the "
    f"scheduler's message with kubectl get nodes --show-labels -l {POOL_LABEL}={{name}}",
    is_warning=True,
)
RELEASING = EventTemplate("DeletionStarted", "Deleting {noun} {name}: {why}")
REBUILDING = EventTemplate("DeletionStarted", "Deleting {noun} {name}: {failure}")
IN_USE = EventTemplate(
    "InUse",
    "{noun} {name} is not deleted yet, because Pods of {user} run on it: it is deleted when they "
    "have ended, at the latest ten minutes after the grace period of their deletion",
)
LOST = EventTemplate("Lost", "{noun} {name} does not recover by itself: {failure}", is_warning=True)
NOT_CREATED = EventTemplate(
    "CreationFailed", "{noun} {name} could not be created: {failure}", is_warning=True
)
NOT_FOUND = EventTemplate("NotFound", "{noun} {name} was gone before it could be deleted")
QUEUED = EventTemplate(
    "Queued", "{noun} {name} waits for others that are being created or deleted: {failure}"
)
CREATED = EventTemplate("CreationSucceeded", "{noun} {name} has been created")
CREATION_REFUSED = EventTemplate("CreationFailed", "{failure}", is_warning=True)
DELETED = EventTemplate("DeletionSucceeded", "{noun} {name} has been deleted")
NOT_DELETED = EventTemplate(
    "DeletionFailed", "{noun} {name} could not be deleted: {failure}", is_warning=True
)
DELETION_REFUSED = EventTemplate("DeletionFailed", "{failure}", is_warning=True)
CREATION_RETRIED = EventTemplate(
    "CreationFailed", "A call failed and is retried: {failure}", is_warning=True
)
DELETION_RETRIED = EventTemplate(
    "DeletionFailed", "A call failed and is retried: {failure}", is_warning=True
)


@dataclass(frozen=True)
class Situation:
    """An observation of a slice, in the columns of the table.

    ``is_as_asked``: the slice is what the Pod asks for. ``is_in_use``: Pods keep it from being deleted
    (`shared.slices.work.list_users`). ``is_paused``: nothing may be created. ``is_full``:
    the Pod's namespace may not have the slice besides those that it has. ``is_unfit``, for a Pod: the
    slice has been ready, and the Pod has waited, for so long that the Pod does not fit.
    ``is_exhausted``: no candidate of the class may be asked now. ``is_next_due``: the slice was refused
    or given up by its candidate, and another one may be asked (`shared.slices.candidates.find_next`).
    ``is_rebuild_due``, for a slice: it has been lost for as long as `Settings.lost_rebuild` says.
    """

    trigger: SliceTrigger
    need: Need
    phase: Phase
    is_as_asked: bool = True
    deadline: Deadline = Deadline.NONE
    is_in_use: bool = False
    is_paused: bool = False
    is_full: bool = False
    is_unfit: bool = False
    is_rebuild_due: bool = False
    is_exhausted: bool = False
    is_next_due: bool = False


COLUMNS: dict[str, tuple[Any, ...]] = {
    "trigger": tuple(SliceTrigger),
    "phase": tuple(Phase),
    "need": tuple(Need),
    "is_as_asked": (True, False),
    "deadline": tuple(Deadline),
    "is_in_use": (True, False),
    "is_paused": (True, False),
    "is_full": (True, False),
    "is_unfit": (True, False),
    "is_rebuild_due": (True, False),
    "is_exhausted": (True, False),
    "is_next_due": (True, False),
}


@dataclass(frozen=True)
class Row:
    """The action for the situations with these values. An absent column matches any value.

    ``if_gone``: the Event instead of ``event`` if the delete finds that the slice is gone.
    """

    cells: Mapping[str, frozenset[Any]]
    outcome: str
    action: SliceAction
    event: EventTemplate | None = None
    if_gone: EventTemplate | None = None

    def matches(self, situation: Situation) -> bool:
        """Whether the row is for this situation."""
        return all(getattr(situation, name) in values for name, values in self.cells.items())

    @property
    def is_event_written_once(self) -> bool:
        """False for the start of a creation or deletion: each is counted. Others repeat at resyncs."""
        return self.action not in (SliceAction.CREATE, SliceAction.DELETE)


def _row(
    outcome: str,
    action: SliceAction = SliceAction.NOTHING,
    event: EventTemplate | None = None,
    if_gone: EventTemplate | None = None,
    **cells: Any,
) -> Row:
    sets = {
        name: frozenset(cell if isinstance(cell, tuple) else (cell,))
        for name, cell in cells.items()
    }
    return Row(sets, outcome, action, event, if_gone)


_POD = (SliceTrigger.POD, SliceTrigger.POD_RESYNC)
_ASKED_FOR: dict[str, Any] = {"trigger": _POD, "need": Need.NEEDED}
"""A waiting Pod needs a slice, unless its JobSet has ended, has opted out, is suspended or has no such
Job."""
DEAD = (Phase.LOST, Phase.UNCREATED)
"""Phases of a slice that has failed for good and has no ready Node."""
_PRESENT = (Phase.PROVISIONING, Phase.READY, Phase.RECOVERING, Phase.DEGRADED, *DEAD)
_WITH_NODES = (Phase.PROVISIONING, Phase.READY, Phase.RECOVERING, Phase.DEGRADED)
"""Phases in which Pods may use its Nodes: it is released after the deadline, when no Pods run on it."""
_DIFFERENT: dict[str, Any] = {**_ASKED_FOR, "phase": _PRESENT, "is_as_asked": False}
_CREATED: dict[str, Any] = {**_ASKED_FOR, "phase": Phase.ABSENT, "is_paused": False}
_OWN: dict[str, Any] = {**_ASKED_FOR, "is_as_asked": True}
ASKED = (Phase.PROVISIONING, Phase.RECOVERING, Phase.UNCREATED)
"""Phases of a slice that may not have been granted."""
_NEXT: dict[str, Any] = {**_OWN, "phase": ASKED, "is_next_due": True}
_STAYS: dict[str, Any] = {**_OWN, "is_next_due": False}
_OWN_AT_EVENT: dict[str, Any] = {**_OWN, "trigger": SliceTrigger.POD}
_OWN_AT_RESYNC: dict[str, Any] = {**_OWN, "trigger": SliceTrigger.POD_RESYNC}
_LOST: dict[str, Any] = {**_OWN_AT_RESYNC, "phase": Phase.LOST}
_UNCREATED: dict[str, Any] = {"phase": Phase.UNCREATED, "is_next_due": False}
_NOT_CREATED: dict[str, Any] = {**_OWN_AT_RESYNC, **_UNCREATED}
_UNNEEDED: dict[str, Any] = {
    "trigger": SliceTrigger.SLICE,
    "need": (Need.OWNER_GONE, Need.OWNER_ENDED, Need.NOT_NEEDED),
}
_RELEASED: dict[str, Any] = {**_UNNEEDED, "phase": _WITH_NODES}
_ENDED: dict[str, Any] = {**_RELEASED, "need": Need.OWNER_ENDED}
"""Released without a deadline unless Pods run on it. Others may come back, and keep it until then."""
_ENDED_IN_USE: dict[str, Any] = {**_ENDED, "is_in_use": True}
_BACK: dict[str, Any] = {**_RELEASED, "need": (Need.OWNER_GONE, Need.NOT_NEEDED)}
_DUE = (Deadline.DUE, Deadline.REFUSED)
_NOT_SET = (Deadline.NONE, Deadline.FOREIGN)
_KEPT: dict[str, Any] = {
    "trigger": SliceTrigger.SLICE,
    "need": (Need.NEEDED, Need.OPTED_OUT, Need.SUSPENDED),
}
"""Opting out concerns slices that do not exist yet; a JobSet may be resumed soon."""
_WITH_DEADLINE = (Deadline.FOREIGN, Deadline.AHEAD, Deadline.DUE)
_WITHOUT_DEADLINE: dict[str, Any] = {**_KEPT, "deadline": (Deadline.NONE, Deadline.REFUSED)}
_REBUILT: dict[str, Any] = {**_WITHOUT_DEADLINE, "is_rebuild_due": True}
_REBUILT_DEGRADED: dict[str, Any] = {**_REBUILT, "phase": Phase.DEGRADED}
_NOT_LOST = (Phase.PROVISIONING, Phase.READY, Phase.RECOVERING, Phase.UNCREATED)
_FAILED_FOR_GOOD = (Phase.DEGRADED, Phase.LOST)
_NOTHING, _CREATE, _DELETE, _SET_DEADLINE, _REMOVE_DEADLINE = SliceAction

ROWS: tuple[Row, ...] = (
    # A Pod waits for the slice.
    _row("OwnerGone", trigger=SliceTrigger.POD, need=Need.OWNER_GONE),
    _row("OwnerGone", _NOTHING, OWNER_GONE, trigger=SliceTrigger.POD_RESYNC, need=Need.OWNER_GONE),
    _row("OwnerEnded", trigger=_POD, need=Need.OWNER_ENDED),
    _row("OptedOut", trigger=_POD, need=Need.OPTED_OUT),
    _row("Suspended", trigger=_POD, need=Need.SUSPENDED),
    _row("NoSuchUnit", trigger=_POD, need=Need.NOT_NEEDED),
    _row("Creating", _CREATE, CREATING, **_CREATED, is_full=False, is_exhausted=False),
    _row("LimitReached", _NOTHING, LIMITED, **_CREATED, is_full=True, is_exhausted=False),
    _row("Exhausted", _NOTHING, EXHAUSTED, **_CREATED, is_exhausted=True),
    _row("SlicePaused", _NOTHING, PAUSED, **_ASKED_FOR, phase=Phase.ABSENT, is_paused=True),
    _row("NameConflict", _NOTHING, CONFLICTING, **_ASKED_FOR, phase=Phase.CONFLICT),
    _row("Deleting", **_ASKED_FOR, phase=Phase.DELETING),
    _row("InUse", _NOTHING, DIFFERENT_IN_USE, **_DIFFERENT, is_in_use=True),
    _row("Replacing", _DELETE, REPLACING_DIFFERENT, **_DIFFERENT, is_in_use=False, is_paused=False),
    _row("SlicePaused", _REMOVE_DEADLINE, PAUSED, **_DIFFERENT, is_in_use=False, is_paused=True),
    _row("NextCandidate", _DELETE, NEXT_CANDIDATE, **_NEXT, is_paused=False),
    _row("SlicePaused", _REMOVE_DEADLINE, PAUSED, **_NEXT, is_paused=True),
    _row("Provisioning", _REMOVE_DEADLINE, **_STAYS, phase=Phase.PROVISIONING),
    _row("Ready", _REMOVE_DEADLINE, **_OWN_AT_EVENT, phase=Phase.READY),
    _row("Ready", _REMOVE_DEADLINE, **_OWN_AT_RESYNC, phase=Phase.READY, is_unfit=False),
    _row("Unfit", _REMOVE_DEADLINE, UNFIT, **_OWN_AT_RESYNC, phase=Phase.READY, is_unfit=True),
    _row("SliceFailed", _REMOVE_DEADLINE, FAILING, **_STAYS, phase=Phase.RECOVERING),
    _row("SliceFailed", _REMOVE_DEADLINE, LOST, **_OWN, phase=Phase.DEGRADED),
    _row("SliceFailed", _REMOVE_DEADLINE, LOST, **_OWN_AT_EVENT, phase=Phase.LOST),
    _row("SliceFailed", _REMOVE_DEADLINE, NOT_CREATED, **_OWN_AT_EVENT, **_UNCREATED),
    _row("Replacing", _DELETE, REPLACING_LOST, **_LOST, is_paused=False),
    _row("Replacing", _DELETE, REPLACING_LOST, **_NOT_CREATED, is_paused=False),
    _row("SlicePaused", _REMOVE_DEADLINE, PAUSED, **_LOST, is_paused=True),
    _row("SlicePaused", _REMOVE_DEADLINE, PAUSED, **_NOT_CREATED, is_paused=True),
    # The slice itself is checked.
    _row("NoSlice", trigger=SliceTrigger.SLICE, phase=(Phase.ABSENT, Phase.CONFLICT)),
    _row("Deleting", trigger=SliceTrigger.SLICE, phase=Phase.DELETING),
    _row("Releasing", _DELETE, RELEASING, NOT_FOUND, **_UNNEEDED, phase=DEAD),
    _row("Releasing", _DELETE, RELEASING, NOT_FOUND, **_ENDED, is_in_use=False),
    _row("DeadlineSet", _SET_DEADLINE, **_ENDED_IN_USE, deadline=_NOT_SET),
    _row("Waiting", **_ENDED_IN_USE, deadline=Deadline.AHEAD),
    _row("DeadlineSet", _SET_DEADLINE, **_BACK, deadline=_NOT_SET),
    _row("Waiting", **_BACK, deadline=Deadline.AHEAD),
    _row("Releasing", _DELETE, RELEASING, NOT_FOUND, **_BACK, deadline=_DUE, is_in_use=False),
    _row("InUse", _NOTHING, IN_USE, **_RELEASED, deadline=_DUE, is_in_use=True),
    _row("NeededAgain", _REMOVE_DEADLINE, **_KEPT, phase=_PRESENT, deadline=_WITH_DEADLINE),
    _row("Needed", **_WITHOUT_DEADLINE, phase=_NOT_LOST),
    _row("Lost", _NOTHING, LOST, **_WITHOUT_DEADLINE, phase=_FAILED_FOR_GOOD, is_rebuild_due=False),
    _row("Rebuilding", _DELETE, REBUILDING, NOT_FOUND, **_REBUILT, phase=Phase.LOST),
    _row("Rebuilding", _DELETE, REBUILDING, NOT_FOUND, **_REBUILT_DEGRADED, is_in_use=False),
    _row("InUse", _NOTHING, IN_USE, **_REBUILT_DEGRADED, is_in_use=True),
)


def find_row(situation: Situation) -> Row:
    """The row for this situation."""
    return next(row for row in ROWS if row.matches(situation))


def find_phase(existing: Slice | NameConflict | None) -> Phase:
    """The phase of a slice."""
    if existing is None:
        return Phase.ABSENT
    if isinstance(existing, NameConflict):
        return Phase.CONFLICT
    if existing.state is not SliceState.FAILED:
        return _PHASES[existing.state]
    if existing.is_self_healing:
        return Phase.RECOVERING
    if existing.has_ready_nodes:
        return Phase.DEGRADED
    return Phase.LOST if existing.was_created else Phase.UNCREATED


_PHASES = {
    SliceState.PROVISIONING: Phase.PROVISIONING,
    SliceState.READY: Phase.READY,
    SliceState.DELETING: Phase.DELETING,
}


def find_deadline(existing: Slice, now: datetime) -> Deadline:
    """The state of a slice's release deadline."""
    release_after = existing.release_after
    if release_after is None:
        return Deadline.NONE
    if release_after > now + 2 * RELEASE_AFTER:
        return Deadline.FOREIGN
    return Deadline.AHEAD if now < release_after else Deadline.DUE
