"""The message of each reason of ``Ready``: what is wrong, of which object, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import cast

import pytest

from functions import create_resources, tear_down
from functions.create_resources.resource_conditions import CreationReport
from functions.label_node import interconnect_condition, joined_condition
from shared.base.names import FINALIZER, PAUSED_ANNOTATION
from shared.base.reasons import REASONS, VM_LOSSES, Reason
from shared.node_groups import readiness, recovery, status
from shared.node_groups.node_group import AnyGroup
from shared.node_groups.status import (
    MIG,
    NOUN,
    POLICY,
    TEMPLATE,
    Condition,
    Counts,
    Pending,
    Repairs,
    Resource,
    State,
    Status,
    Type,
)
from shared.node_groups.work import WriteStatus
from shared.ports.gce.values import Mig
from shared.ports.kubernetes.cluster import Cluster
from shared.runtime import find_refusal
from tests.support.builders import NOW, RESOURCE, SETTINGS, group, unreadable_group
from tests.support.reads import Reads
from tests.unit.functions.label_node.objects import B, observed

CLOUD_MESSAGE, CODE = "The error of Compute Engine", "ITS_CODE"
INSTRUCTION = re.compile(
    r"(?:^|[.:;] |, (?:or )?|Otherwise )"
    r"(?:Ask|Check|Correct|Create|Delete|delete|Detach|Do not|Enable|Enlarge|Find out|"
    r"Free|Migrate|Raise|Read|Remove|Resize|Restart|Start|start|To run|To use|Wait|Nothing to do|"
    r"Grant|grant|If it stays so)\b"
)
EXISTING = Resource(RESOURCE, State.READY, NOW)
ALL_EXISTING = {POLICY: EXISTING, TEMPLATE: EXISTING, MIG: EXISTING}
TRUE = Condition("True", "Ready", "", NOW, 1)
COMPLETE = Status(
    conditions={kind: TRUE for kind in Type if kind not in (Type.READY, Type.INTERCONNECT_READY)},
    resources=ALL_EXISTING,
    counts=Counts(desired=2, running=2, joined=2, ready=2),
)


@dataclass(frozen=True)
class ReadyMessage:
    """The message of ``Ready`` in a situation, and the object that it must name, if any."""

    message: str
    names: str = ""
    is_progress: bool = False
    """The message reports progress: there is nothing to do."""


def _conclude(status: Status, of: AnyGroup | None = None) -> Condition:
    return readiness.conclude(of or group(), status, NOW).conditions[Type.READY]


def _created(reason: Reason) -> ReadyMessage:
    """Return the message for an error of an insert."""
    failed = EXISTING.fail(reason, CODE, CLOUD_MESSAGE, NOW)
    known = replace(Status(), resources={**ALL_EXISTING, TEMPLATE: failed})
    known = CreationReport({}).add_conditions(group(), known, NOW)
    message = _conclude(known).message
    assert f"{NOUN[TEMPLATE]} {RESOURCE}: {CLOUD_MESSAGE} ({CODE})." in message
    return ReadyMessage(message, RESOURCE)


def _deleted(*, gone: tuple[str, ...] = (), is_rejected: bool = False) -> ReadyMessage:
    resources = {kind: EXISTING.enter(State.GONE, NOW) for kind in gone}
    resources = {**ALL_EXISTING, **resources}
    if is_rejected:
        deleting = EXISTING.enter(State.DELETING, NOW)
        resources[MIG] = deleting.with_error(Reason.IN_USE, CODE, CLOUD_MESSAGE, NOW)
    known = replace(COMPLETE, resources=resources)
    message = _conclude(known, group(deleting=True)).message
    return ReadyMessage(message, RESOURCE if is_rejected else "", is_progress=not is_rejected)


def _joins(reason: Reason) -> ReadyMessage:
    """Return the message for a VM whose Node has not joined."""
    known = replace(
        COMPLETE,
        counts=Counts(desired=2, running=2, joined=1, ready=1),
        pending=(Pending(B, reason, NOW),),
        completed_at=NOW - timedelta(hours=1) if reason in VM_LOSSES else None,
    )
    known = joined_condition.add_condition(observed(known=known), known, NOW)
    message = _conclude(known).message
    is_progress = reason is Reason.AWAITING_NODE_JOIN
    return ReadyMessage(message, "" if is_progress else B, is_progress)


def _joined(reason: Reason) -> ReadyMessage:
    """Return the message for a Node that has joined and is not ready."""
    known = replace(
        COMPLETE,
        counts=Counts(desired=2, running=2, joined=2, ready=1),
        pending=(Pending(B, reason, NOW),),
    )
    return ReadyMessage(_conclude(known).message, B)


def _disconnected() -> ReadyMessage:
    found = Mig(
        "mig", "", 2, 0, is_bulk_in_progress=False, recreating=0, topologies={"2x2x2": "FAILED"}
    )
    known = interconnect_condition.add_condition(found, group(), COMPLETE, NOW)
    return ReadyMessage(_conclude(known).message, "FAILED")


def _rejected(*, has_operator_children: bool) -> ReadyMessage:
    """Return the message for a group that create_resources rejects."""
    observed = create_resources.observe.ObservedUnreadable(
        unreadable_group(), Status(), has_operator_children
    )
    (write, *_) = create_resources.decide.decide(observed, NOW).list_actions()
    assert isinstance(write, WriteStatus)
    message = write.status.conditions[Type.READY].message
    return ReadyMessage(message, "" if has_operator_children else "spec.nodeLocation")


def _refused() -> ReadyMessage:
    """Return the message for a group in a cluster that is annotated as another installation's."""
    answers = {"get_installation_id": "a", "forget_installation_id": None}
    refusal = find_refusal(SETTINGS, cast("Cluster", Reads(answers)))
    assert refusal is not None
    return ReadyMessage(str(refusal), "tpu-functions.dev/installation-id")


