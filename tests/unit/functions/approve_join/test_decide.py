"""approve_join approves a request, denies it or leaves it pending, and reports why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from functions.approve_join.actions import Report, Revoke, WriteDecision
from functions.approve_join.certificate_subject import Subject
from functions.approve_join.decide import decide
from functions.approve_join.observe import Candidate, ObservedRequests
from shared.frame.plan import Fail, Plan, Send
from shared.node_groups.node_group import NodeGroup
from shared.ports.errors import CallError
from shared.triggers.message import Cause, Message, message_about_requests
from tests.support.builders import NOW, UID, flat, group
from tests.unit.functions.approve_join.cases import (
    CASES,
    NOT_APPROVED,
    UNAVAILABLE,
    VM,
    candidate,
)


def describe(plan: Plan) -> list[str]:
    return [_describe_action(action) for action in flat(plan)]


def _describe_action(action: Any) -> str:
    match action:
        case WriteDecision():
            return f"{action.condition['type']} {action.name}"
        case Revoke():
            return f"revoke {action.if_rejected.request.token_id}"
        case Report():
            return f"report Join{action.outcome}"
        case Send():
            (message,) = action.messages
            return f"{action.step} {message.cause} {' '.join((*message.vms, *message.requests))}"
        case Fail():
            return f"fail {action.error}"
    raise AssertionError(action)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_request_is_approved_denied_or_left_pending(
    case: tuple[Candidate, str, list[str], str],
) -> None:
    request, outcome, actions, why = case
    plan = decide(ObservedRequests((request,)), NOW)
    assert plan.outcome == outcome
    assert describe(plan) == actions
    assert plan.note == (f"csr-x: {why}" if why else "")
    assert not plan.needs_attention, "a report has a line of its own"


def test_a_group_whose_vms_may_not_be_read_delays_no_requests_of_others() -> None:
    forbidden = CallError("instances.get", 403, "forbidden", "Required 'x' permission")
    for about, errors in ((group(), ()), (None, (forbidden,))):
        one = replace(candidate(late=True), group=about, error=forbidden)
        plan = decide(ObservedRequests((one,)), NOW)
        assert (plan.outcome, plan.errors) == ("NotApproved", errors)


def test_the_condition_of_a_denial_names_the_violation() -> None:
    invalid = candidate(subject=Subject(VM, "it asks for alternative names"))
    actions = flat(decide(ObservedRequests((invalid,)), NOW))
    (denial,) = [action for action in actions if isinstance(action, WriteDecision)]
    assert denial.condition == {
        "type": "Denied",
        "status": "True",
        "reason": "DeniedByTpuFunctions",
        "message": "Denied: it asks for alternative names.",
    }


@pytest.mark.parametrize("is_known", [True, False])
def test_the_report_of_a_denial_is_about_the_group_of_the_tokens_owner_or_the_tokens_secret(
    is_known: bool,
) -> None:
    one = candidate(group=group() if is_known else None, subject=Subject("control-plane-1"))
    actions = flat(decide(ObservedRequests((one,)), NOW))
    (report,) = [action for action in actions if isinstance(action, Report)]
    secret = {"name": "bootstrap-token-abcdef", "namespace": "kube-system"}
    assert report.group == ("default/my-slice" if is_known else "")
    assert (
        report.about["metadata"].items()
        >= (group().raw["metadata"] if is_known else secret).items()
    )


def test_each_request_of_a_message_is_decided_independently() -> None:
    def named(name: str, **change: Any) -> Candidate:
        one = candidate(**change)
        return replace(one, request=replace(one.request, name=name))

    three = (named("one"), named("two", token=None, late=True), named("three"))
    observed = ObservedRequests(three, unread=("four", "five"), errors=(UNAVAILABLE,))
    plan = decide(observed, NOW)
    assert plan.outcome == "Approving,NotApproved"
    assert describe(plan) == [
        "approve_join Continued four five",
        "Approved one",
        "report JoinNotApproved",
        "Approved three",
        f"fail {UNAVAILABLE}",
        NOT_APPROVED,
    ]


def test_a_repetition_publishes_unread_requests_only_if_nothing_fails() -> None:
    observed = ObservedRequests((candidate(),), unread=("four",), is_repetition=True)
    plan = decide(observed, NOW)
    assert plan.if_all_succeeded == (Send("approve_join", (rest_of("four"),)),)
    assert sum(isinstance(action, Send) for action in flat(plan)) == 1


def rest_of(*names: str) -> Message:
    return message_about_requests(Cause.CONTINUED, NOW, names)


def test_many_requests_trigger_label_node_once() -> None:
    many = tuple(candidate(token=None, late=True) for _ in range(5))
    plan = decide(ObservedRequests(many), NOW)
    assert describe(plan) == ["report JoinNotApproved"] * 5 + [NOT_APPROVED]
    (send,) = (action for action in flat(plan) if isinstance(action, Send))
    assert send.messages[0].cause is Cause.JOIN_NOT_APPROVED


def test_requests_that_are_gone_need_no_action() -> None:
    assert decide(ObservedRequests(), NOW) == Plan("NothingToDo")


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
