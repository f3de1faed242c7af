"""Chips that are billed and not usable, by cause."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from shared.base.reasons import REASONS
from shared.base.timestamps import LONG_AGO
from shared.node_groups.goodput import add_period, find_cause
from shared.node_groups.status import (
    Counts,
    Repairs,
    Status,
    Type,
    Unusable,
    UnusableCause,
    parse,
    render,
)
from tests.support.builders import NOW, group

START, STEPS = UnusableCause.START, UnusableCause.STEPS
COMPUTE_ENGINE, USER = UnusableCause.COMPUTE_ENGINE, UnusableCause.USER


def status(reason: str, *, running: int = 2, complete: bool = False) -> Status:
    known = Status(counts=Counts(2, running), completed_at=NOW if complete else None)
    return known.with_condition(Type.READY, reason == "Ready", reason, "m", group(), NOW)


NEW: dict[str, UnusableCause] = {
    **dict.fromkeys(REASONS, USER),
    **dict.fromkeys(
        ("Provisioning", "AwaitingNodeJoin", "InterconnectNotReady", "NodeNotReady", "Repairing"),
        START,
    ),
    **dict.fromkeys(
        (
            "Preempted",
            "NodeLost",
            "MaxRunDurationReached",
            "RunEnded",
            "InsufficientCapacity",
            "ResourceLost",
        ),
        COMPUTE_ENGINE,
    ),
}
COMPLETE: dict[str, UnusableCause] = {
    **NEW,
    **dict.fromkeys(
        ("Provisioning", "AwaitingNodeJoin", "InterconnectNotReady", "Repairing"), COMPUTE_ENGINE
    ),
    "NodeNotReady": USER,
}


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_has_a_cause(reason: str) -> None:
    assert find_cause(status(reason)) is NEW[reason]
    assert find_cause(status(reason, complete=True)) is COMPLETE[reason]
    failing = status(reason).with_retry("label_node", "503", NOW)
    assert find_cause(failing) is STEPS


def test_a_start_after_a_repair_is_not_that_of_a_new_slice() -> None:
    repaired = replace(status("Provisioning"), repairs=Repairs(1, NOW))
    assert find_cause(repaired) is COMPUTE_ENGINE


def test_a_status_without_ready_is_of_a_new_slice() -> None:
    assert find_cause(Status()) is START


OPEN = Unusable({START: 10}, START, 8, NOW)
AFTER: dict[str, tuple[Unusable, Status, timedelta, Unusable]] = {
    "the first count of VMs begins a period": (
        Unusable(), status("AwaitingNodeJoin"), timedelta(0), Unusable({}, START, 8, NOW),
    ),
    "no VM runs": (Unusable(), status("Provisioning", running=0), timedelta(0), Unusable()),
    "nothing has changed": (OPEN, status("AwaitingNodeJoin"), timedelta(minutes=59), OPEN),
    "an hour has passed": (
        OPEN, status("AwaitingNodeJoin"), timedelta(hours=1),
        Unusable({START: 10 + 8 * 3600}, START, 8, NOW + timedelta(hours=1)),
    ),
    "another cause": (
        OPEN, status("JoinDenied"), timedelta(minutes=1),
        Unusable({START: 10 + 480}, USER, 8, NOW + timedelta(minutes=1)),
    ),
    "fewer VMs": (
        OPEN, status("AwaitingNodeJoin", running=1), timedelta(minutes=1),
        Unusable({START: 10 + 480}, START, 4, NOW + timedelta(minutes=1)),
    ),
    "it is Ready": (OPEN, status("Ready"), timedelta(minutes=1), Unusable({START: 490})),
    "the clock was set back": (OPEN, status("Ready"), -timedelta(minutes=1), Unusable({START: 10})),
    "a time before the group existed": (
        replace(OPEN, since=LONG_AGO), status("Ready"), timedelta(0),
        Unusable({START: 10 + 8 * round((NOW - group().created).total_seconds())}),
    ),
    "the first cause of its kind": (
        replace(OPEN, cause=USER), status("Ready"), timedelta(minutes=1),
        Unusable({START: 10, USER: 480}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", AFTER.values(), ids=AFTER)
def test_a_period_is_added_when_it_changes(
    case: tuple[Unusable, Status, timedelta, Unusable],
) -> None:
    before, known, took, after = case
    assert add_period(group(), replace(known, unusable=before), NOW + took).unusable == after


def test_vms_that_are_slices_of_their_own_are_usable_without_the_others() -> None:
    single = group(change={"targetSizePolicyMode": "INDIVIDUAL", "topology": "2x2x1"})
    known = replace(status("InsufficientCapacity"), counts=Counts(4, running=3, ready=2))
    assert add_period(single, known, NOW).unusable.chips == 4
    assert add_period(group(), known, NOW).unusable.chips == 12


def test_a_deletion_ends_the_period_and_begins_none() -> None:
    known = replace(status("DeletingMIG"), unusable=OPEN)
    deleting = group(deletionTimestamp="2026-11-20T10:00:00Z")
    after = add_period(deleting, known, NOW + timedelta(minutes=1)).unusable
    assert after == Unusable({START: 490})


def test_the_sums_are_written_and_read() -> None:
    known = replace(Status(), unusable=Unusable({START: 1800, USER: 5400}, USER, 8, NOW))
    assert parse(render(known)).unusable == known.unusable
    assert render(known)["unusable"]["chipHours"] == "2.0"
    assert "unusable" not in render(Status())


@pytest.mark.parametrize(
    "written, expected",
    [
        (None, Unusable()),
        ({"chipSeconds": {"start": -1, "luck": 5, "user": "x"}}, Unusable()),
        ({"chipSeconds": {"start": 5}, "cause": "luck", "chips": 8, "since": "x"}, Unusable({START: 5})),
        ({"cause": "user", "chips": 8}, Unusable()),
        ({"cause": "user", "since": "2026-01-01T00:00:00Z"}, Unusable()),
    ],
)  # fmt: skip
def test_what_others_have_written_is_ignored(written: object, expected: Unusable) -> None:
    assert parse({"unusable": written}).unusable == expected
