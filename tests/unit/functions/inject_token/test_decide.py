# ruff: noqa: E501  (a table reads best with a row on a line)
"""The decisions of inject_token: for each VM no action, the Secret of its token, or a new token."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from functions.inject_token.actions import SetMetadata
from functions.inject_token.decide import MIN_LEFT, decide
from functions.inject_token.observe import NothingToInject, ObservedVms, Vm
from shared.base.names import CA_HASH_KEY
from shared.base.reasons import Reason
from shared.frame.plan import Fail, Plan, Send
from shared.node_groups.actions import DeleteNode, RevokeToken
from shared.node_groups.bootstrap import TOKEN_LIFE, Token
from shared.node_groups.status import MIG, Condition, Resource, Retry, State, Status, Type
from shared.node_groups.work import WriteStatus
from shared.ports.errors import CallError
from shared.ports.kubernetes.nodes import Node, parse_node
from shared.triggers.audit_log import LogEvent
from shared.triggers.trigger import LogTrigger
from tests.support.builders import NOW, RESOURCE, flat, group
from tests.support.compute import CREATED_BY, OLD, VM, instance
from tests.unit.functions.inject_token.objects import NEW, RESYNC, describe, observed


def node() -> Node:
    return parse_node({"metadata": {"name": VM, "uid": "node-uid"}})


SILENT = replace(node(), is_silent=True)
NEW_TOKEN = ["SetMetadata", "CreateSecret newnew", "RevokeIfJoined, if slow"]

CASES: dict[str, tuple[Vm, list[str]]] = {
    "a new VM gets a token in its metadata, then the Secret": (
        Vm(instance(), None, None),
        NEW_TOKEN,
    ),
    "a VM with a token in its metadata gets the Secret": (
        Vm(instance(token=OLD), None, OLD),
        ["CreateSecret oldold", "RevokeIfJoined"],
    ),
    "a token that expires soon is replaced": (
        Vm(instance(), None, Token("oldold", "o" * 16, NOW + timedelta(minutes=5))),
        ["SetMetadata", "CreateSecret newnew", "RevokeIfJoined"],
    ),
    "a VM that has joined needs no action": (Vm(instance(token=OLD), node(), OLD), []),
    "the silent Node of its predecessor is deleted first": (
        Vm(instance(), SILENT, None, is_node_stale=True),
        ["DeleteNode"],
    ),
    "a Node of its predecessor that still reports is not deleted": (
        Vm(instance(), node(), None, is_node_stale=True),
        [],
    ),
    "a VM whose Node was deleted since its last start gets no other token": (
        Vm(instance(), None, None, had_node=True),
        [],
    ),
    "a VM that is stopping gets no token": (Vm(instance(status="STOPPING"), None, None), []),
    "a VM that is being inserted gets no token yet": (
        Vm(instance(status="PROVISIONING"), node(), None, is_node_stale=True),
        [],
    ),
    "a VM that is being staged gets no token yet": (Vm(instance(status="STAGING"), None, None), []),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_vm_gets_the_token_that_it_needs(case: tuple[Vm, list[str]]) -> None:
    vm, expected = case
    plan = decide(observed(vm), NOW)
    assert describe(plan) == expected
    assert plan.outcome == ("Injecting" if expected else "NothingToDo")


@pytest.mark.parametrize("is_repetition, actions", [(True, [RevokeToken(OLD.id, VM)]), (False, [])])
def test_a_repetition_revokes_the_token_of_a_vm_that_has_joined_since(
    is_repetition: bool, actions: list[RevokeToken]
) -> None:
    """The earlier attempt may have created the Secret, and have failed before it revoked the token."""
    given = observed(Vm(instance(token=OLD), node(), OLD))
    plan = decide(replace(given, is_repetition=is_repetition), NOW)
    assert [action for one in plan.each for action in one.actions] == actions


def test_a_valid_token_is_written_again_with_the_hash_of_a_new_ca() -> None:
    plan = decide(replace(observed(Vm(instance(token=OLD), None, OLD)), ca_hash="sha256:new"), NOW)
    assert describe(plan) == ["SetMetadata", "CreateSecret oldold", "RevokeIfJoined"]
    write = flat(plan)[0]
    assert isinstance(write, SetMetadata)
    assert write.items == {
        **write.instance.metadata,
        CA_HASH_KEY: "sha256:new",
    }


@pytest.mark.conformance("boot-vm-states")
def test_a_vm_that_is_being_staged_gets_a_token_after_the_end_of_its_insert() -> None:
    event = LogEvent("compute.instances.insert", "my-gcp-project", "us-central1-c", VM, "instances")
    ended = LogTrigger(at=NOW, event=event)
    staged = observed(Vm(instance(status="STAGING"), None, None), trigger=ended)
    assert describe(decide(staged, NOW)) == NEW_TOKEN


def test_an_unreadable_vm_does_not_stop_the_tokens_of_the_others() -> None:
    error = CallError(f"instances.get of {VM}", 500, "internalError", "Internal error")
    batch = replace(observed(Vm(instance(), None, None)), errors=(error,))
    assert describe(decide(batch, NOW)) == [*NEW_TOKEN, "Fail"]
    assert flat(decide(batch, NOW))[-1] == Fail(error)


def test_vms_beyond_the_time_limit_are_published_again() -> None:
    batch = replace(observed(Vm(instance(), None, None)), unread=(VM, f"{VM}-2"))
    send = flat(decide(batch, NOW))[0]
    assert isinstance(send, Send)
    assert (send.step, [message.vms for message in send.messages]) == (
        "inject_token",
        [(VM, f"{VM}-2")],
    )


def test_a_repetition_publishes_unread_vms_only_if_nothing_fails() -> None:
    batch = replace(observed(Vm(instance(), None, None)), unread=(VM,), is_repetition=True)
    plan = decide(batch, NOW)
    assert [type(action) for action in plan.if_all_succeeded] == [Send]
    assert sum(isinstance(action, Send) for action in flat(plan)) == 1


@pytest.mark.conformance("boot-keys")
def test_the_metadata_of_other_writers_is_kept() -> None:
    plan = decide(observed(Vm(instance(), None, None)), NOW)
    action = flat(plan)[0]
    assert isinstance(action, SetMetadata)
    assert action.items["created-by"] == CREATED_BY
    assert action.items["kubeadm-control-plane-ip"] == "10.128.0.2"


def test_the_deletion_of_a_stale_node_names_its_uid() -> None:
    plan = decide(observed(Vm(instance(), SILENT, None, is_node_stale=True)), NOW)
    assert flat(plan) == [DeleteNode(VM, "node-uid")]


def test_a_resync_publishes_vms_to_the_same_step_in_batches_of_twenty() -> None:
    vms = [Vm(instance(f"{RESOURCE}-{index:04}"), None, None) for index in range(45)]
    plan = decide(observed(*vms, trigger=RESYNC), NOW)

    batches = [
        message.vms
        for action in flat(plan)
        if isinstance(action, Send)
        for message in action.messages
    ]
    assert [len(batch) for batch in batches] == [20, 20, 5]
    assert isinstance(plan.after[0], WriteStatus)


UNUSED = Token("oldold", "o" * 16, NOW + TOKEN_LIFE - timedelta(minutes=3))
FRESH = Token("oldold", "o" * 16, NOW + TOKEN_LIFE - timedelta(seconds=30))


@pytest.mark.parametrize(
    "token, batches",
    [pytest.param(FRESH, 0, id="fresh"), pytest.param(UNUSED, 1, id="unused for three minutes")],
)
def test_a_resync_publishes_a_vm_with_a_token_only_if_the_token_is_unused_for_two_minutes(
    token: Token, batches: int
) -> None:
    plan = decide(observed(Vm(instance(token=token), None, token), trigger=RESYNC), NOW)
    assert sum(isinstance(action, Send) for action in flat(plan)) == batches


def token_with(*, left: timedelta) -> Token:
    return Token("oldold", "o" * 16, NOW + left)


UNUSED_FOR_TWO_MINUTES = TOKEN_LIFE - timedelta(minutes=2)
SECOND = timedelta(seconds=1)
NEEDS: dict[str, tuple[Vm, bool]] = {
    "no token": (Vm(instance(), None, None), True),
    "a token that expires soon": (Vm(instance(), None, token_with(left=MIN_LEFT - SECOND)), True),
    "a token that is unused for two minutes": (Vm(instance(), None, token_with(left=UNUSED_FOR_TWO_MINUTES)), True),
    "a token that is unused for less than two minutes": (Vm(instance(), None, token_with(left=UNUSED_FOR_TWO_MINUTES + SECOND)), False),
    "no token, and the silent Node of its predecessor": (Vm(instance(), SILENT, None, is_node_stale=True), True),
    "no token, and a Node of its predecessor that still reports": (Vm(instance(), node(), None, is_node_stale=True), False),
    "a joined Node": (Vm(instance(), node(), None), False),
    "a VM that is stopping": (Vm(instance(status="STOPPING"), None, None), False),
}  # fmt: skip


@pytest.mark.parametrize("case", NEEDS.values(), ids=NEEDS)
def test_a_resync_publishes_the_vms_that_need_a_token(case: tuple[Vm, bool]) -> None:
    vm, needs_token = case
    plan = decide(observed(vm, trigger=RESYNC), NOW)
    assert plan.outcome == ("PublishingVMs" if needs_token else "AllHaveTokens")
    assert any(isinstance(action, Send) for action in flat(plan)) is needs_token


@pytest.mark.parametrize(
    "left, actions",
    [
        (MIN_LEFT, ["CreateSecret oldold", "RevokeIfJoined"]),
        (MIN_LEFT - SECOND, ["SetMetadata", "CreateSecret newnew", "RevokeIfJoined"]),
    ],
)
def test_a_token_is_replaced_if_it_may_expire_before_the_next_resync(
    left: timedelta, actions: list[str]
) -> None:
    assert timedelta(minutes=31) == MIN_LEFT
    token = token_with(left=left)
    assert describe(decide(observed(Vm(instance(token=token), None, token)), NOW)) == actions


@pytest.mark.parametrize(
    "left, provided",
    [(SECOND, 1), (timedelta(), 0), (-SECOND, 0)],
    ids=["valid", "expires now", "expired"],
)
def test_an_expired_token_does_not_count(left: timedelta, provided: int) -> None:
    condition = report(observed(Vm(instance(), None, token_with(left=left)), trigger=RESYNC))
    assert condition.message == f"{provided} of 2 VMs have a join token or have joined"


def report(given: ObservedVms) -> Condition:
    """Return TokensInjected as a resync writes it."""
    write = decide(given, NOW).after[-1]
    assert isinstance(write, WriteStatus)
    return write.status.conditions[Type.TOKENS_INJECTED]


WITHOUT_TOKEN, WITH_TOKEN = (
    Vm(instance(), None, None),
    Vm(instance(token=OLD), None, token_with(left=TOKEN_LIFE)),
)
JOINED, STAGING = Vm(instance(), node(), None), Vm(instance(status="STAGING"), None, None)
DENIED = Condition("False", Reason.PERMISSION_DENIED, "may not", NOW, 1)
BEFORE: dict[str, tuple[Condition | None, Vm, str]] = {
    "an error remains while a VM needs a token": (DENIED, WITHOUT_TOKEN, Reason.PERMISSION_DENIED),
    "an error remains while the Secret of a token may be missing": (
        DENIED,
        WITH_TOKEN,
        Reason.PERMISSION_DENIED,
    ),
    "an error is removed when the VM has joined": (DENIED, JOINED, Reason.PROVISIONING),
    "an error is removed while no VM can get a token": (DENIED, STAGING, Reason.PROVISIONING),
    "progress is counted": (
        replace(DENIED, reason=Reason.PROVISIONING),
        WITHOUT_TOKEN,
        Reason.PROVISIONING,
    ),
    "a condition that was true is computed again": (
        Condition("True", "Injected", "", NOW, 1),
        WITHOUT_TOKEN,
        Reason.PROVISIONING,
    ),
    "there is no condition": (None, WITHOUT_TOKEN, Reason.PROVISIONING),
}


@pytest.mark.parametrize("case", BEFORE.values(), ids=BEFORE)
def test_a_resync_keeps_or_removes_the_error_of_a_batch(
    case: tuple[Condition | None, Vm, str],
) -> None:
    before, vm, reason = case
    known = Status(conditions={} if before is None else {Type.TOKENS_INJECTED: before})
    assert report(replace(observed(vm, trigger=RESYNC), status=known)).reason == reason


def test_an_error_remains_until_the_secrets_of_all_tokens_exist() -> None:
    known = Status(conditions={Type.TOKENS_INJECTED: DENIED})
    both = [replace(WITH_TOKEN, instance=instance(f"{RESOURCE}-{end}")) for end in ("ab12", "cd34")]
    condition = report(replace(observed(*both, trigger=RESYNC), status=known))
    assert (condition.is_true, condition.reason) == (False, Reason.PERMISSION_DENIED)


def test_a_batch_without_an_error_removes_the_error_of_an_earlier_batch() -> None:
    known = Status(conditions={Type.TOKENS_INJECTED: DENIED})
    plan = decide(replace(observed(WITH_TOKEN), status=known), NOW)
    condition = condition_after(plan)
    assert (condition.is_true, condition.reason, condition.message) == (
        False,
        Reason.PROVISIONING,
        "The last error has not occurred again",
    )


@pytest.mark.parametrize(
    "before, vm",
    [
        (None, WITH_TOKEN),
        (replace(DENIED, reason=Reason.PROVISIONING), WITH_TOKEN),
        (DENIED, JOINED),
    ],
    ids=["there is no condition", "there was no error", "nothing is injected"],
)
def test_a_batch_that_removes_no_error_writes_no_status(before: Condition | None, vm: Vm) -> None:
    known = Status(conditions={} if before is None else {Type.TOKENS_INJECTED: before})
    plan = decide(replace(observed(vm), status=known), NOW)
    assert not any(isinstance(action, WriteStatus) for action in flat(plan))


def condition_after(plan: Plan) -> Condition:
    """Return TokensInjected as a batch writes it if no VM fails."""
    (write,) = plan.if_all_succeeded
    assert isinstance(write, WriteStatus)
    return write.status.conditions[Type.TOKENS_INJECTED]


@pytest.mark.parametrize(
    "vms, is_true, message",
    [
        ([], False, "0 of 2 VMs have a join token or have joined"),
        (["token"], False, "1 of 2 VMs have a join token or have joined"),
        (["token", "node"], True, "All 2 VMs have a join token or have joined"),
    ],
)
def test_tokens_injected_counts_vms_with_a_token_or_a_node(
    vms: list[str], is_true: bool, message: str
) -> None:
    given_vms = [
        Vm(instance(token=OLD), None, OLD) if word == "token" else Vm(instance(), node(), None)
        for word in vms
    ]
    given = observed(*given_vms, trigger=RESYNC)
    write = decide(given, NOW).after[-1]
    assert isinstance(write, WriteStatus)
    condition = write.status.conditions[Type.TOKENS_INJECTED]
    assert (condition.is_true, condition.message) == (is_true, message)


def test_a_group_without_bootstrap_needs_no_tokens() -> None:
    about = group(change={"bootstrapKubernetes": None})
    plan = decide(NothingToInject(about, Status(), RESYNC), NOW)
    (write,) = plan.first
    assert isinstance(write, WriteStatus)
    condition = write.status.conditions[Type.TOKENS_INJECTED]
    assert (condition.is_true, condition.reason) == (True, "NotNeeded")


def test_a_slice_that_is_being_repaired_gets_no_token() -> None:
    begun = Status(resources={MIG: Resource(RESOURCE, State.DELETING, NOW)})
    assert decide(NothingToInject(group(), begun, RESYNC), NOW) == Plan("Repairing")
    failed = replace(begun, retries=(Retry("inject_token", "503 away", NOW),))
    plan = decide(NothingToInject(group(), failed, RESYNC), NOW)
    (write,) = plan.first
    assert isinstance(write, WriteStatus)
    assert (plan.outcome, write.status.retries) == ("Repairing", ())


def test_a_group_being_deleted_gets_no_token() -> None:
    assert decide(NothingToInject(group(deleting=True), Status(), RESYNC), NOW) == Plan("Deleting")


def test_the_text_of_a_plan_does_not_contain_the_secret_of_a_token() -> None:
    plan = decide(observed(Vm(instance(), None, None)), NOW)
    shown = repr(plan) + "".join(action.describe() for action in plan.list_actions())
    assert NEW.secret not in shown


def test_the_reason_of_the_condition_is_a_known_reason() -> None:
    given = observed(trigger=RESYNC)
    write = decide(given, NOW).after[-1]
    assert isinstance(write, WriteStatus)
    condition = write.status.conditions[Type.TOKENS_INJECTED]
    assert condition.reason in set(Reason)


OTHER = f"{RESOURCE}-zz99"
CONCERNS: dict[str, tuple[str, bool]] = {
    "the error is about this VM": (f"503 (instances.set_metadata of {VM})", True),
    "the error is about this VM and another": (f"503 of {OTHER}; 503 of {VM}", True),
    "the error is about another VM": (f"503 (instances.set_metadata of {OTHER})", False),
    "the error is about no VM": (
        "503 (GET /api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt)",
        True,
    ),
    "the error is about the MIG": (f"503 (instances.list of {RESOURCE})", True),
}


@pytest.mark.parametrize("case", CONCERNS.values(), ids=CONCERNS)
def test_a_success_for_a_vm_removes_an_error_that_may_be_about_this_vm(
    case: tuple[str, bool],
) -> None:
    message, is_removed = case
    retried = Status(retries=(Retry("inject_token", message, NOW),))
    reported = Status(conditions={Type.TOKENS_INJECTED: replace(DENIED, message=message)})
    for known in (retried, reported):
        plan = decide(replace(observed(WITH_TOKEN), status=known), NOW)
        assert bool(plan.if_all_succeeded) is is_removed
    for write in decide(replace(observed(WITH_TOKEN), status=retried), NOW).if_all_succeeded:
        assert isinstance(write, WriteStatus)
        assert write.status.retries == ()


@pytest.mark.parametrize(
    "vm, left",
    [(WITHOUT_TOKEN, 1), (WITH_TOKEN, 1), (JOINED, 0), (STAGING, 0)],
    ids=["needs a token", "has a token", "joined", "staging"],
)
def test_a_transient_error_is_removed_when_its_vm_no_longer_waits(vm: Vm, left: int) -> None:
    known = Status(retries=(Retry("inject_token", f"503 of {VM}", NOW),))
    write = decide(replace(observed(vm, trigger=RESYNC), status=known), NOW).after[-1]
    assert isinstance(write, WriteStatus)
    assert len(write.status.retries) == left


@pytest.mark.parametrize(
    "vm, done",
    [
        (WITHOUT_TOKEN, "The VM has a join token or has joined"),
        (replace(WITHOUT_TOKEN, node=SILENT, is_node_stale=True), "0 of 1 VMs"),
    ],
    ids=["no Node", "the stale Node of its predecessor is deleted first"],
)
def test_a_resync_after_a_transient_error_injects_the_tokens_without_another_read(
    vm: Vm, done: str
) -> None:
    failed = Status(retries=(Retry("inject_token", f"403 of {VM}", NOW),))
    resync = replace(observed(vm, trigger=RESYNC), status=failed, injects_at_once=True)
    resync = replace(resync, group=group(change={"nodeCount": 1, "topology": "2x2x1"}))
    plan = decide(resync, NOW)
    assert plan.outcome == "Injecting"
    injected = decide(replace(observed(vm), group=resync.group), NOW)  # by a message that names it
    assert [one.name for one in plan.each] == [one.name for one in injected.each] == [VM]
    names = [list(map(type, one.each[0].actions)) for one in (plan, injected)]
    assert names[0] == names[1]
    (write,) = plan.if_all_succeeded
    assert isinstance(write, WriteStatus)
    assert write.status.retries == ()
    assert done in write.status.conditions[Type.TOKENS_INJECTED].message


@pytest.mark.parametrize("name, is_kept", [(VM, True), (OTHER, False)])
def test_an_error_about_a_vm_remains_only_while_this_vm_waits(name: str, is_kept: bool) -> None:
    denied = replace(DENIED, message=f"may not (instances.set_metadata of {name})")
    known = Status(conditions={Type.TOKENS_INJECTED: denied})
    condition = report(replace(observed(WITHOUT_TOKEN, trigger=RESYNC), status=known))
    assert (condition.reason == Reason.PERMISSION_DENIED) is is_kept


def test_the_error_of_the_step_is_removed_from_a_group_that_is_no_longer_served() -> None:
    failed = Status(retries=(Retry("inject_token", "503", NOW),))
    plan = decide(NothingToInject(group(), failed, RESYNC, can_be_served=False), NOW)
    assert plan.outcome == "NotServed"
    (write,) = plan.first
    assert isinstance(write, WriteStatus)
    assert write.status.retries == ()
    unserved = NothingToInject(group(), Status(), RESYNC, can_be_served=False)
    assert decide(unserved, NOW) == Plan("NotServed")
