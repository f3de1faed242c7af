"""The lifecycle of one GCE resource (workload policy, instance template, MIG): a table of transitions.

The steps read Compute Engine and build an `Observation`. `find_transition` finds the row of `TABLE` that
matches and returns the resource in its next state and the action. All functions are pure.

Of the rows of a goal, the first one whose columns all match applies. `ANY_*` matches each value of its
column. A row with several guards needs all of them. `docs/reference/resource-lifecycle.md` is rendered
from the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from shared.base.reasons import Reason
from shared.base.timestamps import CLOCKS_DIFFER_BY
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.resources import Found
from shared.node_groups.status import MIG, TEMPLATE, Resource, State
from shared.ports.error_reasons import ErrorKind
from shared.ports.gce.values import GceError, Operation

YOUNG = timedelta(seconds=5)
"""A younger intent belongs to another invocation that is about to insert. If the message is redelivered,
that invocation has ended, and the age does not matter."""
RETRY_AFTER = timedelta(seconds=60)
"""A failed insert is retried on a resync, or on any other trigger this long after the intent."""
SURELY_ABSENT_AFTER = timedelta(seconds=150)
"""No create can be in progress when the newest intent is this old: the calls of an invocation and the
lag of Compute Engine together take less time. The functions have one clock: docs/decisions/clocks.md."""


class Goal(StrEnum):
    """The goal of the step: create_resources creates, tear_down deletes."""

    CREATE = "create"
    TEAR_DOWN = "tear down"


class Presence(StrEnum):
    """What Compute Engine answered about the resource."""

    NOT_READ = "not read"
    ABSENT = "absent"
    OURS = "ours"
    """It has the group's ownership mark, or it is a valid template of the user."""
    NOT_OURS = "not ours"
    """It has the resource's name, but not the group's ownership mark."""
    UNFIT = "unfit"
    """It is an invalid template of the user."""


class OperationState(StrEnum):
    """The operation whose name is in the status: the last insert or delete."""

    NONE = "none"
    UNKNOWN = "unknown"
    """Compute Engine does not find the operation."""
    RUNNING = "running"
    DONE = "done"
    FAILING = "failing"
    """It has an error and has not ended."""
    FAILED = "failed"


class Guard(StrEnum):
    """Other conditions of a row. The value is the phrase of the reference page."""

    PAUSED = "paused"
    COMPLETE = "slice was complete"
    BLOCKED = "another resource first"
    EXTERNAL = "the user's template"
    LOST = "entry was lost"
    YOUNG = "intent is young"
    TOO_EARLY = "retry is not due"
    NO_INTENT = "no intent recorded"
    OLD = "intent is old"
    KNOWN = "URI is recorded"
    REPAIR = "MIG of a repair"


class ResourceAction(StrEnum):
    """The action after the new state has been written."""

    INSERT = "insert"
    DELETE = "delete"
    WAIT = "wait"
    """Wait for an operation, a retry time or another resource: its end or a resync triggers the step."""
    REPORT = "report"
    """Record the error in the entry: the user or Compute Engine must change something."""
    NOTHING = "nothing"


class FailureKind(StrEnum):
    """The errors that the table records. The value is the phrase of the reference page."""

    NAME_TAKEN = "name is taken"
    MARK_LOST = "mark was removed"
    UNFIT = "template is unfit"
    MISSING = "template is missing"
    OPERATION = "error of the operation"


@dataclass(frozen=True)
class Observation:
    """What is known about one resource, apart from its entry in the status."""

    presence: Presence = Presence.NOT_READ
    operation: OperationState = OperationState.NONE
    uri: str = ""
    """The URI of the found resource, or of the user's template in the spec."""
    mark: str = ""
    violation: str = ""
    """Why the user's template is invalid."""
    error: GceError | None = None
    """The error of the operation."""
    is_paused: bool = False
    is_external: bool = False
    is_resync: bool = False
    may_repeat_insert: bool = False
    is_blocked: bool = False
    is_repaired: bool = False
    """It is the MIG of a group that is not being deleted."""
    was_complete: bool = False
    has_no_entry: bool = False
    """The status has no entry of the resource: one that replaces it decides."""


@dataclass(frozen=True)
class Transition:
    """The entry to write to the status, and the action after that."""

    resource: Resource
    action: ResourceAction


