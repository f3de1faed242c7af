"""What approve_join does: pure, from what it has observed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from functions.approve_join.join_requests import (
    DENIED,
    ELSEWHERE,
    NOT_APPROVED,
    Approve,
    Candidate,
    JoinWork,
    Report,
    Revoke,
    WriteDecision,
    find_token_of_vm,
)
from functions.approve_join.observe import ObservedRequests
from shared.base.names import APPROVED_BY_US, BOOTSTRAP_GROUP, find_resource_name
from shared.base.signing_requests import TOO_OLD_AFTER
from shared.frame.plan import (
    Action,
    Attempt,
    Emit,
    Fail,
    ForOne,
    Plan,
    Send,
    forward_rest,
    join_outcomes,
)
from shared.frame.step import is_retried
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


@dataclass(frozen=True)
class ReportFailedApprovals:
    """Report the requests whose approval the API server has rejected: to the log, and to label_node.

    It is an action, because `Approve` adds them to ``work.rejected`` when it is executed.
    """

    def apply(self, work: JoinWork) -> None:
        failed = [
            _Assessment(candidate, NOT_APPROVED, str(error), has_log_line=True)
            for candidate, error in work.rejected
        ]
        if failed:
            work.facts["rejected"] = [one.name for one in failed]
        for one in failed:
            for action in one.list_actions():
                action.apply(work)
        for send in _trigger_label_node(failed, work.now):
            send.apply(work)

    def describe(self) -> str:
        return "report the requests whose approval is rejected, if any"


def decide(observed: ObservedRequests, now: datetime) -> Plan:
    """Approve or deny each request, or leave it pending."""
    assessments = [_assess(candidate, now) for candidate in observed.candidates]
    actions = [action for one in assessments for action in one.list_actions()]
    if any(one.outcome == "Approving" for one in assessments):
        actions.append(Attempt(ReportFailedApprovals()))
    actions += _trigger_label_node(assessments, now)
    failed = [one.candidate.error for one in assessments if one.candidate.error is not None]
    # The frame raises the first error: one that is retried comes first.
    errors = sorted((*failed, *observed.errors), key=is_retried, reverse=True)
    actions += (ForOne((Fail(error),)) for error in errors)
    outcome = join_outcomes(one.outcome for one in assessments) or "NothingToDo"
    note = "; ".join(f"{one.name}: {one.why}" for one in assessments if one.why)
    needs_attention = any(
        one.outcome in _LABEL_NODE_CAUSES or one.has_log_line for one in assessments
    )
    facts = _name_group(observed.candidates)
    plan = Plan(outcome, tuple(actions), note, facts, needs_attention=needs_attention)
    rest = message_about_requests(Cause.CONTINUED, now, observed.unread)
    sends = [Send(routes.APPROVE_JOIN, (rest,))] if observed.unread else []
    return forward_rest(plan, sends, is_repetition=observed.is_repetition)


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

    def list_actions(self) -> Iterator[Action]:
        request, subject = self.candidate.request, self.candidate.subject
        if self.outcome == "Approving":
            message = (
                f"VM {subject.node} holds the token {request.token_id} with which the request was "
                "made."
            )
            approval = self._build("Approved", APPROVED_BY_US, message)
            yield ForOne((Approve(self.candidate, approval),))
        if self.outcome == DENIED:
            # The token first: after a crash in between, the request is still pending and is denied.
            denial = self._build("Denied", "DeniedByTpuFunctions", f"Denied: {self.why}.")
            about, key = self.candidate.raw, ""
            if self.candidate.group is not None:
                about, key = self.candidate.group.raw, self.candidate.group.key
            yield ForOne((Revoke(request.token_id, request.name, subject.node, key), denial))
            text = (
                f"Signing request {request.name} by token {request.token_id} is denied: {self.why}."
            )
            # One Event for all requests of a token: its holder may make one every half minute.
            event_key = f"{request.token_id}: {self.why}"
            yield Emit(Event("JoinDenied", text, is_warning=True, key=event_key), about, once=True)
        if self.has_log_line:
            group = self.candidate.group
            key = group.key if group is not None else ""
            yield Report(self.outcome, self.why, request.name, subject.node, key)

    def _build(self, kind: str, reason: str, message: str) -> WriteDecision:
        condition = {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
        }
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


def _trigger_label_node(assessments: Sequence[_Assessment], now: datetime) -> Iterator[Send]:
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
