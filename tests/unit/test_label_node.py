"""label_node decides which Nodes are the group's, and what they make of the slice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from functions.label_node import ObservedNodes, decide, is_loss_reported
from shared.base.names import BOOT_ID_LABEL, VM_ID_LABEL
from shared.base.reasons import REASONS, Reason
from shared.base.timestamps import render_time
from shared.base.topology import find_machine
from shared.frame.audit_log import LogEvent
from shared.frame.decode import Trigger
from shared.frame.message import Cause, Message
from shared.frame.plan import Action, Batch, Emit, Plan, Send
from shared.node_groups.actions import DeleteNode, DeleteSecret, PatchNode
from shared.node_groups.health import Members
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import (
    MIG,
    Condition,
    Counts,
    Pending,
    Resource,
    State,
    Status,
    Type,
)
from shared.node_groups.work import WriteStatus
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.events import Event
from shared.ports.kubernetes.nodes import Node, parse_node
from tests.unit.builders import NOW, RESOURCE, flat, group
from tests.unit.test_create_resources import instance_group
from tests.unit.test_inject_token import OLD, instance

A, B, C = (f"{RESOURCE}-{name}" for name in ("aaaa", "bbbb", "cccc"))
EARLIER = NOW - timedelta(minutes=10)
RESYNC = Trigger("Resync", NOW, Message("default", "my-slice", "", Cause.RESYNC, NOW))
NODES = Trigger("x", NOW, Message("default", "my-slice", "", Cause.NODES_CHANGED, NOW, nodes=(A,)))
GROUP_STANDS = Status(
    conditions={
        Type.ACCEPTED: Condition("True", "Accepted", "", EARLIER, 1),
        Type.MIG_READY: Condition("True", "Ready", "", EARLIER, 1),
        Type.TOKENS_INJECTED: Condition("True", "Injected", "", EARLIER, 1),
    },
    resources={MIG: Resource(RESOURCE, State.READY, EARLIER)},
)


def preempted(vm: str, method: str = "compute.instances.preempted") -> Trigger:
    event = LogEvent(method, "my-gcp-project", "us-central1-c", vm)
    return Trigger(method, NOW, event=event)


def node(
    vm: str = A,
    *,
    proved: bool = True,
    ready: bool = True,
    silent: bool = False,
    chips: int = 4,
    place: str | None = None,
    labelled: bool = True,
    changed: datetime = EARLIER,
    boot: str = "",
    labels: dict[str, str] | None = None,
    created: datetime | None = None,
) -> Node:
    machine = find_machine("tpu7x-standard-4t")
    marks = dict(group().node_labels(machine)) if labelled else {}
    if proved:
        marks[VM_ID_LABEL] = "42"
    chips_text = {"google.com/tpu": str(chips)} if chips else {}
    return parse_node(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": vm,
                "uid": f"uid-of-{vm}",
                "resourceVersion": "9",
                "labels": marks | (labels or {}),
                **({"creationTimestamp": render_time(created)} if created else {}),
            },
            "spec": {
                "taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}],
                "providerID": f"gce://my-gcp-project/us-central1-c/{vm}"
                if place is None
                else place,
            },
            "status": {
                "capacity": chips_text,
                "allocatable": chips_text,
                "nodeInfo": {"bootID": boot},
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "Unknown" if silent else str(ready),
                        "lastTransitionTime": changed.isoformat(),
                    }
                ],
            },
        }
    )


def vm(name: str = A, status: str = "RUNNING", started: datetime = EARLIER) -> Instance:
    return instance(name, status, OLD, started, started)


def seen(
    *nodes: Node,
    known: Status = GROUP_STANDS,
    trigger: Trigger = NODES,
    about: NodeGroup | None = None,
    instances: Mapping[str, Instance | None] | None = None,
    is_complete: bool = False,
    **rest: Any,
) -> ObservedNodes:
    members = Members(about or group(), known, nodes, instances or {}, is_complete)
    return ObservedNodes(members, trigger, timedelta(minutes=15), **rest)


def on_resync(*nodes: Node, **rest: Any) -> ObservedNodes:
    return seen(*nodes, trigger=RESYNC, is_complete=True, **rest)


def result(given: ObservedNodes, now: datetime = NOW) -> Status:
    write = next(action for action in decide(given, now).actions if isinstance(action, WriteStatus))
    return write.status


def reason(given: ObservedNodes, now: datetime = NOW) -> tuple[str, str]:
    ready = result(given, now).conditions[Type.READY]
    return ready.status, ready.reason


def kinds(plan: Plan) -> list[type[Action]]:
    return [type(action) for action in flat(plan) if not isinstance(action, Send)]


UNPROVED: dict[str, tuple[Node, Instance | None, list[type[Action]]]] = {
    "its own": (node(proved=False), vm(), [DeleteSecret, PatchNode, WriteStatus]),
    "without a providerID": (node(proved=False, place=""), vm(), [WriteStatus, Emit]),
    "of another zone": (
        node(proved=False, place=f"gce://my-gcp-project/us-central1-a/{A}"),
        vm(),
        [WriteStatus],
    ),
    "on a VM that the MIG did not make": (
        node(proved=False),
        replace(vm(), created_by=""),
        [WriteStatus],
    ),
    "of a VM that got no token yet": (node(proved=False), instance(A), [WriteStatus]),
    "proved for another VM of its name": (node(), replace(vm(), id="43"), [WriteStatus]),
    "whose VM is gone": (node(proved=False), None, [DeleteNode, WriteStatus]),
    "already proved and right": (node(), vm(), [WriteStatus]),
    "proved, with a label changed": (
        node(labels={"cloud.google.com/gke-tpu-accelerator": "false"}),
        vm(),
        [PatchNode, WriteStatus],
    ),
}


@pytest.mark.parametrize("case", UNPROVED.values(), ids=UNPROVED)
def test_what_is_done_about_a_node(
    case: tuple[Node, Instance | None, list[type[Action]]],
) -> None:
    about, its_vm, wanted = case
    assert kinds(decide(seen(about, instances={A: its_vm}), NOW)) == wanted


OTHERWISE = group(change={"bootstrapKubernetes": None})
BOOTED = {BOOT_ID_LABEL: "first"}
TAKEN_OVER: dict[str, tuple[Node, NodeGroup, list[type[Action]], list[str]]] = {
    "its VM joins by other means, and its metadata names a token, which is another VM's": (
        node(proved=False),
        OTHERWISE,
        [PatchNode, WriteStatus],
        [],
    ),
    "its VM joins by other means, and the new kubelet has reported": (
        node(labels=BOOTED, boot="second"),
        OTHERWISE,
        [PatchNode, WriteStatus],
        [],
    ),
    "its VM joins by other means, and only its predecessor's has": (
        node(labels=BOOTED, boot="first"),
        OTHERWISE,
        [WriteStatus],
        [],
    ),
    "its VM joins with a token: the Node is to be removed first": (
        node(labels=BOOTED, boot="second"),
        group(),
        [WriteStatus],
        ["inject_token"],
    ),
}


@pytest.mark.parametrize("case", TAKEN_OVER.values(), ids=TAKEN_OVER)
def test_what_is_done_about_a_node_that_a_predecessor_of_its_vm_has_left(
    case: tuple[Node, NodeGroup, list[type[Action]], list[str]],
) -> None:
    about, its_group, wanted, woken = case
    instances = {A: replace(vm(), id="43", metadata={})}
    plan = decide(seen(about, about=its_group, instances=instances), NOW + timedelta(minutes=1))
    assert kinds(plan) == wanted
    assert [action.step for action in plan.actions if isinstance(action, Send)] == woken


def test_a_node_of_another_machine_that_bears_our_label_is_not_deleted() -> None:
    foreign = node("somebody-else", proved=False, place="gce://other/zone/somebody-else")
    plan = decide(seen(foreign, instances={"somebody-else": None}), NOW)
    assert DeleteNode not in kinds(plan)


def test_the_labels_are_tpu_operators_and_the_proof_is_ours() -> None:
    plan = decide(seen(node(proved=False, labelled=False), instances={A: vm()}), NOW)
    patch = next(action.patch for action in flat(plan) if isinstance(action, PatchNode))
    assert patch["metadata"]["labels"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu7x",
        "cloud.google.com/gke-accelerator-count": "4",
        "cloud.google.com/gke-tpu-topology": "2x2x2",
        "cloud.google.com/tpu-node-group": "default-my-slice",
        "cloud.google.com/tpu-node-group-namespace": "default",
        "cloud.google.com/tpu-node-group-name": "my-slice",
        "tpu-functions.dev/resource-name": RESOURCE,
        "node-restriction.kubernetes.io/tpu-functions-vm-id": "42",
    }


def test_the_users_taints_and_labels_come_with_the_proof() -> None:
    about = group(
        change={
            "nodeLabels": {"team": "x"},
            "nodeTaints": [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}],
        }
    )
    plan = decide(seen(node(proved=False), instances={A: vm()}, about=about), NOW)
    patch = next(action.patch for action in flat(plan) if isinstance(action, PatchNode))
    assert patch["metadata"]["labels"]["team"] == "x"
    assert patch["metadata"]["resourceVersion"] == "9"
    assert patch["spec"]["taints"] == [
        {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
        {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"},
    ]


def batch_of(plan: Plan) -> Batch:
    (batch,) = (action for action in plan.actions if isinstance(action, Batch))
    return batch


def names_of(batch: Batch) -> list[str]:
    return [one.name for one in batch.actions]


def about_nodes(cause: Cause, *nodes: str) -> Trigger:
    message = Message("default", "x", "", cause, NOW, nodes=nodes)
    return Trigger(cause, NOW, message)


@pytest.mark.parametrize(
    "trigger, names",
    [
        pytest.param(
            about_nodes(Cause.NODES_CHANGED, B), [B, A, C], id="those that are named first"
        ),
        pytest.param(about_nodes(Cause.RESYNC), [A, B, C], id="all, by name"),
        pytest.param(about_nodes(Cause.CONTINUED, B), [B, C], id="what was left, and no other"),
        pytest.param(about_nodes(Cause.CONTINUED, C, B), [B, C], id="from the first that is named"),
    ],
)
def test_in_which_order_nodes_are_labelled(trigger: Trigger, names: list[str]) -> None:
    nodes = [node(name, proved=False) for name in (C, B, A)]
    instances = {name: vm(name) for name in (A, B, C)}
    plan = decide(seen(*nodes, trigger=trigger, instances=instances), NOW)
    assert names_of(batch_of(plan)) == names


def test_what_there_is_no_time_for_continues_by_a_message_that_names_it() -> None:
    known = seen(node(A), node(B, proved=False), instances={B: vm(B)}, mig=WIRED)
    batch = batch_of(decide(known, NOW))
    assert batch.resume is not None
    message = Message("default", "my-slice", group().uid, Cause.CONTINUED, NOW, nodes=(B,))
    assert batch.resume.build([B]) == Send("label_node", (message,))


def test_a_node_that_there_was_no_time_to_read_is_not_lost() -> None:
    given = seen(node(A), trigger=about_nodes(Cause.NODES_CHANGED, B), known=COMPLETE, mig=WIRED)
    unread = replace(given, members=replace(given.members, unread_nodes=frozenset({B})))
    assert [entry.why for entry in result(given).pending] == ["NodeLost"]
    assert result(unread).pending == ()


def test_a_node_that_starts_is_named_and_it_is_said_that_the_group_waits_for_it() -> None:
    given = seen(node(), node(B, ready=False, created=NOW - timedelta(minutes=1)))
    assert result(given).conditions[Type.READY].message == (
        f"Waiting for 1 of 2 nodes to become Ready: {B}"
    )


COMPLETE = replace(GROUP_STANDS, completed_at=EARLIER)
WIRED = instance_group(topologies={"2x2x2": "ACTIVE"})
SILENT = instance_group()
LATE = NOW + timedelta(minutes=20)
READINESS: dict[str, tuple[ObservedNodes, tuple[str, str]]] = {
    "one of two": (seen(node()), ("False", "AwaitingNodeJoin")),
    "both, and wired": (seen(node(), node(B), mig=WIRED), ("True", "Ready")),
    "both, and GCE says nothing yet": (
        seen(node(), node(B), mig=SILENT),
        ("False", "InterconnectNotReady"),
    ),
    "both, and the links failed": (
        seen(node(), node(B), mig=instance_group(topologies={"2x2x2": "FAILED"})),
        ("False", "InterconnectNotReady"),
    ),
    "one is not Ready": (seen(node(), node(B, ready=False)), ("False", "NodeNotReady")),
    "one has just joined and is not Ready": (
        seen(node(), node(B, ready=False, created=NOW - timedelta(minutes=1))),
        ("False", "AwaitingNodeJoin"),
    ),
    "one has just joined and has no chips yet": (
        seen(node(), node(B, chips=0, changed=NOW, created=NOW - timedelta(minutes=1))),
        ("False", "AwaitingNodeJoin"),
    ),
    "one has joined and is not Ready for long": (
        seen(node(), node(B, ready=False, created=NOW - timedelta(minutes=5))),
        ("False", "NodeNotReady"),
    ),
    "a new one of a slice that was complete is not Ready": (
        seen(node(), node(B, ready=False, created=NOW - timedelta(minutes=1)), known=COMPLETE),
        ("False", "NodeNotReady"),
    ),
    "one has no chips for long": (
        seen(node(), node(B, chips=0)),
        ("False", "DevicePluginMissing"),
    ),
    "one has no chips yet": (
        seen(node(), node(B, chips=0, changed=NOW)),
        ("False", "NodeNotReady"),
    ),
    "one has too few chips": (seen(node(), node(B, chips=3)), ("False", "DevicePluginMissing")),
    "a VM has not joined in time": (
        on_resync(node(), instances={A: vm(), B: vm(B, started=NOW - timedelta(minutes=15))}),
        ("False", "NodeJoinTimeout"),
    ),
    "a VM waits for capacity": (
        on_resync(node(), instances={A: vm(), B: vm(B, "PENDING", NOW - timedelta(days=3))}),
        ("False", "AwaitingNodeJoin"),
    ),
    "a VM was stopped before it could join": (
        on_resync(node(), instances={A: vm(), B: vm(B, "TERMINATED")}),
        ("False", "AwaitingNodeJoin"),
    ),
    "a VM was stopped before it had joined in time": (
        on_resync(
            node(),
            instances={A: vm(), B: vm(B, "TERMINATED", NOW - timedelta(minutes=15))},
        ),
        ("False", "NodeJoinTimeout"),
    ),
    "a VM of a complete slice was stopped, and its Node is gone": (
        on_resync(node(), known=COMPLETE, instances={A: vm(), B: vm(B, "TERMINATED")}),
        ("False", "NodeLost"),
    ),
    "a VM has not joined": (
        on_resync(node(), instances={A: vm(), B: vm(B)}),
        ("False", "AwaitingNodeJoin"),
    ),
    "a VM was preempted": (
        seen(
            node(),
            node(B),
            known=COMPLETE,
            trigger=preempted(B),
            instances={B: vm(B, "STOPPING")},
        ),
        ("False", "Preempted"),
    ),
    "a VM is gone": (
        seen(
            node(),
            node(B),
            known=COMPLETE,
            trigger=preempted(B, "compute.instances.delete"),
            instances={B: None},
        ),
        ("False", "NodeLost"),
    ),
    "a Node of a complete slice is gone": (seen(node(), known=COMPLETE), ("False", "NodeLost")),
}


@pytest.mark.parametrize("case", READINESS.values(), ids=READINESS)
def test_ready_when(case: tuple[ObservedNodes, tuple[str, str]]) -> None:
    given, wanted = case
    assert reason(given) == wanted


def test_what_befell_a_vm_is_kept_while_it_is_down() -> None:
    known = replace(COMPLETE, pending=(Pending(B, Reason.PREEMPTED, EARLIER),))
    given = on_resync(node(), known=known, instances={A: vm(), B: vm(B, "TERMINATED")})
    after = result(given)
    assert after.pending == (Pending(B, Reason.PREEMPTED, EARLIER),)
    assert after.conditions[Type.READY].reason == Reason.PREEMPTED


def test_what_befell_a_vm_is_forgotten_when_it_is_up_again() -> None:
    known = replace(COMPLETE, pending=(Pending(B, Reason.PREEMPTED, EARLIER),))
    given = on_resync(node(), known=known, instances={A: vm(), B: vm(B)})
    assert [entry.why for entry in result(given).pending] == [Reason.AWAITING_NODE_JOIN]


def test_an_old_entry_about_a_vm_that_runs_again_says_nothing() -> None:
    back = replace(vm(B), started=NOW + timedelta(seconds=5))
    given = seen(node(), node(B), trigger=preempted(B), instances={B: back}, mig=WIRED)
    assert reason(given) == ("True", "Ready")


TOLD = replace(
    COMPLETE,
    conditions={
        **COMPLETE.conditions,
        Type.READY: Condition("False", Reason.PREEMPTED, "", NOW, 1),
    },
    pending=(Pending(A, Reason.PREEMPTED, NOW),),
)
"""A group that says since now that a VM was preempted."""
OLD_LOSS = replace(
    TOLD,
    pending=(
        Pending(A, Reason.PREEMPTED, NOW - timedelta(hours=1)),
        Pending(B, Reason.NODE_NOT_READY, NOW),
    ),
)


@pytest.mark.parametrize(
    "trigger, known, after_s, is_told",
    [
        pytest.param(preempted(B), TOLD, 9, True, id="a loss nine seconds ago"),
        pytest.param(preempted(B), TOLD, 10, False, id="ten seconds ago"),
        pytest.param(preempted(B), TOLD, -10, False, id="a loss that lies in the future"),
        pytest.param(preempted(B), COMPLETE, 0, False, id="nothing told yet"),
        pytest.param(preempted(B), OLD_LOSS, 0, False, id="an old loss, and a Node not ready now"),
        pytest.param(RESYNC, TOLD, 0, False, id="a resync counts"),
        pytest.param(NODES, TOLD, 0, False, id="so does a change of Nodes"),
    ],
)
def test_of_hundreds_lost_at_once_one_speaks_for_all(
    trigger: Trigger, known: Status, after_s: int, is_told: bool
) -> None:
    assert is_loss_reported(trigger, known, NOW + timedelta(seconds=after_s)) is is_told


def test_the_next_one_lost_is_looked_at_alone_and_counts_nothing() -> None:
    one = seen(node(B), known=TOLD, trigger=preempted(B), instances={B: vm(B, "STOPPING")})
    gone = replace(one, members=replace(one.members, instances={B: None}))
    assert kinds(decide(replace(one, is_of_one_vm=True), NOW)) == []
    assert kinds(decide(replace(gone, is_of_one_vm=True), NOW)) == [DeleteNode]


def test_when_compute_engine_says_nothing_of_the_links_nobody_waits_longer_than_five_minutes() -> (
    None
):
    given = seen(node(), node(B), mig=SILENT)
    first = result(given)
    asked = first.conditions[Type.INTERCONNECT_READY]
    again = replace(given, members=replace(given.members, status=first))

    assert (asked.status, asked.reason) == ("False", "Asking")
    assert reason(again, NOW + timedelta(minutes=4)) == ("False", "InterconnectNotReady")
    assert reason(again, NOW + timedelta(minutes=5)) == ("True", "Ready")
    assert reason(again, NOW - timedelta(minutes=5)) == ("True", "Ready")
    assert (
        result(again, NOW + timedelta(minutes=5)).conditions[Type.INTERCONNECT_READY].status
        == "Unknown"
    )


def test_the_counts_and_the_words_for_them() -> None:
    after = result(on_resync(node(), node(B, ready=False), instances={A: vm(), B: vm(B)}))
    assert after.counts == Counts(desired=2, running=2, joined=2, ready=1, failed=0)
    after = result(on_resync(node(), instances={A: vm(), B: vm(B)}))
    assert after.conditions[Type.NODES_JOINED].message == (
        "Waiting for 1 of 2 nodes to join the cluster"
    )


def test_nodes_without_a_providerid_are_counted_in_tpu_operators_words() -> None:
    given = seen(node(), node(B, proved=False, place=""), instances={B: vm(B)})
    assert result(given).conditions[Type.NODES_JOINED].message == (
        "Waiting for 1 of 2 nodes to join the cluster (1 nodes joined with missing ProviderID)"
    )


def test_a_node_with_a_vms_providerid_and_another_name_gets_an_event_with_the_fix() -> None:
    misnamed = node("worker-1", proved=False, place=f"gce://my-gcp-project/us-central1-c/{A}")
    plan = decide(seen(misnamed, instances={"worker-1": None, A: vm()}), NOW)
    assert [action for action in flat(plan) if isinstance(action, Emit)] == [
        Emit(
            Event(
                "NodeNameMismatch",
                f"Node worker-1 names VM {A} in its ProviderID, but a Node must have its VM's name: it "
                "is not counted, and not deleted with the group. Delete it and register the kubelet as "
                f"{A} (--hostname-override; kubeadm: nodeRegistration.name).",
                is_warning=True,
            ),
            misnamed.raw,
        )
    ]
    assert DeleteNode not in kinds(plan)


def test_when_the_last_node_has_joined_the_other_steps_are_triggered_again() -> None:
    known = replace(GROUP_STANDS, conditions={})
    plan = decide(seen(node(), node(B), known=known, mig=WIRED), NOW)
    sends = [
        (action.step, message.cause)
        for action in plan.actions
        if isinstance(action, Send)
        for message in action.messages
    ]
    assert sends == [("inject_token", "Resync"), ("create_resources", "Forwarded")]


def test_a_slice_with_fewer_vms_than_it_should_have_is_create_resources_business() -> None:
    plan = decide(on_resync(node(), instances={A: vm()}), NOW)
    assert [action.step for action in plan.actions if isinstance(action, Send)] == [
        "create_resources"
    ]


def test_a_single_host_needs_no_links() -> None:
    single = {"nodeCount": 1, "topology": "2x2x1", "targetSizePolicyMode": "INDIVIDUAL"}
    after = result(seen(node(), about=group(change=single)))
    assert after.conditions[Type.READY].is_true
    assert after.completed_at == NOW


# What is not the group's

STRANGER = node("somebody-else", proved=False, place="gce://other/zone/somebody-else")
ITS_VM = replace(vm("somebody-else"), created_by="projects/1/zones/z/instanceGroupManagers/other")


@pytest.mark.parametrize("its_vm", [None, ITS_VM], ids=["whose VM is unknown", "on another's VM"])
@pytest.mark.parametrize("known", [GROUP_STANDS, COMPLETE], ids=["new slice", "complete slice"])
def test_a_stranger_with_our_label_does_not_hold_the_slice_up(
    known: Status, its_vm: Instance | None
) -> None:
    given = on_resync(
        node(), STRANGER, known=known, instances={A: vm(), B: vm(B), "somebody-else": its_vm}
    )
    after = result(given, NOW - timedelta(minutes=6))
    assert [entry.name for entry in after.pending] == [B]
    assert after.counts.running == 2


def test_a_stranger_does_not_count_as_a_vm_of_the_slice() -> None:
    given = on_resync(node(), STRANGER, instances={A: vm(), "somebody-else": ITS_VM})
    plan = decide(given, NOW)
    assert [action.step for action in plan.actions if isinstance(action, Send)] == [
        "create_resources"
    ]


@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "x"])
def test_a_time_that_a_kubelet_writes_and_that_is_none_counts_as_unknown(time: str) -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": time}
    parsed = parse_node({**node().raw, "status": {"conditions": [ready]}})
    assert (parsed.is_ready, parsed.ready_since) == (True, None)


OF_ANOTHER_GROUP = node(f"{RESOURCE}-0123abcd-wxyz")
"""A joined Node of the group whose resource name begins with ours. Its kubelet can write our label."""


@pytest.mark.parametrize("trigger", [NODES, RESYNC], ids=["a changed Node", "a resync"])
def test_a_proved_node_of_a_group_with_a_longer_resource_name_is_neither_counted_nor_changed(
    trigger: Trigger,
) -> None:
    plan = decide(seen(node(), OF_ANOTHER_GROUP, trigger=trigger), NOW)
    (write,) = (action for action in plan.actions if isinstance(action, WriteStatus))
    assert (write.status.counts.joined, batch_of(plan).actions) == (1, ())


def test_a_lost_node_of_a_group_with_a_longer_resource_name_is_not_a_loss() -> None:
    given = seen(node(), known=COMPLETE, trigger=changed(B, OF_ANOTHER_GROUP.name))
    assert [entry.name for entry in result(given).pending] == [B]


# What is known from before


def test_the_links_are_asked_for_again_when_a_node_was_missing() -> None:
    wired = {
        **COMPLETE.conditions,
        Type.INTERCONNECT_READY: Condition("True", "Active", "", EARLIER, 1),
    }
    after = result(seen(node(), known=replace(COMPLETE, conditions=wired)))
    said = after.conditions[Type.INTERCONNECT_READY]
    assert (said.status, said.reason, said.since) == ("Unknown", "Incomplete", NOW)


def test_what_befell_a_vm_is_not_said_of_another() -> None:
    known = replace(COMPLETE, pending=(Pending(B, Reason.PREEMPTED, EARLIER),))
    given = on_resync(node(), node(B), known=known, instances={A: None, B: None})
    assert {entry.name: entry.why for entry in result(given).pending} == {
        A: Reason.NODE_LOST,
        B: Reason.PREEMPTED,
    }


OUTDATED: dict[str, tuple[str, bool, dict[str, Instance | None], list[str]]] = {
    "a VM that the list of all does not have": (Reason.NODE_JOIN_TIMEOUT, True, {}, []),
    "the same, not all were read": (
        Reason.NODE_JOIN_TIMEOUT,
        False,
        {},
        [Reason.NODE_JOIN_TIMEOUT],
    ),
    "a lost VM that the list of all does not have": (
        Reason.NODE_LOST,
        True,
        {},
        [Reason.NODE_LOST],
    ),
    "a VM that has just started": (
        Reason.NODE_JOIN_TIMEOUT,
        True,
        {B: vm(B, started=NOW)},
        [Reason.AWAITING_NODE_JOIN],
    ),
}


@pytest.mark.parametrize("case", OUTDATED.values(), ids=OUTDATED)
def test_what_is_kept_of(case: tuple[str, bool, dict[str, Instance | None], list[str]]) -> None:
    why, is_complete, instances, kept = case
    known = replace(GROUP_STANDS, pending=(Pending(B, why, EARLIER),))
    given = seen(node(), known=known, is_complete=is_complete, instances={A: vm(), **instances})
    assert [entry.why for entry in result(given).pending] == kept


# Words


def joined(given: ObservedNodes, now: datetime = NOW) -> tuple[str, str]:
    """Reason and message of NodesJoined."""
    said = result(given, now).conditions[Type.NODES_JOINED]
    return said.reason, said.message


def changed(*names: str) -> Trigger:
    message = Message("default", "my-slice", "", Cause.NODES_CHANGED, NOW, nodes=names)
    return Trigger("x", NOW, message)


INDIVIDUAL = group(
    change={"nodeCount": 2, "topology": "2x2x1", "targetSizePolicyMode": "INDIVIDUAL"}
)
FLEX = group(
    change={
        "instanceConfig": {
            "reservation": None,
            "provisioningModel": "FLEX_START",
            "maxRunDuration": "48h",
        }
    }
)
LOST_WORDS = (
    "A VM or Node of the slice is gone. Compute Engine recreates VMs of an INDIVIDUAL group. A VM of a "
    "BULK slice is not recreated: delete the group and apply it again."
)
RUN_WORDS = (
    "The VMs have run for spec.instanceConfig.maxRunDuration and were ended. To run them again, delete "
    "the group and apply it again."
)
GONE_WORDS = (
    "Before the slice was complete, 1 of its 2 VMs were deleted. Compute Engine does not recreate VMs "
    "of a "
    "BULK slice. The others wait and are billed: delete the group and apply it again."
)
LONG_UP = NOW - timedelta(hours=2)
DELETED = replace(COMPLETE, pending=(Pending(B, Reason.NODE_LOST, NOW),))
TWO_DAYS_AGO = NOW - timedelta(hours=48)
ENDED = preempted(B, "compute.instances.delete")
WORDS: dict[str, tuple[ObservedNodes, str, str]] = {
    "a Node that is gone is named at once": (
        seen(node(), known=COMPLETE, trigger=changed(B)),
        "NodeLost",
        f"Waiting for 1 of 2 nodes to join the cluster; {B}. {LOST_WORDS}",
    ),
    "the next look at its VM says what to do": (
        on_resync(
            node(), known=DELETED, about=INDIVIDUAL, instances={A: vm(), B: vm(B, started=LONG_UP)}
        ),
        "NodeDeleted",
        f"Node {B} was deleted; its VM is running. Restart the kubelet on the VM, or delete the VM so "
        "that it is recreated.",
    ),
    "so it does in a BULK slice": (
        on_resync(node(), known=COMPLETE, instances={A: vm(), B: vm(B, started=LONG_UP)}),
        "NodeDeleted",
        f"Node {B} was deleted; its VM is running. Restart the kubelet on the VM. Do not delete VMs of "
        "a BULK slice: Compute Engine does not recreate them.",
    ),
    "several Nodes": (
        on_resync(
            known=COMPLETE,
            about=INDIVIDUAL,
            instances={A: vm(started=LONG_UP), B: vm(B, started=LONG_UP)},
        ),
        "NodeDeleted",
        f"Nodes {A}, {B} were deleted; their VMs are running. Restart the kubelets on the VMs, or "
        "delete the VMs so that they are recreated.",
    ),
    "a VM that was recreated is waited for": (
        on_resync(
            node(), known=DELETED, instances={A: vm(), B: vm(B, started=NOW - timedelta(minutes=4))}
        ),
        "AwaitingNodeJoin",
        "Waiting for 1 of 2 nodes to join the cluster",
    ),
    "a Node with another name": (
        on_resync(
            node(),
            node("worker-7", proved=False, place=f"gce://my-gcp-project/us-central1-c/{B}"),
            instances={A: vm(), B: vm(B, started=LONG_UP), "worker-7": None},
        ),
        "NodeNameMismatch",
        f"Node worker-7 runs on VM {B}, by its providerID. A Node must have its VM's name: start the "
        "kubelet "
        "with --hostname-override=VM, and delete the Node.",
    ),
    "a VM of a slice that was never complete is gone": (
        on_resync(node(), instances={A: vm()}),
        "NodeLost",
        GONE_WORDS,
    ),
    "an event says that it is gone": (
        seen(node(), trigger=ENDED, instances={B: None}),
        "NodeLost",
        GONE_WORDS,
    ),
    "an INDIVIDUAL group gets its VM again": (
        on_resync(node(), about=INDIVIDUAL, instances={A: vm()}),
        "AwaitingNodeJoin",
        "Waiting for 1 of 2 nodes to join the cluster",
    ),
    "its time is over, and its VM stops": (
        seen(
            node(),
            known=COMPLETE,
            about=FLEX,
            trigger=ENDED,
            instances={B: vm(B, "STOPPING", TWO_DAYS_AGO)},
        ),
        "MaxRunDurationReached",
        f"Waiting for 1 of 2 nodes to join the cluster; {B}. {RUN_WORDS}",
    ),
    "its time is over, and its VM is gone": (
        seen(
            node(),
            known=replace(COMPLETE, completed_at=TWO_DAYS_AGO),
            about=FLEX,
            trigger=ENDED,
            instances={B: None},
        ),
        "MaxRunDurationReached",
        f"Waiting for 1 of 2 nodes to join the cluster; {B}. {RUN_WORDS}",
    ),
    "its time is not over": (
        seen(node(), known=COMPLETE, about=FLEX, trigger=ENDED, instances={B: None}),
        "NodeLost",
        f"Waiting for 1 of 2 nodes to join the cluster; {B}. {LOST_WORDS}",
    ),
}


@pytest.mark.parametrize("case", WORDS.values(), ids=WORDS)
def test_what_is_said_of_missing_nodes(case: tuple[ObservedNodes, str, str]) -> None:
    given, reason, message = case
    assert joined(given) == (reason, message)


def test_only_a_list_of_all_vms_takes_back_that_one_is_gone() -> None:
    """The status has no entry of it, because nobody knows its name."""
    first = result(on_resync(node(), instances={A: vm()}))
    assert joined(seen(node(), known=first, trigger=NODES)) == ("NodeLost", GONE_WORDS)
    back = on_resync(node(), known=first, instances={A: vm(), B: vm(B, started=NOW)})
    assert joined(back)[0] == "AwaitingNodeJoin"


def test_a_list_may_lag_behind_a_mig_that_was_just_made() -> None:
    made = Condition("True", "Ready", "", NOW - timedelta(seconds=59), 1)
    known = replace(GROUP_STANDS, conditions={**GROUP_STANDS.conditions, Type.MIG_READY: made})
    assert joined(on_resync(node(), known=known, instances={A: vm()}))[0] == "AwaitingNodeJoin"


def test_a_flapping_node_is_reported_immediately_and_counts_again_after_a_minute() -> None:
    up, down = (node(), node(B)), (node(), node(B, ready=False))
    known = result(seen(*up, known=COMPLETE, mig=WIRED))
    told = []
    for half_minute in range(8):
        now = NOW + half_minute * timedelta(seconds=30)
        nodes = up if half_minute % 2 else down
        known = result(seen(*nodes, known=known, mig=WIRED), now)
        told.append(known.conditions[Type.READY].status)
    assert told == ["False", "False", "False", "True"] * 2


FLAPPED = replace(
    COMPLETE,
    completed_at=NOW - timedelta(hours=1),
    pending=(Pending(B, Reason.NODE_NOT_READY, NOW),),
)


@pytest.mark.parametrize(
    "created, is_ready",
    [
        pytest.param(NOW - timedelta(minutes=15, seconds=-1), True, id="joining"),
        pytest.param(NOW - timedelta(minutes=15), False, id="older than any that joins"),
        pytest.param(NOW - timedelta(hours=1), False, id="as old as the complete slice"),
        pytest.param(NOW + timedelta(minutes=15), False, id="of the future"),
        pytest.param(None, False, id="of unknown age"),
    ],
)
def test_a_node_that_was_not_ready_a_moment_ago_counts_only_if_it_is(
    created: datetime | None, is_ready: bool
) -> None:
    after = result(seen(node(), node(B, created=created), known=FLAPPED, mig=WIRED))
    assert after.conditions[Type.READY].is_true is is_ready


@pytest.mark.parametrize(
    "started, reasons",
    [
        pytest.param(NOW, [Reason.PREEMPTED], id="until then"),
        pytest.param(NOW + timedelta(seconds=1), [Reason.NODE_NOT_READY], id="again since then"),
        pytest.param(None, [Reason.PREEMPTED], id="nobody knows when"),
    ],
)
def test_an_event_concerns_the_vm_that_ran(started: datetime | None, reasons: list[str]) -> None:
    down = replace(vm(B, "RUNNING"), started=started)
    given = seen(
        node(),
        node(B, ready=False),
        known=COMPLETE,
        trigger=preempted(B),
        instances={B: down},
    )
    assert [entry.why for entry in result(given).pending] == reasons


def test_a_new_slice_is_ready_as_soon_as_its_nodes_are() -> None:
    known = result(seen(node(), node(B, ready=False)))
    after = result(seen(node(), node(B), known=known, mig=WIRED), NOW + timedelta(seconds=1))
    assert after.conditions[Type.READY].is_true


FUTURE = NOW + timedelta(days=400)


def test_times_in_the_future_hold_nothing_up() -> None:
    """They can only have been written by somebody else."""
    asking = {
        **COMPLETE.conditions,
        Type.INTERCONNECT_READY: Condition("False", "Asking", "", FUTURE, 1),
    }
    ahead = (Pending(B, Reason.NODE_NOT_READY, FUTURE),)
    known = replace(COMPLETE, conditions=asking, pending=ahead)
    assert reason(seen(node(), node(B), known=known, mig=SILENT)) == ("True", "Ready")
    told = replace(TOLD, pending=(Pending(A, Reason.PREEMPTED, FUTURE),))
    assert is_loss_reported(preempted(B), told, NOW) is False


def not_let_in(cause: Cause, *vms: str) -> Trigger:
    message = Message("default", "my-slice", "", cause, NOW, vms=vms)
    return Trigger(str(cause), NOW, message)


@pytest.mark.parametrize("cause", [Cause.JOIN_NOT_APPROVED, Cause.JOIN_DENIED])
def test_what_approve_join_says_of_a_vm_stands_until_it_has_joined(cause: Cause) -> None:
    both = {A: vm(), B: vm(B)}
    told = result(seen(node(), trigger=not_let_in(cause, B), instances=both))
    assert told.pending == (Pending(B, str(cause), NOW),)
    joined = told.conditions[Type.NODES_JOINED]
    assert (joined.reason, told.conditions[Type.READY].reason) == (cause, cause)
    assert joined.message == (
        f"Waiting for 1 of 2 nodes to join the cluster; {B}. {REASONS[Reason(cause)]}"
    )
    again = result(on_resync(node(), known=told, instances=both))
    assert again.pending == told.pending
    assert result(on_resync(node(), node(B), known=told, instances=both)).pending == ()


def test_what_approve_join_says_of_a_vm_that_has_joined_or_is_foreign_is_nothing() -> None:
    trigger = not_let_in(Cause.JOIN_NOT_APPROVED, A, "tng-other-01234567-ab12")
    foreign = replace(vm("tng-other-01234567-ab12"), created_by="")
    told = result(
        seen(node(), node(B), trigger=trigger, instances={A: vm(), foreign.name: foreign})
    )
    assert told.pending == ()


def test_of_a_vm_that_goes_down_approve_joins_word_is_forgotten() -> None:
    known = replace(GROUP_STANDS, pending=(Pending(B, Reason.JOIN_DENIED, EARLIER),))
    given = on_resync(node(), known=known, instances={A: vm(), B: vm(B, "STOPPING", started=NOW)})
    assert [entry.why for entry in result(given).pending] == [Reason.AWAITING_NODE_JOIN]
