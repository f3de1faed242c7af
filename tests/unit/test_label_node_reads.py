"""The reads of label_node: as little as the trigger needs, and everything on a resync."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from functions.label_node import NothingToCount, ObservedNodes, observe
from shared.base.names import BOOT_ID_LABEL
from shared.node_groups.node_group import AnyGroup
from shared.node_groups.status import Condition, Pending, Status, Type
from shared.triggers.decode import Trigger
from shared.triggers.message import Cause, Message
from tests.unit.builders import NOW, RESOURCE, group, unreadable_group
from tests.unit.reads import reading_work
from tests.unit.test_create_resources import instance_group
from tests.unit.test_label_node import (
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
    answers = {"find_instance": vm(B, "STOPPING"), "find_node": node(B).raw}
    work, reads = reading_work(group(), LOSS_REPORTED, preempted(B), answers)
    observed = observe(work)
    assert isinstance(observed, ObservedNodes)
    assert observed.is_debounced
    assert observed.members.instances == {B: vm(B, "STOPPING")}
    assert [one.name for one in observed.members.nodes] == [B]
    assert reads.calls == ["find_instance", "find_node"]


def test_the_vm_and_the_node_of_a_debounced_event_may_be_gone() -> None:
    work, _ = reading_work(
        group(), LOSS_REPORTED, preempted(B), {"find_instance": None, "find_node": None}
    )
    observed = observe(work)
    assert isinstance(observed, ObservedNodes)
    assert (observed.members.nodes, observed.members.instances) == ((), {B: None})


def continued(*names: str) -> Trigger:
    message = Message("default", "my-slice", "", Cause.CONTINUED, NOW, nodes=names)
    return Trigger("Continued", NOW, message)


def cluster(
    *listed: Any, vms: Mapping[str, Any] | None = None, unlabelled: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return answers with labelled Nodes, VMs, and Nodes that only a read by name finds."""
    existing = {name: vm(name) for name in (A, B)} if vms is None else vms
    named = unlabelled or {}
    return {
        "list_nodes": [one.raw for one in listed],
        "list_instances": [one for one in existing.values() if one is not None],
        "find_instances": lambda _project, _zone, names: {
            name: existing.get(name) for name in names
        },
        "find_nodes": lambda names: {name: named.get(name) for name in names},
        "find_mig": instance_group(topologies={"2x2x2": "ACTIVE"}),
    }


