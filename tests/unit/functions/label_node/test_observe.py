# ruff: noqa: E501  (a table reads best with a row on a line)
"""The reads of label_node: as little as the trigger needs, and everything on a resync."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from functions.label_node.observe import NothingToCount, observe
from functions.label_node.observed_nodes import ObservedNodes
from shared.base.names import BOOT_ID_LABEL
from shared.node_groups.node_group import AnyGroup
from shared.node_groups.status import Condition, Pending, Status, Type
from shared.ports.errors import OutOfTimeError
from shared.triggers.message import Cause, Message
from shared.triggers.trigger import ObjectTrigger, Trigger
from tests.support.builders import NOW, RESOURCE, group, unreadable_group
from tests.support.compute import instance_group
from tests.support.reads import reading_work
from tests.unit.functions.label_node.objects import (
    COMPLETE,
    EARLIER,
    LOSS_REPORTED,
    NODES_CHANGED,
    RESOURCES_READY,
    RESYNC,
    A,
    B,
    C,
    node,
    preempted,
    vm,
)

D, E, F = (f"{RESOURCE}-{name}" for name in ("dddd", "eeee", "ffff"))


@pytest.mark.parametrize(
    "about, can_be_served",
    [
        pytest.param(unreadable_group(), False, id="unreadable"),
        pytest.param(group(change={"project": "other-project"}), False, id="not served"),
        pytest.param(group(deleting=True), True, id="being deleted"),
        pytest.param(group(owned=False), True, id="not owned"),
    ],
)
def test_nothing_is_read_for_a_group_without_nodes_to_count(
    about: AnyGroup, can_be_served: bool
) -> None:
    work, reads = reading_work(about, Status(), RESYNC, {})
    assert observe(work) == NothingToCount(about, Status(), can_be_served=can_be_served)
    assert reads.calls == []


def test_only_the_vm_of_a_debounced_event_is_read() -> None:
    answers = {"find_instance": vm(B, "STOPPING"), "find_node": node(B)}
    work, reads = reading_work(group(), LOSS_REPORTED, preempted(B), answers)
    observed = observe(work)
    assert isinstance(observed, ObservedNodes)
    assert observed.is_debounced
    assert observed.instances == {B: vm(B, "STOPPING")}
    assert [one.name for one in observed.nodes] == [B]
    assert reads.calls == ["find_instance", "find_node"]


def test_the_vm_and_the_node_of_a_debounced_event_may_be_gone() -> None:
    work, _ = reading_work(
        group(), LOSS_REPORTED, preempted(B), {"find_instance": None, "find_node": None}
    )
    observed = observe(work)
    assert isinstance(observed, ObservedNodes)
    assert (observed.nodes, observed.instances) == ((), {B: None})


def changed(*names: str) -> Trigger:
    message = Message("default", "my-slice", "", Cause.NODES_CHANGED, NOW, nodes=names)
    return ObjectTrigger(message)


def continued(*names: str) -> Trigger:
    message = Message("default", "my-slice", "", Cause.CONTINUED, NOW, nodes=names)
    return ObjectTrigger(message)


def cluster(
    *listed: Any, vms: Mapping[str, Any] | None = None, unlabelled: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return answers with labelled Nodes, VMs, and Nodes that only a read by name finds."""
    existing = {name: vm(name) for name in (A, B)} if vms is None else vms
    named = unlabelled or {}
    return {
        "list_nodes": listed,
        "list_instances": [one for one in existing.values() if one is not None],
        "find_instances": lambda _project, _zone, names: {
            name: existing.get(name) for name in names
        },
        "find_nodes": lambda names: {name: named.get(name) for name in names},
        "find_mig": instance_group(topologies={"2x2x2": "ACTIVE"}),
    }


LESS_THAN_FIVE_MINUTES_AGO = NOW - timedelta(minutes=5, seconds=-1)
FIVE_MINUTES_AGO = NOW - timedelta(minutes=5)
ACTIVE = Condition("True", "Active", "", EARLIER, 1)
INTERCONNECT_READY = replace(
    COMPLETE, conditions={**COMPLETE.conditions, Type.INTERCONNECT_READY: ACTIVE}
)
LOST_A, LOST_B = (
    replace(RESOURCES_READY, pending=(Pending(name, "NodeLost", EARLIER),)) for name in (A, B)
)
BOTH = cluster(node(), node(B))
UNPROVED_B = cluster(node(), node(B, proved=False))
FOUR, FIVE = (
    cluster(*(node(name, proved=False) for name in names), vms={name: vm(name) for name in VMS})
    for VMS in [(A, B, C, D)]
    for names in [(A, B, C, D), (A, B, C, D, E)]
)
UNLABELLED = cluster(node(B), unlabelled={A: node(proved=False, labelled=False)})


