"""What label_node reads: as little as the trigger needs, and on a resync everything."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from functions.label_node import NothingToCount, ObservedNodes, observe
from shared.base.names import BOOT_ID_LABEL
from shared.frame.decode import Trigger
from shared.frame.message import Cause, Message
from shared.node_groups.node_group import AnyGroup
from shared.node_groups.status import Condition, Pending, Status, Type
from tests.unit.builders import NOW, RESOURCE, group, unreadable_group
from tests.unit.reads import reading_work
from tests.unit.test_create_resources import instance_group
from tests.unit.test_label_node import (
    COMPLETE,
    EARLIER,
    GROUP_STANDS,
    NODES,
    RESYNC,
    TOLD,
    A,
    B,
    C,
    node,
    preempted,
    vm,
)

D, E, F = (f"{RESOURCE}-{name}" for name in ("dddd", "eeee", "ffff"))


@pytest.mark.parametrize(
    "about",
    [
        pytest.param(unreadable_group(), id="unreadable"),
        pytest.param(group(change={"project": "other-project"}), id="not served"),
        pytest.param(group(deleting=True), id="being deleted"),
        pytest.param(group(owned=False), id="not owned"),
    ],
)
def test_nothing_is_read_for_a_group_that_is(about: AnyGroup) -> None:
    work, reads = reading_work(about, Status(), RESYNC, {})
    assert observe(work) == NothingToCount(about)
    assert reads.made == []


def test_if_a_loss_is_reported_only_the_vm_of_the_next_event_is_read() -> None:
    answers = {"find_instance": vm(B, "STOPPING"), "find_node": node(B).raw}
    work, reads = reading_work(group(), TOLD, preempted(B), answers)
    observed = observe(work)
    assert isinstance(observed, ObservedNodes)
    assert observed.is_of_one_vm
    assert observed.members.instances == {B: vm(B, "STOPPING")}
    assert [one.name for one in observed.members.nodes] == [B]
    assert reads.made == ["find_instance", "find_node"]


def test_its_node_may_be_gone() -> None:
    work, _ = reading_work(group(), TOLD, preempted(B), {"find_instance": None, "find_node": None})
    observed = observe(work)
    assert isinstance(observed, ObservedNodes)
    assert (observed.members.nodes, observed.members.instances) == ((), {B: None})


def continued(*names: str) -> Trigger:
    message = Message("default", "my-slice", "", Cause.CONTINUED, NOW, nodes=names)
    return Trigger("Continued", NOW, message)


def cluster(
    *listed: Any, vms: Mapping[str, Any] | None = None, unlabelled: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Nodes with our label, VMs, and Nodes that only a read by name finds."""
    have = {name: vm(name) for name in (A, B)} if vms is None else vms
    named = unlabelled or {}
    return {
        "list_nodes": [one.raw for one in listed],
        "list_instances": [one for one in have.values() if one is not None],
        "find_instances": lambda _project, _zone, names: {name: have.get(name) for name in names},
        "find_nodes": lambda names: {name: named.get(name) for name in names},
        "find_mig": instance_group(topologies={"2x2x2": "ACTIVE"}),
    }


