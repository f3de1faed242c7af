# ruff: noqa: E501  (a table reads best with a row on a line)
"""The reads of approve_join about a request, its group and its VM, within the time limit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from functions.approve_join.actions import Report, Revoke
from functions.approve_join.certificate_subject import Subject
from functions.approve_join.decide import decide
from functions.approve_join.observe import Candidate, ObservedRequests, observe
from shared.base.logs import make_logger
from shared.base.names import VM_ID_LABEL
from shared.frame.execution import execute
from shared.frame.plan import Work
from shared.node_groups import node_group
from shared.node_groups.bootstrap import Token
from shared.node_groups.status import Counts, Status
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce.calls import Gce
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.nodes import parse_node
from shared.triggers.message import Cause, message_about_requests
from shared.triggers.trigger import ObjectTrigger, TimeTrigger
from tests.support.builders import CLUSTER, NOW, RESOURCE, SETTINGS, raw_group
from tests.support.compute import instance
from tests.support.reads import Reads
from tests.support.signing_requests import kubelets, pem, raw_request
from tests.unit.functions.approve_join.cases import candidate

VM = f"{RESOURCE}-ab12"
OWNER = f"{VM}:42"
RAW = raw_request(pem(kubelets(VM)), owner=OWNER)
DECIDED = {**RAW, "status": {"conditions": [{"type": "Denied"}]}}
BY_NOBODY = raw_request(pem(kubelets(VM)))
ELSEWHERE = raw_request(pem(kubelets("another-node")), owner=OWNER)
OTHER_VM = raw_request(pem(kubelets(f"{RESOURCE}-zz99")), owner=OWNER)
APPROVED = [{"type": "Approved", "reason": "ByHand"}]
APPROVED_ELSEWHERE = raw_request(pem(kubelets(VM)), owner=OWNER, conditions=APPROVED)
WITH_DOMAIN = raw_request(pem(kubelets(f"{VM}.c.p.internal")), owner=OWNER)
FORBIDDEN = CallError("GET x", 403, "Forbidden", "may not")
ANSWERS: dict[str, Any] = {
    "find_signing_request": RAW,
    "get_cluster_id": CLUSTER,
    "list_recent_groups_named": [raw_group(uid="another"), raw_group()],
    "find_instance": instance(VM),
    "list_recent_nodes": [],
}


def joining(
    *names: str, remaining_s: Callable[[], float] = lambda: 30.0, **answers: Any
) -> tuple[Work, Reads]:
    reads, nothing = Reads(ANSWERS | answers), cast("Any", None)
    message = message_about_requests(Cause.JOIN_REQUESTED, NOW, names or ("csr",))
    work = Work(
        settings=SETTINGS,
        gce=cast("Gce", reads),
        cluster=cast("Cluster", reads),
        publish=nothing,
        random_bytes=bytes,
        remaining_s=remaining_s,
        now=NOW,
        trigger=ObjectTrigger(message),
        log=make_logger(),
    )
    return work, reads


PROVED = parse_node(
    {"metadata": {"name": VM, "uid": "u", "labels": {VM_ID_LABEL: instance(VM).id}}}
)
ONE_JOINED = raw_group(status={"nodeSummary": {"joined": 1}})
GROUP = ["get_cluster_id", "list_recent_groups_named"]
CASES: dict[str, tuple[dict[str, Any], list[str], dict[str, Any] | None]] = {
    "for a Node of a group": ({}, [*GROUP, "find_instance"], {"group": node_group.parse(raw_group(), CLUSTER), "instance": instance(VM)}),
    "for a Node whose VM has joined": ({"list_recent_nodes": [PROVED], "list_recent_groups_named": [ONE_JOINED]}, [*GROUP, "find_instance", "list_recent_nodes"], {"group": node_group.parse(ONE_JOINED, CLUSTER), "status": Status(counts=Counts(joined=1)), "instance": instance(VM), "has_node": True}),
    "for a Node whose VM does not exist": ({"find_instance": None}, [*GROUP, "find_instance"], {"group": node_group.parse(raw_group(), CLUSTER)}),
    "deleted": ({"find_signing_request": None}, [], None),
    "to another signer": ({"find_signing_request": {**RAW, "spec": {**RAW["spec"], "signerName": "x"}}}, [], None),
    "for a Node named like its VM with a domain": (
        {"find_signing_request": WITH_DOMAIN},
        [*GROUP, "find_instance"],
        {"group": node_group.parse(raw_group(), CLUSTER), "instance": instance(VM)},
    ),
    "for a Node of no group": ({"find_signing_request": ELSEWHERE}, GROUP, {"group": node_group.parse(raw_group(), CLUSTER)}),
    "for the Node of another VM": ({"find_signing_request": OTHER_VM}, GROUP, {"group": node_group.parse(raw_group(), CLUSTER)}),
    "approved by another approver": ({"find_signing_request": APPROVED_ELSEWHERE}, GROUP, {"group": node_group.parse(raw_group(), CLUSTER)}),
    "by a token that names no VM": ({"find_signing_request": BY_NOBODY}, [], {}),
    "for a group that does not exist": ({"list_recent_groups_named": [raw_group(uid="another")]}, GROUP, {}),
    "for a group that is being deleted": (
        {"list_recent_groups_named": [raw_group(deleting=True)]},
        GROUP,
        {"group": node_group.parse(raw_group(deleting=True), CLUSTER)},
    ),
    "for a group that is not served": (
        {"list_recent_groups_named": [raw_group(change={"project": "other-project"})]},
        GROUP,
        {
            "group": node_group.parse(raw_group(change={"project": "other-project"}), CLUSTER),
            "is_served": False,
        },
    ),
    "the group cannot be read": ({"list_recent_groups_named": FORBIDDEN}, GROUP, {"error": FORBIDDEN}),
    "the VM cannot be read": ({"find_instance": FORBIDDEN}, [*GROUP, "find_instance"], {"group": node_group.parse(raw_group(), CLUSTER), "error": FORBIDDEN}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_group_and_the_vm_of_a_request_are_read(
    case: tuple[dict[str, Any], list[str], dict[str, Any] | None],
) -> None:
    answers, calls, expected = case
    work, reads = joining(**answers)
    observed = observe(work)
    assert reads.calls == ["find_signing_request", *calls]
    assert (observed.unread, observed.errors) == ((), ())
    if expected is None:
        assert observed.candidates == ()
        return
    (found,) = observed.candidates
    base = Candidate(found.request, found.subject, found.raw)
    assert found == replace(base, **expected)
    assert found.raw == answers.get("find_signing_request", RAW)


def test_a_decided_request_causes_no_further_read() -> None:
    work, reads = joining(find_signing_request=DECIDED)
    (found,) = observe(work).candidates
    assert found.request.is_decided
    assert reads.calls == ["find_signing_request"]


def test_a_group_and_a_vm_are_read_once_for_many_requests() -> None:
    work, reads = joining("csr-1", "csr-2", "csr-3")
    assert len(observe(work).candidates) == 3
    assert {call: reads.calls.count(call) for call in reads.calls} == {
        "find_signing_request": 3,
        "get_cluster_id": 1,
        "list_recent_groups_named": 1,
        "find_instance": 1,
    }


HELD, OTHERS = Token("abcdef", "x" * 16, NOW), Token("zzzzzz", "x" * 16, NOW)
ALL = [f"{RESOURCE}-{number:04}" for number in range(3)]
VMS = {name: instance(name, token=HELD) for name in ALL}
LISTS: dict[str, tuple[Any, list[str]]] = {
    "all": ([*VMS.values()], []),
    "not the last one": ([*VMS.values()][:2], ALL[2:]),
    "the last one with another token": ([*[*VMS.values()][:2], instance(ALL[2], token=OTHERS)], ALL[2:]),
    "the last one before it had a token": ([*[*VMS.values()][:2], instance(ALL[2])], ALL[2:]),
    "nothing, because the list is rejected": (FORBIDDEN, ALL),
}  # fmt: skip


@pytest.mark.parametrize("case", LISTS.values(), ids=LISTS)
def test_the_vms_of_a_message_are_read_from_one_list_and_by_name_what_it_lacks(
    case: tuple[Any, list[str]],
) -> None:
    listed, by_name = case
    requests = {f"csr-{vm}": raw_request(pem(kubelets(vm)), owner=f"{vm}:42") for vm in ALL}
    read: list[str] = []

    def find(_project: str, _zone: str, name: str) -> Any:
        read.append(name)
        return VMS[name]

    answers = {"list_instances_named": listed, "find_instance": find}
    work, reads = joining(*requests, find_signing_request=requests.__getitem__, **answers)
    observed = observe(work)
    assert [one.instance for one in observed.candidates] == [*VMS.values()]
    assert (reads.calls.count("list_instances_named"), read) == (1, by_name)
    assert observed.errors == ()


def test_reading_requests_leaves_time_for_their_vms_and_for_writing() -> None:
    kept, left = [0.0], dict[str, float]()

    @contextmanager
    def reserve(seconds: float) -> Iterator[None]:
        kept.append(seconds)
        yield
        kept.pop()

    def read(what: str, answer: Any) -> Any:
        return lambda *_: (left.setdefault(what, kept[-1]), answer)[1]

    answers = {"find_signing_request": read("request", RAW), "find_instance": read("VM", None)}
    observe(replace(joining(**answers)[0], reserve=reserve))
    assert left == {"request": 20.0, "VM": 15.0}


@pytest.mark.parametrize("error", [FORBIDDEN, OutOfTimeError("slow")])
def test_an_unreadable_request_does_not_stop_the_others(error: Exception) -> None:
    def find(name: str) -> Any:
        if name == "csr-1":
            raise error
        return RAW

    observed = observe(joining("csr-1", "csr-2", find_signing_request=find)[0])
    assert observed.errors == (error,)
    assert len(observed.candidates) == 1


@pytest.mark.parametrize("seconds, unread", [(1.0, ()), (0.0, ("csr-2",))])
def test_all_requests_but_the_first_are_left_unread_beyond_the_time_limit(
    seconds: float, unread: tuple[str, ...]
) -> None:
    def remaining_s() -> float:
        if not seconds:
            raise OutOfTimeError("no time")
        return seconds

    observed = observe(joining("csr-1", "csr-2", remaining_s=remaining_s)[0])
    assert observed.unread == unread
    assert len(observed.candidates) == 2 - len(unread)


@pytest.mark.parametrize(
    "is_redelivered, is_first, is_repetition",
    [(False, True, False), (True, True, True), (False, False, True)],
    ids=["first", "redelivered", "observed again"],
)
def test_a_redelivered_message_and_a_second_observation_are_repetitions(
    is_redelivered: bool, is_first: bool, is_repetition: bool
) -> None:
    def remaining_s() -> float:
        raise OutOfTimeError("no time")

    work, _ = joining("csr-1", "csr-2", remaining_s=remaining_s)
    trigger = replace(work.trigger, is_redelivered=is_redelivered)
    observed = observe(replace(work, trigger=trigger, is_first_observation=is_first))
    assert (observed.unread, observed.is_repetition) == (("csr-2",), is_repetition)


def test_a_trigger_without_a_request_observes_none() -> None:
    work, _ = joining()
    assert observe(replace(work, trigger=TimeTrigger(NOW))) == ObservedRequests()


REQUEST = candidate().request
REPORT = Report("Denied", "why", REQUEST, raw_group(), "node", "group")
REPORTS: dict[str, tuple[Report, str, str]] = {
    "not approved": (replace(REPORT, outcome="NotApproved"), "WARNING", "is not approved"),
    "denied": (REPORT, "ERROR", "is denied"),
    "approved elsewhere": (replace(REPORT, outcome="ApprovedElsewhere"), "ERROR", "is approved"),
}


@pytest.mark.parametrize("report, severity, verb", REPORTS.values(), ids=REPORTS)
def test_an_event_and_a_log_line_about_a_request_name_the_owner_of_its_token(
    report: Report, severity: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[Any] = []

    def emit_once(*event: Any) -> bool:
        events.append(event)
        return True

    report.apply(joining(emit_once=emit_once)[0])
    line = json.loads(capsys.readouterr().out)
    assert line["severity"] == severity
    fields = ("decision", "note", "vm", "request", "node", "group", "step")
    assert [line[key] for key in fields] == [
        f"Join{report.outcome}", "why", VM, "csr-x", "node", "group", "approve_join",
    ]  # fmt: skip
    ((about, event, _),) = events
    assert about == raw_group()
    assert event.message == f"Signing request csr-x by token abcdef of VM {VM} {verb}: why."
    assert (event.reason, event.is_warning) == (f"Join{report.outcome}", True)


FOREIGN = replace(REPORT, request=replace(REQUEST, token_vm=""))
SAME_CAUSE: dict[str, tuple[Report, Report, bool]] = {
    "another request": (REPORT, replace(REPORT, request=replace(REQUEST, name="csr-y")), True),
    "another token of the VM": (REPORT, replace(REPORT, request=replace(REQUEST, token_id="x")), True),
    "a denial in other words": (REPORT, replace(REPORT, note="its holder chose these"), True),
    "another VM": (REPORT, replace(REPORT, request=replace(REQUEST, token_vm="tng-x")), False),
    "another token of no VM": (FOREIGN, replace(FOREIGN, request=replace(FOREIGN.request, token_id="x")), False),
    "another obstacle": (REPORTS["not approved"][0], replace(REPORT, outcome="NotApproved", note="other"), False),
}  # fmt: skip


@pytest.mark.parametrize("first, second, is_same", SAME_CAUSE.values(), ids=SAME_CAUSE)
def test_a_cause_is_logged_once_for_each_owner_of_a_token_while_its_event_exists(
    first: Report, second: Report, is_same: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    known: set[tuple[str, str]] = set()

    def emit_once(_about: Any, event: Any, _now: Any) -> bool:
        is_new = (event.reason, event.key) not in known
        known.add((event.reason, event.key))
        return is_new

    for report in (first, second):
        report.apply(joining(emit_once=emit_once)[0])
    assert len(capsys.readouterr().out.splitlines()) == (1 if is_same else 2)


def test_a_request_is_logged_even_if_its_event_cannot_be_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    REPORT.apply(joining(emit_once=FORBIDDEN)[0])
    assert json.loads(capsys.readouterr().out)["decision"] == "JoinDenied"


def test_a_token_that_cannot_be_revoked_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    Revoke(REPORT).apply(joining(delete_token_secret=FORBIDDEN, emit_once=True)[0])
    note = json.loads(capsys.readouterr().out)["note"]
    assert note.startswith("its token abcdef could not be revoked: GET x: 403 Forbidden: may not.")
    assert "Delete the Secret bootstrap-token-abcdef in kube-system" in note
    Revoke(REPORT).apply(joining(delete_token_secret=None)[0])
    assert capsys.readouterr().out == ""
    unavailable = CallError("DELETE x", 503, "unavailable", "later")
    with pytest.raises(CallError, match="later"):
        Revoke(REPORT).apply(joining(delete_token_secret=unavailable)[0])


WRITE_FORBIDDEN, INVALID = (CallError("PUT x", http, "x", "no") for http in (403, 422))
REJECTIONS: dict[str, tuple[CallError, bool, bool]] = {
    "rejected by an admission webhook": (INVALID, False, True),
    "forbidden, again": (WRITE_FORBIDDEN, True, True),
    "forbidden for the first time": (WRITE_FORBIDDEN, False, False),
    "not answered": (CallError("PUT x", 503, "unavailable", "later"), True, False),
}


@pytest.mark.parametrize("case", REJECTIONS.values(), ids=REJECTIONS)
def test_an_approval_that_fails_is_reported_at_the_vm_or_retried(
    case: tuple[CallError, bool, bool],
) -> None:
    error, is_redelivered, is_reported = case
    work, _ = joining(decide_signing_request=error, emit_once=True)
    sent: list[tuple[str, Any]] = []
    trigger = replace(work.trigger, is_redelivered=is_redelivered)
    work = replace(work, trigger=trigger, publish=lambda *one: sent.append(one))
    names = ("csr-x", "csr-y")
    both = [replace(candidate(), request=replace(candidate().request, name=one)) for one in names]
    plan = decide(ObservedRequests(tuple(both)), NOW)
    if not is_reported:
        with pytest.raises(CallError, match=error.message):
            execute(plan, work)
        assert (sent, work.facts.get("rejected")) == ([], None)
        return
    execute(plan, work)
    assert work.facts["rejected"] == [*names]
    assert [(step, message.cause, message.vms) for step, (message,) in sent] == [
        ("label_node", Cause.JOIN_NOT_APPROVED, (VM,))
    ] * 2


def test_an_approval_that_fails_is_reported_even_if_another_request_cannot_be_read() -> None:
    work, _ = joining(decide_signing_request=INVALID, emit_once=True)
    sent: list[tuple[str, Any]] = []
    work = replace(work, publish=lambda *one: sent.append(one))
    unavailable = CallError("GET csr-y", 503, "unavailable", "later")
    plan = decide(ObservedRequests((candidate(),), errors=(unavailable,)), NOW)
    with pytest.raises(CallError, match="later"):
        execute(plan, work)
    assert [(step, message.vms) for step, (message,) in sent] == [("label_node", (VM,))]


def test_a_denial_that_is_rejected_is_an_error() -> None:
    work, _ = joining(delete_token_secret=None, decide_signing_request=INVALID, emit_once=True)
    work = replace(work, publish=lambda *_: None)
    denied = candidate(subject=Subject(VM, "it has two names"))
    with pytest.raises(CallError, match=INVALID.message):
        execute(decide(ObservedRequests((denied,)), NOW), work)


@pytest.mark.parametrize("is_read", [True, False])
def test_a_denied_request_is_reported_although_there_is_no_time_for_another(is_read: bool) -> None:
    decisions: list[str] = []

    def decide_once(*_: Any) -> None:
        decisions.append("denied")
        if len(decisions) > 1:
            raise OutOfTimeError("slow")

    work, reads = joining(
        delete_token_secret=None, decide_signing_request=decide_once, emit_once=None
    )
    work = replace(work, publish=lambda *_: None)
    denied = candidate(subject=Subject(VM, "it has two names"))
    observed = ObservedRequests((denied, denied) if is_read else (denied,))
    plan = decide(observed if is_read else replace(observed, errors=(OutOfTimeError("slow"),)), NOW)
    with pytest.raises(OutOfTimeError, match="slow"):
        execute(plan, work)
    assert reads.calls[:3] == ["delete_token_secret", "decide_signing_request", "emit_once"]
