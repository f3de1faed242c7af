"""Why is a group (not) Ready: the readiness rules, first match decides.

`RULES` is the specification: each rule checks one subject and returns the verdict of ``Ready`` if that
subject blocks readiness. Every step applies `conclude` to a status before it writes it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shared.base.reasons import Reason, find_advice
from shared.base.timestamps import render_time
from shared.node_groups.goodput import add_period
from shared.node_groups.node_group import AnyGroup, NodeGroup, UnreadableGroup
from shared.node_groups.recovery import describe_recovery, is_repair_begun
from shared.node_groups.status import (
    MAX_MESSAGE,
    MIG,
    NOUN,
    POLICY,
    TEMPLATE,
    Condition,
    Resource,
    ResourceError,
    State,
    Status,
    Type,
    shorten,
)
from shared.node_groups.unreadable import describe_deletion, list_remaining
from shared.triggers import routes

REPORT_AFTER = timedelta(minutes=10)
"""A transient error that has lasted this long is reported in ``Ready``."""
READY_AGAIN_AFTER = timedelta(minutes=1)
"""A Node of a complete slice that was reported as not Ready counts as ready only so long after that
report, so that a flapping Node does not cause many status writes. The sweep triggers the count that is
due then."""


@dataclass(frozen=True)
class Readiness:
    """The condition ``Ready``: status, reason and message."""

    is_ready: bool
    reason: str
    message: str


_Rule = Callable[[AnyGroup, Status], Readiness | None]


def conclude(group: AnyGroup, status: Status, now: datetime) -> Status:
    """The status with ``Ready`` computed from all other fields; sets ``completedAt`` when first True."""
    verdict = _with_retries(find_readiness(group, status), group, status, now)
    if verdict.is_ready and status.completed_at is None:
        status = replace(status, completed_at=now)
    if not verdict.is_ready:
        status = replace(status, idle_since=None)
    status = status.with_condition(
        Type.READY, verdict.is_ready, verdict.reason, verdict.message, group, now
    )
    return add_period(group, status, now)


def _with_retries(verdict: Readiness, group: AnyGroup, status: Status, now: datetime) -> Readiness:
    """The verdict, with the transient errors that have lasted long added to its message."""
    is_deleting = group.deleting is not None
    lasting = [
        f"{retry.step} has failed since {render_time(retry.since)} and is retried: "
        f"{retry.message.rstrip('.')}."
        for retry in status.retries
        if now - retry.since >= REPORT_AFTER and (retry.step == routes.TEAR_DOWN or not is_deleting)
    ]
    if not lasting:
        return verdict
    text = shorten(" ".join(lasting), MAX_MESSAGE // 2)
    room = MAX_MESSAGE - len(text) - 2
    return replace(verdict, message=f"{shorten(verdict.message, room).rstrip('.')}. {text}")


def find_readiness(group: AnyGroup, status: Status) -> Readiness:
    """Whether the slice is ready, and if not, the most important reason."""
    for rule in RULES:
        verdict = rule(group, status)
        if verdict is not None:
            return verdict
    return Readiness(True, "Ready", "All nodes are ready")


def _check_deletion(group: AnyGroup, status: Status) -> Readiness | None:
    if group.deleting is None:
        return None
    waiting = _check_remaining(group, status)
    if waiting is not None:
        return waiting
    nodes = status.conditions.get(Type.NODES_JOINED)
    if nodes is not None and not nodes.is_true and nodes.generation == group.generation:
        return Readiness(False, nodes.reason, nodes.message)  # written since the deletion
    return Readiness(False, Reason.DELETING_NODES, "Deleting stale Node objects")


def _check_remaining(group: AnyGroup, status: Status) -> Readiness | None:
    """The resource for which the deletion waits, or ``None``. One with an error comes first: the others
    may be gone already, if what has been observed could not be written because of it."""
    if isinstance(group, UnreadableGroup):
        if not list_remaining(group, status):
            return None
        return Readiness(False, Reason.INVALID_SPEC, describe_deletion(group, status))
    left = [
        (kind, reason, noun, resource)
        for kind, reason, noun in _TEAR_DOWN_ORDER
        if (resource := status.resources.get(kind)) and resource.state is not State.GONE
        if resource.name == group.resource_name  # not the user's template
    ]
    for kind, reason, noun, resource in sorted(left, key=lambda one: one[3].error is None):
        if resource.error is not None:
            return _describe_delayed_deletion(kind, resource, resource.error)
        if resource.state in (State.PENDING, State.CREATING, State.FAILED):
            text = f"Waiting until no insert of {noun} can be in progress, 150 s after the last one"
            return Readiness(False, reason, text)
        return Readiness(False, reason, f"Waiting for {noun} to be deleted")
    return None


def _describe_delayed_deletion(kind: str, resource: Resource, error: ResourceError) -> Readiness:
    """The cloud's error and the advice; if the creation failed, the error may be of the creation."""
    message, advice = error.message, find_advice(error.reason)
    if advice not in message:
        message = f"{message.rstrip('.')}. {advice}"
    if resource.state is State.DELETING:
        message = f"The {NOUN[kind]} {resource.name} cannot be deleted: {message}"
    return Readiness(False, error.reason, message)


