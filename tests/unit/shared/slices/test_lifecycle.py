"""The lifecycle table of a slice: every situation has exactly one row, which is the expected one."""

from __future__ import annotations

from itertools import product

import pytest

from shared.slices.by_node_group.provider import GroupSlices
from shared.slices.lifecycle import (
    COLUMNS,
    NOT_CREATED,
    ROWS,
    Deadline,
    Need,
    Phase,
    Situation,
    SliceAction,
    SliceTrigger,
    find_row,
)

SITUATIONS = [
    Situation(**dict(zip(COLUMNS, values, strict=True))) for values in product(*COLUMNS.values())
]
NOTHING, CREATE, DELETE, SET_DEADLINE, REMOVE_DEADLINE = SliceAction
NOT_RECOVERING = (Phase.LOST, Phase.UNCREATED)
Expected = tuple[str, SliceAction, str]
"""Outcome, action, and the Event's reason, which is empty if there is no Event."""


def expected(situation: Situation) -> Expected:
    """Return the expected row. Unlike in the table, the first condition that is true decides."""
    is_for_slice = situation.trigger is SliceTrigger.SLICE
    return expected_for_slice(situation) if is_for_slice else expected_for_pod(situation)


def expected_for_pod(at: Situation) -> Expected:
    if at.need is Need.JOBSET_GONE:
        return "JobSetGone", NOTHING, ""
    if at.need is Need.JOBSET_ENDED:
        return "JobSetEnded", NOTHING, ""
    if at.need is Need.OPTED_OUT:
        return "OptedOut", NOTHING, ""
    if at.need is Need.SUSPENDED:
        return "Suspended", NOTHING, ""
    if at.need is Need.NOT_NEEDED:
        return "NoSuchJob", NOTHING, ""
    if at.phase is Phase.ABSENT:
        if at.is_paused:
            return "SlicePaused", NOTHING, "SlicePaused"
        return "Creating", CREATE, "CreationStarted"
    if at.phase is Phase.CONFLICT:
        return "NameConflict", NOTHING, "CreationFailed"
    if at.phase is Phase.DELETING:
        return "Deleting", NOTHING, ""
    if not at.is_as_asked and at.is_in_use:
        return "InUse", NOTHING, "CreationFailed"
    is_resync = at.trigger is SliceTrigger.POD_RESYNC
    if not at.is_as_asked or (at.phase in NOT_RECOVERING and is_resync):
        if at.is_paused:
            return "SlicePaused", REMOVE_DEADLINE, "SlicePaused"
        return "Replacing", DELETE, "DeletionStarted"
    if at.phase is Phase.PROVISIONING:
        return "Provisioning", REMOVE_DEADLINE, ""
    if at.phase is not Phase.READY:
        return "SliceFailed", REMOVE_DEADLINE, "CreationFailed"
    is_unfit = is_resync and at.is_unfit
    return ("Unfit" if is_unfit else "Ready"), REMOVE_DEADLINE, ("Unfit" if is_unfit else "")


def expected_for_slice(at: Situation) -> Expected:
    if at.phase in (Phase.ABSENT, Phase.CONFLICT):
        return "NoSlice", NOTHING, ""
    if at.phase is Phase.DELETING:
        return "Deleting", NOTHING, ""
    if at.need in (Need.NEEDED, Need.OPTED_OUT, Need.SUSPENDED):
        return expected_for_needed(at)
    if at.phase in NOT_RECOVERING:
        return "Releasing", DELETE, "DeletionStarted"
    if at.deadline in (Deadline.NONE, Deadline.FOREIGN):
        return "DeadlineSet", SET_DEADLINE, ""
    if at.deadline is Deadline.AHEAD:
        return "Waiting", NOTHING, ""
    if at.is_in_use:
        return "InUse", NOTHING, "InUse"
    return "Releasing", DELETE, "DeletionStarted"


def expected_for_needed(at: Situation) -> Expected:
    if at.deadline not in (Deadline.NONE, Deadline.REFUSED):
        return "NeededAgain", REMOVE_DEADLINE, ""
    if at.phase not in (Phase.DEGRADED, Phase.LOST):
        return "Needed", NOTHING, ""
    if not at.is_rebuild_due:
        return "Lost", NOTHING, "Lost"
    if at.phase is Phase.DEGRADED and at.is_in_use:
        return "InUse", NOTHING, "InUse"
    return "Rebuilding", DELETE, "DeletionStarted"


def test_every_situation_has_one_row_and_it_is_the_expected_one() -> None:
    for situation in SITUATIONS:
        (row,) = [row for row in ROWS if row.matches(situation)]
        found = (row.outcome, row.action, row.event.reason if row.event else "")
        assert found == expected(situation), situation
        assert find_row(situation) is row


def test_every_row_is_reachable() -> None:
    reached = {id(find_row(situation)) for situation in SITUATIONS}
    assert [row for row in ROWS if id(row) not in reached] == []


def test_a_cell_names_a_column_and_only_values_of_it() -> None:
    wrong = [
        (row.outcome, name)
        for row in ROWS
        for name, values in row.cells.items()
        if not values or not values < {*COLUMNS.get(name, ())}
    ]
    assert wrong == []


def test_exactly_the_deletions_of_release_slice_have_an_event_for_a_slice_that_is_gone() -> None:
    for row in ROWS:
        is_own = row.action is DELETE and SliceTrigger.SLICE in row.cells["trigger"]
        assert (row.if_gone is not None) == is_own


FAILURES: dict[str, tuple[str, str, bool]] = {
    "another time and VM": (
        "after 29.01s: Instance 'gke-tpu-e89c5bc7-0' creation failed",
        "after 5s: Instance 'gke-tpu-447e6046-0' creation failed",
        True,
    ),
    "another zone": ("the zone us-east5-a has none", "the zone us-east5-b has none", False),
    "another quota": ("a quota of '32.0'", "a quota of '64.0'", False),
    "another VM of this system": ("the VM tng-a-0001 is gone", "the VM tng-a-0002 is gone", False),
}


@pytest.mark.parametrize("case", FAILURES.values(), ids=FAILURES)
def test_two_events_have_the_same_key_if_the_failures_differ_only_in_time_and_vm(
    case: tuple[str, str, bool],
) -> None:
    one, other, are_same = case
    events = [NOT_CREATED.render(GroupSlices, {"name": "n", "failure": it}) for it in (one, other)]
    assert (events[0].key == events[1].key) is are_same
    assert [event.message for event in events] == [
        f"TPUNodeGroup n could not be created: {it}" for it in (one, other)
    ]
