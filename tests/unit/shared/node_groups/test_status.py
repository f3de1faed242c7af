"""Rendering and parsing a status that is empty, has only counts, or has an invalid time."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta

import pytest

from shared.base.reasons import Reason
from shared.base.timestamps import CLOCKS_DIFFER_BY
from shared.node_groups.readiness import conclude
from shared.node_groups.status import (
    MAX_MESSAGE,
    MAX_RETRY_MESSAGE,
    MIG,
    POLICY,
    TEMPLATE,
    Condition,
    Counts,
    Pending,
    Repairs,
    Resource,
    ResourceError,
    Retry,
    State,
    Status,
    Type,
    Unusable,
    UnusableCause,
    parse,
    parse_of,
    render,
    shorten,
)
from tests.support.builders import NOW, RESOURCE, group


def test_a_new_status_is_rendered_as_an_empty_object() -> None:
    assert render(Status()) == {}


def test_the_counts_of_a_new_group_begin_at_zero() -> None:
    assert render(Status(counts=Counts(desired=2))) == {
        "nodeSummary": {
            "desired": 2,
            "running": 0,
            "joined": 0,
            "ready": 0,
            "reconciling": 2,
            "failed": 0,
            "text": "0/2",
        }
    }


def test_every_field_of_a_status_is_read_as_it_was_written() -> None:
    error = ResourceError("QuotaExceeded", "quotaExceeded", "a message", NOW)
    known = Status(
        observed_generation=3,
        completed_at=NOW,
        machine_type="tpu7x-standard-4t",
        provisioning_model="SPOT",
        topology="2x2x2",
        max_run_s=3600,
        conditions={Type.READY: Condition("False", "NodeLost", "a message", NOW, 3)},
        resources={MIG: Resource(RESOURCE, State.CREATING, NOW, "a/uri", "operation-1", error)},
        counts=Counts(desired=2, running=2, joined=1, ready=1, failed=1),
        pending=(Pending("vm", "NodeLost", NOW),),
        repairs=Repairs(2, NOW),
        retries=(Retry("label_node", "503", NOW),),
        run_ends=NOW,
        idle_since=NOW,
        unusable=Unusable({UnusableCause.START: 60}, UnusableCause.USER, 8, NOW),
    )
    assert [one.name for one in fields(Status) if getattr(known, one.name) == one.default] == []
    assert parse(render(known)) == known


def test_an_invalid_time_is_parsed_as_1970() -> None:
    entry = {"name": "vm", "why": "NodeLost", "since": "yesterday"}
    (pending,) = parse({"pending": [entry]}).pending
    assert pending.since == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "kind, name, is_kept",
    [
        (MIG, RESOURCE, True),
        (TEMPLATE, "template-of-the-user", True),
        (MIG, "tng-my-slice-01234567", False),
        (POLICY, "tng-my-slice-01234567", False),
        (POLICY, "", False),
    ],
)
def test_the_status_of_another_object_is_parsed_as_empty(
    kind: str, name: str, is_kept: bool
) -> None:
    known = conclude(group(), Status(3, NOW, resources={kind: Resource(name)}), NOW)
    assert parse_of(group(status=render(known))) == (known if is_kept else Status())


@pytest.mark.parametrize(
    "message, limit, left",
    [
        ("0123456789", 10, "0123456789"),
        ("0123456789abcdefghij+", 20, "012 [...] bcdefghij+"),
        ("", 10, ""),
    ],
)
def test_a_message_that_is_too_long_is_shortened_in_its_middle(
    message: str, limit: int, left: str
) -> None:
    assert shorten(message, limit) == left


def test_long_errors_of_several_steps_leave_half_of_the_message_to_the_reason() -> None:
    known = Status()
    for step in ("create_resources", "inject_token", "label_node"):
        known = known.with_retry(step, f"503 {step} " * MAX_RETRY_MESSAGE, NOW)
    reason = f"Begin {'x' * 2_000} advice."
    known = known.with_condition(Type.ACCEPTED, False, "InvalidSpec", reason, group(), NOW)
    message = conclude(group(), known, NOW + timedelta(minutes=10)).conditions[Type.READY].message
    assert message.startswith("Begin xxx")
    assert "x advice. create_resources has failed since " in message
    assert "503 label_node" in message
    assert len(message) <= MAX_MESSAGE


SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    "now, started, reason",
    [
        (NOW - CLOCKS_DIFFER_BY - SECOND, None, None),
        (NOW - CLOCKS_DIFFER_BY, None, Reason.RUN_ENDED),
        (NOW, NOW - SECOND, Reason.RUN_ENDED),
        (NOW, NOW, None),
    ],
    ids=["before the end", "clocks differ", "after the end", "a VM that was started after it"],
)
def test_a_run_ends_at_its_end_for_the_vms_that_were_started_before(
    now: datetime, started: datetime | None, reason: Reason | None
) -> None:
    assert Status(run_ends=NOW).find_end(now, started) is reason


@pytest.mark.parametrize("completed_at", [None, NOW], ids=["never complete", "late complete"])
def test_a_vm_that_is_gone_ended_with_the_run_of_the_first_one(
    completed_at: datetime | None,
) -> None:
    known = Status(max_run_s=7200, run_ends=NOW + timedelta(hours=1), completed_at=completed_at)
    assert known.find_end(NOW) is None
    assert known.find_end(NOW + timedelta(hours=1)) is Reason.MAX_RUN_DURATION_REACHED
