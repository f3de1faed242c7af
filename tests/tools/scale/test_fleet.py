"""A thousand slices of one or two hosts are created together, settle, and are deleted together.

Compute Engine applies its rate quota: calls beyond it are rejected, and the steps retry them.
"""

from __future__ import annotations

import functools
import math
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tools.scale import figures
from tools.scale.fleet import NOTHING, RATE_QUOTA, Cost, Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(14_400), pytest.mark.xdist_group("fleet")]

SIZE = int(os.environ.get("SCALE_FLEET", "1000"))
PAGE_SIZE = 500
TIMEOUT_MINUTES = 240
SETTLING_MINUTES = 65
"""A resync that the quota rejected is repeated with the group's hourly resync."""
LEAK_REPORTS = 1
"""Runs of report_leaks in an hour."""


@dataclass(frozen=True)
class Record:
    """The costs of a fleet's phases, by minute."""

    size: int
    hosts: int
    creation: list[Cost]
    settled: list[Cost]
    deletion: list[Cost]
    list_bytes: int
    ready: int
    left: int
    leftovers: list[str]
    dead_letters: int


@pytest.fixture(scope="module")
def record() -> Record:
    """Create all slices, let them settle, measure an hour, and delete all."""
    fleet = Fleet(SIZE)
    fleet.apply()
    creation = _until(fleet, lambda: fleet.count_ready() == SIZE)
    ready = fleet.count_ready()
    fleet.minutes(SETTLING_MINUTES)
    list_bytes = fleet.list_bytes()
    settled = fleet.minutes(60)
    fleet.delete()
    deletion = _until(fleet, lambda: fleet.count_left() == 0)
    left = fleet.count_left()
    fleet.minutes(10)
    return Record(
        size=SIZE,
        hosts=fleet.hosts,
        creation=creation,
        settled=settled,
        deletion=deletion,
        list_bytes=list_bytes,
        ready=ready,
        left=left,
        leftovers=fleet.harness.leftovers(),
        dead_letters=fleet.dead_letters(),
    )


def test_all_slices_become_ready_within_the_rate_quota_and_none_is_leaked(
    record: Record, print_figure: Callable[[str], None]
) -> None:
    figures.report("fleet", _figures(record), print_figure)
    assert record.ready == record.size
    assert record.left == 0
    assert record.leftovers == []
    assert record.dead_letters == 0


def test_a_settled_fleet_costs_two_lists_a_minute_and_hourly_resyncs_and_reports(
    record: Record,
) -> None:
    """No Pod uses the chips: each hour each Node's Pods are listed, and each slice gets an Event."""
    cost = _sum(record.settled)
    pages = math.ceil(record.size / PAGE_SIZE)
    # A cluster deletes signing requests after an hour; the embedded one keeps them.
    pages_of_nodes = pages_of_requests = math.ceil(record.hosts / PAGE_SIZE)
    assert cost.sweep <= len(record.settled) * (pages + pages_of_requests)
    assert cost.invocations == len(record.settled) + record.size + LEAK_REPORTS
    assert cost.writes == 0
    assert cost.reads <= 2 * record.size
    reports = record.size + record.hosts + pages + pages_of_nodes
    assert cost.kubernetes == 2 * record.size + LEAK_REPORTS * reports
    assert cost.nacks == 0


def _figures(record: Record) -> dict[str, figures.Value]:
    creation, settled, deletion = map(_sum, (record.creation, record.settled, record.deletion))
    busiest = max((*record.creation, *record.deletion), key=lambda minute: minute.gce)
    return {
        "slices, half of one host and half of two": record.size,
        "hosts": record.hosts,
        "rate quota, calls a minute of each quota group": RATE_QUOTA,
        "created together: minutes until all are Ready": len(record.creation),
        "created: calls to Compute Engine": creation.gce,
        "created: of these, rejected by the quota": creation.rejected,
        "created: calls to the API server": creation.kubernetes,
        "created: invocations": creation.invocations,
        "created: redeliveries": creation.nacks,
        "deleted together: minutes until all are gone": len(record.deletion),
        "deleted: calls to Compute Engine": deletion.gce,
        "deleted: of these, rejected by the quota": deletion.rejected,
        "most calls to Compute Engine in a minute": busiest.gce,
        "settled, in an hour: pages of lists of groups and certificate requests": settled.sweep,
        "settled: size of such a list, KB a group": round(
            record.list_bytes / record.size / 1000, 1
        ),
        "settled: resyncs of groups": settled.invocations - len(record.settled) - LEAK_REPORTS,
        "settled: calls to Compute Engine": settled.gce,
        "settled: other calls to the API server": settled.kubernetes,
        "dead letters": record.dead_letters,
        "resources left": len(record.leftovers),
    }


def _sum(minutes: list[Cost]) -> Cost:
    return functools.reduce(operator.add, minutes, NOTHING)


def _until(fleet: Fleet, holds: Callable[[], bool]) -> list[Cost]:
    minutes: list[Cost] = []
    while not holds() and len(minutes) < TIMEOUT_MINUTES:
        minutes.append(fleet.minute())
    return minutes