@dataclass(frozen=True)
class ResourceRow:
    """One transition. ``next`` is ``None`` if the state does not change."""

    goal: Goal
    states: tuple[State, ...]
    presence: tuple[Presence, ...]
    operations: tuple[OperationState, ...]
    guards: tuple[Guard, ...]
    next: State | None
    action: ResourceAction
    because: str
    failure: FailureKind | None = None


ANY_STATE, ANY_PRESENCE, ANY_OPERATION = tuple(State), tuple(Presence), tuple(OperationState)
_CREATE, _TEAR_DOWN = Goal.CREATE, Goal.TEAR_DOWN
_S, _P, _Op, _G, _A, _F = State, Presence, OperationState, Guard, ResourceAction, FailureKind
_SAME = None
_AFTER_AN_INTENT = tuple(state for state in State if state is not State.PENDING)
_NOT_SEEN = (_P.NOT_READ, _P.ABSENT)
_HAS_ERROR = (_Op.FAILING, _Op.FAILED)

# goal, states, presence, operations, guards,
# next state, action, because, failure
# fmt: off
TABLE: tuple[ResourceRow, ...] = (
    ResourceRow(_CREATE, (_S.PENDING, _S.FAILED), ANY_PRESENCE, ANY_OPERATION, (_G.BLOCKED,),
        _SAME, _A.WAIT, "The MIG refers to a policy or template that is not Ready."),
    ResourceRow(_CREATE, (_S.DELETING,), (_P.OURS,), ANY_OPERATION, (_G.REPAIR,),
        _SAME, _A.WAIT, "tear_down deletes the MIG for a repair. Then it is created again."),
    ResourceRow(_CREATE, ANY_STATE, (_P.OURS,), ANY_OPERATION, (),
        _S.READY, _A.NOTHING, "It exists."),
    ResourceRow(_CREATE, ANY_STATE, (_P.UNFIT,), ANY_OPERATION, (),
        _S.FAILED, _A.REPORT, "The user must replace the template.", _F.UNFIT),
    ResourceRow(_CREATE, ANY_STATE, (_P.NOT_OURS,), ANY_OPERATION, (),
        _S.FAILED, _A.REPORT, "It is never adopted or changed.", _F.NAME_TAKEN),
    ResourceRow(_CREATE, ANY_STATE, (_P.NOT_READ,), ANY_OPERATION, (_G.EXTERNAL,),
        _SAME, _A.NOTHING, "Nothing new is known."),
    ResourceRow(_CREATE, ANY_STATE, (_P.ABSENT,), ANY_OPERATION, (_G.EXTERNAL,),
        _S.FAILED, _A.REPORT, "The user must create the template.", _F.MISSING),

    ResourceRow(_CREATE, (_S.CREATING,), _NOT_SEEN, ANY_OPERATION, (_G.LOST, _G.PAUSED),
        _SAME, _A.NOTHING, "A paused group inserts nothing."),
    ResourceRow(_CREATE, (_S.CREATING,), _NOT_SEEN, ANY_OPERATION, (_G.LOST, _G.BLOCKED),
        _S.PENDING, _A.WAIT, "Without policy and template, no insert of the MIG succeeds."),
    ResourceRow(_CREATE, (_S.CREATING,), _NOT_SEEN, ANY_OPERATION, (_G.LOST,),
        _S.CREATING, _A.INSERT, "If another insert is in progress, GCE refuses this one (409)."),

    ResourceRow(_CREATE, _AFTER_AN_INTENT, (_P.NOT_READ,), ANY_OPERATION, (),
        _SAME, _A.NOTHING, "Nothing new is known."),
    ResourceRow(_CREATE, (_S.FAILED,), (_P.ABSENT,), ANY_OPERATION, (_G.TOO_EARLY,),
        _SAME, _A.WAIT, "The insert is retried after 60 s, or on a resync."),
    ResourceRow(_CREATE, (_S.READY, _S.GONE), (_P.ABSENT,), ANY_OPERATION, (_G.COMPLETE,),
        _S.GONE, _A.NOTHING, "A slice that was complete is not created twice."),
    ResourceRow(_CREATE, (_S.CREATING, _S.DELETING), (_P.ABSENT,), (_Op.NONE,), (_G.YOUNG,),
        _SAME, _A.WAIT, "Another invocation is about to insert it."),
    ResourceRow(_CREATE, (_S.CREATING, _S.DELETING), (_P.ABSENT,), (_Op.RUNNING,), (),
        _SAME, _A.WAIT, "The end of the operation triggers the step."),
    ResourceRow(_CREATE, (_S.CREATING, _S.DELETING), (_P.ABSENT,), _HAS_ERROR, (),
        _S.FAILED, _A.REPORT, "The insert failed.", _F.OPERATION),

    ResourceRow(_CREATE, (_S.READY,), (_P.ABSENT,), ANY_OPERATION, (_G.PAUSED,),
        _S.PENDING, _A.NOTHING, "It is gone. A paused group inserts nothing."),
    ResourceRow(_CREATE, ANY_STATE, _NOT_SEEN, ANY_OPERATION, (_G.PAUSED,),
        _SAME, _A.NOTHING, "A paused group inserts nothing."),
    ResourceRow(_CREATE, ANY_STATE, _NOT_SEEN, ANY_OPERATION, (_G.BLOCKED,),
        _S.PENDING, _A.WAIT, "It is inserted once policy and template are Ready."),
    ResourceRow(_CREATE, ANY_STATE, _NOT_SEEN, ANY_OPERATION, (),
        _S.CREATING, _A.INSERT, "It does not exist, and no insert is in progress."),

    ResourceRow(_TEAR_DOWN, ANY_STATE, (_P.NOT_READ, _P.UNFIT), ANY_OPERATION, (),
        _SAME, _A.NOTHING, "Nothing new is known, or it is the user's."),
    ResourceRow(_TEAR_DOWN, ANY_STATE, (_P.NOT_OURS,), ANY_OPERATION, (_G.KNOWN,),
        _SAME, _A.REPORT, "It was ours: a person must restore the mark or delete it.", _F.MARK_LOST),
    ResourceRow(_TEAR_DOWN, ANY_STATE, (_P.NOT_OURS,), ANY_OPERATION, (),
        _S.GONE, _A.NOTHING, "It was never ours."),

    ResourceRow(_TEAR_DOWN, (_S.READY, _S.DELETING, _S.GONE), (_P.ABSENT,), ANY_OPERATION, (),
        _S.GONE, _A.NOTHING, "It existed, so its insert has ended."),
    ResourceRow(_TEAR_DOWN, (_S.PENDING, _S.FAILED), (_P.ABSENT,), ANY_OPERATION, (_G.NO_INTENT,),
        _S.GONE, _A.NOTHING, "It was never inserted."),
    ResourceRow(_TEAR_DOWN, (_S.CREATING,), (_P.ABSENT,), _HAS_ERROR, (),
        _S.GONE, _A.NOTHING, "The insert failed."),
    ResourceRow(_TEAR_DOWN, (_S.CREATING,), (_P.ABSENT,), (_Op.RUNNING,), (),
        _SAME, _A.WAIT, "The end of the insert triggers the step."),
    ResourceRow(_TEAR_DOWN, (_S.PENDING, _S.CREATING, _S.FAILED), (_P.ABSENT,), ANY_OPERATION, (_G.OLD,),
        _S.GONE, _A.NOTHING, "No insert can be in progress after 150 s."),
    ResourceRow(_TEAR_DOWN, (_S.PENDING, _S.CREATING, _S.FAILED), (_P.ABSENT,), ANY_OPERATION, (),
        _SAME, _A.WAIT, "An insert may be in progress, or GCE may not show its result yet."),

    ResourceRow(_TEAR_DOWN, (_S.GONE,), (_P.OURS,), ANY_OPERATION, (_G.BLOCKED,),
        _S.READY, _A.WAIT, "It exists after all. The MIG is deleted first."),
    ResourceRow(_TEAR_DOWN, (_S.GONE,), (_P.OURS,), ANY_OPERATION, (),
        _S.DELETING, _A.DELETE, "It exists after all."),
    ResourceRow(_TEAR_DOWN, ANY_STATE, (_P.OURS,), _HAS_ERROR, (_G.BLOCKED,),
        _SAME, _A.REPORT, "The MIG is deleted first.", _F.OPERATION),
    ResourceRow(_TEAR_DOWN, (_S.DELETING,), (_P.OURS,), (_Op.FAILING,), (),
        _SAME, _A.REPORT, "The delete has not ended.", _F.OPERATION),
    ResourceRow(_TEAR_DOWN, (_S.DELETING,), (_P.OURS,), (_Op.FAILED,), (_G.TOO_EARLY,),
        _SAME, _A.REPORT, "The delete is retried on a resync.", _F.OPERATION),
    ResourceRow(_TEAR_DOWN, ANY_STATE, (_P.OURS,), _HAS_ERROR, (),
        _S.DELETING, _A.DELETE, "The error stays recorded until the delete succeeds.", _F.OPERATION),
    ResourceRow(_TEAR_DOWN, ANY_STATE, (_P.OURS,), ANY_OPERATION, (_G.BLOCKED,),
        _SAME, _A.WAIT, "The MIG is deleted first."),
    ResourceRow(_TEAR_DOWN, (_S.DELETING,), (_P.OURS,), (_Op.RUNNING,), (),
        _SAME, _A.WAIT, "The end of the delete triggers the step."),
    ResourceRow(_TEAR_DOWN, ANY_STATE, (_P.OURS,), ANY_OPERATION, (),
        _S.DELETING, _A.DELETE, "It exists, and no delete is in progress."),
)
# fmt: on