def _described(
    *, mig: Resource = EXISTING, is_paused: bool = False, target_size: int = 2, creating: int = 0
) -> ReadyMessage:
    found = Mig("the/mig", "", target_size, creating, is_bulk_in_progress=False, recreating=0)
    of = group(annotations={PAUSED_ANNOTATION: "true"} if is_paused else {})
    known = Status(resources={**ALL_EXISTING, MIG: mig})
    known = CreationReport({MIG: found}).add_conditions(of, known, NOW)
    name = {State.GONE: RESOURCE, State.READY: "the/mig"}.get(mig.state, "")
    is_progress = bool(creating)
    return ReadyMessage(_conclude(known, of).message, "" if is_progress else name, is_progress)


def _kept_by_others() -> ReadyMessage:
    gone = EXISTING.enter(State.GONE, NOW)
    kept = group(deleting=True, finalizers=[FINALIZER, "example.com/other"])
    known = Status(resources=dict.fromkeys(ALL_EXISTING, gone))
    plan = tear_down.decide.decide(tear_down.observe.ObservedRemains(kept, known), NOW)
    (write,) = (action for action in plan.list_actions() if isinstance(action, WriteStatus))
    return ReadyMessage(write.status.conditions[Type.READY].message, "example.com/other")


def _repaired() -> ReadyMessage:
    known = recovery.begin_repair(COMPLETE, NOW)
    assert known.repairs == Repairs(1, NOW)
    return ReadyMessage(_conclude(known).message)


