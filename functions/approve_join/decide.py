"""Which requests of kubelets to approve and to deny, and which to report."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from functions.approve_join import actions
from functions.approve_join.actions import DENIED, ELSEWHERE, NOT_APPROVED
from functions.approve_join.observe import Candidate, ObservedRequests, find_token_of_vm
from shared.base.names import APPROVED_BY_US, BOOTSTRAP_GROUP
from shared.base.signing_requests import TOO_OLD_AFTER
from shared.frame.plan import Action, Each, Plan, Send, join_outcomes, plan_unread
from shared.node_groups.membership import had_node
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.node_groups.work import message_about
from shared.ports.errors import CallError
from shared.triggers import routes
from shared.triggers.message import Cause, message_about_requests

SPENT, RENEWED = "SpentToken", "RenewedToken"
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
        for part in (
            tuple(one.list_decisions(now)),
            (one.build_report(),) if one.is_reported else (),
        )
        if part
    )
    failed = [
        one.candidate.error
        for one in assessments
        if one.candidate.error is not None and not _must_be_repaired(one.candidate)
    ]
    message = message_about_requests(Cause.CONTINUED, now, observed.unread)
    unread = (Send(routes.APPROVE_JOIN, (message,)),) if observed.unread else ()
    at_once, at_end = plan_unread(unread, is_repetition=observed.is_repetition)
    # The timeline of a group shows the log lines that name it.
    groups = {one.group.uid: one.group for one in observed.candidates if one.group is not None}
    fields = [{"group": group.key, "uid": group.uid} for group in groups.values()]
    return Plan(
        join_outcomes(one.outcome for one in assessments) or "NothingToDo",
        each=(*at_once, *each),
        errors=(*failed, *observed.errors),
        best_effort=tuple(_plan_triggers(assessments, now)),
        if_all_succeeded=at_end,
        note="; ".join(f"{one.name}: {one.why}" for one in assessments if one.why),
        facts=fields[0] if len(fields) == 1 else {},
    )


def _must_be_repaired(candidate: Candidate) -> bool:
    """Whether the VM of a group cannot be read until an administrator changes something. That is
    reported, and the sweep repeats the message: refused, it would delay the requests of all groups."""
    error = candidate.error
    is_lasting = isinstance(error, CallError) and error.reason is not None
    return is_lasting and candidate.group is not None


@dataclass(frozen=True)
class _Assessment:
    """The outcome of one request, and why it is not approved."""

    candidate: Candidate
    outcome: str
    why: str = ""
    is_reported: bool = False
    """Whether it gets an Event and a log line of its own. An alert counts these lines."""

    @property
    def name(self) -> str:
        return self.candidate.request.name

    def list_decisions(self, now: datetime) -> Iterator[Action]:
        """The actions that approve or deny the request; none if it stays as it is."""
        request, node = self.candidate.request, self.candidate.subject.node
        if self.outcome == "Approving":
            message = f"VM {node} holds the token {request.token_id} that made the request."
            approval = self._build_decision("Approved", APPROVED_BY_US, message)
            # If the API server rejects the approval, label_node reports it like a missing one.
            rejected = replace(self, outcome=NOT_APPROVED)
            triggers = tuple(_plan_triggers([rejected], now))
            yield replace(approval, if_rejected=rejected.build_report(), triggers=triggers)
        is_own = find_token_of_vm(self.candidate, now) == request.token_id
        if self.outcome == SPENT and self.candidate.has_node and is_own:
            # label_node has revoked it, but the call may have failed, or a late write may have followed.
            yield actions.Revoke(self.build_report())
        if self.outcome == DENIED:
            # The token first: after a crash in between, the request is still pending and is denied.
            yield actions.Revoke(self.build_report())
            yield self._build_decision("Denied", "DeniedByTpuFunctions", f"Denied: {self.why}.")

    def build_report(self) -> actions.Report:
        """The Event and the log line about the request."""
        request, group = self.candidate.request, self.candidate.group
        secret = actions.build_secret_reference(request.token_id)
        about, key = (secret, "") if group is None else (group.raw, group.key)
        node = self.candidate.subject.node
        return actions.Report(self.outcome, self.why, request, about, node, key)

    def _build_decision(self, kind: str, reason: str, message: str) -> actions.WriteDecision:
        condition = {"type": kind, "status": "True", "reason": reason, "message": message}
        return actions.WriteDecision(self.name, condition, self.candidate.raw)


def _assess(candidate: Candidate, now: datetime) -> _Assessment:
    request, node, vm = candidate.request, candidate.subject.node, candidate.node_vm
    if request.is_approved_elsewhere:
        why = (
            f"another approver has approved it ({request.approver}), so a token of the group "
            f"{BOOTSTRAP_GROUP} is enough for any Node's certificate. Remove the binding or the "
            "approver that allows it"
        )
        return _Assessment(candidate, ELSEWHERE, why, is_reported=True)
    if request.is_decided:
        return _Assessment(candidate, "Decided")
    if candidate.violation:
        return _Assessment(candidate, DENIED, candidate.violation, is_reported=True)
    if candidate.group is not None and candidate.group.deleting is not None:
        return _Assessment(candidate, "Deleting")
    is_late = now - request.created >= LATE_AFTER
    if node != vm:
        why = f"its Node must have the VM's name alone: register the kubelet as {vm}"
        return _Assessment(candidate, NOT_APPROVED, why, is_late)
    if _has_joined(candidate, now):
        return _Assessment(candidate, SPENT, f"VM {vm} has joined: its token is spent")
    if find_token_of_vm(candidate, now) not in ("", request.token_id):
        why = f"VM {vm} has got another token since: it makes a request with that one"
        return _Assessment(candidate, RENEWED, why)
    obstacle = _find_obstacle(candidate, now)
    if not obstacle:
        return _Assessment(candidate, "Approving")
    return _Assessment(candidate, NOT_APPROVED if is_late else "Pending", obstacle, is_late)


def _has_joined(candidate: Candidate, now: datetime) -> bool:
    """Whether the VM has joined since it was last started, so that it needs no other certificate.

    A request that its kubelet left behind when it joined stays pending until Kubernetes deletes it.
    """
    group, instance = candidate.group, candidate.instance
    if instance is None or not isinstance(group, NodeGroup):
        return False
    return candidate.has_node or had_node(group, candidate.status, instance, now)


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
    if instance.id != candidate.request.token_vm_id:
        return f"its token belongs to an earlier VM {node}"
    if not find_token_of_vm(candidate, now):
        return f"the metadata of VM {node} holds no token"
    return ""


def _plan_triggers(assessments: Sequence[_Assessment], now: datetime) -> Iterator[Send]:
    """Trigger label_node once for each group and cause, if the status does not report it yet: it reports
    at the VMs that own the tokens what delays them."""
    vms: dict[tuple[str, Cause], dict[str, None]] = {}
    groups: dict[str, AnyGroup] = {}
    for one in assessments:
        group, vm = one.candidate.group, one.candidate.request.token_vm
        if group is None or one.outcome not in (DENIED, NOT_APPROVED):
            continue
        cause = Cause.JOIN_DENIED if one.outcome == DENIED else Cause.JOIN_NOT_APPROVED
        if any(known.name == vm and known.why == cause for known in one.candidate.status.pending):
            continue
        groups[group.uid] = group
        vms.setdefault((group.uid, cause), {})[vm] = None
    for (uid, cause), names in vms.items():
        yield Send(routes.LABEL_NODE, (message_about(groups[uid], cause, now, vms=tuple(names)),))