def make_observation(
    group: NodeGroup,
    kind: str,
    resource: Resource,
    found: Mapping[str, Found | None],
    operations: Mapping[str, Operation | None],
    *,
    violation: str = "",
) -> Observation:
    """What follows from the reads of one resource. ``found`` has only the kinds that were read."""
    one, operation = found.get(kind), operations.get(kind)
    may_be_external = kind == TEMPLATE and resource.name != group.resource_name
    template = group.spec.user_template if may_be_external else None
    presence = Presence.ABSENT if kind in found else Presence.NOT_READ
    if one is not None and template is not None:
        presence = Presence.UNFIT if violation else Presence.OURS
    elif one is not None:
        presence = Presence.OURS if one.description == group.mark else Presence.NOT_OURS
    return Observation(
        presence=presence,
        operation=_operation_state(resource, operation),
        uri=one.uri if one is not None else template.uri if template is not None else "",
        mark=group.mark,
        violation=violation,
        error=operation.error if operation is not None else None,
        is_paused=group.is_paused,
        is_external=template is not None,
        is_repaired=kind == MIG and group.deleting is None,
    )


def _operation_state(resource: Resource, operation: Operation | None) -> OperationState:
    if not resource.operation:
        return OperationState.NONE
    if operation is None:
        return OperationState.UNKNOWN
    if operation.error is not None:
        return OperationState.FAILED if operation.is_done else OperationState.FAILING
    return OperationState.DONE if operation.is_done else OperationState.RUNNING