_TEAR_DOWN_ORDER = (
    (MIG, Reason.DELETING_MIG, "ManagedInstanceGroup"),
    (TEMPLATE, Reason.DELETING_TEMPLATE, "InstanceTemplate"),
    (POLICY, Reason.DELETING_POLICY, "WorkloadPolicy"),
)


def _check_acceptance(_: AnyGroup, status: Status) -> Readiness | None:
    return _unless_true(status.conditions.get(Type.ACCEPTED))


def _check_repair(group: AnyGroup, status: Status) -> Readiness | None:
    """A MIG that is being deleted while the group is not. A paused group creates nothing after that."""
    mig = status.resources[MIG] if is_repair_begun(group, status) else None
    if mig is None or group.is_paused:
        return None
    if mig.error is not None:
        return _describe_delayed_deletion(MIG, mig, mig.error)
    text = f"Repair {status.repairs.count} of the last day. {find_advice(Reason.REPAIRING)}"
    return Readiness(False, Reason.REPAIRING, text)


def _check_resources(_: AnyGroup, status: Status) -> Readiness | None:
    verdicts = list(_resource_verdicts(status))
    specific = [verdict for verdict in verdicts if verdict.reason != Reason.PROVISIONING]
    if status.counts.joined and not specific:
        return None  # VMs have joined, so they exist, even if the MIG was not read since
    return next(iter(specific or verdicts), None)


def _resource_verdicts(status: Status) -> Iterator[Readiness]:
    for kind in (Type.POLICY_READY, Type.TEMPLATE_READY, Type.MIG_READY):
        verdict = _unless_true(status.conditions.get(kind))
        if verdict is not None:
            yield verdict
    if Type.MIG_READY not in status.conditions:
        yield Readiness(False, Reason.PROVISIONING, "Creating the resources on Compute Engine")


def _check_tokens(_: AnyGroup, status: Status) -> Readiness | None:
    """A VM without a token cannot join; a VM that has joined needs none."""
    verdict = _unless_true(status.conditions.get(Type.TOKENS_INJECTED))
    has_joined = status.is_true(Type.NODES_JOINED)
    if verdict is None or has_joined or verdict.reason == Reason.PROVISIONING:
        return None
    return verdict


def _check_nodes(_: AnyGroup, status: Status) -> Readiness | None:
    joined = status.conditions.get(Type.NODES_JOINED)
    if joined is None:
        desired = status.counts.desired
        return Readiness(False, Reason.AWAITING_NODE_JOIN, awaiting_message(desired, desired))
    return _unless_true(joined)


def _check_pending(group: AnyGroup, status: Status) -> Readiness | None:
    if status.counts.ready >= status.counts.desired:
        return None
    reason = next((entry.why for entry in status.pending), Reason.NODE_NOT_READY)
    names = ", ".join(entry.name for entry in status.pending[:3]) or "a Node"
    left = status.counts.desired - status.counts.ready
    missing = f"{left} of {status.counts.desired} nodes"
    if reason == Reason.AWAITING_NODE_JOIN:
        why = " after a restart" if status.completed_at is not None else ""
        return Readiness(False, reason, f"Waiting for {missing} to become Ready{why}: {names}")
    text = f"{missing} {'is' if left == 1 else 'are'} not ready"
    if reason == Reason.NODE_NOT_READY and status.completed_at is not None and status.pending:
        reported = max(one.since for one in status.pending if one.why == reason)
        text += f", or are counted from {render_time(reported + READY_AGAIN_AFTER)} on"
    advice = describe_recovery(group, status, reason)
    return Readiness(False, reason, f"{text}: {names}. {advice}".rstrip())


def _check_interconnect(group: AnyGroup, status: Status) -> Readiness | None:
    if not isinstance(group, NodeGroup) or not group.spec.is_bulk:
        return None
    condition = status.conditions.get(Type.INTERCONNECT_READY)
    if condition is not None and condition.status != "False":
        return None
    message = condition.message if condition else "Waiting for the interconnect between the chips"
    return Readiness(False, Reason.INTERCONNECT_NOT_READY, message)


RULES: tuple[_Rule, ...] = (
    _check_deletion,
    _check_acceptance,
    _check_repair,
    _check_resources,
    _check_tokens,
    _check_nodes,
    _check_pending,
    _check_interconnect,
)


def _unless_true(condition: Condition | None) -> Readiness | None:
    if condition is None or condition.is_true:
        return None
    return Readiness(False, condition.reason, condition.message)


def awaiting_message(missing: int, desired: int) -> str:
    """The message for Nodes that have not joined, in tpu-operator's words."""
    return f"Waiting for {missing} of {desired} nodes to join the cluster"
