"""Which requests of kubelets to approve and to deny, and which to report."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from functions.approve_join import actions
from functions.approve_join.actions import DENIED, ELSEWHERE, NOT_APPROVED
from functions.approve_join.observe import Candidate, ObservedRequests, find_token_of_vm
from shared.base.names import APPROVED_BY_US, BOOTSTRAP_GROUP, find_resource_name
from shared.base.signing_requests import TOO_OLD_AFTER
from shared.frame.plan import Action, Each, Emit, Plan, Send, join_outcomes, plan_unread
from shared.node_groups import status
from shared.node_groups.membership import had_node
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.node_groups.work import message_about
from shared.ports.kubernetes.events import Event
from shared.triggers import routes
from shared.triggers.message import Cause, message_about_requests

SPENT = "SpentToken"
LATE_AFTER = timedelta(minutes=2)
"""A request that is pending longer is reported, whatever the obstacle, unless its group is being
deleted."""


def decide(observed: ObservedRequests, now: datetime) -> Plan:
    """Approve or deny each request, or leave it pending."""
    assessments = [_assess(candidate, now) for candidate in observed.candidates]
    # The decision and the report of a request are two objects of the plan, so that it is reported even
    # if its decision fails. Both come before the next request, for which there may be no time.
    each = tuple(
        Each(one.name, part)
        for one in assessments
        for part in (tuple(one.list_decisions(now)), tuple(one.list_reports()))
        if part
    )
    failed = [one.candidate.error for one in assessments if one.candidate.error is not None]
    message = message_about_requests(Cause.CONTINUED, now, observed.unread)
    unread = (Send(routes.APPROVE_JOIN, (message,)),) if observed.unread else ()
    first, last = plan_unread(unread, is_repetition=observed.is_repetition)
    # The timeline of a group shows the log lines that name it.
    groups = {one.group.uid: one.group for one in observed.candidates if one.group is not None}
    fields = [{"group": group.key, "uid": group.uid} for group in groups.values()]
    return Plan(
        join_outcomes(one.outcome for one in assessments) or "NothingToDo",
        each=(*first, *each),
        errors=(*failed, *observed.errors),
        best_effort=tuple(_plan_triggers(assessments, now)),
        if_all_succeeded=last,
        note="; ".join(f"{one.name}: {one.why}" for one in assessments if one.why),
        facts=fields[0] if len(fields) == 1 else {},
        needs_attention=any(
            one.has_log_line or one.outcome in (DENIED, NOT_APPROVED) for one in assessments
        ),
    )


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
            # If the API server rejects the approval, label_node reports it like a missing one.
            if_rejected = tuple(_plan_triggers([replace(self, outcome=NOT_APPROVED)], now))
            yield actions.Approve(approval, node, self.group_key, if_rejected)
        is_own = find_token_of_vm(self.candidate, now) == request.token_id
        if self.outcome == SPENT and self.candidate.has_node and is_own:
            # label_node has revoked it, but the call may have failed, or a late write may have followed.
            yield actions.Revoke(request.token_id, request.name, node, self.group_key, NOT_APPROVED)
        if self.outcome == DENIED:
            # The token first: after a crash in between, the request is still pending and is denied.
            yield actions.Revoke(request.token_id, request.name, node, self.group_key)
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
            yield actions.Report(self.outcome, self.why, request.name, subject.node, self.group_key)

    def _build_decision(self, kind: str, reason: str, message: str) -> actions.WriteDecision:
        condition = {"type": kind, "status": "True", "reason": reason, "message": message}
        return actions.WriteDecision(self.name, condition, self.candidate.raw)


def _assess(candidate: Candidate, now: datetime) -> _Assessment:
    request, subject, group = candidate.request, candidate.subject, candidate.group
    if request.is_approved_elsewhere:
        why = (
            f"another approver has approved it ({request.approver}), so a token of the group "
            f"{BOOTSTRAP_GROUP} is enough for any Node's certificate. Remove the binding or the "
            "approver that allows it"
        )
        return _Assessment(candidate, ELSEWHERE, why, has_log_line=True)
    if request.is_decided:
        return _Assessment(candidate, "Decided")
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
    if _has_joined(candidate, now):
        return _Assessment(candidate, SPENT, f"VM {subject.node} has joined: its token is spent")
    obstacle = _find_obstacle(candidate, now)
    if not obstacle:
        return _Assessment(candidate, "Approving")
    # A wrong token is reported on the group immediately (NotApproved), and in the log when it is late.
    has_other_token = find_token_of_vm(candidate, now) not in ("", request.token_id)
    outcome = NOT_APPROVED if is_late or has_other_token else "Pending"
    return _Assessment(candidate, outcome, obstacle, has_log_line=is_late)


def _has_joined(candidate: Candidate, now: datetime) -> bool:
    """Whether the VM has joined since it was last started, so that it needs no other certificate.

    A request that its kubelet left behind when it joined stays pending until Kubernetes deletes it.
    """
    group, instance = candidate.group, candidate.instance
    if instance is None or not isinstance(group, NodeGroup):
        return False
    known = status.parse(group.raw.get("status"))
    return candidate.has_node or had_node(group, known, instance, now)


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
    if not instance.is_member:
        return f"the MIG {group.resource_name} does not list VM {node} as its member"
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
    """Trigger label_node once for each group and cause: it reports at the VMs what delays them.

    A denied request with another token than this VM's is reported like one that is not approved: the
    VM's own request may still be approved.
    """
    vms: dict[tuple[str, Cause], dict[str, None]] = {}
    groups: dict[str, AnyGroup] = {}
    for one in assessments:
        group, request = one.candidate.group, one.candidate.request
        if group is None or one.outcome not in (DENIED, NOT_APPROVED):
            continue
        has_own_token = find_token_of_vm(one.candidate, now) == request.token_id
        is_final = one.outcome == DENIED and has_own_token
        cause = Cause.JOIN_DENIED if is_final else Cause.JOIN_NOT_APPROVED
        groups[group.uid] = group
        vm = one.candidate.subject.node.partition(".")[0]
        vms.setdefault((group.uid, cause), {})[vm] = None
    for (uid, cause), names in vms.items():
        yield Send(routes.LABEL_NODE, (message_about(groups[uid], cause, now, vms=tuple(names)),))