def find_transition(
    goal: Goal, resource: Resource, observation: Observation, now: datetime
) -> Transition:
    """The resource in its next state and the action, by the table."""
    resource = _correct_intent_time(goal, resource, now)
    guards = _guards(goal, resource, observation, now)
    row = find_row(goal, resource.state, observation.presence, observation.operation, guards)
    return Transition(_apply(row, resource, observation, now), row.action)


def is_surely_absent(kind: str, resource: Resource, now: datetime) -> bool:
    """Whether the status shows, during a deletion, that a resource does not exist and no insert can
    still arrive. It is read all the same, if possible: anybody may have edited the status.

    No intent was ever written or, for policy and template, the last one was withdrawn or rejected so
    long ago that no running invocation can insert. After any intent the MIG is read: VMs cost money.
    """
    if resource.uri or resource.operation:
        return False
    if resource.state not in (State.PENDING, State.FAILED):
        return False
    if kind == MIG:
        return resource.state is State.PENDING and resource.since is None
    if_absent = find_transition(Goal.TEAR_DOWN, resource, Observation(Presence.ABSENT), now)
    return if_absent.resource.state is State.GONE


def begin_deletion(
    resources: Mapping[str, Resource], name: str, now: datetime
) -> dict[str, Resource]:
    """The entries at the beginning of a deletion. ``name``: of the group's resources.

    Errors of the creation are removed. A rejected insert (400) is not one that may be in progress: all
    inserts of this spec are rejected. An existing MIG becomes Deleting; without an entry, its insert
    may be in progress. What create_resources has found to be gone becomes Deleting, too, so that it is
    read again, and loses its URI: if there is a resource of its name without our mark now, somebody
    else has made it, and with a URI the deletion would wait until a person restores the mark
    (`FailureKind.MARK_LOST`).
    """
    mig = resources.get(MIG) or Resource(name, State.CREATING, now)
    if mig.state is State.READY:
        mig = mig.enter(State.DELETING, now)
    return {
        kind: replace(entry.enter(State.DELETING, now), uri="")
        if entry.state is State.GONE
        else replace(entry, error=None, since=None if entry.is_rejected else entry.since)
        for kind, entry in {**resources, MIG: mig}.items()
    }


