"""Conditions and events in the words that people know from tpu-operator."""

from __future__ import annotations

import pytest

from shared.base.reasons import Reason
from shared.node_groups.events import changes
from shared.node_groups.health import Members
from shared.node_groups.readiness import find_readiness
from shared.node_groups.status import (
    MIG,
    POLICY,
    TEMPLATE,
    Condition,
    Counts,
    Resource,
    State,
    Status,
    Type,
)
from shared.ports.kubernetes.events import Event
from shared.ports.kubernetes.nodes import parse_node
from tests.unit.builders import NOW, RESOURCE, group
from tests.unit.specs import OWN_TEMPLATE
from tests.unit.test_label_node import A, node

GONE = Resource(RESOURCE, State.GONE, NOW)
STANDS = Resource(RESOURCE, State.READY, NOW)
DELETED: dict[str, tuple[dict[str, Resource], tuple[str, str]]] = {
    "all stand": (
        {POLICY: STANDS, TEMPLATE: STANDS, MIG: STANDS},
        ("DeletingMIG", "Waiting for ManagedInstanceGroup to be deleted"),
    ),
    "the MIG is gone": (
        {POLICY: STANDS, TEMPLATE: STANDS, MIG: GONE},
        ("DeletingTemplate", "Waiting for InstanceTemplate to be deleted"),
    ),
    "the template is gone too": (
        {POLICY: STANDS, TEMPLATE: GONE, MIG: GONE},
        ("DeletingPolicy", "Waiting for WorkloadPolicy to be deleted"),
    ),
    "all are gone": (
        {POLICY: GONE, TEMPLATE: GONE, MIG: GONE},
        ("DeletingNodes", "Deleting stale Node objects"),
    ),
}


@pytest.mark.parametrize("case", DELETED.values(), ids=DELETED)
def test_a_group_that_goes_says_what_is_waited_for_when(
    case: tuple[dict[str, Resource], tuple[str, str]],
) -> None:
    resources, said = case
    verdict = find_readiness(group(deleting=True), Status(resources=resources))
    assert (verdict.is_ready, verdict.reason, verdict.message) == (False, *said)


def test_a_template_of_ones_own_is_not_waited_for() -> None:
    own = group(deleting=True, change=OWN_TEMPLATE)
    known = Status(resources={POLICY: STANDS, TEMPLATE: STANDS, MIG: GONE})
    assert find_readiness(own, known).reason == Reason.DELETING_POLICY


def test_what_stands_in_the_way_of_a_deletion_is_said() -> None:
    stuck = STANDS.with_error(Reason.IN_USE, "resourceInUseByAnotherResource", "used by b", NOW)
    verdict = find_readiness(group(deleting=True), Status(resources={MIG: stuck}))
    assert (verdict.reason, verdict.message) == (
        Reason.IN_USE,
        "used by b. Something else uses the resource, so it cannot be deleted. Detach or delete what "
        "uses it. The deletion continues by itself.",
    )


def nodes(ready: int) -> Status:
    """A group of two with so many ready Nodes."""
    return Status(counts=Counts(desired=2, running=2, joined=ready, ready=ready))


@pytest.mark.parametrize(
    "before, after, told",
    [
        (0, 1, [Event("NodesJoining", "Waiting for 1 of 2 nodes to join the cluster")]),
        (1, 1, []),
        (1, 2, []),
        (0, 2, []),
        (0, 0, []),
    ],
)
def test_joining_is_told_once_with_the_first_node_of_several(
    before: int, after: int, told: list[Event]
) -> None:
    assert changes(group(), nodes(before), nodes(after)) == told


def ready(status: str, reason: str) -> Status:
    return Status(conditions={Type.READY: Condition(status, reason, "why", NOW, 1)})


WAITING, READY = ready("False", Reason.AWAITING_NODE_JOIN), ready("True", "Ready")
MAKING = ready("False", Reason.PROVISIONING)
REFUSED = ready("False", Reason.INSUFFICIENT_CAPACITY)


@pytest.mark.parametrize(
    "before, after, told",
    [
        pytest.param(WAITING, READY, [Event("Provisioned", "All nodes are ready")], id="ready"),
        pytest.param(READY, READY, [], id="still ready"),
        pytest.param(MAKING, WAITING, [], id="on its way"),
        pytest.param(
            MAKING, REFUSED, [Event("InsufficientCapacity", "why", is_warning=True)], id="refused"
        ),
        pytest.param(REFUSED, REFUSED, [], id="still refused"),
    ],
)
def test_a_change_is_told_once(before: Status, after: Status, told: list[Event]) -> None:
    assert changes(group(), before, after) == told


CHIPS = {
    "all": ("4", "4", True),
    "none": (None, None, False),
    "zero": ("4", "0", False),
    "too few": ("4", "3", False),
    "of another kind of VM": ("8", "8", False),
}


@pytest.mark.parametrize("case", CHIPS.values(), ids=CHIPS)
def test_a_ready_node_offers_all_chips_of_its_vm(
    case: tuple[str | None, str | None, bool],
) -> None:
    capacity, allocatable, is_ready = case
    raw = dict(node().raw)
    raw["status"] = {
        **raw["status"],
        "capacity": {"google.com/tpu": capacity} if capacity else {},
        "allocatable": {"google.com/tpu": allocatable} if allocatable else {},
    }
    given = Members(group(), Status(), (parse_node(raw),))
    assert [*given.ready] == ([A] if is_ready else [])


def test_a_machine_that_is_not_known_gives_no_accelerator_labels() -> None:
    labels = group().node_labels(None)
    assert "cloud.google.com/gke-tpu-accelerator" not in labels
    assert "cloud.google.com/gke-accelerator-count" not in labels
    assert labels["cloud.google.com/gke-tpu-topology"] == "2x2x2"
