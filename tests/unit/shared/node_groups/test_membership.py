# ruff: noqa: E501  (a table reads best with a row on a line)
"""A Node is matched to a VM by its proof, the VM's key and the boot id, never by a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from shared.base.names import BOOT_ID_LABEL, VM_ID_LABEL, VM_STARTED_KEY
from shared.node_groups.bootstrap import TOKEN_LIFE, Token
from shared.node_groups.membership import (
    build_node_patch,
    had_node,
    had_node_at,
    is_match,
    is_stale,
)
from shared.node_groups.status import MAX_PENDING, Condition, Pending, Status, Type
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.nodes import Node
from tests.support.builders import NOW, group
from tests.support.compute import instance
from tests.unit.functions.label_node.objects import A, node, vm

WITH_TOKENS = group()
WITHOUT_TOKENS = group(change={"bootstrapKubernetes": None})
KEYLESS = replace(vm(), metadata={})
RENEWED, RENEWED_KEYLESS = replace(vm(), id="43"), replace(KEYLESS, id="43")
FIRST = {BOOT_ID_LABEL: "first"}

JOINED_WITH_TOKEN: dict[str, tuple[Node, Instance, bool, bool]] = {
    "not proved yet, and the VM had a token": (node(proved=False), vm(), True, False),
    "not proved, of a VM without token": (node(proved=False), KEYLESS, False, False),
    "not proved and not ready, of a VM without token": (
        node(proved=False, ready=False),
        KEYLESS,
        False,
        False,
    ),
    "not proved and not reporting, of a VM without token": (
        node(proved=False, silent=True),
        KEYLESS,
        False,
        True,
    ),
    "proved": (node(), vm(), True, False),
    "proved, of a VM that reboots": (node(silent=True), vm(), True, False),
    "proved for another id, beside a token: the label was changed": (node(), RENEWED, True, False),
    "proved for another id, of a VM without token": (node(), RENEWED_KEYLESS, False, True),
    "proved for this id, and the VM's key was removed": (node(), KEYLESS, True, False),
    "proved for this id, not reporting, and the VM's key was removed": (
        node(silent=True),
        KEYLESS,
        False,
        True,
    ),
}
JOINED_OTHERWISE: dict[str, tuple[Node, Instance, bool, bool]] = {
    "not proved yet": (node(proved=False, boot="first"), KEYLESS, True, False),
    "proved": (node(labels=FIRST, boot="first"), KEYLESS, True, False),
    "proved, and rebooted": (node(labels=FIRST, boot="second"), KEYLESS, True, False),
    "proved for another id, reported by its predecessor": (
        node(labels=FIRST, boot="first"),
        RENEWED_KEYLESS,
        False,
        True,
    ),
    "proved for another id, and reported by the new VM": (
        node(labels=FIRST, boot="second"),
        RENEWED_KEYLESS,
        True,
        False,
    ),
}


@pytest.mark.parametrize("case", JOINED_WITH_TOKEN.values(), ids=JOINED_WITH_TOKEN)
def test_a_node_of_a_group_with_bootstrap_tokens_is_matched_by_proof_or_key(
    case: tuple[Node, Instance, bool, bool],
) -> None:
    candidate, instance, is_own, is_of_earlier_vm = case
    assert is_match(WITH_TOKENS, candidate, instance) is is_own
    assert is_stale(WITH_TOKENS, candidate, instance) is is_of_earlier_vm


@pytest.mark.parametrize("case", JOINED_OTHERWISE.values(), ids=JOINED_OTHERWISE)
def test_a_node_of_a_group_without_bootstrap_tokens_is_matched_by_proof_or_boot(
    case: tuple[Node, Instance, bool, bool],
) -> None:
    candidate, instance, is_own, is_of_earlier_vm = case
    assert is_match(WITHOUT_TOKENS, candidate, instance) is is_own
    assert is_stale(WITHOUT_TOKENS, candidate, instance) is is_of_earlier_vm


def labels(candidate: Node, instance: Instance | None) -> dict[str, str]:
    patch = build_node_patch(WITHOUT_TOKENS, candidate, "tpu7x-standard-4t", instance)
    found: dict[str, str] = patch.get("metadata", {}).get("labels", {})
    return found


def test_the_proof_names_the_vm_and_without_bootstrap_tokens_the_boot() -> None:
    proof = labels(node(proved=False, boot="first"), RENEWED)
    assert (proof[VM_ID_LABEL], proof[BOOT_ID_LABEL]) == ("43", "first")
    assert BOOT_ID_LABEL not in str(build_node_patch(WITH_TOKENS, node(boot="first"), "", vm()))


def test_the_recorded_boot_is_updated_after_a_reboot_if_the_vm_was_read() -> None:
    rebooted = node(labels=FIRST, boot="second")
    assert labels(rebooted, vm())[BOOT_ID_LABEL] == "second"
    assert labels(rebooted, None) == {}


TAINT = {"key": "google.com/tpu", "value": "present", "effect": "NoExecute"}
TAINTS: dict[str, tuple[dict[str, str], bool]] = {
    "none of its key": ({"key": "other", "effect": "NoExecute"}, True),
    "one of its key with another effect": ({**TAINT, "effect": "PreferNoSchedule"}, True),
    "one of its key and effect with another value": ({**TAINT, "value": "x"}, False),
}


@pytest.mark.parametrize("taint, is_added", TAINTS.values(), ids=TAINTS)
def test_a_taint_of_the_spec_is_set_unless_the_node_has_one_of_its_key_and_effect(
    taint: dict[str, str], is_added: bool
) -> None:
    about = group(change={"nodeTaints": [TAINT]})
    patch = build_node_patch(about, replace(node(proved=False), taints=(taint,)), "", vm())
    assert patch.get("spec") == ({"taints": [taint, TAINT]} if is_added else None)


@pytest.mark.parametrize("boot", ["", "-", "a b", "x" * 64])
def test_a_boot_id_that_is_no_label_value_is_not_recorded(boot: str) -> None:
    assert BOOT_ID_LABEL not in labels(node(A, proved=False, boot=boot), vm())


MINUTE = timedelta(minutes=1)
GIVEN = NOW - 30 * MINUTE


def started(ago: int, *, recorded: str | None = None) -> Instance:
    """A VM with a token of half an hour ago; by default its metadata records its last start."""
    token = Token("oldold", "o" * 16, GIVEN + TOKEN_LIFE)
    found = instance(A, token=token, started=NOW - ago * MINUTE)
    metadata = (
        dict(found.metadata) if recorded is None else {**found.metadata, VM_STARTED_KEY: recorded}
    )
    return replace(found, metadata=metadata)


def status(completed: bool = False, missing: int | None = None, **pending: int) -> Status:
    """``missing``: since how many minutes a Node is missing; ``pending``: the VM's reason, and since."""
    joined = Condition(
        "True" if missing is None else "False", "", "", NOW - (missing or 0) * MINUTE, 1
    )
    return Status(
        completed_at=NOW - 20 * MINUTE if completed else None,
        conditions={Type.NODES_JOINED: joined},
        pending=tuple(Pending(A, why, NOW - since * MINUTE) for why, since in pending.items()),
    )


