"""The table of a resource's lifecycle: which row decides, the transition, and the invariants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

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
from shared.node_groups.reference import MEANINGS, Situation, list_situations, refresh, rows_of
from shared.node_groups.resources import Found
from shared.node_groups.status import MIG, POLICY, TEMPLATE, Resource, ResourceError, State
from shared.ports.gce.values import GceError, Operation
from tests.unit.builders import DATA, NOW, RESOURCE, group
from tests.unit.test_create_resources import OWN, URI, instance_group, policy, template

PAGE = DATA.parents[1] / "docs" / "reference" / "resource-lifecycle.md"
EARLIER = NOW - timedelta(minutes=10)
PREVIOUS_ERROR = ResourceError(Reason.QUOTA_EXCEEDED, "quotaExceeded", "no", EARLIER)
ERROR = GceError("RESOURCE_POOL_EXHAUSTED", "No TPUs", 503)
USED = GceError("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "it is already being used by x", 400)
MARK = group().mark
HAS_ERROR = (OperationState.FAILING, OperationState.FAILED)
Decided = list[tuple[Situation, ResourceRow]]


def decided(goal: Goal) -> Decided:
    return [(situation, find_row(goal, *situation)) for situation in list_situations(goal)]


CREATE, TEAR_DOWN = decided(Goal.CREATE), decided(Goal.TEAR_DOWN)


def expect_creation(
    state: State, presence: Presence, operation: OperationState, guards: frozenset[Guard]
) -> int:
    """Return the number of the row, found by nested conditions."""
    if Guard.BLOCKED in guards and state in (State.PENDING, State.FAILED):
        return 1
    if presence in (Presence.OURS, Presence.UNFIT, Presence.NOT_OURS):
        return {Presence.OURS: 2, Presence.UNFIT: 3, Presence.NOT_OURS: 4}[presence]
    if Guard.EXTERNAL in guards:
        return 5 if presence is Presence.NOT_READ else 6
    if Guard.LOST in guards and state is State.CREATING:
        return 7 if Guard.PAUSED in guards else 8 if Guard.BLOCKED in guards else 9
    if presence is Presence.NOT_READ and state is not State.PENDING:
        return 10
    return _expect_absent(state, operation, guards) or (
        16 if Guard.PAUSED in guards else 17 if Guard.BLOCKED in guards else 18
    )


def _expect_absent(state: State, operation: OperationState, guards: frozenset[Guard]) -> int | None:
    """Return the number of the row without an insert; ``None`` if the row has an insert."""
    if state is State.FAILED and Guard.TOO_EARLY in guards:
        return 11
    if state in (State.READY, State.GONE) and Guard.COMPLETE in guards:
        return 12
    if state not in (State.CREATING, State.DELETING):
        return None
    if operation is OperationState.NONE:
        return 13 if Guard.YOUNG in guards else None
    if operation is OperationState.RUNNING:
        return 14
    return 15 if operation in HAS_ERROR else None


def expect_tear_down(
    state: State, presence: Presence, operation: OperationState, guards: frozenset[Guard]
) -> int:
    """Return the number of the row, found by nested conditions."""
    if presence in (Presence.NOT_READ, Presence.UNFIT):
        return 1
    if presence is Presence.NOT_OURS:
        return 2 if Guard.KNOWN in guards else 3
    if presence is Presence.ABSENT:
        return _expect_absent_or_in_progress(state, operation, guards)
    if state is State.GONE:
        return 10 if Guard.BLOCKED in guards else 11
    if Guard.BLOCKED in guards:
        return 12 if operation in HAS_ERROR else 16
    if operation not in HAS_ERROR:
        return 17 if (state, operation) == (State.DELETING, OperationState.RUNNING) else 18
    if state is State.DELETING and operation is OperationState.FAILING:
        return 13
    return 14 if state is State.DELETING and Guard.TOO_EARLY in guards else 15


def _expect_absent_or_in_progress(
    state: State, operation: OperationState, guards: frozenset[Guard]
) -> int:
    if state in (State.READY, State.DELETING, State.GONE):
        return 4
    if state is State.CREATING:
        if operation in HAS_ERROR:
            return 6
        if operation is OperationState.RUNNING:
            return 7
    elif Guard.NO_INTENT in guards:
        return 5
    return 8 if Guard.OLD in guards else 9


EXPECTED: dict[Goal, tuple[Callable[..., int], Decided, int]] = {
    Goal.CREATE: (expect_creation, CREATE, 7),
    Goal.TEAR_DOWN: (expect_tear_down, TEAR_DOWN, 5),
}


@pytest.mark.parametrize("goal", Goal)
def test_exactly_the_expected_row_decides_in_every_situation(goal: Goal) -> None:
    expect, table, _ = EXPECTED[goal]
    rows = rows_of(goal)

    wrong = [
        (*situation, row.because)
        for situation, row in table
        if rows[expect(*situation) - 1] is not row
    ]
    assert wrong == []


@pytest.mark.parametrize("goal", Goal)
def test_the_situations_are_the_full_product_and_every_row_is_reachable(goal: Goal) -> None:
    _, table, guards = EXPECTED[goal]

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


TransitionCase = tuple[Goal, Resource, Observation, Resource, ResourceAction]
ABSENT, OURS = Observation(Presence.ABSENT), Observation(Presence.OURS, uri=URI)
TRANSITIONS: dict[str, TransitionCase] = {
    "an existing resource becomes Ready without its last error": (
        Goal.CREATE,
        entry(State.CREATING, operation="op"),
        OURS,
        Resource(RESOURCE, State.READY, NOW, URI),
        ResourceAction.NOTHING,
    ),
    "a Ready resource keeps its time": (
        Goal.CREATE,
        entry(State.READY),
        OURS,
        Resource(RESOURCE, State.READY, EARLIER, URI, "", PREVIOUS_ERROR),
        ResourceAction.NOTHING,
    ),
    "a retried insert is a new intent and keeps the last error": (
        Goal.CREATE,
        entry(State.FAILED, uri="uri"),
        ABSENT,
        Resource(RESOURCE, State.CREATING, NOW, "uri", "", PREVIOUS_ERROR),
        ResourceAction.INSERT,
    ),
    "a lost MIG is not inserted before its lost policy": (
        Goal.CREATE,
        entry(State.READY),
        Observation(Presence.ABSENT, is_blocked=True),
        Resource(RESOURCE, State.CREATING, NOW, "", "", PREVIOUS_ERROR),
        ResourceAction.WAIT,
    ),
    "a failed insert records its error and the start of the attempt": (
        Goal.CREATE,
        entry(State.CREATING, operation="op"),
        Observation(Presence.ABSENT, OperationState.FAILED, error=ERROR),
        Resource(
            RESOURCE,
            State.FAILED,
            EARLIER,
            error=ResourceError(Reason.INSUFFICIENT_CAPACITY, ERROR.code, ERROR.message, NOW),
        ),
        ResourceAction.REPORT,
    ),
    "an unclassified error has the reason Refused": (
        Goal.CREATE,
        entry(State.CREATING, operation="op"),
        Observation(
            Presence.ABSENT, OperationState.FAILED, error=GceError("INTERNAL_ERROR", "oops", 500)
        ),
        Resource(
            RESOURCE,
            State.FAILED,
            EARLIER,
            error=ResourceError(Reason.REFUSED, "INTERNAL_ERROR", "oops", NOW),
        ),
        ResourceAction.REPORT,
    ),
    "a delete is rejected, because another resource uses the resource": (
        Goal.TEAR_DOWN,
        Resource(RESOURCE, State.DELETING, EARLIER, URI, "op"),
        Observation(Presence.OURS, OperationState.FAILED, URI, error=USED),
        Resource(
            RESOURCE,
            State.DELETING,
            EARLIER,
            URI,
            "op",
            ResourceError(Reason.IN_USE, USED.code, USED.message, NOW),
        ),
        ResourceAction.REPORT,
    ),
    "an insert fails, because another resource uses a resource that it needs": (
        Goal.CREATE,
        entry(State.CREATING, operation="op"),
        Observation(Presence.ABSENT, OperationState.FAILED, error=USED),
        Resource(
            RESOURCE,
            State.FAILED,
            EARLIER,
            error=ResourceError(Reason.REFUSED, USED.code, USED.message, NOW),
        ),
        ResourceAction.REPORT,
    ),
    "a resource without the ownership mark is a conflict": (
        Goal.CREATE,
        entry(State.PENDING, None),
        Observation(Presence.NOT_OURS, uri=URI, mark=MARK),
        Resource(
            RESOURCE,
            State.FAILED,
            NOW,
            error=ResourceError(
                Reason.RESOURCE_CONFLICT,
                "alreadyExists",
                f"{URI} exists and is not marked as this group's: its description must be "
                f"'{MARK}'. Delete it, or delete the group and apply it again.",
                NOW,
            ),
        ),
        ResourceAction.REPORT,
    ),
    "a resource without the ownership mark is a conflict after a failed operation": (
        Goal.CREATE,
        entry(State.PENDING, None),
        Observation(Presence.NOT_OURS, OperationState.FAILED, URI, MARK, error=ERROR),
        Resource(
            RESOURCE,
            State.FAILED,
            NOW,
            error=ResourceError(
                Reason.RESOURCE_CONFLICT,
                "alreadyExists",
                f"{URI} exists and is not marked as this group's: its description must be "
                f"'{MARK}'. Delete it, or delete the group and apply it again.",
                NOW,
            ),
        ),
        ResourceAction.REPORT,
    ),
    "a template of the user that cannot be used": (
        Goal.CREATE,
        entry(State.PENDING, None),
        Observation(Presence.UNFIT, violation="no boot disk", is_external=True),
        Resource(
            RESOURCE,
            State.FAILED,
            NOW,
            error=ResourceError(Reason.INVALID_TEMPLATE, "", "no boot disk", NOW),
        ),
        ResourceAction.REPORT,
    ),
    "a template of the user that does not exist": (
        Goal.CREATE,
        entry(State.READY),
        Observation(Presence.ABSENT, uri="projects/p/t", is_external=True),
        Resource(
            RESOURCE,
            State.FAILED,
            EARLIER,
            error=ResourceError(
                Reason.INVALID_TEMPLATE,
                "notFound",
                "failed to fetch external template: projects/p/t does not exist",
                NOW,
            ),
        ),
        ResourceAction.REPORT,
    ),
    "a delete is an intent and keeps the last error": (
        Goal.TEAR_DOWN,
        entry(State.READY, uri="uri"),
        OURS,
        Resource(RESOURCE, State.DELETING, NOW, "uri", "", PREVIOUS_ERROR),
        ResourceAction.DELETE,
    ),
    "a second delete belongs to the same attempt": (
        Goal.TEAR_DOWN,
        entry(State.DELETING, operation="op"),
        Observation(Presence.OURS, OperationState.DONE, URI),
        Resource(RESOURCE, State.DELETING, EARLIER, "", "", PREVIOUS_ERROR),
        ResourceAction.DELETE,
    ),
    "a rejected delete records its error": (
        Goal.TEAR_DOWN,
        entry(State.DELETING, operation="op"),
        Observation(Presence.OURS, OperationState.FAILED, URI, error=ERROR),
        Resource(
            RESOURCE,
            State.DELETING,
            EARLIER,
            "",
            "op",
            ResourceError(Reason.INSUFFICIENT_CAPACITY, ERROR.code, ERROR.message, NOW),
        ),
        ResourceAction.REPORT,
    ),
    "a rejected delete is retried on a resync": (
        Goal.TEAR_DOWN,
        entry(State.DELETING, operation="op"),
        Observation(Presence.OURS, OperationState.FAILED, URI, error=ERROR, is_resync=True),
        Resource(
            RESOURCE,
            State.DELETING,
            EARLIER,
            "",
            "",
            ResourceError(Reason.INSUFFICIENT_CAPACITY, ERROR.code, ERROR.message, NOW),
        ),
        ResourceAction.DELETE,
    ),
    "a Gone resource that exists is deleted, without its last error": (
        Goal.TEAR_DOWN,
        entry(State.GONE),
        OURS,
        Resource(RESOURCE, State.DELETING, NOW, URI),
        ResourceAction.DELETE,
    ),
    "a policy is deleted after the MIG": (
        Goal.TEAR_DOWN,
        entry(State.GONE),
        Observation(Presence.OURS, uri=URI, is_blocked=True),
        Resource(RESOURCE, State.READY, NOW, URI),
        ResourceAction.WAIT,
    ),
    "a removed ownership mark is an error for the user": (
        Goal.TEAR_DOWN,
        entry(State.READY, uri=URI),
        Observation(Presence.NOT_OURS, uri=URI, mark=MARK),
        Resource(
            RESOURCE,
            State.READY,
            EARLIER,
            URI,
            error=ResourceError(
                Reason.RESOURCE_CONFLICT,
                "",
                f"{URI} is no longer marked as this group's: its description must be "
                f"'{MARK}'. Restore the description, or delete the resource.",
                NOW,
            ),
        ),
        ResourceAction.REPORT,
    ),
    "a Gone resource has no error": (
        Goal.TEAR_DOWN,
        entry(State.DELETING, operation="op", uri=URI),
        ABSENT,
        Resource(RESOURCE, State.GONE, NOW, URI),
        ResourceAction.NOTHING,
    ),
}


@pytest.mark.parametrize(
    "step", [pytest.param(step, id=name.replace(" ", "_")) for name, step in TRANSITIONS.items()]
)
def test_a_transition_returns_the_next_entry_and_the_action(step: TransitionCase) -> None:
    goal, before, observation, after, action = step
    transition = find_transition(goal, before, observation, NOW)

    assert transition.resource == after
    assert transition.action is action


RESYNCED = Observation(Presence.ABSENT, is_resync=True)
AGES: dict[str, tuple[Goal, Resource, Observation, ResourceAction]] = {
    "an insert intent of 4 s waits": (
        Goal.CREATE,
        entry(State.CREATING, 4),
        ABSENT,
        ResourceAction.WAIT,
    ),
    "an insert intent of 4 s is retried on a redelivery": (
        Goal.CREATE,
        entry(State.CREATING, 4),
        Observation(Presence.ABSENT, may_repeat_insert=True),
        ResourceAction.INSERT,
    ),
    "an insert intent of 5 s is retried": (
        Goal.CREATE,
        entry(State.CREATING, 5),
        ABSENT,
        ResourceAction.INSERT,
    ),
    "an insert intent without a time is retried": (
        Goal.CREATE,
        entry(State.CREATING, None),
        ABSENT,
        ResourceAction.INSERT,
    ),
    "a failed insert is not retried after 59 s": (
        Goal.CREATE,
        entry(State.FAILED, 59),
        ABSENT,
        ResourceAction.WAIT,
    ),
    "a failed insert is retried after 60 s": (
        Goal.CREATE,
        entry(State.FAILED, 60),
        ABSENT,
        ResourceAction.INSERT,
    ),
    "a failed insert is retried on a resync": (
        Goal.CREATE,
        entry(State.FAILED, 59),
        RESYNCED,
        ResourceAction.INSERT,
    ),
    "a failed insert without a time is retried": (
        Goal.CREATE,
        entry(State.FAILED, None),
        ABSENT,
        ResourceAction.INSERT,
    ),
    "an insert may be in progress for 149 s": (
        Goal.TEAR_DOWN,
        entry(State.CREATING, 149),
        ABSENT,
        ResourceAction.WAIT,
    ),
    "an insert has ended after 150 s": (
        Goal.TEAR_DOWN,
        entry(State.CREATING, 150),
        ABSENT,
        ResourceAction.NOTHING,
    ),
    "an insert intent without a time may be in progress": (
        Goal.TEAR_DOWN,
        entry(State.CREATING, None),
        ABSENT,
        ResourceAction.WAIT,
    ),
    "a resource without an intent is gone": (
        Goal.TEAR_DOWN,
        entry(State.PENDING, None),
        ABSENT,
        ResourceAction.NOTHING,
    ),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name.replace(" ", "_")) for name, case in AGES.items()]
)
def test_the_age_of_an_intent_decides_the_action(
    case: tuple[Goal, Resource, Observation, ResourceAction],
) -> None:
    goal, resource, observation, action = case

    assert find_transition(goal, resource, observation, NOW).action is action


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
    observation = make_observation(
        own, TEMPLATE, entry(State.PENDING), found, {}, violation=violation
    )

    assert (observation.presence, observation.uri, observation.is_external) == (presence, uri, True)
    assert not make_observation(own, MIG, entry(State.PENDING), {}, {}).is_external


def test_every_guard_has_a_meaning() -> None:
    assert list(MEANINGS) == list(Guard)


def test_the_resource_lifecycle_page_is_up_to_date() -> None:
    text = PAGE.read_text()
    assert refresh(text) == text, (
        "run: python -m shared.node_groups.reference docs/reference/resource-lifecycle.md"
    )


def test_a_page_without_a_marker_for_the_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="substring not found"):
        refresh("# Nothing")


UNDATED = Resource(RESOURCE, State.CREATING)
FAR_AHEAD = replace(UNDATED, since=NOW + timedelta(days=400))
ABSENT = Observation(presence=Presence.ABSENT)


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
