"""The sweep wakes who must look, at gaps that grow, and lets the settled sleep."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from functions.sweep import find_due_steps, is_due, is_settled
from shared.base.reasons import Reason
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import MIG, Condition, Counts, Resource, State, Status, Type
from tests.unit.builders import NOW, group

CREATED = datetime.fromisoformat("2026-11-20T09:00:00+00:00")


def known(*true: Type, false: Type | None = None, reason: str = "x", **rest: Any) -> Status:
    conditions = {kind: Condition("True", "Ready", "", CREATED, 1) for kind in true}
    if false is not None:
        conditions[false] = Condition("False", reason, "", CREATED, 1)
    return Status(conditions=conditions, observed_generation=1, **rest)


STANDS = {MIG: Resource("n", State.READY, CREATED)}
INDIVIDUAL = {"nodeCount": 1, "topology": "2x2x1", "targetSizePolicyMode": "INDIVIDUAL"}
FIRST_MINUTE = CREATED + timedelta(minutes=1)
STEPS: dict[str, tuple[NodeGroup, Status, tuple[str, ...]]] = {
    "a new group": (group(owned=False), Status(), ("create_resources",)),
    "a group being deleted": (
        group(deleting=True, deletionTimestamp="2026-11-20T09:00:00Z"),
        known(Type.READY),
        ("tear_down",),
    ),
    "a BULK slice that waits for capacity": (
        group(),
        known(false=Type.MIG_READY, resources=STANDS),
        ("create_resources",),
    ),
    "an INDIVIDUAL group with some VMs": (
        group(change=INDIVIDUAL),
        known(false=Type.MIG_READY, resources=STANDS, counts=Counts(desired=2, running=1)),
        ("create_resources", "inject_token", "label_node"),
    ),
    "VMs have not joined": (
        group(),
        known(Type.MIG_READY, resources=STANDS),
        ("inject_token", "label_node"),
    ),
    "all have joined and are not ready": (
        group(),
        known(Type.MIG_READY, Type.NODES_JOINED, resources=STANDS),
        ("label_node",),
    ),
    "its label is missing": (
        group(labels={}),
        known(Type.MIG_READY, Type.NODES_JOINED, Type.READY, resources=STANDS),
        ("create_resources", "label_node"),
    ),
}


@pytest.mark.parametrize("case", STEPS.values(), ids=STEPS)
def test_whose_inbox_a_sync_goes_to(case: tuple[NodeGroup, Status, tuple[str, ...]]) -> None:
    about, status, steps = case
    assert find_due_steps(about, status, FIRST_MINUTE) == steps


PAUSED = {"tpu-functions.dev/paused": "true"}
SETTLED: dict[str, tuple[NodeGroup, Status, bool]] = {
    "ready": (group(), known(Type.READY), True),
    "ready without label": (group(labels={}), known(Type.READY), False),
    "paused before anything was made": (group(annotations=PAUSED), known(), True),
    "paused with something under way": (
        group(annotations=PAUSED),
        known(resources=STANDS),
        False,
    ),
    "refused by our own validation": (
        group(),
        known(false=Type.ACCEPTED, reason=Reason.INVALID_SPEC),
        True,
    ),
    "refused, and changed since": (
        group(generation=2),
        known(false=Type.ACCEPTED, reason=Reason.INVALID_SPEC),
        False,
    ),
    "ready, and being deleted": (group(deleting=True), known(Type.READY), False),
}


@pytest.mark.parametrize("case", SETTLED.values(), ids=SETTLED)
def test_who_is_settled(case: tuple[NodeGroup, Status, bool]) -> None:
    about, status, settled = case
    assert is_settled(about, status) is settled


def looks(about: NodeGroup, status: Status, hours: int) -> Iterator[int]:
    """Minutes after the last progress at which somebody looks."""
    for minute in range(hours * 60 + 1):
        if is_due(about, status, CREATED + timedelta(minutes=minute)):
            yield minute


def test_who_waits_is_looked_at_at_gaps_that_grow_to_half_an_hour() -> None:
    minutes = list(looks(group(owned=False), Status(), 24))
    gaps = [later - earlier for earlier, later in itertools.pairwise(minutes)]

    assert minutes[:5] == [1, 2, 3, 4, 5]
    assert max(gaps) == 30
    assert all(later - earlier >= -1 for earlier, later in itertools.pairwise(gaps))
    assert len(minutes) < 80


def test_who_is_settled_is_looked_at_once_an_hour() -> None:
    minutes = list(looks(group(), known(Type.READY), 6))
    assert len(minutes) == 6
    assert {minute % 60 for minute in minutes} == {minutes[0] % 60}


def test_progress_begins_the_gaps_anew() -> None:
    waited_long = known(false=Type.MIG_READY)
    assert waited_long.conditions[Type.MIG_READY].since == CREATED
    moment = NOW + timedelta(minutes=7)
    fresh = replace(
        waited_long, resources={MIG: Resource("n", State.CREATING, moment - timedelta(minutes=2))}
    )
    assert is_due(group(), fresh, moment)


def test_trouble_that_is_tried_again_and_again_is_no_progress() -> None:
    resource = Resource("n", State.CREATING, CREATED).fail("QuotaExceeded", "q", "m", CREATED)
    retried = replace(resource, since=NOW)
    status = known(resources={MIG: retried})
    due = list(looks(group(), status, 24))
    assert len(due) < 80