def joined_since(ago: int) -> Status:
    joined = Condition("True", "", "", NOW - ago * MINUTE, 1)
    return replace(status(completed=True), conditions={Type.NODES_JOINED: joined})


UNRECORDED = started(25)
UNRECORDED = replace(UNRECORDED, metadata={key: value for key, value in UNRECORDED.metadata.items() if key != VM_STARTED_KEY})  # fmt: skip


def full(missing: int, *last: str) -> Status:
    """A status without room for the VM: Nodes of others were deleted, but the last have these reasons."""
    whys = [*["NodeDeleted"] * (MAX_PENDING - len(last)), *last]
    pending = tuple(Pending(f"other-{n}", why, NOW) for n, why in enumerate(whys))
    return replace(status(True, missing), pending=pending)


HAD_NODE: dict[str, tuple[Instance, Status, bool]] = {
    "nothing shows it": (started(40), status(missing=10), False),
    "its Node was deleted": (started(40), status(NodeDeleted=10), True),
    "its Node was deleted, and it has restarted": (started(5, recorded="another start"), status(NodeDeleted=10), False),
    "its Node was deleted, and its start was not known": (started(25, recorded=""), status(NodeDeleted=10), True),
    "its Node was deleted, its start was not known, and it has restarted": (started(24, recorded=""), status(NodeDeleted=10), False),
    "its Node was deleted, and an earlier version gave it its token": (UNRECORDED, status(NodeDeleted=10), True),
    "its Node was deleted, and it has restarted since an earlier version gave it its token": (replace(UNRECORDED, started=NOW - 24 * MINUTE), status(NodeDeleted=10), False),
    "its Node was deleted, and it has no token": (KEYLESS, status(NodeDeleted=10), False),
    "it waits for its join": (started(40), status(AwaitingNodeJoin=10), False),
    "all VMs had Nodes before it got its token, and none was counted since": (started(40), joined_since(31), False),
    "all VMs have had Nodes since it got its token": (started(40), joined_since(29), True),
    "it has waited for its join since a Node is missing": (started(40), status(True, 1, AwaitingNodeJoin=1), False),
    "it is older than the complete slice": (started(40), status(completed=True), True),
    "it got its token six minutes before a Node was missing": (started(40), status(True, 24), True),
    "it got its token five minutes before a Node was missing": (started(40), status(True, 25), False),
    "the status has no room for it, and another VM waits for its join": (started(40), full(24, "AwaitingNodeJoin"), False),
    "the status has no room for it, and another VM has not joined in time": (started(40), full(24, "NodeJoinTimeout"), False),
    "the status has no room for it, as Nodes of others were deleted": (started(40), full(24), True),
    "the status has no room for it, and it got its token since Nodes of others were deleted": (started(40), full(25), False),
    "it got its token six minutes before it was lost": (started(40), status(True, 1, NodeLost=24), True),
    "it got its token five minutes before it was lost": (started(40), status(True, 1, NodeLost=25), False),
}  # fmt: skip


@pytest.mark.parametrize("case", HAD_NODE.values(), ids=HAD_NODE)
def test_a_vm_had_a_node_since_its_last_start(case: tuple[Instance, Status, bool]) -> None:
    vm_, known, expected = case
    assert had_node(WITH_TOKENS, known, vm_, NOW) is expected


HAD_NODE_AT: dict[str, tuple[Instance, Status, int, bool]] = {
    "a message sent five minutes after the token may be about its predecessor": (started(40), status(True, 40), 25, False),
    "a message sent later is about the VM": (started(40), status(True, 40), 24, True),
    "all VMs have had Nodes since the token": (started(40), joined_since(29), 29, True),
    "all VMs had Nodes before the token, and the loss was not counted": (started(40), joined_since(31), 29, False),
    "it has restarted": (started(5, recorded="another start"), status(True), 1, False),
    "it has no token": (KEYLESS, status(True), 1, False),
}  # fmt: skip


@pytest.mark.parametrize("case", HAD_NODE_AT.values(), ids=HAD_NODE_AT)
def test_a_message_about_a_node_is_about_the_vm_or_its_predecessor(
    case: tuple[Instance, Status, int, bool],
) -> None:
    vm_, known, sent_ago, expected = case
    assert had_node_at(known, vm_, NOW - sent_ago * MINUTE, NOW) is expected