def joining_b(started: datetime, state: str = "RUNNING") -> dict[str, Any]:
    """A Node of A, and a VM of B without one."""
    return cluster(node(), vms={A: vm(), B: vm(B, state, started)})


NO_VM = ["find_nodes"]
VM_A, VM_B = ([f"find_instances {name}", "find_nodes"] for name in (A, B))
CASES: dict[str, tuple[Status, Trigger, Mapping[str, Any], list[str]]] = {
    "a proved Node has changed": (RESOURCES_READY, NODES_CHANGED, cluster(node()), NO_VM),
    "all are ready, the interconnect is not": (RESOURCES_READY, NODES_CHANGED, BOTH, [*NO_VM, "find_mig"]),
    "all are ready, the interconnect, too": (INTERCONNECT_READY, NODES_CHANGED, BOTH, NO_VM),
    "a Node is not proved": (RESOURCES_READY, NODES_CHANGED, UNPROVED_B, [*VM_B, "find_mig"]),
    "a VM was preempted": (COMPLETE, preempted(B), BOTH, [*VM_B, "find_mig"]),
    "a Node has changed whose VM is lost": (LOST_A, NODES_CHANGED, BOTH, [*VM_A, "find_mig"]),
    "a Node has changed, another VM is lost": (LOST_B, NODES_CHANGED, BOTH, NO_VM),
    "the remaining Nodes of a batch": (RESOURCES_READY, continued(B), BOTH, [*VM_B, "find_mig"]),
    "four VMs are read one by one": (RESOURCES_READY, NODES_CHANGED, FOUR, [f"find_instances {A} {B} {C} {D}", "find_nodes", "find_mig"]),
    "five VMs are listed, and the missing one is read": (
        RESOURCES_READY,
        NODES_CHANGED,
        FIVE,
        ["list_instances", f"find_instances {E}", "find_nodes", "find_mig"],
    ),
    "a Node was deleted": (RESOURCES_READY, changed(B), cluster(node()), [f"find_instances {B}", f"find_nodes {B}"]),
    "five Nodes were deleted, and the VM of one, too": (
        RESOURCES_READY,
        changed(B, C, D, E, F),
        cluster(node(), vms={name: vm(name) for name in (A, B, C, D, E)}),
        ["list_instances", f"find_instances {F}", f"find_nodes {B} {C} {D} {E} {F}"],
    ),
    "a Node without the group's label has changed": (RESOURCES_READY, NODES_CHANGED, UNLABELLED, [f"find_instances {A}", f"find_nodes {A}", "find_mig"]),
    "a VM that was started five minutes ago has no labelled Node": (
        RESOURCES_READY,
        RESYNC,
        joining_b(FIVE_MINUTES_AGO),
        ["list_instances", f"find_nodes {B}"],
    ),
    "a VM was started less than five minutes ago": (RESOURCES_READY, RESYNC, joining_b(LESS_THAN_FIVE_MINUTES_AGO), ["list_instances", "find_nodes"]),
    "a VM that does not run has no Node": (RESOURCES_READY, RESYNC, joining_b(FIVE_MINUTES_AGO, "STOPPING"), ["list_instances", "find_nodes"]),
    "the VM of a Node is not in the list of VMs": (
        RESOURCES_READY,
        RESYNC,
        cluster(node(), node(B), vms={A: vm()}),
        ["list_instances", "find_nodes", f"find_instances {B}"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("trigger", [NODES_CHANGED, RESYNC], ids=["a changed Node", "a resync"])
def test_no_vm_is_read_for_a_labelled_node_whose_name_no_vm_can_have(
    trigger: Trigger,
) -> None:
    read_names: list[str] = []

    def find_instances(_project: str, _zone: str, names: list[str]) -> dict[str, Any]:
        read_names.extend(names)
        return {name: vm(name) for name in names}

    answers = cluster(node("10-0-0-5", proved=False), vms={A: vm()})
    work, _ = reading_work(
        group(), RESOURCES_READY, trigger, {**answers, "find_instances": find_instances}
    )
    observe(work)
    assert "10-0-0-5" not in read_names


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_label_node_reads_what_the_trigger_needs(
    case: tuple[Status, Trigger, Mapping[str, Any], list[str]],
) -> None:
    known, trigger, answers, calls = case
    work, reads = reading_work(group(), known, trigger, answers)
    observed = observe(work)
    read = [call for call in reads.calls if call != "find_instances"]  # of no VM
    assert read == ["list_nodes", *calls]
    assert isinstance(observed, ObservedNodes)
    assert observed.has_all_vms is trigger.is_resync
    assert (observed.mig is not None) is ("find_mig" in calls)
    assert not observed.is_debounced


WITHOUT_BOOTSTRAP = group(change={"bootstrapKubernetes": None})
REBOOTED = cluster(node(boot="2", labels={BOOT_ID_LABEL: "1"}))


def test_a_kubelet_without_bootstrap_sets_no_label_so_that_its_node_is_read_at_once() -> None:
    answers = joining_b(LESS_THAN_FIVE_MINUTES_AGO)
    work, reads = reading_work(WITHOUT_BOOTSTRAP, RESOURCES_READY, RESYNC, answers)
    observe(work)
    assert f"find_nodes {B}" in reads.calls


WITH_DOMAIN = replace(node(B, proved=False, labelled=False), name=f"{B}.c.my-gcp-project.internal")
LOOKED_FOR: dict[str, tuple[AnyGroup, Trigger, datetime, str, bool]] = {
    "its VM was started five minutes ago": (WITHOUT_BOOTSTRAP, RESYNC, FIVE_MINUTES_AGO, "RUNNING", True),
    "its VM was started later": (WITHOUT_BOOTSTRAP, RESYNC, LESS_THAN_FIVE_MINUTES_AGO, "RUNNING", False),
    "its VM does not run": (WITHOUT_BOOTSTRAP, RESYNC, FIVE_MINUTES_AGO, "STOPPING", False),
    "no resync": (WITHOUT_BOOTSTRAP, changed(B), FIVE_MINUTES_AGO, "RUNNING", False),
    "its kubelet sets the label": (group(), RESYNC, FIVE_MINUTES_AGO, "RUNNING", False),
}  # fmt: skip


@pytest.mark.parametrize("case", LOOKED_FOR.values(), ids=LOOKED_FOR)
@pytest.mark.parametrize("answer", [[WITH_DOMAIN], OutOfTimeError("no answer")], ids=["", "slow"])
def test_a_node_whose_name_is_not_its_vms_alone_is_looked_for_when_it_is_late(
    case: tuple[AnyGroup, Trigger, datetime, str, bool], answer: Any
) -> None:
    about, trigger, started, state, is_looked_for = case
    answers = {**joining_b(started, state), "list_unlabelled_nodes": answer}
    work, reads = reading_work(about, RESOURCES_READY, trigger, answers)
    observed = observe(work)
    assert ("list_unlabelled_nodes" in reads.calls) is is_looked_for
    assert isinstance(observed, ObservedNodes)
    is_found = is_looked_for and isinstance(answer, list)
    assert set(observed.joined) == ({A, B} if is_found else {A})


@pytest.mark.parametrize("about, is_read", [(group(), False), (WITHOUT_BOOTSTRAP, True)])
def test_the_vm_of_a_rebooted_node_is_read_if_it_has_no_bootstrap(
    about: AnyGroup, is_read: bool
) -> None:
    work, reads = reading_work(about, RESOURCES_READY, NODES_CHANGED, REBOOTED)
    observe(work)
    assert (f"find_instances {A}" in reads.calls) is is_read


def test_a_node_without_the_groups_label_for_which_no_time_was_left_is_unread() -> None:
    answers = {**UNLABELLED, "find_nodes": lambda _names: {}}
    observed = observe(reading_work(group(), RESOURCES_READY, NODES_CHANGED, answers)[0])
    assert isinstance(observed, ObservedNodes)
    assert [one.name for one in observed.nodes] == [B]
    assert observed.unread_nodes == {A}
