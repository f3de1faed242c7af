"""inject_token decides for each VM whether it needs nothing, its token made valid, or a new one."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from functions.inject_token import MIN_LEFT, NoTokensNeeded, ObservedVms, Vm, decide
from shared.base.errors import CallError
from shared.base.reasons import Reason
from shared.frame.audit_log import LogEvent
from shared.frame.decode import Trigger
from shared.frame.message import Cause, Message
from shared.frame.plan import ABORT_AFTER_FAILURE, Attempt, Fail, ForOne, Plan, Send
from shared.node_groups.actions import CreateSecret, DeleteNode, SetMetadata
from shared.node_groups.bootstrap import TOKEN_LIFE, Token, join_metadata
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import Condition, Status, Type
from shared.node_groups.work import WriteStatus
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.nodes import Node, parse_node
from tests.unit.builders import NOW, RESOURCE, flat, group

VM = f"{RESOURCE}-ab12"
BOOTED = NOW - timedelta(minutes=1)
CREATED_BY = f"projects/1/zones/us-central1-c/instanceGroupManagers/{RESOURCE}"
NEW = Token("newnew", "n" * 16, NOW + TOKEN_LIFE)
OLD = Token("oldold", "o" * 16, NOW + timedelta(minutes=30))
NAMED = Trigger("x", NOW, Message("default", "my-slice", "", Cause.VMS_NEED_TOKENS, NOW, vms=(VM,)))
RESYNC = Trigger("Resync", NOW, Message("default", "my-slice", "", Cause.RESYNC, NOW))


def instance(
    name: str = VM,
    status: str = "RUNNING",
    token: Token | None = None,
    started: datetime = BOOTED,
    created: datetime = BOOTED,
) -> Instance:
    metadata = {"created-by": CREATED_BY}
    if token is not None:
        metadata |= join_metadata(token, endpoint="10.0.0.2", ca_hash="sha256:x")
    return Instance(name, "42", status, created, started, CREATED_BY, "fp", metadata)


def node() -> Node:
    return parse_node({"metadata": {"name": VM, "uid": "node-uid"}})


def seen(*vms: Vm, trigger: Trigger = NAMED, about: NodeGroup | None = None) -> ObservedVms:
    fresh = {vm.instance.name: NEW for vm in vms}
    own = about or group()
    bootstrap = own.spec.bootstrap
    assert bootstrap is not None
    return ObservedVms(own, bootstrap, Status(), trigger, vms, fresh, "sha256:x")


def in_words(plan: Plan) -> list[str]:
    return [
        f"{type(action).__name__} {action.token.id}"
        if isinstance(action, CreateSecret)
        else type(action).__name__
        for action in flat(plan)
    ]


CASES: dict[str, tuple[Vm, list[str]]] = {
    "a new VM gets a token, in its metadata first": (
        Vm(instance(), None, None),
        ["SetMetadata", "CreateSecret newnew"],
    ),
    "a token that is there is made valid again": (
        Vm(instance(token=OLD), None, OLD),
        ["CreateSecret oldold"],
    ),
    "a token about to end is replaced": (
        Vm(instance(), None, Token("oldold", "o" * 16, NOW + timedelta(minutes=5))),
        ["SetMetadata", "CreateSecret newnew"],
    ),
    "a VM that has joined needs nothing": (Vm(instance(token=OLD), node(), OLD), []),
    "a recreated VM's stale Node goes first": (
        Vm(instance(), node(), None, is_node_stale=True),
        ["DeleteNode", "SetMetadata", "CreateSecret newnew"],
    ),
    "a VM that is going down gets none": (Vm(instance(status="STOPPING"), None, None), []),
    "a VM that is being inserted gets none yet": (
        Vm(instance(status="PROVISIONING"), node(), None, is_node_stale=True),
        [],
    ),
    "a VM that is being started gets none yet": (Vm(instance(status="STAGING"), None, None), []),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_vm_by_its_name(case: tuple[Vm, list[str]]) -> None:
    vm, wanted = case
    plan = decide(seen(vm), NOW)
    assert in_words(plan) == wanted
    assert plan.outcome == ("Injecting" if wanted else "NothingToDo")


def test_a_vm_whose_insert_has_just_ended_gets_its_token_though_it_is_still_being_staged() -> None:
    event = LogEvent("compute.instances.insert", "my-gcp-project", "us-central1-c", VM)
    ended = Trigger(event.method, NOW, event=event)
    staged = seen(Vm(instance(status="STAGING"), None, None), trigger=ended)
    assert in_words(decide(staged, NOW)) == ["SetMetadata", "CreateSecret newnew"]


def test_a_vm_that_cannot_be_read_keeps_no_other_from_its_token() -> None:
    error = CallError(f"instances.get of {VM}", 500, "internalError", "Internal error")
    batch = replace(seen(Vm(instance(), None, None)), errors=(error,))
    assert in_words(decide(batch, NOW)) == ["SetMetadata", "CreateSecret newnew", "Fail"]
    assert flat(decide(batch, NOW))[-1] == Fail(error)


def test_vms_that_there_was_no_time_to_read_go_back_to_the_inbox() -> None:
    batch = replace(seen(Vm(instance(), None, None)), unread=(VM, f"{VM}-2"))
    send = flat(decide(batch, NOW))[0]
    assert isinstance(send, Send)
    assert (send.step, [message.vms for message in send.messages]) == (
        "inject_token",
        [(VM, f"{VM}-2")],
    )


def test_a_repetition_publishes_unread_vms_only_if_nothing_fails() -> None:
    batch = replace(seen(Vm(instance(), None, None)), unread=(VM,), is_repetition=True)
    *_, barrier, last = decide(batch, NOW).actions
    assert barrier == ABORT_AFTER_FAILURE
    assert isinstance(last, ForOne)
    assert isinstance(last.actions[0], Send)


def test_the_metadata_that_others_have_written_is_kept() -> None:
    plan = decide(seen(Vm(instance(), None, None)), NOW)
    action = flat(plan)[0]
    assert isinstance(action, SetMetadata)
    assert action.items["created-by"] == CREATED_BY
    assert action.items["kubeadm-control-plane-ip"] == "10.128.0.2"


def test_only_the_stale_node_is_deleted_not_one_that_has_come_meanwhile() -> None:
    plan = decide(seen(Vm(instance(), node(), None, is_node_stale=True)), NOW)
    assert flat(plan)[0] == DeleteNode(VM, "node-uid")


def test_a_sync_hands_vms_to_the_own_inbox_in_batches_of_twenty() -> None:
    vms = [Vm(instance(f"{RESOURCE}-{index:04}"), None, None) for index in range(45)]
    plan = decide(seen(*vms, trigger=RESYNC), NOW)

    batches = [
        message.vms
        for action in plan.actions
        if isinstance(action, Send)
        for message in action.messages
    ]
    assert [len(batch) for batch in batches] == [20, 20, 5]
    assert isinstance(plan.actions[-1], WriteStatus)


UNUSED = Token("oldold", "o" * 16, NOW + TOKEN_LIFE - timedelta(minutes=3))
FRESH = Token("oldold", "o" * 16, NOW + TOKEN_LIFE - timedelta(seconds=30))


@pytest.mark.parametrize(
    "token, batches",
    [pytest.param(FRESH, 0, id="fresh"), pytest.param(UNUSED, 1, id="long unused")],
)
def test_a_sync_repeats_a_secret_only_where_its_maker_may_have_died(
    token: Token, batches: int
) -> None:
    plan = decide(seen(Vm(instance(token=token), None, token), trigger=RESYNC), NOW)
    assert sum(isinstance(action, Send) for action in plan.actions) == batches


def lasting(*, left: timedelta) -> Token:
    return Token("oldold", "o" * 16, NOW + left)


UNUSED_FOR_TWO_MINUTES = TOKEN_LIFE - timedelta(minutes=2)
SECOND = timedelta(seconds=1)
NEEDS: dict[str, tuple[Vm, bool]] = {
    "no token": (Vm(instance(), None, None), True),
    "a token that is about to end": (
        Vm(instance(), None, lasting(left=MIN_LEFT - SECOND)),
        True,
    ),
    "a token, unused for two minutes": (
        Vm(instance(), None, lasting(left=UNUSED_FOR_TWO_MINUTES)),
        True,
    ),
    "a token, unused for less": (
        Vm(instance(), None, lasting(left=UNUSED_FOR_TWO_MINUTES + SECOND)),
        False,
    ),
    "a new token, and a predecessor's Node": (
        Vm(instance(), node(), lasting(left=TOKEN_LIFE), is_node_stale=True),
        True,
    ),
    "a Node": (Vm(instance(), node(), None), False),
    "an end": (Vm(instance(status="STOPPING"), None, None), False),
}


@pytest.mark.parametrize("case", NEEDS.values(), ids=NEEDS)
def test_a_resync_hands_out_a_vm_that_has(case: tuple[Vm, bool]) -> None:
    vm, is_needy = case
    plan = decide(seen(vm, trigger=RESYNC), NOW)
    assert plan.outcome == ("PublishingVMs" if is_needy else "AllHaveTokens")
    assert any(isinstance(action, Send) for action in plan.actions) is is_needy


@pytest.mark.parametrize(
    "left, words",
    [
        (MIN_LEFT, ["CreateSecret oldold"]),
        (MIN_LEFT - SECOND, ["SetMetadata", "CreateSecret newnew"]),
    ],
)
def test_a_token_is_replaced_in_its_last_ten_minutes(left: timedelta, words: list[str]) -> None:
    assert timedelta(minutes=10) == MIN_LEFT
    assert in_words(decide(seen(Vm(instance(), None, lasting(left=left))), NOW)) == words


@pytest.mark.parametrize(
    "left, provided", [(SECOND, 1), (timedelta(), 0), (-SECOND, 0)], ids=["valid", "ends", "ended"]
)
def test_only_a_token_that_is_valid_counts(left: timedelta, provided: int) -> None:
    said = report(seen(Vm(instance(), None, lasting(left=left)), trigger=RESYNC))
    assert said.message == f"{provided} of 2 VMs have a join token or have joined"


def report(given: ObservedVms) -> Condition:
    """TokensInjected."""
    write = decide(given, NOW).actions[-1]
    assert isinstance(write, WriteStatus)
    return write.status.conditions[Type.TOKENS_INJECTED]


NEEDY, HAS_ONE = Vm(instance(), None, None), Vm(instance(token=OLD), None, lasting(left=TOKEN_LIFE))
JOINED, STAGING = Vm(instance(), node(), None), Vm(instance(status="STAGING"), None, None)
DENIED = Condition("False", Reason.PERMISSION_DENIED, "may not", NOW, 1)
BEFORE: dict[str, tuple[Condition | None, Vm, str]] = {
    "an error stays while a VM needs a token": (DENIED, NEEDY, Reason.PERMISSION_DENIED),
    "and while a VM has one whose Secret may be missing": (
        DENIED,
        HAS_ONE,
        Reason.PERMISSION_DENIED,
    ),
    "and no longer than until the VM has joined": (DENIED, JOINED, Reason.PROVISIONING),
    "nor while no VM can be written": (DENIED, STAGING, Reason.PROVISIONING),
    "progress is counted": (
        replace(DENIED, reason=Reason.PROVISIONING),
        NEEDY,
        Reason.PROVISIONING,
    ),
    "what was true is counted again": (
        Condition("True", "Injected", "", NOW, 1),
        NEEDY,
        Reason.PROVISIONING,
    ),
    "nothing is known": (None, NEEDY, Reason.PROVISIONING),
}


@pytest.mark.parametrize("case", BEFORE.values(), ids=BEFORE)
def test_what_a_batch_has_reported(case: tuple[Condition | None, Vm, str]) -> None:
    before, vm, reason = case
    known = Status(conditions={} if before is None else {Type.TOKENS_INJECTED: before})
    assert report(replace(seen(vm, trigger=RESYNC), status=known)).reason == reason


def test_an_error_stays_until_the_secrets_of_all_tokens_could_be_created() -> None:
    known = Status(conditions={Type.TOKENS_INJECTED: DENIED})
    both = [replace(HAS_ONE, instance=instance(f"{RESOURCE}-{end}")) for end in ("ab12", "cd34")]
    condition = report(replace(seen(*both, trigger=RESYNC), status=known))
    assert (condition.is_true, condition.reason) == (False, Reason.PERMISSION_DENIED)


def test_a_batch_without_an_error_ends_the_error_of_an_earlier_one() -> None:
    known = Status(conditions={Type.TOKENS_INJECTED: DENIED})
    plan = decide(replace(seen(HAS_ONE), status=known), NOW)
    assert plan.actions[-2] == ABORT_AFTER_FAILURE
    condition = ended_by(plan.actions[-1])
    assert (condition.is_true, condition.reason, condition.message) == (
        False,
        Reason.PROVISIONING,
        "The last error is over: join tokens are written again",
    )


@pytest.mark.parametrize(
    "before, vm",
    [(None, HAS_ONE), (replace(DENIED, reason=Reason.PROVISIONING), HAS_ONE), (DENIED, JOINED)],
    ids=["nothing is known", "there was no error", "nothing is injected"],
)
def test_a_batch_writes_no_status_otherwise(before: Condition | None, vm: Vm) -> None:
    known = Status(conditions={} if before is None else {Type.TOKENS_INJECTED: before})
    plan = decide(replace(seen(vm), status=known), NOW)
    assert ABORT_AFTER_FAILURE not in plan.actions
    assert not any(isinstance(action, WriteStatus) for action in flat(plan))


def ended_by(action: object) -> Condition:
    """TokensInjected as a batch's last action writes it."""
    assert isinstance(action, Attempt)
    assert isinstance(action.action, WriteStatus)
    return action.action.status.conditions[Type.TOKENS_INJECTED]


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
    made = [
        Vm(instance(token=OLD), None, OLD) if word == "token" else Vm(instance(), node(), None)
        for word in vms
    ]
    given = seen(*made, trigger=RESYNC)
    write = decide(given, NOW).actions[-1]
    assert isinstance(write, WriteStatus)
    said = write.status

    condition = said.conditions[Type.TOKENS_INJECTED]
    assert (condition.is_true, condition.message) == (is_true, message)


def test_without_bootstrapping_there_is_nothing_to_inject() -> None:
    about = group(change={"bootstrapKubernetes": None})
    plan = decide(NoTokensNeeded(about, Status()), NOW)
    write = plan.actions[0]
    assert isinstance(write, WriteStatus)
    condition = write.status.conditions[Type.TOKENS_INJECTED]
    assert (condition.is_true, condition.reason) == (True, "NotNeeded")


def test_a_group_being_deleted_gets_no_token() -> None:
    assert decide(NoTokensNeeded(group(deleting=True), Status()), NOW) == Plan("Deleting")


def test_no_secret_stands_in_what_a_plan_shows_of_itself() -> None:
    plan = decide(seen(Vm(instance(), None, None)), NOW)
    shown = repr(plan) + "".join(action.describe() for action in plan.list_actions())
    assert NEW.secret not in shown


def test_reasons_are_words_of_the_catalogue() -> None:
    given = seen(trigger=RESYNC)
    write = decide(given, NOW).actions[-1]
    assert isinstance(write, WriteStatus)
    condition = write.status.conditions[Type.TOKENS_INJECTED]
    assert condition.reason in set(Reason)
