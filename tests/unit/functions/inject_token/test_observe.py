"""The reads of inject_token: VMs one by one, and the cluster's CA, which is cached."""

from __future__ import annotations

from dataclasses import replace

import pytest

from functions.inject_token.observe import UNUSED_AFTER, NothingToInject, ObservedVms, observe
from shared.base.names import CA_HASH_KEY, VM_ID_LABEL
from shared.node_groups.bootstrap import TOKEN_LIFE, Token, ca_hash
from shared.node_groups.status import MIG, Condition, Counts, Resource, State, Status, Type
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.nodes import parse_node
from shared.triggers.audit_log import LogEvent
from shared.triggers.trigger import LogTrigger, Trigger
from tests.support.builders import NOW, RESOURCE, group
from tests.support.compute import OLD, VM, instance
from tests.support.reads import reading_work
from tests.unit.functions.inject_token.objects import NAMED, RESYNC
from tests.unit.shared.node_groups.authorities import EC_CA, V1_CA

CACHED, ROTATED = EC_CA, V1_CA


@pytest.mark.parametrize(
    "on_vm, now, reads",
    [
        pytest.param(None, CACHED, 1, id="the VM has no hash"),
        pytest.param(CACHED, CACHED, 1, id="the VM has the same hash"),
        pytest.param(ROTATED, ROTATED, 2, id="another process has read the new CA"),
        pytest.param(CACHED, ROTATED, 1, id="the CA has changed, and the VM has the old hash"),
    ],
)
def test_the_ca_is_read_again_if_a_vm_has_another_hash_than_the_cached_ca(
    on_vm: str | None, now: str, reads: int
) -> None:
    """Otherwise processes would overwrite the new hash with the old one while they cache the old CA."""
    vm = instance(token=OLD)
    metadata = dict(vm.metadata)
    if on_vm is None:
        del metadata[CA_HASH_KEY]
    else:
        metadata[CA_HASH_KEY] = ca_hash(on_vm)
    cluster = [CACHED, now]
    answers = {
        "find_instance": replace(vm, metadata=metadata),
        "find_node": None,
        "get_ca_certificate": lambda _: cluster[0],
        "forget_ca_certificate": lambda: cluster.pop(0),
    }
    work, recorded = reading_work(group(), Status(), NAMED, answers)
    found = observe(work)
    assert isinstance(found, ObservedVms)
    assert [one.instance.name for one in found.vms] == [VM]
    assert recorded.calls.count("get_ca_certificate") == reads
    assert found.ca_hash == ca_hash(now if reads == 2 else CACHED)


def test_a_ca_that_is_no_certificate_is_an_error_and_is_read_again_next_time() -> None:
    cluster = ["no certificate", CACHED]
    answers = {
        "find_instance": instance(token=OLD),
        "find_node": None,
        "get_ca_certificate": lambda _: cluster[0],
        "forget_ca_certificate": lambda: cluster.pop(0),
    }
    work, _ = reading_work(group(), Status(), NAMED, answers)
    with pytest.raises(CallError, match=r"^read the cluster's CA: 422 Invalid: "):
        observe(work)
    assert cluster == [CACHED]


OTHER = f"{VM}-2"
SLOW = OutOfTimeError("no answer within 10 s")
BOTH = replace(NAMED, message=replace(NAMED.message, vms=(VM, OTHER)))


@pytest.mark.parametrize(
    "has_time, read, unread",
    [(True, [OTHER], ()), (False, [], (OTHER,))],
    ids=["time is left", "no time is left"],
)
def test_a_vm_whose_read_times_out_does_not_stop_the_tokens_of_the_others(
    has_time: bool, read: list[str], unread: tuple[str, ...]
) -> None:
    hangs = True

    def find(_project: str, _zone: str, name: str) -> Instance:
        nonlocal hangs
        if name == VM:
            raise SLOW
        hangs = False
        return replace(instance(), name=name)

    def remaining_s() -> float:
        if hangs and not has_time and reads.calls:
            raise SLOW
        return 30.0

    answers = {
        "find_instance": find,
        "find_node": None,
        "get_ca_certificate": CACHED,
        "forget_ca_certificate": None,
    }
    work, reads = reading_work(group(), Status(), BOTH, answers, remaining_s=remaining_s)
    found = observe(work)
    assert isinstance(found, ObservedVms)
    assert ([one.instance.name for one in found.vms], found.unread) == (read, unread)
    assert [str(error) for error in found.errors] == [f"{VM}: no answer within 10 s"]


