# ruff: noqa: E501  (a table reads best with a row on a line)
"""Conditions and events with the reasons and messages of tpu-operator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.base.reasons import Reason
from shared.node_groups.events import changes
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
from tests.support.builders import NOW, RESOURCE, group
from tests.support.specs import OWN_TEMPLATE
from tests.unit.functions.label_node.objects import A, observed, raw_node

GONE = Resource(RESOURCE, State.GONE, NOW)
EXISTS = Resource(RESOURCE, State.READY, NOW)
DELETED: dict[str, tuple[dict[str, Resource], tuple[str, str]]] = {
    "all exist": ({POLICY: EXISTS, TEMPLATE: EXISTS, MIG: EXISTS}, ("DeletingMIG", "Waiting for ManagedInstanceGroup to be deleted")),
    "the insert of the MIG was rejected just now": ({POLICY: EXISTS, TEMPLATE: EXISTS, MIG: replace(EXISTS, state=State.FAILED)}, ("DeletingMIG", "Waiting until no insert of ManagedInstanceGroup can be in progress, 150 s after the last one")),
    "the MIG is gone": ({POLICY: EXISTS, TEMPLATE: EXISTS, MIG: GONE}, ("DeletingTemplate", "Waiting for InstanceTemplate to be deleted")),
    "the template is gone too": ({POLICY: EXISTS, TEMPLATE: GONE, MIG: GONE}, ("DeletingPolicy", "Waiting for WorkloadPolicy to be deleted")),
    "all are gone": ({POLICY: GONE, TEMPLATE: GONE, MIG: GONE}, ("DeletingNodes", "Deleting stale Node objects")),
}  # fmt: skip


@pytest.mark.conformance(
    cases={
        "all are gone": "del-nodes",
        "the MIG is gone": "del-wait-template",
        "the template is gone too": "del-wait-policy",
    }
)
@pytest.mark.parametrize("case", DELETED.values(), ids=DELETED)
def test_the_condition_of_a_deletion_names_the_resource_it_waits_for(
    case: tuple[dict[str, Resource], tuple[str, str]],
) -> None:
    resources, (reason, message) = case
    readiness = find_readiness(group(deleting=True), Status(resources=resources))
    assert (readiness.is_ready, readiness.reason, readiness.message) == (False, reason, message)


def test_a_deletion_does_not_wait_for_a_user_template() -> None:
    own = group(deleting=True, change=OWN_TEMPLATE)
    known = Status(resources={POLICY: EXISTS, TEMPLATE: replace(EXISTS, name="t"), MIG: GONE})
    assert find_readiness(own, known).reason == Reason.DELETING_POLICY


def test_the_condition_of_a_deletion_reports_an_error() -> None:
    failed = EXISTS.with_error(Reason.IN_USE, "resourceInUseByAnotherResource", "used by b", NOW)
    readiness = find_readiness(group(deleting=True), Status(resources={MIG: failed}))
    assert (readiness.reason, readiness.message) == (
        Reason.IN_USE,
        "used by b. Something else uses the resource, so it cannot be deleted. Detach or delete what "
        "uses it. The deletion continues by itself.",
    )


def nodes(ready: int) -> Status:
    """A group of two with so many ready Nodes."""
    return Status(counts=Counts(desired=2, running=2, joined=ready, ready=ready))


@pytest.mark.conformance(
    cases={"0-1-events0": "stat-joining-event", "1-1-events1": "stat-no-joining-event"}
)
@pytest.mark.parametrize(
    "before, after, events",
    [
        (0, 1, [Event("NodesJoining", "Waiting for 1 of 2 nodes to join the cluster")]),
        (1, 1, []),
        (1, 2, []),
        (0, 2, []),
        (0, 0, []),
    ],
)
def test_joining_emits_one_event_at_the_first_of_several_nodes(
    before: int, after: int, events: list[Event]
) -> None:
    assert [*changes(group(), nodes(before), nodes(after))] == events


def ready(status: str, reason: str) -> Status:
    return Status(conditions={Type.READY: Condition(status, reason, "why", NOW, 1)})


WAITING, READY = ready("False", Reason.AWAITING_NODE_JOIN), ready("True", "Ready")
PROVISIONING = ready("False", Reason.PROVISIONING)
FAILED = ready("False", Reason.INSUFFICIENT_CAPACITY)


@pytest.mark.parametrize(
    "before, after, events",
    [
        pytest.param(WAITING, READY, [Event("Provisioned", "All nodes are ready")], id="ready"),
        pytest.param(READY, READY, [], id="still ready"),
        pytest.param(PROVISIONING, WAITING, [], id="nodes are joining"),
        pytest.param(
            PROVISIONING,
            FAILED,
            [Event("InsufficientCapacity", "why", is_warning=True)],
            id="an error",
        ),
        pytest.param(FAILED, FAILED, [], id="the same error"),
    ],
)
def test_a_change_emits_one_event(before: Status, after: Status, events: list[Event]) -> None:
    assert [*changes(group(), before, after)] == events


CHIPS = {
    "all": ("4", "4", True),
    "none": (None, None, False),
    "zero": ("4", "0", False),
    "too few": ("4", "3", False),
    "of another kind of VM": ("8", "8", False),
}


@pytest.mark.conformance(cases={"all": "node-ready-rule", "none": "node-ready-needs-chips"})
@pytest.mark.parametrize("case", CHIPS.values(), ids=CHIPS)
def test_a_node_is_ready_only_with_all_chips_of_its_vm(
    case: tuple[str | None, str | None, bool],
) -> None:
    capacity, allocatable, is_ready = case
    raw = raw_node()
    raw["status"] = {
        **raw["status"],
        "capacity": {"google.com/tpu": capacity} if capacity else {},
        "allocatable": {"google.com/tpu": allocatable} if allocatable else {},
    }
    given = observed(parse_node(raw), known=Status())
    assert [*given.ready] == ([A] if is_ready else [])


@pytest.mark.conformance("node-label-unknown-machine")
def test_an_unknown_machine_type_has_no_accelerator_labels() -> None:
    labels = group().node_labels(None)
    assert "cloud.google.com/gke-tpu-accelerator" not in labels
    assert "cloud.google.com/gke-accelerator-count" not in labels
    assert labels["cloud.google.com/gke-tpu-topology"] == "2x2x2"
