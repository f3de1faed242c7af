"""The lifecycle table of a slice: one row for every situation, and none that violates an invariant."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from shared.slices.by_node_group.provider import GroupSlices
from shared.slices.create_or_release import (
    ASKED,
    COLUMNS,
    NOT_CREATED,
    ROWS,
    Deadline,
    Phase,
    Situation,
    SliceAction,
    SliceTrigger,
    find_row,
)
from shared.slices.units import Need

POSSIBLE = (
    Situation(**dict(zip(COLUMNS, values, strict=True))) for values in product(*COLUMNS.values())
)
SITUATIONS = [
    one
    for one in POSSIBLE
    if not (one.is_exhausted and one.phase is not Phase.ABSENT)
    and not (one.is_next_due and (one.phase not in ASKED or one.is_in_use))
]
"""What can be observed: candidates matter only before a slice has VMs."""
NOTHING, CREATE, DELETE, SET_DEADLINE, REMOVE_DEADLINE = SliceAction
NOT_RECOVERING = (Phase.LOST, Phase.UNCREATED)
USED = (Need.NEEDED, Need.OPTED_OUT, Need.SUSPENDED)
VIOLATIONS: dict[str, Callable[[Situation, SliceAction], bool]] = {
    "a creation that is not needed, or beside another slice, or during a pause": lambda at, action: (
        action is CREATE
        and (at.need is not Need.NEEDED or at.phase is not Phase.ABSENT or at.is_paused)
    ),
    "a creation beyond the limit": lambda at, action: action is CREATE and at.is_full,
    "a creation although no candidate may be asked": lambda at, action: (
        action is CREATE and at.is_exhausted
    ),
    "a deletion at an event without another candidate": lambda at, action: (
        action is DELETE
        and at.trigger is SliceTrigger.POD
        and at.is_as_asked
        and not at.is_next_due
    ),
    "an action for a Pod that needs no slice": lambda at, action: (
        at.trigger is not SliceTrigger.SLICE
        and at.need is not Need.NEEDED
        and action is not NOTHING
    ),
    "a deletion of a slice that is in use": lambda at, action: (
        action is DELETE and at.is_in_use and at.phase not in NOT_RECOVERING
    ),
    "a deletion of what is absent, foreign or being deleted": lambda at, action: (
        action is DELETE and at.phase in (Phase.ABSENT, Phase.CONFLICT, Phase.DELETING)
    ),
    "a replacement during a pause": lambda at, action: (
        action is DELETE and at.trigger is not SliceTrigger.SLICE and at.is_paused
    ),
    "a release before its deadline": lambda at, action: (
        action is DELETE
        and at.trigger is SliceTrigger.SLICE
        and at.need not in (*USED, Need.OWNER_ENDED)
        and at.phase not in NOT_RECOVERING
        and at.deadline in (Deadline.NONE, Deadline.FOREIGN, Deadline.AHEAD)
    ),
    "a release of a slice that is needed": lambda at, action: (
        action is DELETE
        and at.trigger is SliceTrigger.SLICE
        and at.need in USED
        and not at.is_rebuild_due
    ),
    "a deadline that stays although a Pod waits for the slice": lambda at, action: (
        at.trigger is not SliceTrigger.SLICE
        and at.need is Need.NEEDED
        and at.phase not in (Phase.ABSENT, Phase.CONFLICT, Phase.DELETING)
        and action is NOTHING
        and (at.is_as_asked or not at.is_in_use)
    ),
    "a deadline of a slice that is needed, or which an ended owner does not use": lambda at, action: (
        action is SET_DEADLINE
        and (at.need in USED or (at.need is Need.OWNER_ENDED and not at.is_in_use))
    ),
}


def test_every_situation_has_one_row() -> None:
    for situation in SITUATIONS:
        assert [row for row in ROWS if row.matches(situation)] == [find_row(situation)]


@pytest.mark.parametrize("is_wrong", VIOLATIONS.values(), ids=VIOLATIONS)
def test_no_row_violates_an_invariant(is_wrong: Callable[[Situation, SliceAction], bool]) -> None:
    assert [at for at in SITUATIONS if is_wrong(at, find_row(at).action)] == []


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
    "another time of the next try": (
        "refused. The next try is after 2026-11-20T10:03:00Z",
        "refused. The next try is after 2026-11-20T10:08:30Z",
        True,
    ),
    "other waits of the class": (
        "; the last slices of this class waited 4m (median), 9m (90th percentile)",
        "; the last slices of this class waited 5m (median), 2h (90th percentile)",
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
