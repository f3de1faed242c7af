"""A Node is matched to a VM by its proof, the VM's key and the boot id, never by a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.base.names import BOOT_ID_LABEL, VM_ID_LABEL
from shared.node_groups.membership import build_node_patch, is_match, is_stale
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.nodes import Node
from tests.support.builders import group
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
    "proved for another id": (node(), RENEWED, False, True),
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


@pytest.mark.parametrize("boot", ["", "-", "a b", "x" * 64])
def test_a_boot_id_that_is_no_label_value_is_not_recorded(boot: str) -> None:
    assert BOOT_ID_LABEL not in labels(node(A, proved=False, boot=boot), vm())
