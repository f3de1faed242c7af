"""What a status is before anything is known, and what its counts look like."""

from __future__ import annotations

from shared.node_groups.status import Counts, Status, render


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
