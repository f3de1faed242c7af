# ruff: noqa: E501  (a table reads best with a row on a line)
"""The table of a resource's lifecycle: which row decides, the transition, and the invariants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from shared.base.reasons import Reason
from shared.node_groups.lifecycle import (
    FailureKind,
    Goal,
    Guard,
    Observation,
    OperationState,
    Presence,
    ResourceAction,
    ResourceRow,
    find_row,
    find_transition,
    make_observation,
)
from shared.node_groups.resources import Found
from shared.node_groups.status import MIG, POLICY, TEMPLATE, Resource, ResourceError, State
from shared.ports.gce.values import GceError, Operation
from tests.support.builders import NOW, RESOURCE, group
from tests.support.compute import URI, instance_group, policy, template
from tests.unit.functions.create_resources.objects import OWN
from tools.pages.resource_lifecycle import MEANINGS, Situation, list_situations, rows_of

EARLIER = NOW - timedelta(minutes=10)
PREVIOUS_ERROR = ResourceError(Reason.QUOTA_EXCEEDED, "quotaExceeded", "no", EARLIER)
ERROR = GceError("RESOURCE_POOL_EXHAUSTED", "No TPUs", 503)
UNKNOWN = GceError("INTERNAL_ERROR", "oops", 500)
USED = GceError("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "it is already being used by x", 400)
MARK = group().mark
HAS_ERROR = (OperationState.FAILING, OperationState.FAILED)
Decided = list[tuple[Situation, ResourceRow]]


def decided(goal: Goal) -> Decided:
    return [(situation, find_row(goal, *situation)) for situation in list_situations(goal)]


CREATE, TEAR_DOWN = decided(Goal.CREATE), decided(Goal.TEAR_DOWN)


@pytest.mark.parametrize(
    "goal, table, guards", [(Goal.CREATE, CREATE, 8), (Goal.TEAR_DOWN, TEAR_DOWN, 5)]
)
def test_the_situations_are_the_full_product_and_every_row_is_reachable(
    goal: Goal, table: Decided, guards: int
) -> None:
    assert len({situation for situation, _ in table}) == 6 * 5 * 6 * 2**guards
    assert [row for row in rows_of(goal) if all(row is not one for _, one in table)] == []


VIOLATIONS: dict[str, Callable[[Situation, ResourceRow], bool]] = {
    "creation deletes": lambda _, row: (
        row.goal is Goal.CREATE and row.action is ResourceAction.DELETE
    ),
    "tear-down inserts or writes an intent of an insert": lambda _, row: (
        row.goal is Goal.TEAR_DOWN
        and (row.action is ResourceAction.INSERT or row.next is State.CREATING)
    ),
    "an insert or a delete without its intent": lambda _, row: (
        (row.action is ResourceAction.INSERT and row.next is not State.CREATING)
        or (row.action is ResourceAction.DELETE and row.next is not State.DELETING)
    ),
    "an insert of an existing, paused, blocked or external resource": lambda now, row: (
        row.action is ResourceAction.INSERT
        and (
            now[1] not in (Presence.ABSENT, Presence.NOT_READ)
            or bool(now[3] & {Guard.PAUSED, Guard.BLOCKED, Guard.EXTERNAL})
        )
    ),
    "an insert without a read, except for the first": lambda now, row: (
        row.action is ResourceAction.INSERT
        and now[1] is Presence.NOT_READ
        and now[0] is not State.PENDING
        and Guard.LOST not in now[3]
    ),
    "an insert while another is in progress": lambda now, row: (
        row.action is ResourceAction.INSERT
        and now[0] is State.CREATING
        and now[2] is OperationState.RUNNING
        and Guard.LOST not in now[3]
    ),
    "a second slice after one was complete": lambda now, row: (
        row.action is ResourceAction.INSERT
        and now[0] in (State.READY, State.GONE)
        and Guard.COMPLETE in now[3]
    ),
    "Ready without a read": lambda now, row: (
        row.next is State.READY and now[1] is not Presence.OURS
    ),
    "still Ready although it does not exist": lambda now, row: (
        now[:2] == (State.READY, Presence.ABSENT) and row.next in (None, State.READY)
    ),
    "Failed without an error": lambda _, row: row.next is State.FAILED and row.failure is None,
    "an operation's error without such an error": lambda now, row: (
        row.failure is FailureKind.OPERATION and now[2] not in HAS_ERROR
    ),
    "a delete of a resource that is not owned, or before the MIG is gone": lambda now, row: (
        row.action is ResourceAction.DELETE
        and (now[1] is not Presence.OURS or Guard.BLOCKED in now[3])
    ),
    "a delete while another is in progress": lambda now, row: (
        row.action is ResourceAction.DELETE
        and now[0] is State.DELETING
        and now[2] in (OperationState.RUNNING, OperationState.FAILING)
    ),
    "Gone while the owned resource exists, or without a read": lambda now, row: (
        row.next is State.GONE and now[1] not in (Presence.ABSENT, Presence.NOT_OURS)
    ),
    "Gone while its insert may be in progress": lambda now, row: (
        row.goal is Goal.TEAR_DOWN
        and row.next is State.GONE
        and now[:2] == (State.CREATING, Presence.ABSENT)
        and now[2] not in HAS_ERROR
        and (now[2] is OperationState.RUNNING or Guard.OLD not in now[3])
    ),
}


@pytest.mark.parametrize(
    "is_wrong", [pytest.param(rule, id=name) for name, rule in VIOLATIONS.items()]
)
def test_no_row_violates_an_invariant(is_wrong: Callable[[Situation, ResourceRow], bool]) -> None:
    assert [now for now, row in (*CREATE, *TEAR_DOWN) if is_wrong(now, row)] == []


@pytest.mark.parametrize("state", State)
def test_the_goal_is_reachable_from_every_state(state: State) -> None:
    resource = Resource(RESOURCE, state, EARLIER)

    assert end_of(Goal.CREATE, resource, Presence.OURS) is State.READY
    assert end_of(Goal.TEAR_DOWN, resource, Presence.ABSENT) is State.GONE


def end_of(goal: Goal, resource: Resource, presence: Presence) -> State:
    return find_transition(goal, resource, Observation(presence), NOW).resource.state


def entry(state: State, age_s: float | None = 600, operation: str = "", uri: str = "") -> Resource:
    since = None if age_s is None else NOW - timedelta(seconds=age_s)
    return Resource(RESOURCE, state, since, uri, operation, PREVIOUS_ERROR)


def failed(
    since: datetime,
    reason: Reason,
    error: GceError | None = None,
    message: str = "",
    code: str = "",
) -> Resource:
    """An insert that has failed now."""
    code, message = (error.code, error.message) if error else (code, message)
    shown = ResourceError(reason, code, message, NOW)
    return Resource(RESOURCE, State.FAILED, since, error=shown)


def deleting(
    operation: str = "", reason: Reason | None = None, error: GceError = ERROR, uri: str = ""
) -> Resource:
    """A delete that has begun earlier, and has been rejected now if there is a reason."""
    shown = ResourceError(reason, error.code, error.message, NOW) if reason else PREVIOUS_ERROR
    return Resource(RESOURCE, State.DELETING, EARLIER, uri, operation, shown)


TransitionCase = tuple[Resource, Observation, Resource, ResourceAction]
NOTHING, WAIT, REPORT = ResourceAction.NOTHING, ResourceAction.WAIT, ResourceAction.REPORT
INSERT, DELETE = ResourceAction.INSERT, ResourceAction.DELETE
ABSENT, OURS = Observation(Presence.ABSENT), Observation(Presence.OURS, uri=URI)
NEW, INSERTING, READY = (
    entry(State.PENDING, None),
    entry(State.CREATING, operation="op"),
    entry(State.READY),
)
REJECTED = Observation(Presence.OURS, OperationState.FAILED, URI, error=ERROR)
FOREIGN = Observation(Presence.NOT_OURS, uri=URI, mark=MARK)
CONFLICT = (
    f"{URI} exists and is not marked as this group's: its description must be '{MARK}'. "
    "Delete it, or delete the group and apply it again."
)
REMOVED_MARK = (
    f"{URI} is no longer marked as this group's: its description must be '{MARK}'. "
    "Restore the description, or delete the resource."
)
NO_TEMPLATE = "failed to fetch external template: projects/p/t does not exist"


def insert_failed(error: GceError) -> Observation:
    return Observation(Presence.ABSENT, OperationState.FAILED, error=error)


CREATIONS: dict[str, TransitionCase] = {
    "an existing resource becomes Ready without its last error": (INSERTING, OURS, Resource(RESOURCE, State.READY, NOW, URI), NOTHING),
    "a Ready resource keeps its time": (READY, OURS, replace(READY, uri=URI), NOTHING),
    "a retried insert is a new intent and keeps the last error": (entry(State.FAILED, uri="uri"), ABSENT, entry(State.CREATING, 0, uri="uri"), INSERT),
    "a lost MIG is inserted as soon as its lost policy is ready": (READY, replace(ABSENT, is_blocked=True), entry(State.PENDING, 0), WAIT),
    "a failed insert records its error and the start of the attempt": (
        INSERTING,
        insert_failed(ERROR),
        failed(EARLIER, Reason.INSUFFICIENT_CAPACITY, ERROR),
        REPORT,
    ),
    "an unclassified error has the reason Refused": (INSERTING, insert_failed(UNKNOWN), failed(EARLIER, Reason.REFUSED, UNKNOWN), REPORT),
    "an insert fails, because another resource uses a resource that it needs": (INSERTING, insert_failed(USED), failed(EARLIER, Reason.REFUSED, USED), REPORT),
    "a resource without the ownership mark is a conflict": (NEW, FOREIGN, failed(NOW, Reason.RESOURCE_CONFLICT, None, CONFLICT, "alreadyExists"), REPORT),
    "a resource without the ownership mark is a conflict after a failed operation": (
        NEW,
        replace(FOREIGN, operation=OperationState.FAILED, error=ERROR),
        failed(NOW, Reason.RESOURCE_CONFLICT, None, CONFLICT, "alreadyExists"),
        REPORT,
    ),
    "a template of the user that cannot be used": (
        NEW,
        Observation(Presence.UNFIT, violation="no boot disk", is_external=True),
        failed(NOW, Reason.INVALID_TEMPLATE, None, "no boot disk"),
        REPORT,
    ),
    "a template of the user that does not exist": (
        READY,
        Observation(Presence.ABSENT, uri="projects/p/t", is_external=True),
        failed(EARLIER, Reason.INVALID_TEMPLATE, None, NO_TEMPLATE, "notFound"),
        REPORT,
    ),
}  # fmt: skip
DELETIONS: dict[str, TransitionCase] = {
    "a delete is rejected, because another resource uses the resource": (
        deleting("op", uri=URI),
        replace(REJECTED, error=USED),
        deleting("op", Reason.IN_USE, USED, URI),
        REPORT,
    ),
    "a delete is an intent and keeps the last error": (entry(State.READY, uri="uri"), OURS, entry(State.DELETING, 0, uri="uri"), DELETE),
    "a second delete belongs to the same attempt": (deleting("op"), replace(OURS, operation=OperationState.DONE), deleting(), DELETE),
    "a rejected delete records its error": (deleting("op"), REJECTED, deleting("op", Reason.INSUFFICIENT_CAPACITY), REPORT),
    "a rejected delete is retried on a resync": (deleting("op"), replace(REJECTED, is_resync=True), deleting("", Reason.INSUFFICIENT_CAPACITY), DELETE),
    "a Gone resource that exists is deleted, without its last error": (entry(State.GONE), OURS, Resource(RESOURCE, State.DELETING, NOW, URI), DELETE),
    "a policy is deleted after the MIG": (entry(State.GONE), replace(OURS, is_blocked=True), Resource(RESOURCE, State.READY, NOW, URI), WAIT),
    "a removed ownership mark is an error for the user": (
        replace(READY, uri=URI),
        FOREIGN,
        replace(
            READY, uri=URI, error=ResourceError(Reason.RESOURCE_CONFLICT, "", REMOVED_MARK, NOW)
        ),
        REPORT,
    ),
    "a Gone resource has no error": (deleting("op", uri=URI), ABSENT, Resource(RESOURCE, State.GONE, NOW, URI), NOTHING),
}  # fmt: skip


@pytest.mark.parametrize(
    "goal, step",
    [
        pytest.param(goal, step, id=name.replace(" ", "_"))
        for goal, steps in ((Goal.CREATE, CREATIONS), (Goal.TEAR_DOWN, DELETIONS))
        for name, step in steps.items()
    ],
)
def test_a_transition_returns_the_next_entry_and_the_action(
    goal: Goal, step: TransitionCase
) -> None:
    before, observation, after, action = step
    transition = find_transition(goal, before, observation, NOW)

    assert transition.resource == after
    assert transition.action is action


RESYNCED = Observation(Presence.ABSENT, is_resync=True)
REDELIVERED = Observation(Presence.ABSENT, may_repeat_insert=True)
AGES: dict[str, tuple[Goal, State, int | None, Observation, ResourceAction]] = {
    "an insert intent of 4 s waits": (Goal.CREATE, State.CREATING, 4, ABSENT, WAIT),
    "it is retried on a redelivery": (Goal.CREATE, State.CREATING, 4, REDELIVERED, INSERT),
    "an insert intent of 5 s is retried": (Goal.CREATE, State.CREATING, 5, ABSENT, INSERT),
    "one without a time is retried": (Goal.CREATE, State.CREATING, None, ABSENT, INSERT),
    "a failed insert waits for 59 s": (Goal.CREATE, State.FAILED, 59, ABSENT, WAIT),
    "it is retried after 60 s": (Goal.CREATE, State.FAILED, 60, ABSENT, INSERT),
    "it is retried on a resync": (Goal.CREATE, State.FAILED, 59, RESYNCED, INSERT),
    "it is retried if it has no time": (Goal.CREATE, State.FAILED, None, ABSENT, INSERT),
    "an insert may go on for 149 s": (Goal.TEAR_DOWN, State.CREATING, 149, ABSENT, WAIT),
    "it has ended after 150 s": (Goal.TEAR_DOWN, State.CREATING, 150, ABSENT, NOTHING),
    "it may go on if it has no time": (Goal.TEAR_DOWN, State.CREATING, None, ABSENT, WAIT),
    "without an intent it is gone": (Goal.TEAR_DOWN, State.PENDING, None, ABSENT, NOTHING),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name.replace(" ", "_")) for name, case in AGES.items()]
)
def test_the_age_of_an_intent_decides_the_action(
    case: tuple[Goal, State, int | None, Observation, ResourceAction],
) -> None:
    goal, state, age_s, observation, action = case

    assert find_transition(goal, entry(state, age_s), observation, NOW).action is action


OPERATIONS: dict[str, tuple[str, Operation | None, OperationState]] = {
    "not recorded": ("", None, OperationState.NONE),
    "recorded, and unknown to the API": ("op", None, OperationState.UNKNOWN),
    "running": ("op", Operation("op", False), OperationState.RUNNING),
    "done": ("op", Operation("op", True), OperationState.DONE),
    "failed": ("op", Operation("op", True, ERROR), OperationState.FAILED),
    "failing": ("op", Operation("op", False, ERROR), OperationState.FAILING),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_state_of_a_recorded_operation_is_observed(name: str) -> None:
    recorded, operation, state = OPERATIONS[name]
    resource = entry(State.CREATING, operation=recorded)
    observation = make_observation(group(), MIG, resource, {MIG: None}, {MIG: operation})

    assert observation.operation is state
    assert observation.error == (operation.error if operation else None)


FOUND: dict[str, tuple[str, dict[str, Found | None], Presence, str]] = {
    "not read": (POLICY, {MIG: None}, Presence.NOT_READ, ""),
    "absent": (POLICY, {POLICY: None}, Presence.ABSENT, ""),
    "owned": (MIG, {MIG: instance_group()}, Presence.OURS, URI),
    "not owned": (POLICY, {POLICY: policy("mine")}, Presence.NOT_OURS, URI),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_owner_of_a_found_resource_is_read_from_its_mark(name: str) -> None:
    kind, found, presence, uri = FOUND[name]
    observation = make_observation(group(), kind, entry(State.PENDING), found, {})

    assert (observation.presence, observation.uri, observation.mark) == (presence, uri, MARK)
    assert not observation.is_external


OWN_URI = OWN["instanceTemplateURI"]
OWN_FOUND: dict[str, tuple[dict[str, Found | None], str, Presence, str | None]] = {
    "not read": ({}, "", Presence.NOT_READ, OWN_URI),
    "absent": ({TEMPLATE: None}, "", Presence.ABSENT, OWN_URI),
    "usable, with any description": (
        {TEMPLATE: template(description="mine")},
        "",
        Presence.OURS,
        URI,
    ),
    "unusable, with any description": (
        {TEMPLATE: template()},
        "no boot disk",
        Presence.UNFIT,
        URI,
    ),
}


@pytest.mark.parametrize("name", OWN_FOUND)
def test_a_template_of_the_user_needs_no_ownership_mark(name: str) -> None:
    found, violation, presence, uri = OWN_FOUND[name]
    own = group(change=OWN)
    users = replace(entry(State.PENDING), name="t")
    observation = make_observation(own, TEMPLATE, users, found, {}, violation=violation)

    assert (observation.presence, observation.uri, observation.is_external) == (presence, uri, True)
    assert not make_observation(own, MIG, entry(State.PENDING), {}, {}).is_external


def test_every_guard_has_a_meaning() -> None:
    assert list(MEANINGS) == list(Guard)


UNDATED = Resource(RESOURCE, State.CREATING)
FAR_AHEAD = replace(UNDATED, since=NOW + timedelta(days=400))


@pytest.mark.parametrize(
    "goal, resource",
    [
        pytest.param(Goal.TEAR_DOWN, UNDATED, id="no time"),
        pytest.param(Goal.TEAR_DOWN, FAR_AHEAD, id="a time in the future"),
        pytest.param(Goal.CREATE, FAR_AHEAD, id="a time in the future, on creation"),
    ],
)
def test_an_intent_with_an_impossible_time_counts_from_now(goal: Goal, resource: Resource) -> None:
    first = find_transition(goal, resource, ABSENT, NOW)
    assert (first.action, first.resource.since) == (ResourceAction.WAIT, NOW)
    later = find_transition(goal, first.resource, ABSENT, NOW + timedelta(seconds=150))
    assert later.action is not ResourceAction.WAIT


def test_an_intent_five_minutes_in_the_future_keeps_its_time() -> None:
    ahead = replace(UNDATED, since=NOW + timedelta(minutes=5))
    assert find_transition(Goal.CREATE, ahead, ABSENT, NOW).resource == ahead