def _correct_intent_time(goal: Goal, resource: Resource, now: datetime) -> Resource:
    """Let an intent begin now if its time is far in the future, or is missing during a deletion:
    otherwise the step would wait forever."""
    is_missing = goal is Goal.TEAR_DOWN and resource.since is None
    is_undated = is_missing and resource.state is State.CREATING
    is_ahead = resource.since is not None and resource.since - now > CLOCKS_DIFFER_BY
    return replace(resource, since=now) if is_undated or is_ahead else resource


def find_row(
    goal: Goal,
    state: State,
    presence: Presence,
    operation: OperationState,
    guards: frozenset[Guard],
) -> ResourceRow:
    """The first row of the goal that matches."""
    return next(
        row
        for row in TABLE
        if row.goal is goal
        and state in row.states
        and presence in row.presence
        and operation in row.operations
        and guards.issuperset(row.guards)
    )


def _guards(
    goal: Goal, resource: Resource, observation: Observation, now: datetime
) -> frozenset[Guard]:
    age = now - resource.since if resource.since is not None else None
    # A rejected delete is retried only on a resync, at intervals that grow.
    may_retry = goal is Goal.CREATE and (age is None or age >= RETRY_AFTER)
    holds = {
        Guard.PAUSED: observation.is_paused,
        Guard.COMPLETE: observation.was_complete,
        Guard.BLOCKED: observation.is_blocked,
        Guard.EXTERNAL: observation.is_external,
        Guard.LOST: observation.has_no_entry,
        Guard.YOUNG: age is not None and age < YOUNG and not observation.may_repeat_insert,
        Guard.TOO_EARLY: not observation.is_resync and not may_retry,
        Guard.NO_INTENT: age is None,
        Guard.OLD: age is not None and age >= SURELY_ABSENT_AFTER,
        Guard.KNOWN: bool(resource.uri),
        Guard.REPAIR: observation.is_repaired,
    }
    return frozenset(guard for guard, is_so in holds.items() if is_so)


def _apply(
    row: ResourceRow, resource: Resource, observation: Observation, now: datetime
) -> Resource:
    if resource.state is State.GONE and row.next is State.DELETING:
        # The recorded URI and operation are older than the read that did not find the resource.
        resource = resource.enter(State.READY, now, uri=observation.uri)
    if row.failure is not None:
        error = _describe(row.failure, resource, observation)
        if row.next is State.FAILED:
            return resource.fail(*error, now)
        resource = resource.with_error(*error, now)
    if row.next is None:
        return resource
    uri = observation.uri if row.next is State.READY else ""
    return resource.enter(row.next, now, uri=uri)


def _describe(
    failure: FailureKind, resource: Resource, observation: Observation
) -> tuple[str, str, str]:
    """Reason, code and message of the error."""
    uri, mark = observation.uri, observation.mark
    if failure is FailureKind.OPERATION and observation.error is not None:
        return _describe_operation(resource, observation.error)
    if failure is FailureKind.UNFIT:
        return Reason.INVALID_TEMPLATE, "", observation.violation
    if failure is FailureKind.MISSING:
        message = f"failed to fetch external template: {uri} does not exist"
        return Reason.INVALID_TEMPLATE, "notFound", message
    if failure is FailureKind.NAME_TAKEN:
        message = (
            f"{uri} exists and is not marked as this group's: its description must be "
            f"{mark!r}. Delete it, or delete the group and apply it again."
        )
        return Reason.RESOURCE_CONFLICT, "alreadyExists", message
    message = (
        f"{uri} is no longer marked as this group's: its description must be {mark!r}. Restore the "
        "description, or delete the resource."
    )
    return Reason.RESOURCE_CONFLICT, "", message


def _describe_operation(resource: Resource, error: GceError) -> tuple[str, str, str]:
    is_in_use = resource.state is State.DELETING and error.kind is ErrorKind.IN_USE
    reason = Reason.IN_USE if is_in_use else error.reason
    return reason or Reason.REFUSED, error.code, error.message
