# ruff: noqa: E501  (a table reads best with a row on a line)
"""The decisions of label_node: which Nodes belong to the group, and the status that follows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from functions.label_node.decide import decide
from functions.label_node.observe import NothingToCount, is_debounced
from functions.label_node.observed_nodes import ObservedNodes
from shared.base.names import BOOT_ID_LABEL, VM_ID_LABEL
from shared.base.reasons import REASONS, Reason
from shared.base.timestamps import render_time
from shared.frame.plan import Action, Emit, Plan, Send
from shared.node_groups.actions import DeleteNode, PatchNode, RevokeToken
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.node_groups.status import (
    MAX_PENDING,
    MIG,
    Condition,
    Counts,
    Pending,
    State,
    Status,
    Type,
)
from shared.node_groups.work import WriteStatus
from shared.ports.gce.values import Instance, Maintenance
from shared.ports.kubernetes.events import Event
from shared.ports.kubernetes.nodes import Node, parse_node
from shared.triggers.message import Cause, Message
from shared.triggers.trigger import ObjectTrigger, Trigger
from tests.support.builders import NOW, RESOURCE, flat, group, unreadable_group
from tests.support.compute import instance, instance_group
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
    observed,
    on_resync,
    preempted,
    raw_node,
    vm,
)


def result(given: ObservedNodes, now: datetime = NOW) -> Status:
    write = next(action for action in flat(decide(given, now)) if isinstance(action, WriteStatus))
    return write.status


def reason(given: ObservedNodes, now: datetime = NOW) -> tuple[str, str]:
    ready = result(given, now).conditions[Type.READY]
    return ready.status, ready.reason


def kinds(plan: Plan) -> list[type[Action]]:
    return [type(action) for action in flat(plan) if not isinstance(action, Send)]


NODE_ACTIONS: dict[str, tuple[Node, Instance | None, list[type[Action]]]] = {
    "of a VM of the group": (node(proved=False), vm(), [RevokeToken, PatchNode, WriteStatus]),
    "without a providerID": (node(proved=False, provider_id=""), vm(), [WriteStatus, Emit]),
    "of another zone": (
        node(proved=False, provider_id=f"gce://my-gcp-project/us-central1-a/{A}"),
        vm(),
        [WriteStatus, Emit],
    ),
    "on a VM that the MIG does not list": (
        node(proved=False),
        replace(vm(), is_member=False),
        [WriteStatus],
    ),
    "of a VM without a token": (node(proved=False), instance(A), [WriteStatus]),
    "of a VM with a token, with another id in its label": (
        node(),
        replace(vm(), id="43"),
        [RevokeToken, PatchNode, WriteStatus, Emit],
    ),
    "of a recreated VM that has no token yet": (
        node(),
        replace(vm(), id="43", metadata={}),
        [WriteStatus],
    ),
    "whose VM is gone": (node(proved=False), None, [DeleteNode, WriteStatus]),
    "proved, with all labels": (node(), vm(), [WriteStatus]),
    "proved, with a changed label": (
        node(labels={"cloud.google.com/gke-tpu-accelerator": "false"}),
        vm(),
        [PatchNode, WriteStatus],
    ),
}


@pytest.mark.conformance(
    cases={
        "of a VM of the group": "node-match",
        "proved, with a changed label": "node-label-corrected",
    }
)
@pytest.mark.parametrize("case", NODE_ACTIONS.values(), ids=NODE_ACTIONS)
def test_a_node_is_labelled_deleted_or_left_unchanged(
    case: tuple[Node, Instance | None, list[type[Action]]],
) -> None:
    about, its_vm, expected = case
    assert kinds(decide(observed(about, instances={A: its_vm}), NOW)) == expected


def test_the_tokens_of_twenty_vms_are_revoked_together_before_their_nodes_are_patched() -> None:
    names = [f"{RESOURCE}-{number:04}" for number in range(22)]
    plan = decide(
        observed(
            *(node(name, proved=False) for name in names),
            instances={name: vm(name) for name in names},
        ),
        NOW,
    )
    assert [one.name for one in plan.each] == names
    assert {tuple(map(type, one.actions)) for one in plan.each} == {(RevokeToken, PatchNode)}
    actions = [action for one in plan.each for action in one.actions]
    together = [action.together for action in actions if isinstance(action, RevokeToken)]
    assert together == [tuple(names[:20])] * 20 + [tuple(names[20:])] * 2


WITHOUT_BOOTSTRAP = group(change={"bootstrapKubernetes": None})
BOOTED = {BOOT_ID_LABEL: "first"}
PREDECESSORS: dict[str, tuple[Node, NodeGroup, list[type[Action]], list[str]]] = {
    "the group has no bootstrap, and the Node is not proved": (node(proved=False), WITHOUT_BOOTSTRAP, [PatchNode, WriteStatus], []),
    "the group has no bootstrap, and the new kubelet has reported": (node(labels=BOOTED, boot="second"), WITHOUT_BOOTSTRAP, [PatchNode, WriteStatus], []),
    "the group has no bootstrap, and the new kubelet has not reported": (node(labels=BOOTED, boot="first"), WITHOUT_BOOTSTRAP, [WriteStatus], []),
    "the group has bootstrap": (node(silent=True), group(), [WriteStatus], ["inject_token"]),
    "the group has bootstrap, and the Node still reports": (node(), group(), [WriteStatus], []),
}  # fmt: skip


@pytest.mark.parametrize("case", PREDECESSORS.values(), ids=PREDECESSORS)
def test_the_node_of_a_predecessor_of_its_vm_is_labelled_or_triggers_inject_token(
    case: tuple[Node, NodeGroup, list[type[Action]], list[str]],
) -> None:
    about, its_group, expected, triggered = case
    instances = {A: replace(vm(), id="43", metadata={})}
    plan = decide(observed(about, about=its_group, instances=instances), NOW + timedelta(minutes=1))
    assert kinds(plan) == expected
    assert [action.step for action in flat(plan) if isinstance(action, Send)] == triggered


def test_a_node_of_another_machine_with_the_label_of_the_group_is_not_deleted() -> None:
    foreign = node("foreign-node", proved=False, provider_id="gce://other/zone/foreign-node")
    plan = decide(observed(foreign, instances={"foreign-node": None}), NOW)
    assert DeleteNode not in kinds(plan)


@pytest.mark.conformance(
    "node-labels",
    "node-label-readme-selector",
    "labels.accelerator",
    "labels.topology",
    "labels.chips_per_node",
    "labels.node_group",
    "chips-vs-cores",
)
def test_a_node_gets_the_labels_of_tpu_operator_and_of_this_system() -> None:
    plan = decide(observed(node(proved=False, labelled=False), instances={A: vm()}), NOW)
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


def test_a_proved_node_gets_the_labels_and_taints_of_the_spec() -> None:
    about = group(
        change={
            "nodeLabels": {"team": "x"},
            "nodeTaints": [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}],
        }
    )
    plan = decide(observed(node(proved=False), instances={A: vm()}, about=about), NOW)
    patch = next(action.patch for action in flat(plan) if isinstance(action, PatchNode))
    assert patch["metadata"]["labels"]["team"] == "x"
    assert patch["metadata"]["resourceVersion"] == "9"
    assert patch["spec"]["taints"] == [
        {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
        {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"},
    ]


TEMPLATE = "projects/my-gcp-project/global/instanceTemplates/t"
RECENTLY = EARLIER + timedelta(seconds=1)


@pytest.mark.parametrize("chips, is_ready", [(8, True), (1, True), (0, False)])
def test_nodes_of_an_unknown_machine_count_if_they_offer_any_chips(
    chips: int, is_ready: bool
) -> None:
    own = {"instanceConfig": None, "bootstrapKubernetes": None, "instanceTemplateURI": TEMPLATE}
    given = on_resync(node(chips=chips), instances={A: vm()}, about=group(change=own))
    assert set(given.ready) == ({A} if is_ready else set())


CORRECTIONS: dict[str, tuple[str, str | None]] = {
    "the first": ("", f"1 {render_time(NOW)}"),
    "the fifth in ten minutes": (f"4 {render_time(RECENTLY)}", f"5 {render_time(RECENTLY)}"),
    "not a sixth": (f"5 {render_time(RECENTLY)}", None),
    "the first of the next ten minutes": (f"5 {render_time(EARLIER)}", f"1 {render_time(NOW)}"),
    "the first after one with a clock that is ahead": (f"5 {render_time(NOW + timedelta(minutes=10))}", f"1 {render_time(NOW)}"),
}  # fmt: skip


@pytest.mark.parametrize("note, then", CORRECTIONS.values(), ids=CORRECTIONS)
def test_the_corrections_of_a_nodes_labels_are_counted_for_ten_minutes(
    note: str, then: str | None
) -> None:
    wrong = node(labels={"cloud.google.com/gke-accelerator-count": "9"})
    about = replace(wrong, corrections_note=note)
    plan = decide(observed(about, instances={A: vm()}), NOW)
    patches = [action.patch["metadata"] for action in flat(plan) if isinstance(action, PatchNode)]
    key = "tpu-functions.dev/label-corrections"
    assert [patch["annotations"][key] for patch in patches] == ([then] if then else [])


def names_of(plan: Plan) -> list[str]:
    """Return the names of the Nodes on which the plan acts."""
    return [one.name for one in plan.each]


def about_nodes(cause: Cause, *nodes: str) -> Trigger:
    message = Message("default", "x", "", cause, NOW, nodes=nodes)
    return ObjectTrigger(message)


@pytest.mark.parametrize(
    "trigger, names",
    [
        pytest.param(about_nodes(Cause.NODES_CHANGED, B), [B, A, C], id="the named Node first"),
        pytest.param(about_nodes(Cause.RESYNC), [A, B, C], id="all, by name"),
        pytest.param(about_nodes(Cause.CONTINUED, B), [B, C], id="the remaining Nodes only"),
        pytest.param(about_nodes(Cause.CONTINUED, C, B), [B, C], id="from the first named Node"),
    ],
)
def test_nodes_are_labelled_by_name_after_those_that_the_trigger_names(
    trigger: Trigger, names: list[str]
) -> None:
    nodes = [node(name, proved=False) for name in (C, B, A)]
    instances = {name: vm(name) for name in (A, B, C)}
    plan = decide(observed(*nodes, trigger=trigger, instances=instances), NOW)
    assert names_of(plan) == names


def test_nodes_beyond_the_time_limit_are_published_in_a_message_to_the_step() -> None:
    known = observed(node(A), node(B, proved=False), instances={B: vm(B)}, mig=INTERCONNECT_ACTIVE)
    message = Message("default", "my-slice", group().uid, Cause.CONTINUED, NOW)
    assert decide(known, NOW).resume == message


DELETED_NODES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "and its VM does not exist": ({"instances": {B: None}}, ["NodeLost"]),
    "and its VM is not a member": ({"instances": {B: replace(vm(B), is_member=False)}}, ["NodeLost"]),
    "and its VM runs": ({"instances": {B: vm(B)}}, ["NodeDeleted"]),
    "and its VM was not read": ({"instances": {}}, []),
    "or was not read": ({"instances": {B: None}, "unread_nodes": frozenset({B})}, []),
}  # fmt: skip


@pytest.mark.parametrize("facts, whys", DELETED_NODES.values(), ids=DELETED_NODES)
def test_a_node_that_was_deleted_is_reported_by_what_its_vm_does(
    facts: dict[str, Any], whys: list[str]
) -> None:
    given = observed(
        node(A),
        trigger=about_nodes(Cause.NODES_CHANGED, B),
        known=replace(COMPLETE, completed_at=NOW),
        mig=INTERCONNECT_ACTIVE,
    )
    assert [entry.why for entry in result(replace(given, **facts)).pending] == whys


def test_the_message_of_ready_names_a_node_that_is_starting() -> None:
    given = observed(node(), node(B, ready=False, created=NOW - timedelta(minutes=1)))
    assert result(given).conditions[Type.READY].message == (
        f"Waiting for 1 of 2 nodes to become Ready: {B}"
    )


INTERCONNECT_ACTIVE = instance_group(topologies={"2x2x2": "ACTIVE"})
INTERCONNECT_UNKNOWN = instance_group()
LATE = NOW + timedelta(minutes=20)
READINESS: dict[str, tuple[ObservedNodes, tuple[str, str]]] = {
    "one of two": (observed(node()), ("False", "AwaitingNodeJoin")),
    "both, and the interconnect is active": (observed(node(), node(B), mig=INTERCONNECT_ACTIVE), ("True", "Ready")),
    "both, and the interconnect is unknown": (observed(node(), node(B), mig=INTERCONNECT_UNKNOWN), ("False", "InterconnectNotReady")),
    "both, and the interconnect has failed": (observed(node(), node(B), mig=instance_group(topologies={"2x2x2": "FAILED"})), ("False", "InterconnectNotReady")),
    "one is not Ready": (observed(node(), node(B, ready=False)), ("False", "NodeNotReady")),
    "one has just joined and is not Ready": (observed(node(), node(B, ready=False, created=NOW - timedelta(minutes=1))), ("False", "AwaitingNodeJoin")),
    "one has no chips for long": (observed(node(), node(B, chips=0)), ("False", "DevicePluginMissing")),
    "a VM has not joined in time": (on_resync(node(), instances={A: vm(), B: vm(B, started=NOW - timedelta(minutes=15))}), ("False", "NodeJoinTimeout")),
    "a VM of a complete slice was stopped, and its Node is gone": (
        on_resync(node(), known=COMPLETE, instances={A: vm(), B: vm(B, "TERMINATED")}),
        ("False", "NodeLost"),
    ),
    "a VM has not joined": (on_resync(node(), instances={A: vm(), B: vm(B)}), ("False", "AwaitingNodeJoin")),
    "a VM was preempted": (observed(node(), node(B), known=COMPLETE, trigger=preempted(B), instances={B: vm(B, "STOPPING")}), ("False", "Preempted")),
    "a VM is gone": (observed(node(), node(B), known=COMPLETE, trigger=preempted(B, "compute.instances.delete"), instances={B: None}), ("False", "NodeLost")),
    "a Node of a complete slice is gone": (observed(node(), known=COMPLETE), ("False", "NodeLost")),
}  # fmt: skip


@pytest.mark.conformance(cases={"one has no chips for long": "dp-already-gone"})
@pytest.mark.parametrize("case", READINESS.values(), ids=READINESS)
def test_the_condition_ready_follows_from_the_nodes(
    case: tuple[ObservedNodes, tuple[str, str]],
) -> None:
    given, expected = case
    assert reason(given) == expected


def test_the_reason_of_a_lost_vm_remains_while_the_vm_does_not_run() -> None:
    known = replace(COMPLETE, pending=(Pending(B, Reason.PREEMPTED, EARLIER),))
    given = on_resync(node(), known=known, instances={A: vm(), B: vm(B, "TERMINATED")})
    after = result(given)
    assert after.pending == (Pending(B, Reason.PREEMPTED, EARLIER),)
    assert after.conditions[Type.READY].reason == Reason.PREEMPTED


def test_the_reason_of_a_lost_vm_is_removed_when_the_vm_runs_again() -> None:
    known = replace(COMPLETE, pending=(Pending(B, Reason.PREEMPTED, EARLIER),))
    given = on_resync(node(), known=known, instances={A: vm(), B: vm(B)})
    assert [entry.why for entry in result(given).pending] == [Reason.AWAITING_NODE_JOIN]


def test_a_slice_is_ready_despite_an_old_event_about_a_vm_that_runs_again() -> None:
    restarted = replace(vm(B), started=NOW + timedelta(seconds=5))
    given = observed(
        node(), node(B), trigger=preempted(B), instances={B: restarted}, mig=INTERCONNECT_ACTIVE
    )
    assert reason(given) == ("True", "Ready")


OLD_LOSS = replace(
    LOSS_REPORTED,
    pending=(
        Pending(A, Reason.PREEMPTED, NOW - timedelta(hours=1)),
        Pending(B, Reason.NODE_NOT_READY, NOW),
    ),
)


ANNOUNCED = preempted(A, "compute.instances.upcomingMaintenance")
PENDING, ONGOING = (
    Maintenance(NOW, NOW + timedelta(hours=4), "SCHEDULED", state)
    for state in ("PENDING", "ONGOING")
)


LATER, SOONER = (
    replace(PENDING, start=start)
    for start in (NOW + timedelta(hours=1), NOW + timedelta(minutes=59))
)


def announcing(
    maintenance: Maintenance | None, reported: str, begins: timedelta = timedelta(0)
) -> ObservedNodes:
    """What an announcement about VM a observes; ``reported``: the reason of the condition, about what
    ``begins`` then."""
    message = f"announced, from {render_time(NOW + begins)} to x"
    known, scheduled = COMPLETE, Condition("True", reported, message, EARLIER, 1)
    if reported:
        of_maintenance = {Type.MAINTENANCE_SCHEDULED: scheduled}
        known = replace(known, conditions={**known.conditions, **of_maintenance})
    vms = {A: replace(vm(), maintenance=maintenance)}
    return observed(node(), known=known, trigger=ANNOUNCED, instances=vms, is_debounced=True)


@pytest.mark.parametrize(
    "maintenance, reported, outcome",
    [
        pytest.param(PENDING, "", "Announced", id="the first"),
        pytest.param(PENDING, "Pending", "Debounced", id="of one more VM"),
        pytest.param(LATER, "Pending", "Debounced", id="of one more VM, later"),
        pytest.param(ONGOING, "Pending", "Announced", id="it has begun"),
        pytest.param(ONGOING, "Ongoing", "Debounced", id="it has begun for one more VM"),
        pytest.param(PENDING, "Ongoing", "Debounced", id="of one more VM, another's has begun"),
        pytest.param(None, "Ongoing", "Debounced", id="it is over"),
        pytest.param(None, "", "Debounced", id="it was over before the read"),
    ],
)
def test_an_announcement_of_news_is_reported_before_the_nodes_label_and_counted_by_a_resync(
    maintenance: Maintenance | None, reported: str, outcome: str
) -> None:
    plan = decide(announcing(maintenance, reported), NOW)
    patches = [PatchNode] if maintenance else []
    assert (plan.outcome, [type(one) for each in plan.each for one in each.actions]) == (
        outcome,
        patches,
    )
    if outcome == "Debounced":
        assert (plan.first, plan.after, plan.best_effort) == ((), (), ())
        return
    (write,), (resync,) = plan.first, plan.best_effort
    assert isinstance(write, WriteStatus)
    assert isinstance(resync, Send)
    assert (resync.step, resync.messages[0].cause) == ("label_node", Cause.RESYNC)
    assert write.status.conditions[Type.MAINTENANCE_SCHEDULED].message == (
        "Compute Engine has announced maintenance, SCHEDULED, from 2026-11-20T10:00:00Z to "
        f"2026-11-20T14:00:00Z, for at least 1 of 2 VMs: {A}. It stops them then: save checkpoints "
        "before."
    )


def test_an_announcement_that_begins_before_the_next_count_is_reported() -> None:
    plan = decide(announcing(SOONER, "Pending", timedelta(days=7)), NOW)
    (write,) = plan.first
    assert plan.outcome == "Announced"
    assert isinstance(write, WriteStatus)
    message = write.status.conditions[Type.MAINTENANCE_SCHEDULED].message
    assert f", from {render_time(NOW + timedelta(minutes=59))} to " in message
    for given in (
        announcing(SOONER, "Ongoing", timedelta(days=7)),
        announcing(SOONER, "Pending", timedelta(minutes=58)),
        announcing(LATER, "Pending", timedelta(days=7)),
    ):
        assert decide(given, NOW).outcome == "Debounced"


def test_a_vm_of_others_announces_nothing() -> None:
    given = announcing(PENDING, "")
    foreign = {A: replace(vm(), maintenance=PENDING, is_member=False)}
    assert decide(replace(given, instances=foreign), NOW).outcome == "Debounced"


def test_a_resync_writes_changed_maintenance_before_it_labels_nodes() -> None:
    vms = {name: replace(vm(name), maintenance=PENDING) for name in (A, B)}
    given = on_resync(node(), node(B), known=COMPLETE, instances=vms)
    plan = decide(given, NOW)
    (write,) = plan.first
    assert isinstance(write, WriteStatus)
    condition = write.status.conditions[Type.MAINTENANCE_SCHEDULED]
    assert f"for 2 of 2 VMs: {A}, {B}. " in condition.message
    assert len(plan.each) == 2
    assert decide(replace(given, status=write.status), NOW).first == ()


@pytest.mark.parametrize(
    "trigger, known, after_s, is_within_debounce",
    [
        pytest.param(preempted(B), LOSS_REPORTED, 9, True, id="a loss reported nine seconds ago"),
        pytest.param(preempted(B), LOSS_REPORTED, 10, False, id="a loss reported ten seconds ago"),
        pytest.param(preempted(B), LOSS_REPORTED, -10, False, id="a loss reported in the future"),
        pytest.param(preempted(B), COMPLETE, 0, False, id="no reported loss"),
        pytest.param(
            preempted(B), OLD_LOSS, 0, False, id="an old loss, and a Node that is not Ready now"
        ),
        pytest.param(RESYNC, LOSS_REPORTED, 0, False, id="a resync"),
        pytest.param(NODES_CHANGED, LOSS_REPORTED, 0, False, id="changed Nodes"),
        pytest.param(ANNOUNCED, COMPLETE, 0, True, id="announced maintenance"),
    ],
)
def test_a_loss_within_ten_seconds_of_a_reported_loss_is_debounced(
    trigger: Trigger, known: Status, after_s: int, is_within_debounce: bool
) -> None:
    assert is_debounced(trigger, known, NOW + timedelta(seconds=after_s)) is is_within_debounce


def test_events_are_debounced_also_after_more_losses_than_the_status_names() -> None:
    earlier = NOW - timedelta(minutes=1)
    lost = [f"{RESOURCE}-{number:04}" for number in range(MAX_PENDING)]
    full = replace(
        LOSS_REPORTED, pending=tuple(Pending(name, "Preempted", earlier) for name in lost)
    )
    after = result(observed(trigger=preempted(B), known=full, instances={B: vm(B, "STOPPING")}))
    assert after.pending == (*full.pending[:-1], Pending(B, "Preempted", NOW))
    assert is_debounced(preempted(A), after, NOW + timedelta(seconds=9))


@pytest.mark.parametrize("count", [MAX_PENDING, MAX_PENDING + 1, 64])
def test_a_resync_changes_nothing_about_losses_that_are_reported_already(count: int) -> None:
    names = [f"{RESOURCE}-{number:04}" for number in range(count)]
    vms = {name: vm(name, "TERMINATED") for name in names}
    nodes = [node(name, ready=False) for name in names]
    change = {"nodeCount": count, "topology": "2x2x1", "targetSizePolicyMode": "INDIVIDUAL"}
    own = group(change=change)
    first = result(on_resync(*nodes, known=COMPLETE, about=own, instances=vms))
    given = on_resync(*nodes, known=first, about=own, instances=vms)
    assert result(given, NOW + timedelta(minutes=5)).pending == first.pending
    assert len(first.pending) == MAX_PENDING


def test_a_debounced_loss_writes_no_status_and_deletes_only_the_node_of_a_deleted_vm() -> None:
    one = observed(
        node(B), known=LOSS_REPORTED, trigger=preempted(B), instances={B: vm(B, "STOPPING")}
    )
    gone = replace(one, instances={B: None})
    assert kinds(decide(replace(one, is_debounced=True), NOW)) == []
    assert kinds(decide(replace(gone, is_debounced=True), NOW)) == [DeleteNode]


@pytest.mark.conformance("node-ready-no-ici")
def test_an_unknown_interconnect_delays_a_slice_for_at_most_five_minutes() -> None:
    given = observed(node(), node(B), mig=INTERCONNECT_UNKNOWN)
    first = result(given)
    unknown = first.conditions[Type.INTERCONNECT_READY]
    again = replace(given, status=first)

    assert (unknown.status, unknown.reason) == ("False", "Asking")
    assert reason(again, NOW + timedelta(minutes=4)) == ("False", "InterconnectNotReady")
    assert reason(again, NOW + timedelta(minutes=5)) == ("True", "Ready")
    assert reason(again, NOW - timedelta(minutes=5)) == ("True", "Ready")
    assert (
        result(again, NOW + timedelta(minutes=5)).conditions[Type.INTERCONNECT_READY].status
        == "Unknown"
    )


def test_the_status_counts_the_nodes_and_the_message_counts_the_missing_ones() -> None:
    after = result(on_resync(node(), node(B, ready=False), instances={A: vm(), B: vm(B)}))
    assert after.counts == Counts(desired=2, running=2, joined=2, ready=1, failed=0)
    after = result(on_resync(node(), instances={A: vm(), B: vm(B)}))
    assert after.conditions[Type.NODES_JOINED].message == (
        "Waiting for 1 of 2 nodes to join the cluster"
    )


@pytest.mark.parametrize("node_count, nodes, running", [(1, (), 0), (2, (node(B),), 1)])
def test_losses_of_vms_that_were_replaced_do_not_lower_the_count_below_the_ready_ones(
    node_count: int, nodes: tuple[Node, ...], running: int
) -> None:
    names = [f"{A[:-4]}{number:04}" for number in range(node_count + 1)]
    lost = tuple(Pending(name, Reason.NODE_LOST, EARLIER) for name in names)
    about = group(change={"nodeCount": node_count, "targetSizePolicyMode": "INDIVIDUAL"})
    after = result(observed(*nodes, known=replace(COMPLETE, pending=lost), about=about))
    assert len(after.pending) > node_count
    assert after.counts.running == running


def test_a_lost_vm_whose_node_remains_does_not_count_as_running() -> None:
    """Its chips would be counted as billed until a resync lists all VMs, and again after it."""
    known = replace(COMPLETE, counts=Counts(2, 2, 2, 2))
    lost = observed(
        *(node(), node(B, ready=False)),
        known=known,
        trigger=preempted(B),
        instances={B: vm(B, "STOPPING")},
    )
    after = result(lost)
    assert after.counts == Counts(desired=2, running=1, joined=2, ready=1, failed=0)
    again = observed(node(), node(B, ready=False), known=after, trigger=NODES_CHANGED)
    assert result(again).counts.running == 1


@pytest.mark.conformance("node-missing-provider-id")
def test_the_message_counts_nodes_without_a_provider_id_as_tpu_operator_does() -> None:
    given = observed(node(), node(B, proved=False, provider_id=""), instances={B: vm(B)})
    assert result(given).conditions[Type.NODES_JOINED].message == (
        "Waiting for 1 of 2 nodes to join the cluster (1 nodes joined with missing ProviderID)"
    )


def test_a_node_with_the_provider_id_of_a_vm_and_another_name_gets_an_event() -> None:
    misnamed = node("worker-1", proved=False, provider_id=f"gce://my-gcp-project/us-central1-c/{A}")
    plan = decide(observed(misnamed, instances={"worker-1": None, A: vm()}), NOW)
    assert [action for action in flat(plan) if isinstance(action, Emit)] == [
        Emit(
            Event(
                "NodeNameMismatch",
                f"Node worker-1 names VM {A} in its ProviderID, but a Node must have its VM's name: it "
                "is not counted, and not deleted with the group. Delete it and register the kubelet as "
                f"{A} (--hostname-override; kubeadm: nodeRegistration.name).",
                is_warning=True,
            ),
            misnamed.reference,
            once=True,
        )
    ]
    assert DeleteNode not in kinds(plan)


@pytest.mark.parametrize("is_nameless", [False, True])
def test_twenty_nodes_of_a_large_slice_with_the_same_defect_get_an_event(is_nameless: bool) -> None:
    vms = [f"{RESOURCE}-{number:04}" for number in range(2304)]
    nodes = [
        node(name, proved=False, provider_id="")
        if is_nameless
        else node(
            f"a-{name}", proved=False, provider_id=f"gce://my-gcp-project/us-central1-c/{name}"
        )
        for name in vms
    ]
    given = on_resync(*nodes, instances={name: vm(name) for name in vms})
    events = [action for action in flat(decide(given, NOW)) if isinstance(action, Emit)]
    assert (len(events), all(event.once for event in events)) == (20, True)


DEFECTS: dict[str, Node] = {
    "MissingProviderID": node(proved=False, provider_id=""),
    "VmIdCorrected": node(labels={"node-restriction.kubernetes.io/tpu-functions-vm-id": "43"}),
    "NodeNameMismatch": node(proved=False, provider_id="gce://other/us-central1-c/x"),
    "LabelsContested": replace(node(), corrections_note=f"4 {render_time(NOW)}"),
}


@pytest.mark.parametrize("reason", DEFECTS)
def test_a_defect_of_a_node_is_a_warning_that_is_written_once(reason: str) -> None:
    about = DEFECTS[reason]
    plan = decide(observed(about, instances={A: vm()}), NOW)
    found = [one for one in flat(plan) if isinstance(one, Emit) and one.about is not None]
    assert [(one.event.reason, one.event.is_warning, one.once) for one in found] == [
        (reason, True, True)
    ]


def test_the_join_of_the_last_node_triggers_the_other_steps() -> None:
    known = replace(RESOURCES_READY, conditions={})
    plan = decide(observed(node(), node(B), known=known, mig=INTERCONNECT_ACTIVE), NOW)
    sends = [
        (action.step, message.cause)
        for action in flat(plan)
        if isinstance(action, Send)
        for message in action.messages
    ]
    assert sends == [("inject_token", "Resync"), ("create_resources", "Forwarded")]


@pytest.mark.parametrize(
    "state, steps",
    {
        State.PENDING: ["create_resources"],
        State.CREATING: ["create_resources"],  # the message of the operation's end is lost
        State.DELETING: [],
        State.GONE: [],
        State.FAILED: [],
    }.items(),
)
def test_a_complete_slice_whose_mig_is_not_known_to_be_created_triggers_create_resources(
    state: State, steps: list[str]
) -> None:
    mig = replace(COMPLETE.resources[MIG], state=state)
    conditions = dict(COMPLETE.conditions)
    del conditions[Type.MIG_READY]
    known = replace(COMPLETE, conditions=conditions, resources={**COMPLETE.resources, MIG: mig})
    plan = decide(observed(node(), node(B), known=known, mig=INTERCONNECT_ACTIVE), NOW)
    sent = [one.step for one in flat(plan) if isinstance(one, Send)]
    assert [step for step in sent if step == "create_resources"] == steps


@pytest.mark.parametrize(
    "about",
    [unreadable_group(), group(change={"project": "other-project"})],
    ids=["spec", "project"],
)
def test_a_group_that_is_not_served_any_more_triggers_create_resources_once(
    about: AnyGroup,
) -> None:
    def plan(status: str) -> Plan:
        accepted = Condition(status, "Valid", "", NOW, 1)
        known = Status(conditions={Type.ACCEPTED: accepted})
        return decide(NothingToCount(about, known, can_be_served=False), NOW)

    (send,) = plan("True").best_effort
    assert isinstance(send, Send)
    assert (send.step, [one.cause for one in send.messages]) == (
        "create_resources",
        [Cause.FORWARDED],
    )
    assert plan("False") == Plan("NotServed")


def test_a_resync_of_a_slice_with_too_few_vms_triggers_create_resources() -> None:
    plan = decide(on_resync(node(), instances={A: vm()}), NOW)
    assert [action.step for action in flat(plan) if isinstance(action, Send)] == [
        "create_resources"
    ]


def test_a_single_host_needs_no_interconnect() -> None:
    single = {"nodeCount": 1, "topology": "2x2x1", "targetSizePolicyMode": "INDIVIDUAL"}
    given = observed(node(), about=group(change=single))
    after = result(given)
    assert after.conditions[Type.READY].is_true
    assert joined(given) == ("Joined", "The node has joined the cluster")
    assert after.completed_at == NOW


# Foreign Nodes and VMs

FOREIGN_NODE = node("foreign-node", proved=False, provider_id="gce://other/zone/foreign-node")
FOREIGN_VM = replace(vm("foreign-node"), is_member=False)


@pytest.mark.parametrize(
    "its_vm", [None, FOREIGN_VM], ids=["no VM of its name", "a VM of another MIG"]
)
@pytest.mark.parametrize("known", [RESOURCES_READY, COMPLETE], ids=["new slice", "complete slice"])
def test_a_foreign_node_with_the_label_of_the_group_is_neither_pending_nor_counted(
    known: Status, its_vm: Instance | None
) -> None:
    given = on_resync(
        node(), FOREIGN_NODE, known=known, instances={A: vm(), B: vm(B), "foreign-node": its_vm}
    )
    after = result(given, NOW - timedelta(minutes=6))
    assert [entry.name for entry in after.pending] == [B]
    assert after.counts.running == 2


def test_each_foreign_vm_gets_an_event_of_its_own() -> None:
    foreign = {name: replace(vm(name), is_member=False, created=EARLIER) for name in (B, C)}
    plan = decide(on_resync(node(), instances={A: vm(), **foreign}), NOW)
    found = [one for one in flat(plan) if isinstance(one, Emit) and one.event.reason == "ForeignVM"]
    assert {(one.event.key, one.event.is_warning, one.once) for one in found} == {
        (B, True, True),
        (C, True, True),
    }


def test_a_foreign_vm_is_not_counted_as_a_vm_of_the_slice() -> None:
    given = on_resync(node(), FOREIGN_NODE, instances={A: vm(), "foreign-node": FOREIGN_VM})
    plan = decide(given, NOW)
    assert [action.step for action in flat(plan) if isinstance(action, Send)] == [
        "create_resources"
    ]


@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "x"])
def test_an_invalid_time_in_the_status_of_a_node_is_unknown(time: str) -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": time}
    parsed = parse_node({**raw_node(), "status": {"conditions": [ready]}})
    assert (parsed.is_ready, parsed.ready_since) == (True, None)


OF_ANOTHER_GROUP = node(f"{RESOURCE}-0123abcd-wxyz")
"""A joined Node of a group whose resource name begins with the resource name of this group."""


@pytest.mark.parametrize("trigger", [NODES_CHANGED, RESYNC], ids=["a changed Node", "a resync"])
def test_a_proved_node_of_a_group_with_a_longer_name_is_neither_counted_nor_changed(
    trigger: Trigger,
) -> None:
    plan = decide(observed(node(), OF_ANOTHER_GROUP, trigger=trigger), NOW)
    (write,) = (action for action in flat(plan) if isinstance(action, WriteStatus))
    assert (write.status.counts.joined, plan.each) == (1, ())


def test_a_lost_node_of_a_group_with_a_longer_name_is_not_reported() -> None:
    gone = {B: None, OF_ANOTHER_GROUP.name: None}
    trigger = changed(B, OF_ANOTHER_GROUP.name)
    given = observed(node(), known=COMPLETE, trigger=trigger, instances=gone)
    assert [entry.name for entry in result(given).pending] == [B]


# The earlier status


def test_the_interconnect_is_unknown_while_a_node_is_missing() -> None:
    conditions = {
        **COMPLETE.conditions,
        Type.INTERCONNECT_READY: Condition("True", "Active", "", EARLIER, 1),
    }
    after = result(observed(node(), known=replace(COMPLETE, conditions=conditions)))
    condition = after.conditions[Type.INTERCONNECT_READY]
    assert (condition.status, condition.reason, condition.since) == ("Unknown", "Incomplete", NOW)


def test_the_reason_of_a_lost_vm_is_not_reported_for_another_vm() -> None:
    known = replace(COMPLETE, pending=(Pending(B, Reason.PREEMPTED, EARLIER),))
    given = on_resync(node(), node(B), known=known, instances={A: None, B: None})
    assert {entry.name: entry.why for entry in result(given).pending} == {
        A: Reason.NODE_LOST,
        B: Reason.PREEMPTED,
    }


OUTDATED: dict[str, tuple[str, bool, dict[str, Instance | None], list[str]]] = {
    "a VM that is not in the list of all VMs": (Reason.NODE_JOIN_TIMEOUT, True, {}, []),
    "a VM that was not read, as not all VMs were read": (Reason.NODE_JOIN_TIMEOUT, False, {}, [Reason.NODE_JOIN_TIMEOUT]),
    "a lost VM that is not in the list of all VMs": (Reason.NODE_LOST, True, {}, [Reason.NODE_LOST]),
    "a lost VM, and the slice has all its VMs": (Reason.NODE_LOST, True, {C: vm(C)}, [Reason.AWAITING_NODE_JOIN]),
    "a lost VM, and one of the others is not a member": (Reason.NODE_LOST, True, {C: replace(vm(C), is_member=False)}, [Reason.NODE_LOST]),
    "a lost VM, and not all VMs were read": (Reason.NODE_LOST, False, {C: vm(C)}, [Reason.NODE_LOST, Reason.AWAITING_NODE_JOIN]),
    "a VM that has just started": (Reason.NODE_JOIN_TIMEOUT, True, {B: vm(B, started=NOW)}, [Reason.AWAITING_NODE_JOIN]),
}  # fmt: skip


@pytest.mark.parametrize("case", OUTDATED.values(), ids=OUTDATED)
def test_a_pending_entry_remains_unless_a_read_of_all_vms_contradicts_it(
    case: tuple[str, bool, dict[str, Instance | None], list[str]],
) -> None:
    why, has_all_vms, instances, reasons = case
    known = replace(RESOURCES_READY, pending=(Pending(B, why, EARLIER),))
    given = observed(node(), known=known, has_all_vms=has_all_vms, instances={A: vm(), **instances})
    assert [entry.why for entry in result(given).pending] == reasons


FOREIGN_B = replace(vm(B, "STOPPING"), is_member=False)
EVENTS_WHILE_VMS_JOIN: dict[str, tuple[tuple[str, ...], Instance | None, list[str]]] = {
    "a VM for which the slice waits is gone": ((B,), None, ["Preempted"]),
    "a member that no count has named stops": ((), vm(B, "STOPPING"), ["Preempted"]),
    "a VM is gone before a count has named it": ((), None, ["Preempted"]),
    "a VM is gone, and counts have named the others": ((C,), None, [Reason.AWAITING_NODE_JOIN]),
    "a VM that is not a member stops": ((), FOREIGN_B, []),
}


@pytest.mark.parametrize("case", EVENTS_WHILE_VMS_JOIN.values(), ids=EVENTS_WHILE_VMS_JOIN)
def test_before_the_slice_is_complete_an_event_is_believed_only_about_its_own_vms(
    case: tuple[tuple[str, ...], Instance | None, list[str]],
) -> None:
    named, instance, reasons = case
    pending = tuple(Pending(name, Reason.AWAITING_NODE_JOIN, EARLIER) for name in named)
    known = replace(RESOURCES_READY, pending=pending)
    given = observed(node(), known=known, trigger=preempted(B), instances={B: instance})
    assert [entry.why for entry in result(given).pending] == reasons


# Messages


def joined(given: ObservedNodes, now: datetime = NOW) -> tuple[str, str]:
    """Return reason and message of NodesJoined."""
    condition = result(given, now).conditions[Type.NODES_JOINED]
    return condition.reason, condition.message


def changed(*names: str) -> Trigger:
    message = Message("default", "my-slice", "", Cause.NODES_CHANGED, NOW, nodes=names)
    return ObjectTrigger(message)


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
LOST_MESSAGE = (
    "Lost at 2026-11-20T10:00:00Z. Compute Engine restarts the VMs of a slice together, except deleted "
    "ones. If the slice is not Ready by 2026-11-20T10:30:00Z, delete the group and apply it again."
)
RUN_DURATION_MESSAGE = (
    "The VMs have run for the maxRunDuration of the spec or the template and were ended. To run them "
    "again, delete the group and apply it again."
)
DELETED_MESSAGE = (
    "Before the slice was complete, 1 of its 2 VMs were deleted. Compute Engine does not recreate VMs "
    "of a "
    "BULK slice. The others wait and are billed. Delete the group and apply it again."
)
TWO_HOURS_AGO = NOW - timedelta(hours=2)
JOINING = replace(RESOURCES_READY, pending=(Pending(B, Reason.AWAITING_NODE_JOIN, EARLIER),))
DELETED = replace(COMPLETE, pending=(Pending(B, Reason.NODE_LOST, NOW),))
TWO_DAYS_AGO = NOW - timedelta(hours=48)
FLEX_COMPLETE = replace(COMPLETE, max_run_s=48 * 3600)
ENDED = preempted(B, "compute.instances.delete")
KEPT_B = replace(node(B, silent=True), is_deleting=True)
RECREATED_B = replace(vm(B, started=NOW - timedelta(minutes=4)), id="43", metadata={})
KEPT_MESSAGE = (
    f"Nodes of earlier VMs are being deleted, and finalizers keep them: {B}. Remove the finalizers "
    "(kubectl edit node NAME): then the VMs of these names can join."
)
MESSAGES: dict[str, tuple[ObservedNodes, str, str]] = {
    "all have joined": (
        observed(node(), node(B)),
        "Joined",
        "All 2 nodes have joined the cluster",
    ),
    "a deleted Node is reported immediately": (
        observed(node(), known=COMPLETE, trigger=changed(B), instances={B: None}),
        "NodeLost",
        f"Waiting for 1 of 2 nodes to join the cluster; {B}. {LOST_MESSAGE}",
    ),
    "the next observation of the VM names what to do": (
        on_resync(
            node(),
            known=DELETED,
            about=INDIVIDUAL,
            instances={A: vm(), B: vm(B, started=TWO_HOURS_AGO)},
        ),
        "NodeDeleted",
        f"Node {B} was deleted; its VM is running. Restart its kubelet or reset the VM, or delete the VM so "
        "that it is recreated.",
    ),
    "the next observation of the VM of a BULK slice names what to do": (
        on_resync(node(), known=COMPLETE, instances={A: vm(), B: vm(B, started=TWO_HOURS_AGO)}),
        "NodeDeleted",
        f"Node {B} was deleted; its VM is running. Restart its kubelet or reset the VM. Do not delete VMs of "
        "a BULK slice: Compute Engine does not recreate them.",
    ),
    "several deleted Nodes": (
        on_resync(
            known=COMPLETE,
            about=INDIVIDUAL,
            instances={A: vm(started=TWO_HOURS_AGO), B: vm(B, started=TWO_HOURS_AGO)},
        ),
        "NodeDeleted",
        f"Nodes {A}, {B} were deleted; their VMs are running. Restart their kubelets or reset the VMs, or "
        "delete the VMs so that they are recreated.",
    ),
    "a recreated VM has not joined": (
        on_resync(
            node(), known=DELETED, instances={A: vm(), B: vm(B, started=NOW - timedelta(minutes=4))}
        ),
        "AwaitingNodeJoin",
        "Waiting for 1 of 2 nodes to join the cluster",
    ),
    "a Node with another name": (
        on_resync(
            node(),
            node("worker-7", proved=False, provider_id=f"gce://my-gcp-project/us-central1-c/{B}"),
            instances={A: vm(), B: vm(B, started=TWO_HOURS_AGO), "worker-7": None},
        ),
        "NodeNameMismatch",
        f"Node worker-7 runs on VM {B}, by its providerID. A Node must have its VM's name: start the "
        "kubelet "
        "with --hostname-override=VM, and delete the Node.",
    ),
    "a Node with another providerID": (
        on_resync(
            node(),
            node(B, proved=False, provider_id=f"gce://123456789012/us-central1-c/{B}"),
            instances={A: vm(), B: vm(B, started=TWO_HOURS_AGO)},
        ),
        "NodeNameMismatch",
        f"Node {B} has the providerID gce://123456789012/us-central1-c/{B} and must have "
        f"gce://my-gcp-project/us-central1-c/{B}. Correct --provider-id of the kubelet, delete the Node, and "
        "restart the kubelet.",
    ),
    "a Node of a complete slice has registered again with another VM's providerID": (
        on_resync(
            node(),
            node(B, proved=False, provider_id=f"gce://my-gcp-project/us-central1-c/{A}"),
            known=COMPLETE,
            instances={A: vm(), B: vm(B, started=TWO_HOURS_AGO)},
        ),
        "NodeNameMismatch",
        f"Node {B} has the providerID gce://my-gcp-project/us-central1-c/{A} and must have "
        f"gce://my-gcp-project/us-central1-c/{B}. Correct --provider-id of the kubelet, delete the Node, and "
        "restart the kubelet.",
    ),
    "the Node of a VM's predecessor is kept by finalizers": (
        on_resync(node(), KEPT_B, known=COMPLETE, instances={A: vm(), B: RECREATED_B}),
        "AwaitingNodeJoin",
        f"Waiting for 1 of 2 nodes to join the cluster. {KEPT_MESSAGE}",
    ),
    "it is kept for long": (
        on_resync(
            node(),
            KEPT_B,
            known=COMPLETE,
            instances={A: vm(), B: replace(RECREATED_B, started=TWO_HOURS_AGO)},
        ),
        "NodeJoinTimeout",
        f"Waiting for 1 of 2 nodes to join the cluster. {KEPT_MESSAGE}",
    ),
    "it is kept, and another VM is late": (
        on_resync(KEPT_B, instances={A: vm(started=TWO_HOURS_AGO), B: RECREATED_B}),
        "NodeJoinTimeout",
        f"Waiting for 2 of 2 nodes to join the cluster; {A}. {REASONS[Reason.NODE_JOIN_TIMEOUT]} "
        f"{KEPT_MESSAGE}",
    ),
    "the label of a Node without bootstrap tokens was changed": (
        on_resync(
            node(labels=BOOTED, boot="first"),
            node(B, labels={**BOOTED, VM_ID_LABEL: "1"}, boot="first"),
            known=COMPLETE,
            about=WITHOUT_BOOTSTRAP,
            instances={A: vm(), B: vm(B, started=TWO_HOURS_AGO)},
        ),
        "NodeJoinTimeout",
        "Waiting for 1 of 2 nodes to join the cluster. Nodes are Ready, and have the ids of earlier VMs in "
        f"the label {VM_ID_LABEL}: {B}. If somebody has changed it, remove it (kubectl label node NAME "
        f"{VM_ID_LABEL}-): then the Nodes are proved again.",
    ),
    "a VM without bootstrap tokens was recreated, and its kubelet has not reported yet": (
        on_resync(
            node(labels=BOOTED, boot="first"),
            node(B, labels={**BOOTED, VM_ID_LABEL: "1"}, boot="first"),
            known=COMPLETE,
            about=WITHOUT_BOOTSTRAP,
            instances={A: vm(), B: vm(B, started=NOW - timedelta(minutes=6))},
        ),
        "AwaitingNodeJoin",
        "Waiting for 1 of 2 nodes to join the cluster",
    ),
    "the Node of a VM's predecessor is not deleted yet": (
        on_resync(
            node(),
            replace(KEPT_B, is_deleting=False),
            known=COMPLETE,
            instances={A: vm(), B: RECREATED_B},
        ),
        "AwaitingNodeJoin",
        "Waiting for 1 of 2 nodes to join the cluster",
    ),
    "a VM of a slice that was never complete was deleted": (
        on_resync(node(), instances={A: vm()}),
        "NodeLost",
        DELETED_MESSAGE,
    ),
    "more VMs than hosts, because somebody has resized the MIG": (
        on_resync(node(), instances={name: vm(name) for name in (A, B, C)}),
        "AwaitingNodeJoin",
        "Waiting for 1 of 2 nodes to join the cluster",
    ),
    "an event about a deleted VM of a slice that was never complete": (
        observed(node(), known=JOINING, trigger=ENDED, instances={B: None}),
        "NodeLost",
        DELETED_MESSAGE,
    ),
    "an event about another VM than the stopped one": (
        observed(
            node(), known=replace(RESOURCES_READY, pending=DELETED.pending), instances={A: vm()}
        ),
        "NodeLost",
        f"Waiting for 1 of 2 nodes to join the cluster; {B}. {LOST_MESSAGE}",
    ),
    "an event about another VM than the deleted one": (
        observed(
            node(),
            known=result(observed(node(), known=JOINING, trigger=ENDED, instances={B: None})),
            instances={A: vm()},
        ),
        "NodeLost",
        DELETED_MESSAGE,
    ),
    "a reset of a VM that has failed": (
        observed(
            node(),
            trigger=preempted(B, "compute.instances.reset", has_failed=True),
            instances={B: vm(B)},
        ),
        "AwaitingNodeJoin",
        "Waiting for 1 of 2 nodes to join the cluster",
    ),
    "a VM of an INDIVIDUAL group was deleted": (
        on_resync(node(), about=INDIVIDUAL, instances={A: vm()}),
        "AwaitingNodeJoin",
        "Waiting for 1 of 2 nodes to join the cluster",
    ),
    "the run duration is reached, and the VM is stopping": (
        observed(
            node(),
            known=FLEX_COMPLETE,
            about=FLEX,
            trigger=ENDED,
            instances={B: vm(B, "STOPPING", TWO_DAYS_AGO)},
        ),
        "MaxRunDurationReached",
        f"Waiting for 1 of 2 nodes to join the cluster; {B} (STOPPING). {RUN_DURATION_MESSAGE}",
    ),
    "the run duration is reached, and the VM was deleted": (
        observed(
            node(),
            known=replace(FLEX_COMPLETE, completed_at=TWO_DAYS_AGO),
            about=FLEX,
            trigger=ENDED,
            instances={B: None},
        ),
        "MaxRunDurationReached",
        f"Waiting for 1 of 2 nodes to join the cluster; {B}. {RUN_DURATION_MESSAGE}",
    ),
    "a VM was stopped before it joined": (
        on_resync(
            node(),
            known=RESOURCES_READY,
            instances={A: vm(), B: vm(B, "TERMINATED", TWO_HOURS_AGO)},
        ),
        "NodeLost",
        f"Waiting for 1 of 2 nodes to join the cluster; {B} (TERMINATED). {LOST_MESSAGE}",
    ),
    "the run duration is over, and the list has no VM any more": (
        on_resync(
            known=replace(FLEX_COMPLETE, completed_at=TWO_DAYS_AGO), about=FLEX, instances={}
        ),
        "MaxRunDurationReached",
        f"Waiting for 2 of 2 nodes to join the cluster; VMs are gone. {RUN_DURATION_MESSAGE}",
    ),
    "the run duration is not reached": (
        observed(node(), known=FLEX_COMPLETE, about=FLEX, trigger=ENDED, instances={B: None}),
        "NodeLost",
        f"Waiting for 1 of 2 nodes to join the cluster; {B}. {LOST_MESSAGE}",
    ),
}


@pytest.mark.parametrize("case", MESSAGES.values(), ids=MESSAGES)
def test_the_condition_nodes_joined_reports_why_nodes_are_missing(
    case: tuple[ObservedNodes, str, str],
) -> None:
    given, reason, message = case
    assert joined(given) == (reason, message)


def test_a_deleted_vm_is_reported_until_all_vms_are_listed() -> None:
    """The status has no pending entry for the VM because its name is unknown."""
    first = result(on_resync(node(), instances={A: vm()}))
    assert joined(observed(node(), known=first, trigger=NODES_CHANGED)) == (
        "NodeLost",
        DELETED_MESSAGE,
    )
    recreated = on_resync(node(), known=first, instances={A: vm(), B: vm(B, started=NOW)})
    assert joined(recreated)[0] == "AwaitingNodeJoin"


def test_a_missing_vm_is_not_reported_as_deleted_in_the_first_minute_of_the_mig() -> None:
    mig_ready = Condition("True", "Ready", "", NOW - timedelta(seconds=59), 1)
    known = replace(
        RESOURCES_READY, conditions={**RESOURCES_READY.conditions, Type.MIG_READY: mig_ready}
    )
    assert joined(on_resync(node(), known=known, instances={A: vm()}))[0] == "AwaitingNodeJoin"


def test_a_flapping_node_is_reported_immediately_and_counts_again_after_a_minute() -> None:
    both_ready, one_ready = (node(), node(B)), (node(), node(B, ready=False))
    known = result(observed(*both_ready, known=COMPLETE, mig=INTERCONNECT_ACTIVE))
    statuses = []
    for half_minute in range(8):
        now = NOW + half_minute * timedelta(seconds=30)
        nodes = both_ready if half_minute % 2 else one_ready
        known = result(observed(*nodes, known=known, mig=INTERCONNECT_ACTIVE), now)
        statuses.append(known.conditions[Type.READY].status)
    assert statuses == ["False", "False", "False", "True"] * 2


FLAPPED = replace(
    COMPLETE,
    completed_at=NOW - timedelta(hours=1),
    pending=(Pending(B, Reason.NODE_NOT_READY, NOW),),
)


@pytest.mark.parametrize(
    "created, is_ready",
    [
        pytest.param(NOW - timedelta(minutes=15, seconds=-1), True, id="joining"),
        pytest.param(NOW - timedelta(minutes=15), False, id="too old to be joining"),
        pytest.param(NOW - timedelta(hours=1), False, id="as old as the complete slice"),
        pytest.param(NOW + timedelta(minutes=15), False, id="created in the future"),
        pytest.param(None, False, id="of unknown age"),
    ],
)
def test_a_node_that_has_just_become_ready_counts_only_if_it_is_joining(
    created: datetime | None, is_ready: bool
) -> None:
    after = result(
        observed(node(), node(B, created=created), known=FLAPPED, mig=INTERCONNECT_ACTIVE)
    )
    assert after.conditions[Type.READY].is_true is is_ready


@pytest.mark.parametrize(
    "started, reasons",
    [
        pytest.param(NOW, [Reason.PREEMPTED], id="started before the event"),
        pytest.param(
            NOW + timedelta(seconds=1), [Reason.AWAITING_NODE_JOIN], id="started after the event"
        ),
        pytest.param(None, [Reason.PREEMPTED], id="started at an unknown time"),
    ],
)
def test_an_event_does_not_concern_a_vm_that_has_started_since(
    started: datetime | None, reasons: list[str]
) -> None:
    reported_vm = replace(vm(B, "RUNNING"), started=started)
    given = observed(
        node(),
        node(B, ready=False),
        known=COMPLETE,
        trigger=preempted(B),
        instances={B: reported_vm},
    )
    assert [entry.why for entry in result(given).pending] == reasons


def test_a_new_slice_is_ready_as_soon_as_its_nodes_are() -> None:
    known = result(observed(node(), node(B, ready=False)))
    after = result(
        observed(node(), node(B), known=known, mig=INTERCONNECT_ACTIVE), NOW + timedelta(seconds=1)
    )
    assert after.conditions[Type.READY].is_true


FUTURE = NOW + timedelta(days=400)


def test_a_time_in_the_future_delays_nothing() -> None:
    """The functions never write such a time, but another client can."""
    asking = {
        **COMPLETE.conditions,
        Type.INTERCONNECT_READY: Condition("False", "Asking", "", FUTURE, 1),
    }
    ahead = (Pending(B, Reason.NODE_NOT_READY, FUTURE),)
    known = replace(COMPLETE, conditions=asking, pending=ahead)
    assert reason(observed(node(), node(B), known=known, mig=INTERCONNECT_UNKNOWN)) == (
        "True",
        "Ready",
    )
    reported = replace(LOSS_REPORTED, pending=(Pending(A, Reason.PREEMPTED, FUTURE),))
    assert is_debounced(preempted(B), reported, NOW) is False


def join_rejected(cause: Cause, *vms: str) -> Trigger:
    message = Message("default", "my-slice", "", cause, NOW, vms=vms)
    return ObjectTrigger(message)


@pytest.mark.parametrize("cause", [Cause.JOIN_NOT_APPROVED, Cause.JOIN_DENIED])
def test_a_rejected_join_is_reported_until_the_vm_has_joined(cause: Cause) -> None:
    both = {A: vm(), B: vm(B)}
    reported = result(observed(node(), trigger=join_rejected(cause, B), instances=both))
    assert reported.pending == (Pending(B, str(cause), NOW),)
    joined = reported.conditions[Type.NODES_JOINED]
    assert (joined.reason, reported.conditions[Type.READY].reason) == (cause, cause)
    assert joined.message == (
        f"Waiting for 1 of 2 nodes to join the cluster; {B}. {REASONS[Reason(cause)]}"
    )
    again = result(on_resync(node(), known=reported, instances=both))
    assert again.pending == reported.pending
    assert result(on_resync(node(), node(B), known=reported, instances=both)).pending == ()


def test_a_rejected_join_of_a_joined_or_foreign_vm_is_not_reported() -> None:
    trigger = join_rejected(Cause.JOIN_NOT_APPROVED, A, "tng-other-01234567-ab12")
    foreign = replace(vm("tng-other-01234567-ab12"), is_member=False)
    reported = result(
        observed(node(), node(B), trigger=trigger, instances={A: vm(), foreign.name: foreign})
    )
    assert reported.pending == ()


def test_the_message_about_a_slice_without_vms_names_no_billed_vms() -> None:
    assert joined(on_resync(instances={})) == (
        "NodeLost",
        "Before the slice was complete, 2 of its 2 VMs were deleted. Compute Engine does not recreate "
        "VMs of a BULK slice. Delete the group and apply it again.",
    )