ENDED = LogTrigger(
    LogEvent("compute.instances.insert", "my-gcp-project", "us-central1-c", VM, "instances"),
    NOW,
    is_first_attempt=True,
)
REPEATED = replace(ENDED, is_first_attempt=False, is_redelivered=True)
YOUNG = replace(OLD, expires=NOW + TOKEN_LIFE - UNUSED_AFTER / 2)
STALE = parse_node(
    {"metadata": {"name": VM, "uid": "node-uid", "labels": {VM_ID_LABEL: "another VM's"}}}
)
JOINED = Status(counts=Counts(joined=1))
BY_NAME, LISTED, NO_NODE = ["find_node"], ["list_recent_nodes"], list[str]()


@pytest.mark.parametrize(
    "trigger, known, token, reads",
    [
        pytest.param(ENDED, Status(), None, LISTED, id="one list for the first VMs"),
        pytest.param(ENDED, JOINED, None, BY_NAME, id="a VM of the group has joined"),
        pytest.param(ENDED, Status(completed_at=NOW), None, BY_NAME, id="it was complete"),
        pytest.param(REPEATED, Status(), None, BY_NAME, id="a repetition"),
        pytest.param(NAMED, Status(), None, BY_NAME, id="a message about the Node"),
        pytest.param(ENDED, Status(), OLD, BY_NAME, id="the token was unused for long"),
        pytest.param(ENDED, Status(), YOUNG, NO_NODE, id="another delivery gave it the token"),
        pytest.param(REPEATED, Status(), YOUNG, BY_NAME, id="that delivery was interrupted"),
        pytest.param(
            replace(ENDED, is_first_attempt=False),
            Status(),
            YOUNG,
            BY_NAME,
            id="attempts are not counted",
        ),
        pytest.param(NAMED, Status(), YOUNG, BY_NAME, id="a message is about a VM that needs it"),
    ],
)
def test_a_stale_node_is_found_however_few_calls_search_for_it(
    trigger: Trigger, known: Status, token: Token | None, reads: list[str]
) -> None:
    """A Node beside a token is the VM's own for good (`is_stale`): a VM whose predecessor's Node is
    overlooked never joins. That nobody has counted the predecessor proves nothing."""
    answers = {
        "find_instance": instance(token=token),
        "find_node": STALE,
        "list_recent_nodes": [STALE],
        "get_ca_certificate": CACHED,
        "forget_ca_certificate": None,
    }
    work, recorded = reading_work(group(), known, trigger, answers)
    found = observe(work)
    assert isinstance(found, ObservedVms)
    assert [call for call in recorded.calls if "node" in call] == reads
    assert [vm.node is not None for vm in found.vms] == [True] * len(reads)
    assert [vm.is_node_stale for vm in found.vms] == [token is None] * len(reads)


@pytest.mark.parametrize(
    "joined, tokens, reads",
    [
        pytest.param(2, False, NO_NODE, id="label_node has just counted them"),
        pytest.param(1, False, ["list_nodes"], id="not all have joined"),
        pytest.param(2, True, ["list_nodes"], id="the count may be old"),
    ],
)
def test_the_nodes_are_not_listed_if_the_status_has_just_got_their_number(
    joined: int, tokens: bool, reads: list[str]
) -> None:
    yes = Condition("True", "Joined", "", NOW, 1)
    conditions = {Type.NODES_JOINED: yes} | ({Type.TOKENS_INJECTED: yes} if tokens else {})
    known = Status(counts=Counts(joined=joined), conditions=conditions)
    work, recorded = reading_work(group(), known, RESYNC, {"list_nodes": [], "list_instances": []})
    found = observe(work)
    assert isinstance(found, ObservedVms)
    assert [call for call in recorded.calls if "node" in call] == reads
    assert found.have_all_joined is not bool(reads)


@pytest.mark.parametrize("trigger, is_left", [(ENDED, True), (REPEATED, False), (NAMED, False)])
def test_a_vm_whose_metadata_another_delivery_is_writing_is_left_to_it(
    trigger: Trigger, is_left: bool
) -> None:
    answers = {
        "find_instance": instance(),
        "is_being_written": True,
        "find_node": None,
        "get_ca_certificate": CACHED,
    }
    work, _ = reading_work(group(), Status(), trigger, answers)
    found = observe(work)
    assert isinstance(found, ObservedVms)
    assert (found.vms == ()) is is_left


@pytest.mark.parametrize("trigger", [RESYNC, NAMED], ids=["resync", "named VMs"])
def test_the_vms_of_a_slice_that_is_being_repaired_are_not_read(trigger: Trigger) -> None:
    begun = Status(resources={MIG: Resource(RESOURCE, State.DELETING, NOW)})
    work, recorded = reading_work(group(), begun, trigger, {})
    assert isinstance(observe(work), NothingToInject)
    assert recorded.calls == []
