"""What approve_join does: pure, from what it has observed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from functions.approve_join.join_requests import (
    DENIED,
    ELSEWHERE,
    NOT_APPROVED,
    Approve,
    Candidate,
    Report,
    Revoke,
    WriteDecision,
    find_token_of_vm,
)
from functions.approve_join.observe import ObservedRequests
from shared.base.names import APPROVED_BY_US, BOOTSTRAP_GROUP, find_resource_name
from shared.base.signing_requests import TOO_OLD_AFTER
from shared.frame.plan import Action, Each, Emit, Plan, Send, fail_each, join_outcomes
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.node_groups.work import message_about
from shared.ports.kubernetes.events import Event
from shared.triggers import routes
from shared.triggers.message import Cause, message_about_requests

LATE_AFTER = timedelta(minutes=2)
"""A request that is pending longer is reported, whatever the obstacle, unless its group is being
deleted."""
_LABEL_NODE_CAUSES = {DENIED: Cause.JOIN_DENIED, NOT_APPROVED: Cause.JOIN_NOT_APPROVED}
"""The causes of the messages to label_node about these outcomes."""


def decide(observed: ObservedRequests, now: datetime) -> Plan:
    """Approve or deny each request, or leave it pending."""
    assessments = [_assess(candidate, now) for candidate in observed.candidates]
    decisions = tuple(
        Each(one.name, actions)
        for one in assessments
        if (actions := tuple(one.list_decisions(now)))
    )
    failed = [one.candidate.error for one in assessments if one.candidate.error is not None]
    outcome = join_outcomes(one.outcome for one in assessments) or "NothingToDo"
    note = "; ".join(f"{one.name}: {one.why}" for one in assessments if one.why)
    needs_attention = any(
        one.outcome in _LABEL_NODE_CAUSES or one.has_log_line for one in assessments
    )
    facts = _name_group(observed.candidates)
    # The first attempt publishes the unread names, whatever follows. A repetition publishes them only if
    # nothing fails: otherwise each retry of the message would publish them again.
    message = message_about_requests(Cause.CONTINUED, now, observed.unread)
    unread = (Send(routes.APPROVE_JOIN, (message,)),) if observed.unread else ()
    first = () if observed.is_repetition else tuple(Each("", (send,)) for send in unread)
    return Plan(
        outcome,
        each=(*first, *decisions, *fail_each((*failed, *observed.errors))),
        after=tuple(report for one in assessments for report in one.list_reports()),
        best_effort=tuple(_plan_triggers(assessments, now)),
        if_all_succeeded=unread if observed.is_repetition else (),
        note=note,
        facts=facts,
        needs_attention=needs_attention,
    )


def _name_group(candidates: Iterable[Candidate]) -> dict[str, str]:
    """The log fields of the group, if all requests are of one group: its timeline shows the line."""
    groups = {one.group.uid: one.group for one in candidates if one.group is not None}
    if len(groups) != 1:
        return {}
    (group,) = groups.values()
    return {"group": group.key, "uid": group.uid}


@dataclass(frozen=True)
class _Assessment:
    """The outcome of one request, and why it is not approved."""

    candidate: Candidate
    outcome: str
    why: str = ""
    has_log_line: bool = False
    """Whether it gets a log line of its own. An alert counts these lines."""

    @property
    def name(self) -> str:
        return self.candidate.request.name

    @property
    def group_key(self) -> str:
        return self.candidate.group.key if self.candidate.group is not None else ""

    def list_decisions(self, now: datetime) -> Iterator[Action]:
        """The actions that approve or deny the request; none if it stays as it is."""
        request, node = self.candidate.request, self.candidate.subject.node
        if self.outcome == "Approving":
            message = (
                f"VM {node} holds the token {request.token_id} with which the request was made."
            )
            approval = self._build_decision("Approved", APPROVED_BY_US, message)
            rejected = replace(self, outcome=NOT_APPROVED)
            triggers = tuple(_plan_triggers([rejected], now))
            yield Approve(approval, node, self.group_key, triggers)
        if self.outcome == DENIED:
            # The token first: after a crash in between, the request is still pending and is denied.
            yield Revoke(request.token_id, request.name, node, self.group_key)
            yield self._build_decision("Denied", "DeniedByTpuFunctions", f"Denied: {self.why}.")

    def list_reports(self) -> Iterator[Action]:
        """The Event and the log line about the request."""
        request, subject = self.candidate.request, self.candidate.subject
        if self.outcome == DENIED:
            group = self.candidate.group
            about = group.raw if group is not None else self.candidate.raw
            text = (
                f"Signing request {request.name} by token {request.token_id} is denied: {self.why}."
            )
            # One Event for all requests of a token: its holder may make one every half minute.
            event_key = f"{request.token_id}: {self.why}"
            yield Emit(Event("JoinDenied", text, is_warning=True, key=event_key), about, once=True)
        if self.has_log_line:
            yield Report(self.outcome, self.why, request.name, subject.node, self.group_key)

    def _build_decision(self, kind: str, reason: str, message: str) -> WriteDecision:
        condition = {"type": kind, "status": "True", "reason": reason, "message": message}
        return WriteDecision(self.name, condition, self.candidate.raw)


def _assess(candidate: Candidate, now: datetime) -> _Assessment:
    request, subject, group = candidate.request, candidate.subject, candidate.group
    if request.is_decided:
        return _assess_decided(candidate)
    if subject.violation:
        return _Assessment(candidate, DENIED, subject.violation, has_log_line=True)
    if group is not None and group.deleting is not None:
        return _Assessment(candidate, "Deleting")
    is_late = now - request.created >= LATE_AFTER
    if not find_resource_name(subject.node):
        vm = subject.node.partition(".")[0]
        if find_resource_name(vm):
            why = f"{subject.node} must be the VM's name alone: register the kubelet as {vm}"
            return _Assessment(candidate, NOT_APPROVED, why, is_late)
        why = f"{subject.node} is not the name of a TPUNodeGroup's VM"
        return _Assessment(candidate, DENIED, why, has_log_line=True)
    obstacle = _find_obstacle(candidate, now)
    if not obstacle:
        return _Assessment(candidate, "Approving")
    # A wrong token is reported on the group immediately (NotApproved), and in the log when it is late.
    has_other_token = find_token_of_vm(candidate, now) not in ("", request.token_id)
    outcome = NOT_APPROVED if is_late or has_other_token else "Pending"
    return _Assessment(candidate, outcome, obstacle, has_log_line=is_late)


def _assess_decided(candidate: Candidate) -> _Assessment:
    request = candidate.request
    if not request.is_approved_elsewhere:
        return _Assessment(candidate, "Decided")
    why = (
        f"another approver has approved it ({request.approver}), so a token of the group "
        f"{BOOTSTRAP_GROUP} is enough for any Node's certificate. Remove the binding or the approver "
        "that allows it"
    )
    return _Assessment(candidate, ELSEWHERE, why, has_log_line=True)


def _find_obstacle(candidate: Candidate, now: datetime) -> str:
    """What prevents the approval of a valid request; empty if it is approved."""
    node, group, instance = candidate.subject.node, candidate.group, candidate.instance
    if candidate.error is not None:
        return str(candidate.error)
    if now - candidate.request.created >= TOO_OLD_AFTER:
        return "it is too old: its kubelet no longer waits for it"
    if group is None:
        return f"no TPUNodeGroup has a VM {node}"
    if not isinstance(group, NodeGroup):
        return f"the spec of group {group.key} is invalid"
    if not candidate.is_served:
        return f"this installation does not serve the project of group {group.key}"
    if instance is None:
        return f"Compute Engine has no VM {node}"
    if not instance.is_member_of(group.spec.zone, group.resource_name):
        return f"VM {node} was not created by the MIG {group.resource_name}"
    token_id = find_token_of_vm(candidate, now)
    if not token_id:
        return f"the metadata of VM {node} holds no token"
    if token_id != candidate.request.token_id:
        return (
            f"VM {node} holds the token {token_id}, but the request was made with "
            f"{candidate.request.token_id}: the token was renewed, or it belongs to another VM"
        )
    return ""


def _plan_triggers(assessments: Sequence[_Assessment], now: datetime) -> Iterator[Send]:
    """Trigger label_node once for each group and cause: it reports at the VMs what delays them."""
    vms: dict[tuple[str, Cause], dict[str, None]] = {}
    groups: dict[str, AnyGroup] = {}
    for one in assessments:
        group, cause = one.candidate.group, _LABEL_NODE_CAUSES.get(one.outcome)
        token_id = one.candidate.request.token_id
        if cause is Cause.JOIN_DENIED and find_token_of_vm(one.candidate, now) != token_id:
            # It was made with another token than this VM's: the VM's own request may still be approved.
            cause = Cause.JOIN_NOT_APPROVED
        if group is not None and cause is not None:
            groups[group.uid] = group
            vm = one.candidate.subject.node.partition(".")[0]
            vms.setdefault((group.uid, cause), {})[vm] = None
    for (uid, cause), names in vms.items():
        yield Send(routes.LABEL_NODE, (message_about(groups[uid], cause, now, vms=tuple(names)),))
