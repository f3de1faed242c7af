"""The calls that an action makes, and how it handles the answers."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from functions.create_resources.actions import (
    SEEN_EVERYWHERE_AFTER,
    InsertCall,
    InsertResources,
    TakeOwnership,
)
from functions.create_resources.resource_conditions import CreationReport
from functions.inject_token.actions import CreateSecret, RevokeIfJoined, SetMetadata
from functions.tear_down.actions import DeleteResources, RemoveFinalizer, RevokeTokens
from shared.base.names import FINALIZER, RESOURCE_NAME_LABEL, TOKEN_KEY
from shared.base.reasons import Reason
from shared.frame.plan import (
    StaleObservation,
)
from shared.node_groups import status
from shared.node_groups.actions import DeleteNode, PatchNode, RevokeToken
from shared.node_groups.bootstrap import TOKEN_LIFE, Token
from shared.node_groups.status import MIG, POLICY, TEMPLATE, Resource, State, Status
from shared.node_groups.work import GroupWork
from shared.ports.errors import CallError
from shared.ports.gce.calls import Gce
from shared.ports.gce.values import Operation
from shared.ports.kubernetes.cluster import Cluster
from shared.settings import JoinApproval
from tests.support.builders import NOW, RESOURCE, SETTINGS, group, raw_group
from tests.support.compute import instance
from tests.unit.functions.create_resources.objects import ADDED

LONG_AGO = NOW - timedelta(hours=1)
SPEC = group().spec
OPERATION = Operation("operation-1", is_done=False)
Outcome = Operation | CallError | None


@dataclass
class Scripted:
    """Compute Engine with one answer, and a cluster that records the statuses that are written."""

    answer: Outcome
    written: list[Mapping[str, Any]] = field(default_factory=list)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    """The arguments of each call."""

    def __getattr__(self, _name: str) -> Any:
        return self._answer

    def _answer(self, *arguments: Any) -> Operation | None:
        self.calls.append(arguments)
        if isinstance(self.answer, CallError):
            raise self.answer
        return self.answer

    def replace_status(self, raw: Mapping[str, Any], written: Mapping[str, Any]) -> Any:
        self.written.append(written)
        return {**raw, "status": written}


def work(
    answer: Outcome,
    known: Status,
    *,
    is_first_observation: bool = True,
    age: timedelta = timedelta(),
) -> tuple[GroupWork, Scripted]:
    scripted = Scripted(answer)
    raw = raw_group(status=status.render(known))
    return GroupWork(
        settings=SETTINGS,
        gce=cast("Gce", scripted),
        cluster=cast("Cluster", scripted),
        publish=lambda _topic, _messages: None,
        random_bytes=bytes,
        remaining_s=lambda: 30.0,
        now=NOW + age,
        trigger=ADDED,
        is_first_observation=is_first_observation,
        group=replace(group(), raw=raw),
        status=known,
        reported=known,
    ), scripted


def entries(state: State, others_since: Any = LONG_AGO) -> Status:
    return Status(
        resources={
            TEMPLATE: Resource(RESOURCE, State.READY, others_since),
            POLICY: Resource(RESOURCE, state, NOW),
        }
    )


def insert(kind: str = POLICY) -> InsertResources:
    return InsertResources((InsertCall(kind, SPEC, {"name": RESOURCE}),), CreationReport({}, ()))


def error(http: int, reason: str) -> CallError:
    return CallError("resource_policies.insert", http, reason, "a message")


CREATING = Status(
    resources={kind: Resource(RESOURCE, State.CREATING, NOW) for kind in (POLICY, TEMPLATE)}
)
INSERT_ERRORS: dict[str, tuple[CallError, list[str]]] = {
    "a resource is not ready: no operation was started": (
        error(400, "resourceNotReady"),
        ["Pending"],
    ),
    "too many requests": (error(429, "rateLimitExceeded"), ["Pending"]),
    "no answer: an operation may have been started": (error(0, "unreachable"), []),
    "an internal error of the API": (error(503, "backendError"), []),
    "the name is taken": (error(409, "alreadyExists"), []),
}


@pytest.mark.parametrize("case", INSERT_ERRORS.values(), ids=INSERT_ERRORS)
def test_an_insert_reverts_its_intent_only_if_no_operation_can_have_been_started(
    case: tuple[CallError, list[str]],
) -> None:
    call_error, states = case
    group_work, cluster = work(call_error, entries(State.CREATING))
    with pytest.raises(CallError) as raised:
        insert().apply(group_work)
    assert raised.value is call_error
    assert [one["resources"][POLICY]["state"] for one in cluster.written] == states


def test_an_environment_error_of_an_insert_is_recorded() -> None:
    group_work, cluster = work(error(403, "quotaExceeded"), entries(State.CREATING))
    insert().apply(group_work)
    entry = group_work.status.resources[POLICY]
    assert entry.error is not None
    assert (entry.state, entry.error.reason) == (State.FAILED, Reason.QUOTA_EXCEEDED)
    assert [one["resources"][POLICY]["state"] for one in cluster.written] == ["Failed"]


@pytest.mark.parametrize(
    "is_first_observation, others_since, error_name, state",
    [
        pytest.param(True, LONG_AGO, "StaleObservation", State.PENDING, id="the first observation"),
        pytest.param(False, NOW, "resourceNotReady", State.PENDING, id="inserted just now"),
        pytest.param(False, None, "", State.FAILED, id="inserted at an unknown time"),
        pytest.param(
            False,
            NOW - SEEN_EVERYWHERE_AFTER + timedelta(seconds=1),
            "resourceNotReady",
            State.PENDING,
            id="may not be visible everywhere yet",
        ),
        pytest.param(False, NOW - SEEN_EVERYWHERE_AFTER, "", State.FAILED, id="visible everywhere"),
        pytest.param(False, LONG_AGO, "", State.FAILED, id="absent"),
    ],
)
def test_an_insert_that_refers_to_an_absent_resource_observes_again_retries_or_fails(
    is_first_observation: bool, others_since: Any, error_name: str, state: State
) -> None:
    known = entries(State.CREATING, others_since)
    group_work, _ = work(error(404, "notFound"), known, is_first_observation=is_first_observation)
    found = ""
    try:
        insert().apply(group_work)
    except (CallError, StaleObservation) as one:
        found = one.code if isinstance(one, CallError) else type(one).__name__
    assert (found, group_work.status.resources[POLICY].state) == (error_name, state)


def test_the_request_id_of_an_insert_depends_on_the_time_of_the_intent_alone() -> None:
    """Compute Engine identifies a repeated call by its request id."""

    def find_request_id(age: timedelta, since: Any = NOW) -> Any:
        known = Status(resources={POLICY: Resource(RESOURCE, State.CREATING, since)})
        group_work, scripted = work(OPERATION, known, age=age)
        insert().apply(group_work)
        return scripted.calls[-1][-1]

    first = find_request_id(timedelta())
    assert find_request_id(timedelta(seconds=5)) == first
    assert find_request_id(timedelta(), NOW + timedelta(seconds=5)) != first


def test_the_operations_of_inserts_and_deletes_are_written_once() -> None:
    for action, known in (
        (
            InsertResources((*insert().inserts, *insert(TEMPLATE).inserts), CreationReport({}, ())),
            CREATING,
        ),
        (DeleteResources((POLICY, TEMPLATE), SPEC), entries(State.DELETING)),
    ):
        group_work, cluster = work(OPERATION, known)
        action.apply(group_work)
        (written,) = cluster.written
        assert [one["operation"] for one in written["resources"].values()] == ["operation-1"] * 2


def test_a_delete_of_an_absent_resource_makes_the_step_observe_again() -> None:
    group_work, _ = work(None, entries(State.DELETING))
    with pytest.raises(StaleObservation, match="the workload policy is gone already"):
        DeleteResources((POLICY,), SPEC).apply(group_work)


IN_USE = error(400, "resourceInUseByAnotherResource")
DELETES: dict[str, tuple[str, CallError, timedelta, str | None]] = {
    "a template in use, less than five minutes after the delete began": (
        TEMPLATE,
        IN_USE,
        timedelta(minutes=5, seconds=-1),
        None,
    ),
    "a template in use for five minutes": (TEMPLATE, IN_USE, timedelta(minutes=5), Reason.IN_USE),
    "a MIG in use": (MIG, IN_USE, timedelta(), Reason.IN_USE),
    "no permission": (MIG, error(403, "forbidden"), timedelta(), Reason.PERMISSION_DENIED),
    "no answer": (MIG, error(503, "backendError"), timedelta(), None),
    "being created or deleted": (MIG, error(400, "resourceNotReady"), timedelta(), ""),
}


@pytest.mark.parametrize("case", DELETES.values(), ids=DELETES)
def test_an_error_of_a_delete_is_retried_or_recorded(
    case: tuple[str, CallError, timedelta, str | None],
) -> None:
    """Reason ``None``: the message is retried. An empty reason: the running operation is awaited."""
    kind, call_error, age, reason = case
    known = Status(resources={kind: Resource(RESOURCE, State.DELETING, NOW)})
    group_work, _ = work(call_error, known, age=age)
    if reason is None:
        with pytest.raises(CallError, match="a message"):
            DeleteResources((kind,), SPEC).apply(group_work)
        return
    DeleteResources((kind,), SPEC).apply(group_work)
    error = group_work.status.resources[kind].error
    assert (error.reason if error is not None else "") == reason


@dataclass
class Patched(Scripted):
    """A cluster that records the patches of a group."""

    patches: list[Mapping[str, Any]] = field(default_factory=list)

    def patch_group(self, raw: Mapping[str, Any], **change: Any) -> Any:
        self.patches.append(change)
        return {**raw, "metadata": {**raw["metadata"], "resourceVersion": "8"}}


OTHERS = "example.com/another"
OWNERSHIPS: dict[str, tuple[list[str], list[str], list[str]]] = {
    "no finalizer": ([], [FINALIZER], []),
    "a finalizer of another controller": ([OTHERS], [OTHERS, FINALIZER], [OTHERS]),
    "the finalizer of this system is set": ([FINALIZER, OTHERS], [FINALIZER, OTHERS], [OTHERS]),
}


@pytest.mark.parametrize("case", OWNERSHIPS.values(), ids=OWNERSHIPS)
def test_the_finalizers_of_other_controllers_are_not_removed(
    case: tuple[list[str], list[str], list[str]],
) -> None:
    before, taken, left = case
    group_work, _ = work(None, Status())
    cluster = Patched(None)
    about = group(finalizers=before)
    group_work = replace(group_work, group=about, cluster=cast("Cluster", cluster))
    TakeOwnership().apply(group_work)
    assert cluster.patches[0] == {
        "finalizers": taken,
        "labels": {RESOURCE_NAME_LABEL: about.resource_name},
    }
    assert group_work.group.raw["metadata"]["resourceVersion"] == "8"
    RemoveFinalizer().apply(replace(group_work, group=about))
    assert cluster.patches[1] == {"finalizers": left}


TOKEN = Token("abcdef", "secretsecret0000", NOW + TOKEN_LIFE)


def test_an_error_of_a_metadata_write_does_not_contain_the_token() -> None:
    text = f"{TOKEN.id}.{TOKEN.secret}"
    quoting = CallError("instances.setMetadata", 400, "invalid", f"no value {text!r}")
    group_work, _ = work(quoting, Status())
    about = instance(f"{RESOURCE}-ab12")
    with pytest.raises(CallError) as raised:
        SetMetadata(SPEC, about, {TOKEN_KEY: text}).apply(group_work)
    assert raised.value.message == "no value '[token]'"
    assert (raised.value.http, raised.value.code) == (400, "invalid")
    with pytest.raises(CallError, match="no value"):
        SetMetadata(SPEC, about, {}).apply(group_work)


@pytest.mark.parametrize(
    "approval, bootstrap_group",
    [
        (
            JoinApproval.APPROVE_JOIN,
            "system:bootstrappers:tpu-functions,system:bootstrappers:tng-x:42",
        ),
        (JoinApproval.EXTERNAL, "system:bootstrappers:kubeadm:default-node-token"),
    ],
)
def test_the_groups_of_a_token_depend_on_the_approver_and_name_its_vm(
    approval: JoinApproval, bootstrap_group: str
) -> None:
    created: list[Any] = []
    group_work, _ = work(None, Status())
    group_work = replace(
        group_work,
        settings=replace(SETTINGS, join_approval=approval),
        cluster=cast("Cluster", SimpleNamespace(create_token_secret=created.append)),
    )
    CreateSecret(TOKEN, "tng-x", "42").apply(group_work)
    (manifest,) = created
    assert base64.b64decode(manifest["data"]["auth-extra-groups"]).decode() == bootstrap_group


@pytest.mark.parametrize(
    "uid, is_new, seconds, revoked",
    [
        ("new", False, 0.0, ["abcdef"]),
        (None, False, 0.0, []),
        ("new", True, 2.9, []),  # not read
        ("new", True, 3.0, ["abcdef"]),
        (None, True, 3.0, []),
    ],
)
def test_a_token_is_revoked_if_the_vm_has_joined_meanwhile(
    uid: str | None, is_new: bool, seconds: float, revoked: list[str]
) -> None:
    """``seconds`` after its metadata was about to be written."""
    calls: list[str] = []
    node = None if uid is None else {"metadata": {"uid": uid}}
    cluster = SimpleNamespace(find_node={"vm": node}.__getitem__, delete_token_secret=calls.append)
    group_work, _ = work(None, Status())
    group_work = replace(
        group_work,
        cluster=cast("Cluster", cluster),
        writing_s=20.0,
        remaining_s=lambda: 20.0 - seconds,
    )
    RevokeIfJoined("abcdef", "vm", is_new).apply(group_work)
    assert calls == revoked


APPLIED: list[tuple[Any, str, tuple[Any, ...]]] = [
    (RevokeToken("abcdef", "vm"), "delete_token_secret", ("abcdef",)),
    (RevokeToken("abcdef", "vm", ("vm",)), "delete_token_secret", ("abcdef",)),
    (RevokeTokens(), "delete_token_secrets", (RESOURCE,)),
    (DeleteNode("n", "u"), "delete_node", ("n", "u")),
    (
        PatchNode("n", "u", {"spec": {}}),
        "patch_node",
        ("n", {"spec": {}, "metadata": {"uid": "u"}}),
    ),
    (
        PatchNode("n", "u", {"metadata": {"labels": {}}}),
        "patch_node",
        ("n", {"metadata": {"labels": {}, "uid": "u"}}),
    ),
]


FORBIDDEN, BUSY = (CallError("DELETE x", http, "x", "no") for http in (403, 409))
TOGETHER: dict[str, tuple[CallError | None, list[Any]]] = {
    "allowed": (None, [(RESOURCE, ("a", "b"))]),
    "forbidden: the cluster has no admission policies": (FORBIDDEN, [(RESOURCE, ("a", "b")), "1", "2"]),
    "some are left": (BUSY, [(RESOURCE, ("a", "b"))] * 2),
}  # fmt: skip


@pytest.mark.parametrize("error, expected", TOGETHER.values(), ids=TOGETHER)
def test_tokens_are_revoked_together_or_by_name_and_none_is_left_silently(
    error: CallError | None, expected: list[Any]
) -> None:
    calls: list[Any] = []

    def revoke_all(*given: Any) -> None:
        calls.append(given)
        if error is not None:
            raise error

    cluster = SimpleNamespace(delete_token_secret=calls.append, delete_token_secrets=revoke_all)
    group_work = replace(work(None, Status())[0], cluster=cast("Cluster", cluster))
    for token, vm in (("1", "a"), ("2", "b")):
        with pytest.raises(CallError) if error is BUSY else nullcontext():
            RevokeToken(token, vm, ("a", "b")).apply(group_work)
    assert calls == expected


@pytest.mark.parametrize("action, call, arguments", APPLIED)
def test_an_action_makes_one_call(action: Any, call: str, arguments: tuple[Any, ...]) -> None:
    calls: list[tuple[Any, ...]] = []
    cluster = SimpleNamespace(**{call: lambda *given: calls.append(given)})
    group_work, _ = work(None, Status())
    action.apply(replace(group_work, cluster=cast("Cluster", cluster)))
    assert calls == [arguments]
