"""When Compute Engine ends the VMs, and the Events that announce it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from functions.label_node.run_end import add_run_end, list_events
from shared.base.timestamps import render_time
from shared.node_groups.status import Status
from shared.ports.gce.values import Instance
from tests.support.builders import NOW
from tests.unit.functions.label_node.objects import A, B, observed, on_resync, vm

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
TWO_DAYS = Status(max_run_s=2 * 24 * 3600)
KNOWN = replace(TWO_DAYS, run_ends=NOW + HOUR)
EARLY, LATE = NOW - HOUR, NOW - timedelta(minutes=50)


def ending(at: datetime) -> Instance:
    """A VM that shows its end."""
    return replace(vm(started=EARLY), ends=at)


ENDS: dict[str, tuple[Status, dict[str, Instance | None], bool, datetime | None]] = {
    "the first VM that was started": (
        TWO_DAYS,
        {A: vm(started=LATE), B: vm(B, started=EARLY)},
        True,
        EARLY + 2 * DAY,
    ),
    "no limit": (Status(), {A: vm(started=EARLY)}, True, None),
    "no VM has an end any more": (replace(KNOWN, max_run_s=0), {A: vm()}, True, None),
    "one VM of those that joined has no end": (
        replace(KNOWN, max_run_s=0),
        {A: vm()},
        False,
        NOW + HOUR,
    ),
    "all VMs are gone, and had an end": (replace(KNOWN, max_run_s=0), {A: None}, True, NOW + HOUR),
    "the end that a VM shows": (
        Status(),
        {A: ending(LATE + DAY), B: vm(B, started=EARLY)},
        True,
        LATE + DAY,
    ),
    "the end that a VM shows, before that of its maxRunDuration": (
        TWO_DAYS,
        {A: ending(NOW + HOUR), B: vm(B, started=EARLY)},
        True,
        NOW + HOUR,
    ),
    "a stopped VM that shows an end": (
        replace(KNOWN, max_run_s=0),
        {A: ending(NOW + DAY), B: replace(ending(NOW), name=B, status="TERMINATED")},
        True,
        NOW + DAY,
    ),
    "no VM was read": (KNOWN, {}, False, NOW + HOUR),
    "another VM joins later": (KNOWN, {B: vm(B, started=LATE)}, False, NOW + HOUR),
    "another VM joins, started earlier": (
        replace(TWO_DAYS, run_ends=LATE + 2 * DAY),
        {B: vm(B, started=EARLY)},
        False,
        EARLY + 2 * DAY,
    ),
    "a VM is lost: the others stay": (
        KNOWN,
        {A: None, B: vm(B, started=LATE)},
        True,
        LATE + 2 * DAY,
    ),
    "a stopped VM does not count": (
        TWO_DAYS,
        {A: vm(started=LATE), B: vm(B, status="TERMINATED", started=EARLY)},
        True,
        LATE + 2 * DAY,
    ),
}


@pytest.mark.parametrize("case", ENDS.values(), ids=ENDS)
def test_the_end_is_that_of_the_first_vm_that_was_started(
    case: tuple[Status, dict[str, Instance | None], bool, datetime | None],
) -> None:
    known, instances, has_all_vms, end = case
    given = observed(known=known, instances=instances, has_all_vms=has_all_vms)
    assert add_run_end(given, known).run_ends == end


@pytest.mark.parametrize(
    "left, words",
    [
        (DAY + timedelta(minutes=6), []),
        (DAY + timedelta(minutes=5), ["a day"]),
        (DAY, ["a day"]),
        (DAY - timedelta(minutes=9), ["a day"]),
        (DAY - timedelta(minutes=10), []),
        (HOUR, ["an hour"]),
        (timedelta(minutes=10), ["ten minutes"]),
        (timedelta(seconds=1), ["ten minutes"]),
        (timedelta(0), []),
    ],
)
def test_a_resync_soon_after_a_notice_is_due_emits_the_event(
    left: timedelta, words: list[str]
) -> None:
    known = replace(TWO_DAYS, run_ends=NOW + left)
    keys = [one.event.key for one in list_events(on_resync(known=known), known, NOW)]
    assert keys == [f"{one} {render_time(NOW + left)}" for one in words], (
        "another end has another Event"
    )
    assert list(list_events(observed(known=known), known, NOW)) == []


CAUSES = {
    "it has run for its maxRunDuration": TWO_DAYS,
    "its reservation ends": Status(provisioning_model="RESERVATION_BOUND"),
    "it has run for its maxRunDuration or its reservation ends": replace(
        TWO_DAYS, provisioning_model="RESERVATION_BOUND"
    ),
    "the time that its template sets is reached": Status(provisioning_model="STANDARD"),
}


@pytest.mark.parametrize("why", CAUSES)
def test_the_event_names_the_cause(why: str) -> None:
    known = replace(CAUSES[why], run_ends=NOW + HOUR)
    (found,) = list_events(on_resync(known=known), known, NOW)
    assert found.event.message == (
        f"Compute Engine ends the first of the VMs at {render_time(NOW + HOUR)}, in an hour: {why} "
        "then. Save checkpoints before."
    )
