# ruff: noqa: E501  (a table reads best with a row on a line)
"""Why a VM, or its Node, is not ready: each rule, and which of two decides."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from functions.label_node.vm_reasons import VmFacts, find_reason
from shared.base.reasons import Reason
from shared.node_groups.status import Pending, Status
from shared.ports.kubernetes.nodes import Node
from tests.support.builders import NOW
from tests.unit.functions.label_node.objects import A, node, vm

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


def about(**facts: Any) -> VmFacts:
    """Return a VM about which only the given facts are known, 15 minutes being the time to join."""
    max_run, its_vm = facts.pop("max_run", timedelta()), facts.get("instance")
    known = Status(
        completed_at=facts.get("completed_at"),
        max_run_s=int(max_run.total_seconds()),
        run_ends=facts.pop("run_ends", None),
    )
    slice_facts: dict[str, Any] = {
        "now": NOW,
        "join_timeout": 15 * MINUTE,
        "chips": 4,
        "end": known.find_end(NOW, its_vm.started if its_vm is not None else None),
        "completed_at": None,
    }
    return VmFacts(**slice_facts | facts)


def missing(status: str = "RUNNING", started: datetime = NOW - MINUTE, **facts: Any) -> VmFacts:
    """Return a VM that was read and has no Node."""
    is_down = status not in ("RUNNING", "PENDING")
    return about(exists=True, instance=vm(A, status, started), is_down=is_down, **facts)


def joined(its_node: Node, **facts: Any) -> VmFacts:
    """Return a VM with a Node."""
    return about(node=its_node, **facts)


def reported(why: str, since: datetime = NOW - MINUTE) -> Pending:
    return Pending(A, why, since)


def of_age(created: timedelta, ready: bool = False, **fields: Any) -> Node:
    return node(ready=ready, created=NOW - created, **fields)


COMPLETE: dict[str, Any] = {"completed_at": NOW - 60 * MINUTE}
OLD = {**COMPLETE, "started": NOW - 61 * MINUTE, "had_node": True}
DAY: dict[str, Any] = {"max_run": timedelta(hours=24), "event_loss": Reason.NODE_LOST}
HALF_HOUR: dict[str, Any] = {"max_run": 30 * MINUTE, "event_loss": Reason.NODE_LOST}
REJECTED: dict[str, Any] = {"new_rejection": Reason.JOIN_DENIED}

CASES: dict[str, tuple[VmFacts, str]] = {
    # The earlier reason
    "a VM that was not read keeps its reason": (about(earlier=reported("JoinDenied")), "JoinDenied"),
    "a read contradicts the reason": (about(earlier=reported("JoinDenied"), is_outdated=True), "AwaitingNodeJoin"),
    "an event replaces the reason": (about(earlier=reported("NodeLost"), event_loss=Reason.PREEMPTED), "Preempted"),
    "a VM that is gone keeps its reason despite a read": (about(earlier=reported("NodeLost"), is_outdated=True, is_gone=True), "NodeLost"),
    "a VM that is gone keeps its reason despite an event": (about(earlier=reported("NodeLost"), event_loss=Reason.PREEMPTED, is_gone=True), "NodeLost"),
    "a VM that is gone, whose Node was not Ready before": (about(earlier=reported("NodeNotReady"), is_gone=True), "NodeLost"),
    "a VM that is gone, and stopped to report, at maxRunDuration": (about(earlier=reported("NodeNotReady"), is_gone=True, max_run=30 * MINUTE, **COMPLETE), "MaxRunDurationReached"),
    "a joined VM keeps that it was preempted": (joined(node(), earlier=reported("Preempted")), "Preempted"),
    "a joined VM keeps that it has run out": (joined(node(), earlier=reported("MaxRunDurationReached")), "MaxRunDurationReached"),
    "the Node of a joined VM replaces other reasons": (joined(node(), earlier=reported("NodeLost")), "NodeNotReady"),
    # Losses
    "an event: preempted": (about(event_loss=Reason.PREEMPTED), "Preempted"),
    "an event: preempted, of a joined VM": (joined(node(), event_loss=Reason.PREEMPTED), "Preempted"),
    "an event: preempted, of a VM that is gone": (about(event_loss=Reason.PREEMPTED, is_gone=True), "NodeLost"),
    "an event: preempted, at maxRunDuration": (missing(**DAY | {"event_loss": Reason.PREEMPTED}, started=NOW - timedelta(hours=24)), "Preempted"),
    "an event: lost": (about(event_loss=Reason.NODE_LOST), "NodeLost"),
    "an event: lost, of a joined VM that runs": (joined(node(), event_loss=Reason.NODE_LOST), "NodeNotReady"),
    "a VM of a complete slice is gone": (about(is_gone=True), "NodeLost"),
    "a joined VM is down": (joined(node(), is_down=True), "NodeLost"),
    "a VM of a complete slice is down": (missing("STOPPING", **COMPLETE), "NodeLost"),
    "a VM of a complete slice waits for capacity": (missing("PENDING", NOW - timedelta(days=3), **COMPLETE), "AwaitingNodeJoin"),
    # maxRunDuration: five minutes are for the clocks
    "a loss at maxRunDuration": (missing(**DAY, started=NOW - timedelta(hours=24) + 5 * MINUTE), "MaxRunDurationReached"),
    "a loss before maxRunDuration": (missing(**DAY, started=NOW - timedelta(hours=24) + 5 * MINUTE + SECOND), "NodeLost"),
    "a loss at a short maxRunDuration": (about(**HALF_HOUR, completed_at=NOW - 22.5 * MINUTE), "MaxRunDurationReached"),
    "a loss before a short maxRunDuration": (about(**HALF_HOUR, completed_at=NOW - 22.5 * MINUTE + SECOND), "NodeLost"),
    "a loss of a VM without a known age, of a slice that was never complete": (about(**DAY), "NodeLost"),
    "a loss of a VM without a known age: ten minutes are for the join": (
        about(**DAY, completed_at=NOW - timedelta(hours=24) + 10 * MINUTE),
        "MaxRunDurationReached",
    ),
    "a loss of a VM without a known age before maxRunDuration": (about(**DAY, completed_at=NOW - timedelta(hours=24) + 10 * MINUTE + SECOND), "NodeLost"),
    "a VM is gone at maxRunDuration": (about(is_gone=True, max_run=30 * MINUTE, **COMPLETE), "MaxRunDurationReached"),
    "a VM that nothing reports as lost, after maxRunDuration": (
        missing(max_run=30 * MINUTE, started=NOW - 60 * MINUTE, join_timeout=60 * MINUTE),
        "NodeJoinTimeout",
    ),
    # the end of a reservation
    "a loss at the end that the VMs show": (about(is_gone=True, run_ends=NOW + 5 * MINUTE, **COMPLETE), "RunEnded"),
    "a loss before that end": (about(is_gone=True, run_ends=NOW + 5 * MINUTE + SECOND, **COMPLETE), "NodeLost"),
    "a loss of a VM that was started after that end": (
        missing("STOPPING", started=NOW - MINUTE, run_ends=NOW - MINUTE, **COMPLETE),
        "NodeLost",
    ),
    "a VM that nothing reports as lost, after that end": (missing(run_ends=NOW - MINUTE, started=NOW - 2 * MINUTE), "AwaitingNodeJoin"),
    # Without a Node
    "a VM has just started": (missing(), "AwaitingNodeJoin"),
    "a VM has not joined in time": (missing(started=NOW - 15 * MINUTE), "NodeJoinTimeout"),
    "a VM that was created then, and whose start is unknown": (
        about(exists=True, instance=replace(vm(A, "RUNNING", NOW - 15 * MINUTE), started=None)),
        "NodeJoinTimeout",
    ),
    "a VM has nearly not joined in time": (missing(started=NOW - 15 * MINUTE + SECOND), "AwaitingNodeJoin"),
    "a VM waits for capacity": (missing("PENDING", NOW - timedelta(days=3)), "AwaitingNodeJoin"),
    "a VM was stopped before it could join": (missing("TERMINATED"), "NodeLost"),
    "a VM was stopped before it had joined in time": (missing("TERMINATED", NOW - 15 * MINUTE), "NodeLost"),
    "a VM has had a Node": (missing(**OLD), "NodeDeleted"),
    "a VM is older than the slice, which was never complete": (missing(started=NOW - 61 * MINUTE), "NodeJoinTimeout"),
    "a Node has another name": (missing(is_mismatched=True), "NodeNameMismatch"),
    "a Node of a VM older than the slice has another name": (missing(is_mismatched=True, **OLD), "NodeNameMismatch"),
    "a Node has another name, and the VM waits for capacity": (missing("PENDING", is_mismatched=True), "AwaitingNodeJoin"),
    "a join is rejected": (missing(**REJECTED), "JoinDenied"),
    "a join is not approved": (missing(new_rejection=Reason.JOIN_NOT_APPROVED), "JoinNotApproved"),
    "a join was rejected": (missing(earlier=reported("JoinNotApproved"), is_outdated=True), "JoinNotApproved"),
    "a join was not approved, and is rejected now": (missing(**REJECTED, earlier=reported("JoinNotApproved"), is_outdated=True), "JoinDenied"),
    "a join of a VM older than the slice is rejected": (missing(**REJECTED, **OLD), "JoinDenied"),
    "a join is rejected, and the Node has another name": (missing(**REJECTED, is_mismatched=True), "NodeNameMismatch"),
    "a join is rejected, and the VM stops": (missing("STOPPING", **REJECTED), "NodeLost"),
    "a join of a VM of another MIG is rejected": (about(**REJECTED), "AwaitingNodeJoin"),
    # With a Node
    "a VM of a complete slice was started again": (joined(node(), exists=True, instance=vm(A, "RUNNING", NOW - MINUTE), **COMPLETE), "AwaitingNodeJoin"),
    "a VM of a complete slice was started again five minutes ago": (joined(node(), exists=True, instance=vm(A, "RUNNING", NOW - 5 * MINUTE), **COMPLETE), "NodeNotReady"),
    "a Node is not Ready": (joined(node(ready=False)), "NodeNotReady"),
    "a Node is not Ready, and one with another name has its VM's providerID": (joined(node(ready=False), is_mismatched=True), "NodeNotReady"),
    "a Node is still not Ready, and the other Node of its VM was deleted after maxRunDuration": (
        joined(
            node(ready=False),
            **COMPLETE,
            max_run=30 * MINUTE,
            is_gone=True,
            earlier=reported("NodeNotReady"),
        ),
        "NodeNotReady",
    ),
    "a new Node is not Ready": (joined(of_age(5 * MINUTE - SECOND)), "AwaitingNodeJoin"),
    "a Node of five minutes is not Ready": (joined(of_age(5 * MINUTE)), "NodeNotReady"),
    "a Node of the future is not Ready": (joined(of_age(-5 * MINUTE)), "NodeNotReady"),
    "a new Node of a slice that was complete is not Ready": (joined(of_age(MINUTE), **COMPLETE), "AwaitingNodeJoin"),
    "a Node that is older than the completion of its slice is not Ready": (joined(of_age(2 * MINUTE), completed_at=NOW - MINUTE), "NodeNotReady"),
    "a Node has had no chips for two minutes": (joined(node(chips=0, changed=NOW - 2 * MINUTE)), "DevicePluginMissing"),
    "a Node has too few chips": (joined(node(chips=3)), "DevicePluginMissing"),
    "a Node has no chips yet": (joined(node(chips=0, changed=NOW - 2 * MINUTE + SECOND)), "NodeNotReady"),
    "a new Node has no chips yet": (joined(of_age(MINUTE, ready=True, chips=0, changed=NOW)), "AwaitingNodeJoin"),
    "a Node that is not Ready has no chips": (joined(node(ready=False, chips=0)), "NodeNotReady"),
    "a Node is Ready again for a moment": (joined(node(), **COMPLETE), "NodeNotReady"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_first_rule_that_applies_decides(case: tuple[VmFacts, str]) -> None:
    given, reason = case
    assert find_reason(given) == reason