JUST, LATE = NOW - timedelta(minutes=5, seconds=-1), NOW - timedelta(minutes=5)
UP = Status(
    conditions={
        **COMPLETE.conditions,
        Type.INTERCONNECT_READY: Condition("True", "Active", "", EARLIER, 1),
    },
    resources=COMPLETE.resources,
)
LOST_B = Status(resources=COMPLETE.resources, pending=(Pending(B, "NodeLost", EARLIER),))
OTHER_MEANS = group(change={"bootstrapKubernetes": None})
MANY = tuple(node(name, proved=False) for name in (A, B, C, D, E))
FOUR_OF = {name: vm(name) for name in (A, B, C, D)}
CASES: dict[str, tuple[Any, Status, Trigger, Mapping[str, Any], list[str]]] = {
    "a proved Node has changed, not all are ready": (
        group(),
        GROUP_STANDS,
        NODES,
        cluster(node()),
        ["find_instances", "find_nodes", "find_instances"],
    ),
    "all are ready: is the interconnect?": (
        group(),
        GROUP_STANDS,
        NODES,
        cluster(node(), node(B)),
        ["find_instances", "find_nodes", "find_instances", "find_mig"],
    ),
    "all are ready, and so was the interconnect": (
        group(),
        UP,
        NODES,
        cluster(node(), node(B)),
        ["find_instances", "find_nodes", "find_instances"],
    ),
    "the same on a resync": (
        group(),
        UP,
        RESYNC,
        cluster(node(), node(B)),
        ["list_instances", "find_nodes", "find_instances", "find_mig"],
    ),
    "a Node is not proved": (
        group(),
        GROUP_STANDS,
        NODES,
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
        NODES,
        cluster(node(), node(B)),
        [f"find_instances {A}", "find_nodes", "find_instances", "find_mig"],
    ),
    "a Node has changed, and another VM is reported lost": (
        group(),
        LOST_B,
        NODES,
        cluster(node(), node(B)),
        ["find_instances", "find_nodes", "find_instances"],
    ),
    "the rest of a batch": (
        group(),
        GROUP_STANDS,
        continued(B),
        cluster(node(), node(B)),
        [f"find_instances {B}", "find_nodes", "find_instances", "find_mig"],
    ),
    "four VMs are read one by one": (
        group(),
        GROUP_STANDS,
        NODES,
        cluster(*MANY[:4], vms=FOUR_OF),
        [f"find_instances {A} {B} {C} {D}", "find_nodes", "find_instances", "find_mig"],
    ),
    "five are listed, and read if the list lacks them": (
        group(),
        GROUP_STANDS,
        NODES,
        cluster(*MANY, vms=FOUR_OF),
        ["list_instances", f"find_instances {E}", "find_nodes", "find_instances", "find_mig"],
    ),
    "a Node has rebooted, and a token proves VMs": (
        group(),
        GROUP_STANDS,
        NODES,
        cluster(node(boot="2", labels={BOOT_ID_LABEL: "1"})),
        ["find_instances", "find_nodes", "find_instances"],
    ),
    "a Node has rebooted, and no token proves VMs": (
        OTHER_MEANS,
        GROUP_STANDS,
        NODES,
        cluster(node(boot="2", labels={BOOT_ID_LABEL: "1"})),
        [f"find_instances {A}", "find_nodes", "find_instances"],
    ),
    "a Node without our label has changed": (
        group(),
        GROUP_STANDS,
        NODES,
        cluster(node(B), unlabelled={A: node(proved=False, labelled=False).raw}),
        ["find_instances", f"find_nodes {A}", f"find_instances {A}", "find_mig"],
    ),
    "a VM that was started five minutes ago has no Node with our label": (
        group(),
        GROUP_STANDS,
        RESYNC,
        cluster(node(), vms={A: vm(), B: vm(B, started=LATE)}),
        ["list_instances", f"find_nodes {B}", "find_instances"],
    ),
    "a VM that was started a moment later": (
        group(),
        GROUP_STANDS,
        RESYNC,
        cluster(node(), vms={A: vm(), B: vm(B, started=JUST)}),
        ["list_instances", "find_nodes", "find_instances"],
    ),
    "the same where kubelets do not set our label": (
        OTHER_MEANS,
        GROUP_STANDS,
        RESYNC,
        cluster(node(), vms={A: vm(), B: vm(B, started=JUST)}),
        ["list_instances", f"find_nodes {B}", "find_instances"],
    ),
    "a VM that does not run has no Node": (
        group(),
        GROUP_STANDS,
        RESYNC,
        cluster(node(), vms={A: vm(), B: vm(B, "STOPPING", LATE)}),
        ["list_instances", "find_nodes", "find_instances"],
    ),
    "a list of VMs that lacks the VM of a Node may lag": (
        group(),
        GROUP_STANDS,
        RESYNC,
        cluster(node(), node(B), vms={A: vm()}),
        ["list_instances", "find_nodes", f"find_instances {B}"],
    ),
}


@pytest.mark.parametrize("trigger", [NODES, RESYNC], ids=["a changed Node", "a resync"])
def test_a_node_with_our_label_and_a_name_that_no_vm_can_have_is_not_looked_up(
    trigger: Trigger,
) -> None:
    looked_up: list[str] = []

    def find_instances(_project: str, _zone: str, names: list[str]) -> dict[str, Any]:
        looked_up.extend(names)
        return {name: vm(name) for name in names}

    answers = cluster(node("10-0-0-5", proved=False), vms={A: vm()})
    work, _ = reading_work(
        group(), GROUP_STANDS, trigger, {**answers, "find_instances": find_instances}
    )
    observe(work)
    assert looked_up == []


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_read(case: tuple[Any, Status, Trigger, Mapping[str, Any], list[str]]) -> None:
    about, known, trigger, answers, calls = case
    work, reads = reading_work(about, known, trigger, answers)
    observed = observe(work)
    assert reads.made == ["list_nodes", *calls]
    assert isinstance(observed, ObservedNodes)
    assert observed.members.is_complete is trigger.is_resync
    assert (observed.mig is not None) is ("find_mig" in calls)
    assert not observed.is_of_one_vm
