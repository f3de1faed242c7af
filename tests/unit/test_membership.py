"""Whose a Node is, by its proof, the VM's key and the boot: never by a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.base.names import BOOT_ID_LABEL, VM_ID_LABEL
from shared.node_groups.membership import is_match, is_of_predecessor, proof_patch
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.nodes import Node
from tests.unit.builders import group
from tests.unit.test_label_node import A, node, vm

OURS = group()
OTHERWISE = group(change={"bootstrapKubernetes": None})
KEYLESS = replace(vm(), metadata={})
RENEWED, RENEWED_KEYLESS = replace(vm(), id="43"), replace(KEYLESS, id="43")
FIRST = {BOOT_ID_LABEL: "first"}

JOINED_WITH_TOKEN: dict[str, tuple[Node, Instance, bool, bool]] = {
    "not proved yet, and the VM had a token": (node(proved=False), vm(), True, False),
    "not proved, of a VM without token": (node(proved=False), KEYLESS, False, False),
    "the same, and not ready yet": (node(proved=False, ready=False), KEYLESS, False, False),
    "the same, and silent": (node(proved=False, silent=True), KEYLESS, False, True),
    "proved": (node(), vm(), True, False),
    "proved, of a VM that reboots": (node(silent=True), vm(), True, False),
    "proved for another id": (node(), RENEWED, False, True),
    "proved for another id, of a VM without token": (node(), RENEWED_KEYLESS, False, True),
    "proved for this id, and somebody has removed our key": (node(), KEYLESS, True, False),
    "proved for this id, the key went with the metadata, and silent": (
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
    "proved for another id, and taken over": (
        node(labels=FIRST, boot="second"),
        RENEWED_KEYLESS,
        True,
        False,
    ),
}


@pytest.mark.parametrize("case", JOINED_WITH_TOKEN.values(), ids=JOINED_WITH_TOKEN)
def test_where_vms_join_with_our_tokens_a_node_is(
    case: tuple[Node, Instance, bool, bool],
) -> None:
    about, its_vm, is_own, is_left_over = case
    assert is_match(OURS, about, its_vm) is is_own
    assert is_of_predecessor(OURS, about, its_vm) is is_left_over


@pytest.mark.parametrize("case", JOINED_OTHERWISE.values(), ids=JOINED_OTHERWISE)
def test_where_vms_join_by_other_means_a_node_is(
    case: tuple[Node, Instance, bool, bool],
) -> None:
    about, its_vm, is_own, is_left_over = case
    assert is_match(OTHERWISE, about, its_vm) is is_own
    assert is_of_predecessor(OTHERWISE, about, its_vm) is is_left_over


def labels(about: Node, instance: Instance | None) -> dict[str, str]:
    patch = proof_patch(OTHERWISE, about, "tpu7x-standard-4t", instance)
    found: dict[str, str] = patch.get("metadata", {}).get("labels", {})
    return found


def test_the_proof_names_the_vm_and_where_a_node_can_be_taken_over_its_boot() -> None:
    proof = labels(node(proved=False, boot="first"), RENEWED)
    assert (proof[VM_ID_LABEL], proof[BOOT_ID_LABEL]) == ("43", "first")
    assert BOOT_ID_LABEL not in str(proof_patch(OURS, node(boot="first"), "", vm()))


def test_the_boot_follows_a_reboot_but_only_when_the_vm_was_read() -> None:
    rebooted = node(labels=FIRST, boot="second")
    assert labels(rebooted, vm())[BOOT_ID_LABEL] == "second"
    assert labels(rebooted, None) == {}


@pytest.mark.parametrize("boot", ["", "-", "a b", "x" * 64])
def test_a_boot_that_is_no_label_value_is_not_recorded(boot: str) -> None:
    assert BOOT_ID_LABEL not in labels(node(A, proved=False, boot=boot), vm())
