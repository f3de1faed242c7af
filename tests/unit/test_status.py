"""What a status is before anything is known, and what its counts look like."""

from __future__ import annotations

from datetime import UTC, datetime

from shared.node_groups.status import Counts, Status, parse, render


def test_a_status_of_which_nothing_is_known_is_empty() -> None:
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


def test_a_time_that_cannot_be_read_is_long_ago() -> None:
    entry = {"name": "vm", "why": "NodeLost", "since": "yesterday"}
    (pending,) = parse({"pending": [entry]}).pending
    assert pending.since == datetime(1970, 1, 1, tzinfo=UTC)
