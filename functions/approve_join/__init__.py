"""approve_join: approve a certificate request for a VM's Node if it was made with that VM's token.

Triggers: messages that name CertificateSigningRequests of kubelets that use this system's bootstrap
tokens:

- The relay publishes new requests, and the sweep those that are still pending. Both also publish
  requests that another approver has approved, which are only logged: such an approver compares no
  tokens, so with it the token of any VM is enough for any Node's certificate.
- The step itself publishes the requests for which it had no time.

A request is approved if it has exactly the form that a kubelet sends, its Node has the name of a VM
that the MIG of a group created, and that VM's metadata holds the token of the requester. This
installation must serve the group's project, and the group must not be being deleted.

A request is denied only if it can never become valid: it has another form, or its Node name is not
formed like the name of a group's VM. Its token is revoked, because a denied kubelet makes a new request
every 32 seconds.

Any other request stays pending, with one of these outcomes:

- ``Pending``, while the obstacle may end by itself: for example, an API is unavailable.
- ``NotApproved``, if the VM holds another token, if the Node name is a VM's name with a domain, and for
  any obstacle that lasts longer than two minutes.
- ``Deleting``, if the group is being deleted.

A kubelet waits 15 minutes, and a request that is older than 20 is not approved any more.

A revoked token stays in its VM's metadata, and inject_token may create its Secret again. If its holder
then makes another request of a wrong form, it is denied again.

The step writes no status, because a group's start makes as many requests as it has VMs. It triggers
label_node, which reports the requests that are denied or NotApproved on the group. A request that is
denied, late, or approved by another, or whose approval the API server rejects, also gets a log line of
its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from functions.approve_join.join_requests import (
    DENIED,
    ELSEWHERE,
    NOT_APPROVED,
    Approve,
    Cache,
    Candidate,
    JoinWork,
    Report,
    Revoke,
    WriteDecision,
    find_candidate,
    find_token_of_vm,
)
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
from shared.frame.snapshot import Rules
from shared.frame.step import Invocation, Step, is_retried, work_fields
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.node_groups.snapshot import RULES, leave_out_all
from shared.node_groups.work import message_about
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.kubernetes.events import Event
from shared.triggers.message import Cause, message_about_requests

SECONDS_FOR_WRITING = 15.0
"""Reading leaves so many seconds for writing."""
LATE_AFTER = timedelta(minutes=2)
"""A request that is pending longer is reported, whatever the obstacle, unless its group is being
deleted."""
_LABEL_NODE_CAUSES = {DENIED: Cause.JOIN_DENIED, NOT_APPROVED: Cause.JOIN_NOT_APPROVED}
"""The causes of the messages to label_node about these outcomes."""


@dataclass(frozen=True)
class ObservedRequests:
    """The requests that the trigger names."""

    candidates: tuple[Candidate, ...] = ()
    unread: tuple[str, ...] = ()
    """The names of requests that there was no time to read."""
    is_repetition: bool = False
    """Whether this is a later attempt: the message was redelivered, or is observed again. An earlier
    attempt may have published the unread names, so this one does only if all else succeeds
    (`forward_rest`)."""
    errors: tuple[CallError | OutOfTimeError, ...] = ()
    """The errors of requests that could not be read."""


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


def open_work(invocation: Invocation, is_first_observation: bool) -> JoinWork:
    """The work on the requests that the trigger names. Raises `CallError`."""
    # The connection keeps the id for `shared.frame.runtime`, which adds it to published messages. Read
    # here, so that a failure ends the invocation before anything is written.
    invocation.cluster.get_cluster_id()
    return JoinWork(
        **work_fields(invocation, is_first_observation=is_first_observation),
        log=invocation.runtime.log,
    )


def observe(work: JoinWork) -> ObservedRequests:
    """Read each request, its group and its VM, as long as time for writing is left.

    The first request is always read, so that messages about the rest do not follow each other forever.
    """
    candidates: list[Candidate] = []
    errors: list[CallError | OutOfTimeError] = []
    message = work.trigger.message
    names = message.requests if message is not None else ()
    cache = Cache(work)
    with work.reserve(SECONDS_FOR_WRITING):
        for index, name in enumerate(names):
            if index and not work.has_time():
                is_repetition = work.trigger.is_redelivered or not work.is_first_observation
                unread = names[index:]
                return ObservedRequests(tuple(candidates), unread, is_repetition, tuple(errors))
            try:
                candidate = find_candidate(work, cache, name)
            except (CallError, OutOfTimeError) as error:
                errors.append(error)
                continue
            if candidate is not None:
                candidates.append(candidate)
    return ObservedRequests(tuple(candidates), errors=tuple(errors))


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
    sends = [Send("approve_join", (rest,))] if observed.unread else []
    return forward_rest(plan, sends, is_repetition=observed.is_repetition)


def recover(_work: JoinWork, _error: CallError) -> Plan | None:
    """No plan: requests that could not be read or decided stay pending. Transient errors are retried."""
    return None


SNAPSHOT: Rules = {**RULES, (Candidate, "raw"): leave_out_all}
STEP = Step("approve_join", open_work, observe, decide, recover, snapshot=SNAPSHOT)
run = STEP.run


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
        return "it is so old that no kubelet waits for it any more"
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
        yield Send("label_node", (message_about(groups[uid], cause, now, vms=tuple(names)),))