CREATION_FAILURES = (
    *(Reason.INSUFFICIENT_CAPACITY, Reason.QUOTA_EXCEEDED, Reason.RESERVATION_NOT_FOUND),
    *(Reason.RESERVATION_FULL, Reason.RESERVATION_MISMATCH, Reason.SUBNET_FULL),
    *(Reason.PERMISSION_DENIED, Reason.API_DISABLED, Reason.POLICY_VIOLATION, Reason.REFUSED),
    *(Reason.NOT_OFFERED, Reason.INVALID_TEMPLATE),
)
MISSING = (
    *(Reason.NODE_JOIN_TIMEOUT, Reason.JOIN_NOT_APPROVED, Reason.JOIN_DENIED, Reason.NODE_DELETED),
    *(Reason.NODE_NAME_MISMATCH, Reason.AWAITING_NODE_JOIN, *sorted(VM_LOSSES)),
)
MESSAGES: dict[Reason, Callable[[], ReadyMessage]] = {
    **{reason: partial(_created, reason) for reason in CREATION_FAILURES},
    **{reason: partial(_joins, reason) for reason in MISSING},
    Reason.PROVISIONING: partial(_described, creating=2),
    Reason.IN_USE: partial(_deleted, is_rejected=True),
    Reason.INVALID_SPEC: partial(_rejected, has_operator_children=False),
    Reason.RESOURCE_CONFLICT: partial(_described, target_size=3),
    Reason.MANAGED_ELSEWHERE: partial(_rejected, has_operator_children=True),
    Reason.OTHER_INSTALLATION: _refused,
    Reason.PAUSED: partial(_described, mig=Resource(RESOURCE), is_paused=True),
    Reason.DEVICE_PLUGIN_MISSING: partial(_joined, Reason.DEVICE_PLUGIN_MISSING),
    Reason.NODE_NOT_READY: partial(_joined, Reason.NODE_NOT_READY),
    Reason.INTERCONNECT_NOT_READY: _disconnected,
    Reason.RESOURCE_LOST: partial(_described, mig=EXISTING.enter(State.GONE, NOW)),
    Reason.DELETING_MIG: _deleted,
    Reason.DELETING_TEMPLATE: partial(_deleted, gone=(MIG,)),
    Reason.DELETING_POLICY: partial(_deleted, gone=(MIG, TEMPLATE)),
    Reason.DELETING_NODES: partial(_deleted, gone=(MIG, TEMPLATE, POLICY)),
    Reason.REPAIRING: _repaired,
    Reason.OTHER_FINALIZERS: _kept_by_others,
}


def test_each_reason_has_a_case() -> None:
    assert set(MESSAGES) == set(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_the_message_names_the_object_and_what_to_do(reason: Reason) -> None:
    found = MESSAGES[reason]()
    assert found.names in found.message
    if found.is_progress:
        assert re.fullmatch(
            r"(Waiting for|Deleting|Compute Engine is creating) [^.]+", found.message
        )
    else:
        assert INSTRUCTION.search(found.message), found.message
        assert found.message.endswith(".")


@pytest.mark.parametrize("reason", Reason)
def test_the_reference_of_a_reason_has_its_meaning_and_what_to_do(reason: Reason) -> None:
    meaning, _, advice = REASONS[reason].partition(". ")
    if reason in (Reason.PERMISSION_DENIED, Reason.INVALID_SPEC, Reason.RESOURCE_CONFLICT):
        advice = f"{meaning}. {advice}"
    assert meaning
    assert INSTRUCTION.search(f". {advice}"), REASONS[reason]


def test_a_condition_with_its_earlier_name_is_read_as_the_new_one() -> None:
    raw = {"type": "SliceWired", "status": "True", "reason": "Active", "message": "all links work"}
    known = status.parse({"conditions": [raw]})
    assert known.conditions.keys() == {Type.INTERCONNECT_READY}
    assert [one["type"] for one in status.render(known)["conditions"]] == ["InterconnectReady"]


@pytest.mark.parametrize("reason", [Reason.AWAITING_NODE_JOIN, Reason.NODE_NOT_READY])
def test_the_message_names_three_of_many_nodes_that_are_not_ready(reason: Reason) -> None:
    known = replace(
        COMPLETE,
        counts=Counts(desired=9, running=9, joined=9, ready=4),
        pending=tuple(Pending(f"vm-{number}", reason, NOW) for number in range(5)),
    )
    message = _conclude(known).message
    assert re.findall(r"vm-\d", message) == ["vm-0", "vm-1", "vm-2"]
    assert "5 of 9 nodes" in message