LESS_THAN_FIVE_MINUTES_AGO, FIVE_MINUTES_AGO = (
    NOW - timedelta(minutes=5, seconds=-1),
    NOW - timedelta(minutes=5),
)
INTERCONNECT_READY = Status(
    conditions={
        **COMPLETE.conditions,
        Type.INTERCONNECT_READY: Condition("True", "Active", "", EARLIER, 1),
    },
    resources=COMPLETE.resources,
)
LOST_B = Status(resources=COMPLETE.resources, pending=(Pending(B, "NodeLost", EARLIER),))
WITHOUT_BOOTSTRAP = group(change={"bootstrapKubernetes": None})
MANY = tuple(node(name, proved=False) for name in (A, B, C, D, E))
FOUR_OF = {name: vm(name) for name in (A, B, C, D)}
CASES: dict[str, tuple[Any, Status, Trigger, Mapping[str, Any], list[str]]] = {
    "a proved Node has changed, not all are ready": (
        group(),
        RESOURCES_READY,
        NODES_CHANGED,
        cluster(node()),
        ["find_instances", "find_nodes", "find_instances"],
    ),
    "all are ready, and the interconnect is not": (
        group(),
        RESOURCES_READY,
        NODES_CHANGED,
        cluster(node(), node(B)),
        ["find_instances", "find_nodes", "find_instances", "find_mig"],
    ),
    "all are ready, and the interconnect was ready": (
        group(),
        INTERCONNECT_READY,
        NODES_CHANGED,
        cluster(node(), node(B)),
        ["find_instances", "find_nodes", "find_instances"],
    ),
    "all are ready, and the interconnect was ready, on a resync": (
        group(),
        INTERCONNECT_READY,
        RESYNC,
        cluster(node(), node(B)),
        ["list_instances", "find_nodes", "find_instances", "find_mig"],
    ),
    "a Node is not proved": (
        group(),
        RESOURCES_READY,
        NODES_CHANGED,
        cluster(node(), node(B, proved=False)),
        [f"find_instances {B}", "find_nodes", "find_instances", "find_mig"],
    ),
    "a VM was preempted": (
        group(),
        COMPLETE,
        preempted(B),
        cluster(node(), node(B)),
        [f"find_instances {B}", "find_nodes", "find_instances", "find_mig"],
    ),
    "a Node has changed whose VM is reported lost": (
        group(),
        Status(resources=COMPLETE.resources, pending=(Pending(A, "NodeLost", EARLIER),)),
        NODES_CHANGED,
        cluster(node(), node(B)),
        [f"find_instances {A}", "find_nodes", "find_instances", "find_mig"],
    ),
    "a Node has changed, and another VM is reported lost": (
        group(),
        LOST_B,
        NODES_CHANGED,
        cluster(node(), node(B)),
        ["find_instances", "find_nodes", "find_instances"],
    ),
    "the remaining Nodes of a batch": (
        group(),
        RESOURCES_READY,
        continued(B),
        cluster(node(), node(B)),
        [f"find_instances {B}", "find_nodes", "find_instances", "find_mig"],
    ),
    "four VMs are read one by one": (
        group(),
        RESOURCES_READY,
        NODES_CHANGED,
        cluster(*MANY[:4], vms=FOUR_OF),
        [f"find_instances {A} {B} {C} {D}", "find_nodes", "find_instances", "find_mig"],
    ),
    "five VMs are listed, and those that are not in the list are read": (
        group(),
        RESOURCES_READY,
        NODES_CHANGED,
        cluster(*MANY, vms=FOUR_OF),
        ["list_instances", f"find_instances {E}", "find_nodes", "find_instances", "find_mig"],
    ),
    "a Node has rebooted, and the group has bootstrap": (
        group(),
        RESOURCES_READY,
        NODES_CHANGED,
        cluster(node(boot="2", labels={BOOT_ID_LABEL: "1"})),
        ["find_instances", "find_nodes", "find_instances"],
    ),
    "a Node has rebooted, and the group has no bootstrap": (
        WITHOUT_BOOTSTRAP,
        RESOURCES_READY,
        NODES_CHANGED,
        cluster(node(boot="2", labels={BOOT_ID_LABEL: "1"})),
        [f"find_instances {A}", "find_nodes", "find_instances"],
    ),
    "a Node without the group's label has changed": (
        group(),
        RESOURCES_READY,
        NODES_CHANGED,
        cluster(node(B), unlabelled={A: node(proved=False, labelled=False).raw}),
        ["find_instances", f"find_nodes {A}", f"find_instances {A}", "find_mig"],
    ),
    "a VM that was started five minutes ago has no labelled Node": (
        group(),
        RESOURCES_READY,
        RESYNC,
        cluster(node(), vms={A: vm(), B: vm(B, started=FIVE_MINUTES_AGO)}),
        ["list_instances", f"find_nodes {B}", "find_instances"],
    ),
    "a VM that was started less than five minutes ago": (
        group(),
        RESOURCES_READY,
        RESYNC,
        cluster(node(), vms={A: vm(), B: vm(B, started=LESS_THAN_FIVE_MINUTES_AGO)}),
        ["list_instances", "find_nodes", "find_instances"],
    ),
    "a VM that was started less than five minutes ago, whose kubelet does not set the label": (
        WITHOUT_BOOTSTRAP,
        RESOURCES_READY,
        RESYNC,
        cluster(node(), vms={A: vm(), B: vm(B, started=LESS_THAN_FIVE_MINUTES_AGO)}),
        ["list_instances", f"find_nodes {B}", "find_instances"],
    ),
    "a VM that does not run has no Node": (
        group(),
        RESOURCES_READY,
        RESYNC,
        cluster(node(), vms={A: vm(), B: vm(B, "STOPPING", FIVE_MINUTES_AGO)}),
        ["list_instances", "find_nodes", "find_instances"],
    ),
    "the VM of a Node is not in the list of VMs": (
        group(),
        RESOURCES_READY,
        RESYNC,
        cluster(node(), node(B), vms={A: vm()}),
        ["list_instances", "find_nodes", f"find_instances {B}"],
    ),
}


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
    assert read_names == []


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_label_node_reads_what_the_trigger_needs(
    case: tuple[Any, Status, Trigger, Mapping[str, Any], list[str]],
) -> None:
    about, known, trigger, answers, calls = case
    work, reads = reading_work(about, known, trigger, answers)
    observed = observe(work)
    assert reads.calls == ["list_nodes", *calls]
    assert isinstance(observed, ObservedNodes)
    assert observed.members.has_all_vms is trigger.is_resync
    assert (observed.mig is not None) is ("find_mig" in calls)
    assert not observed.is_debounced
