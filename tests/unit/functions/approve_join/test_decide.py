"""approve_join approves a request, denies it or leaves it pending, and reports why."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from functions.approve_join.certificate_subject import Subject
from functions.approve_join.decide import ReportFailedApprovals, decide
from functions.approve_join.join_requests import Approve, Candidate, Report, Revoke, WriteDecision
from functions.approve_join.observe import ObservedRequests
from shared.base.signing_requests import SigningRequest, find_signing_request
from shared.frame.plan import ABORT_AFTER_FAILURE, Emit, Fail, ForOne, Plan, Send
from shared.node_groups.bootstrap import TOKEN_LIFE, Token
from shared.node_groups.node_group import NodeGroup
from shared.ports.errors import CallError
from shared.ports.gce.values import Instance
from shared.triggers.message import Cause, Message, message_about_requests
from tests.support.builders import NOW, RESOURCE, UID, flat, group, unreadable_group
from tests.support.signing_requests import kubelets, pem, raw_request
from tests.unit.functions.inject_token.test_decide import instance

VM = f"{RESOURCE}-ab12"
OWN = Token("abcdef", "x" * 16, NOW + timedelta(minutes=30))
RENEWED = Token("newnew", "x" * 16, NOW + TOKEN_LIFE)
SOON, LATE = NOW - timedelta(seconds=119), NOW - timedelta(minutes=2)
OLD = NOW - timedelta(minutes=20)
TEXT = pem(kubelets(VM))


def candidate(
    *, token: Token | None = OWN, found: bool = True, late: bool = False, **change: Any
) -> Candidate:
    raw = raw_request(TEXT)
    request = find_signing_request(raw)
    assert request is not None
    request = replace(request, created=LATE if late else SOON)
    vm: Instance | None = instance(VM, token=token) if found else None
    return replace(Candidate(request, Subject(VM), raw, group(), instance=vm), **change)


def decided(approver: str = "") -> SigningRequest:
    return replace(candidate().request, is_decided=True, approver=approver)


def describe(plan: Plan) -> list[str]:
    actions = (one for one in flat(plan) if not isinstance(one, ReportFailedApprovals))
    return [_describe_action(action) for action in actions]


def _describe_action(action: Any) -> str:
    match action:
        case Approve():
            return _describe_action(action.decision)
        case WriteDecision():
            return f"{action.condition['type']} {action.name}"
        case Revoke():
            return f"revoke {action.token_id}"
        case Emit():
            return f"event {action.event.reason}"
        case Report():
            return f"report Join{action.outcome}"
        case Send():
            (message,) = action.messages
            return f"{action.step} {message.cause} {' '.join((*message.vms, *message.requests))}"
        case Fail():
            return f"fail {action.error}"
    raise AssertionError(action)


UNAVAILABLE = CallError("instances.get", 503, "backendError", "away")
FOREIGN = replace(instance(VM, token=OWN), created_by="")
NOT_APPROVED = f"label_node JoinNotApproved {VM}"
DENY = ["revoke abcdef", "Denied csr-x", "event JoinDenied", "report JoinDenied"]
RENEWAL = (
    f"VM {VM} holds the token newnew, but the request was made with abcdef: the token was "
    "renewed, or it belongs to another VM"
)
CASES: dict[str, tuple[Candidate, str, list[str], str]] = {
    "the VM that holds the token": (candidate(), "Approving", ["Approved csr-x"], ""),
    "the VM that holds the token, after two minutes": (
        candidate(late=True),
        "Approving",
        ["Approved csr-x"],
        "",
    ),
    "the VM holds another token": (
        candidate(token=RENEWED),
        "NotApproved",
        [NOT_APPROVED],
        RENEWAL,
    ),
    "the VM holds another token for two minutes": (
        candidate(token=RENEWED, late=True),
        "NotApproved",
        ["report JoinNotApproved", NOT_APPROVED],
        RENEWAL,
    ),
    "the request is too old for its kubelet": (
        replace(candidate(), request=replace(candidate().request, created=OLD)),
        "NotApproved",
        ["report JoinNotApproved", NOT_APPROVED],
        "it is too old: its kubelet no longer waits for it",
    ),
    "an invalid request that was made with another token": (
        candidate(token=RENEWED, subject=Subject(VM, "it asks for alternative names")),
        "Denied",
        [*DENY, NOT_APPROVED],
        "it asks for alternative names",
    ),
    "the name of the VM with a domain": (
        candidate(subject=Subject(f"{VM}.c.p.internal")),
        "NotApproved",
        [NOT_APPROVED],
        f"{VM}.c.p.internal must be the VM's name alone: register the kubelet as {VM}",
    ),
    "the name of the VM with a domain, while its group is being deleted": (
        candidate(subject=Subject(f"{VM}.c.p.internal"), group=group(deleting=True), late=True),
        "Deleting",
        [],
        "",
    ),
    "the VM holds no token": (
        candidate(token=None),
        "Pending",
        [],
        f"the metadata of VM {VM} holds no token",
    ),
    "the VM holds no token for two minutes": (
        candidate(token=None, late=True),
        "NotApproved",
        ["report JoinNotApproved", NOT_APPROVED],
        f"the metadata of VM {VM} holds no token",
    ),
    "the VM is gone": (
        candidate(found=False),
        "Pending",
        [],
        f"Compute Engine has no VM {VM}",
    ),
    "the VM was not created by the MIG": (
        candidate(instance=FOREIGN),
        "Pending",
        [],
        f"VM {VM} was not created by the MIG {RESOURCE}",
    ),
    "its group is gone": (
        candidate(group=None, late=True),
        "NotApproved",
        ["report JoinNotApproved"],
        f"no TPUNodeGroup has a VM {VM}",
    ),
    "its group is being deleted": (
        candidate(group=group(deleting=True), late=True),
        "Deleting",
        [],
        "",
    ),
    "its group's project is not served": (
        candidate(is_served=False),
        "Pending",
        [],
        "this installation does not serve the project of group default/my-slice",
    ),
    "its group cannot be read": (
        candidate(group=unreadable_group()),
        "Pending",
        [],
        "the spec of group default/my-slice is invalid",
    ),
    "Compute Engine is unavailable": (
        candidate(found=False, error=UNAVAILABLE),
        "Pending",
        [f"fail {UNAVAILABLE}"],
        str(UNAVAILABLE),
    ),
    "the name of a control plane": (
        candidate(group=None, found=False, subject=Subject("control-plane-1")),
        "Denied",
        DENY,
        "control-plane-1 is not the name of a TPUNodeGroup's VM",
    ),
    "an alternative name": (
        candidate(subject=Subject(VM, "it asks for alternative names")),
        "Denied",
        [*DENY, f"label_node JoinDenied {VM}"],
        "it asks for alternative names",
    ),
    "an invalid request whose group cannot be read": (
        candidate(group=None, subject=Subject(VM, "it has two names"), error=UNAVAILABLE),
        "Denied",
        [*DENY, f"fail {UNAVAILABLE}"],
        "it has two names",
    ),
    "approved by this system": (
        candidate(request=decided("ApprovedByTpuFunctions")),
        "Decided",
        [],
        "",
    ),
    "denied or signed": (candidate(request=decided()), "Decided", [], ""),
    "approved by another approver": (
        candidate(request=decided("AutoApproved")),
        "ApprovedElsewhere",
        ["report JoinApprovedElsewhere"],
        "another approver has approved it (AutoApproved), so a token of the group "
        "system:bootstrappers:tpu-functions is enough for any Node's certificate. Remove the binding "
        "or the approver that allows it",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_request_is_approved_denied_or_left_pending(
    case: tuple[Candidate, str, list[str], str],
) -> None:
    request, outcome, actions, why = case
    plan = decide(ObservedRequests((request,)), NOW)
    assert plan.outcome == outcome
    assert describe(plan) == actions
    assert plan.note == (f"csr-x: {why}" if why else "")
    assert plan.needs_attention == (outcome in ("Denied", "NotApproved", "ApprovedElsewhere"))


def test_the_condition_and_the_event_of_a_denial_name_the_violation() -> None:
    invalid = candidate(subject=Subject(VM, "it asks for alternative names"))
    actions = flat(decide(ObservedRequests((invalid,)), NOW))
    (denial,) = [action for action in actions if isinstance(action, WriteDecision)]
    assert denial.condition == {
        "type": "Denied",
        "status": "True",
        "reason": "DeniedByTpuFunctions",
        "message": "Denied: it asks for alternative names.",
    }
    (event,) = [action for action in actions if isinstance(action, Emit)]
    assert event.event.message == (
        "Signing request csr-x by token abcdef is denied: it asks for alternative names."
    )
    assert event.event.is_warning
    assert event.about == group().raw


def test_the_event_of_a_request_without_a_group_is_about_the_request() -> None:
    invalid = candidate(group=None, subject=Subject("control-plane-1"))
    actions = flat(decide(ObservedRequests((invalid,)), NOW))
    (event,) = [action for action in actions if isinstance(action, Emit)]
    assert event.about == invalid.raw


def test_each_request_of_a_message_is_decided_independently() -> None:
    def named(name: str, **change: Any) -> Candidate:
        one = candidate(**change)
        return replace(one, request=replace(one.request, name=name))

    three = (named("one"), named("two", token=RENEWED), named("three"))
    observed = ObservedRequests(three, unread=("four", "five"), errors=(UNAVAILABLE,))
    plan = decide(observed, NOW)
    assert plan.outcome == "Approving,NotApproved"
    assert describe(plan) == [
        "approve_join Continued four five",
        "Approved one",
        "Approved three",
        NOT_APPROVED,
        f"fail {UNAVAILABLE}",
    ]


def test_a_repetition_publishes_unread_requests_only_if_nothing_fails() -> None:
    observed = ObservedRequests((candidate(),), unread=("four",), is_repetition=True)
    *_, barrier, last = decide(observed, NOW).actions
    assert barrier == ABORT_AFTER_FAILURE
    assert last == ForOne((Send("approve_join", (rest_of("four"),)),))


def rest_of(*names: str) -> Message:
    return message_about_requests(Cause.CONTINUED, NOW, names)


def test_many_requests_trigger_label_node_once() -> None:
    many = tuple(candidate(token=RENEWED) for _ in range(5))
    plan = decide(ObservedRequests(many), NOW)
    assert describe(plan) == [NOT_APPROVED]
    (send,) = (action for action in flat(plan) if isinstance(action, Send))
    assert send.messages[0].cause is Cause.JOIN_NOT_APPROVED


def test_requests_that_are_gone_need_no_action() -> None:
    assert decide(ObservedRequests(), NOW) == Plan("NothingToDo")


@pytest.mark.parametrize("http", [409, 429, 503])
def test_a_transient_error_is_raised_before_a_permanent_one(http: int) -> None:
    permanent = CallError("GET certificatesigningrequests", 422, "Invalid", "no")
    transient = CallError("GET certificatesigningrequests", http, "", "later")
    plan = decide(ObservedRequests(errors=(permanent, transient)), NOW)
    assert describe(plan) == [f"fail {transient}", f"fail {permanent}"]


OTHER = group(uid="another")
NAMED = {"group": "default/my-slice", "uid": UID}


@pytest.mark.parametrize(
    "groups, named",
    [((), {}), ((None,), {}), ((group(), None, group()), NAMED), ((group(), OTHER), {})],
    ids=["no request", "no group", "one group", "two groups"],
)
def test_the_log_line_names_the_group_if_all_requests_are_for_one_group(
    groups: tuple[NodeGroup | None, ...], named: dict[str, str]
) -> None:
    candidates = tuple(candidate(group=one) for one in groups)
    assert decide(ObservedRequests(candidates), NOW).facts == named
