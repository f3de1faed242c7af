# ruff: noqa: E501  (a table reads best with a row on a line)
"""Which changes are reported, to which step, and when."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from relay.changes.cache import MAX_STRAYS
from relay.changes.coalescing import PendingTrigger
from relay.changes.messages import Outbox
from relay.changes.pending import OutgoingMessage
from relay.kinds import WatchedKind
from shared.base.names import (
    FINALIZER,
    RESOURCE_NAME_LABEL,
    THEIR_FINALIZER_PREFIX,
    TOPOLOGY_LABEL,
    VM_ID_LABEL,
)
from shared.triggers.message import Cause
from tests.unit.relay.objects import (
    OWN_LABELS,
    RESOURCE_NAME,
    START,
    Raw,
    foreign_node,
    group,
    node,
    seconds,
    settled_group,
    signing_request,
)

Report = tuple[str, str, tuple[str, ...]]
"""Step, cause and Node names of a message."""

NODE = f"{RESOURCE_NAME}-ab12"


def settled_outbox(groups: Iterable[Raw] = (), nodes: Iterable[Raw] = ()) -> Outbox:
    """An outbox that listed these an hour ago and has nothing pending."""
    outbox = Outbox()
    outbox.relisted("TPUNodeGroup", groups, START - timedelta(hours=1))
    outbox.relisted("Node", nodes, START - timedelta(hours=1))
    outbox.take_due(START - timedelta(hours=1))
    return outbox


def summarize(publications: list[OutgoingMessage]) -> list[Report]:
    """Return step, cause and Node names of each message."""
    return [(one.step, str(one.message.cause), one.message.nodes) for one in publications]


def take_reports(outbox: Outbox, at_s: float = 0) -> list[Report]:
    """Return the messages that are due at that time."""
    return summarize(outbox.take_due(seconds(at_s)))


CREATE, TEAR_DOWN, LABEL = "create_resources", "tear_down", "label_node"

GROUP_CHANGES: dict[str, tuple[Raw, Raw, list[Report]]] = {
    "a new spec": (group(), group(generation=2), [(CREATE, "SpecChanged", ())]),
    "a pause": (group(), group(paused="true"), [(CREATE, "MetadataChanged", ())]),
    "the end of a pause": (group(paused="true"), group(), [(CREATE, "MetadataChanged", ())]),
    "the label removed": (group(), group(resource_name=""), [(CREATE, "MetadataChanged", ())]),
    "the finalizer removed": (group(), group(finalizers=()), [(CREATE, "MetadataChanged", ())]),
    "finalizer and label set by create_resources": (
        group(finalizers=(), resource_name=""),
        group(),
        [],
    ),
    "the label changed": (
        group(),
        group(resource_name="tng-other-01234567"),
        [(CREATE, "MetadataChanged", ())],
    ),
    "the finalizer set together with a pause": (
        group(finalizers=(), resource_name=""),
        group(paused="true"),
        [(CREATE, "MetadataChanged", ())],
    ),
    "tpu-operator's finalizer removed": (
        group(finalizers=(f"{THEIR_FINALIZER_PREFIX}-mig",)),
        group(finalizers=()),
        [(CREATE, "MetadataChanged", ())],
    ),
    "an unrelated finalizer": (group(), group(finalizers=(FINALIZER, "example.com/x")), []),
    "a status": (group(), group(ready="False", observed=1, nodes_ready=1), []),
    "the deletion": (group(), group(deleting=True, generation=2), [(TEAR_DOWN, "Deleting", ())]),
    "another finalizer removed while deleting": (
        group(deleting=True, finalizers=(FINALIZER, "example.com/x")),
        group(deleting=True),
        [(TEAR_DOWN, "Deleting", ())],
    ),
    "a spec while deleting": (group(deleting=True), group(deleting=True, generation=2), []),
    "another uid": (group(), group(uid="uid-2"), [(CREATE, "Added", ())]),
}


@pytest.mark.parametrize(
    "before, after, expected", GROUP_CHANGES.values(), ids=GROUP_CHANGES.keys()
)
def test_a_change_of_a_group_is_reported_to_the_step_that_handles_it(
    before: Raw, after: Raw, expected: list[Report]
) -> None:
    outbox = settled_outbox([before])
    outbox.changed("TPUNodeGroup", "MODIFIED", after, START)
    assert take_reports(outbox) == expected


def test_a_new_group_is_reported_to_create_resources_with_its_uid_and_the_time() -> None:
    outbox = settled_outbox()
    outbox.changed("TPUNodeGroup", "ADDED", group(finalizers=(), resource_name=""), START)
    [publication] = outbox.take_due(START)
    message = publication.message
    assert (publication.step, message.namespace, message.name) == (CREATE, "default", "train")
    assert (message.uid, message.cause, message.at) == ("uid-1", Cause.ADDED, START)


def without(*labels: str) -> dict[str, str]:
    """Return the labels of a proved Node without these."""
    return {key: value for key, value in OWN_LABELS.items() if key not in labels}


REPORTED: list[Report] = [(LABEL, "NodesChanged", (NODE,))]
UNPROVED_LABELS = {RESOURCE_NAME_LABEL: RESOURCE_NAME}

NODE_CHANGES: dict[str, tuple[Raw | None, Raw, list[Report]]] = {
    "appears": (None, node(), REPORTED),
    "appears without labels": (None, node(labels={}), REPORTED),
    "appears under a foreign name with the label of its group": (
        None,
        node("gke-1", labels=UNPROVED_LABELS),
        [(LABEL, "NodesChanged", ("gke-1",))],
    ),
    "is not Ready any more": (node(), node(ready="False"), REPORTED),
    "is Unknown": (node(), node(ready="Unknown"), REPORTED),
    "is Ready again": (node(ready="Unknown"), node(), REPORTED),
    "is Ready before it has chips": (
        node(ready="False", capacity="", allocatable=""),
        node(capacity="", allocatable=""),
        [],
    ),
    "gets TPU capacity": (node(capacity="", allocatable=""), node(allocatable="0"), []),
    "has chips before it is Ready": (node(ready="False", capacity=""), node(ready="False"), []),
    "is Ready with chips": (node(ready="False"), node(), REPORTED),
    "has more chips": (node(), node(capacity="8", allocatable="8"), REPORTED),
    "gets a providerID before it is Ready with chips": (
        node(ready="False", provider_id=""),
        node(capacity="", allocatable=""),
        REPORTED,
    ),
    "can allocate its TPU": (node(allocatable="0"), node(), REPORTED),
    "loses its TPU": (node(), node(capacity="0", allocatable="0"), REPORTED),
    "gets a providerID": (node(provider_id=""), node(), REPORTED),
    "loses a label": (node(), node(labels=without(TOPOLOGY_LABEL)), REPORTED),
    "loses the label that proves it": (node(), node(labels=without(VM_ID_LABEL)), REPORTED),
    "loses the label of its group": (node(), node(labels=without(RESOURCE_NAME_LABEL)), REPORTED),
    "gets a wrong label": (node(), node(labels={**OWN_LABELS, TOPOLOGY_LABEL: "9x9"}), REPORTED),
    "gets a label before it is proved": (node(labels={}), node(labels=UNPROVED_LABELS), REPORTED),
    "is another Node of that name": (node(), node(uid="node-uid-2"), REPORTED),
    "is proved and becomes Ready in one change": (node(labels={}, ready="False"), node(), REPORTED),
    "is proved and loses a label in one change": (
        node(labels={**without(VM_ID_LABEL), f"{TOPOLOGY_LABEL}-x": "1"}),
        node(),
        REPORTED,
    ),
    "is proved by label_node": (node(labels={}), node(), []),
    "is proved again by label_node": (
        node(labels={**OWN_LABELS, VM_ID_LABEL: "1", TOPOLOGY_LABEL: "9x9"}),
        node(),
        [],
    ),
    "gets a removed label from label_node": (node(labels=without(TOPOLOGY_LABEL)), node(), []),
    "sends a heartbeat": (node(), node(heartbeat="2026-01-01T00:05:00Z"), []),
    "is cordoned": (node(), node(unschedulable=True), []),
    "gets a taint": (node(), node(taints=("example.com/x",)), []),
    "gets an unrelated label": (node(), node(labels={**OWN_LABELS, "example.com/x": "1"}), []),
    "is foreign": (None, foreign_node("gke-1"), []),
    "has a similar name": (None, foreign_node(f"{RESOURCE_NAME}-ab123"), []),
}


@pytest.mark.parametrize("before, after, expected", NODE_CHANGES.values(), ids=NODE_CHANGES.keys())
def test_label_node_is_triggered_by_a_change_of_a_node_that_it_uses(
    before: Raw | None, after: Raw, expected: list[Report]
) -> None:
    outbox = settled_outbox([settled_group()], [before] if before else [])
    outbox.take_due(START - timedelta(minutes=1))
    outbox.changed("Node", "MODIFIED" if before else "ADDED", after, START)
    assert take_reports(outbox) == expected


def test_a_deleted_node_is_reported_by_its_name() -> None:
    outbox = settled_outbox([settled_group()], [node()])
    outbox.changed("Node", "DELETED", node(), START)
    assert take_reports(outbox) == REPORTED


def test_a_deleted_foreign_node_is_not_reported() -> None:
    outbox = settled_outbox([settled_group(0)], [foreign_node("gke-1")])
    outbox.changed("Node", "DELETED", foreign_node("gke-1"), START)
    assert take_reports(outbox) == []


def test_a_node_with_a_domain_in_its_name_is_matched_by_the_first_label() -> None:
    outbox = settled_outbox([settled_group(0)])
    name = f"{NODE}.us-central1-c.c.project.internal"
    outbox.changed("Node", "ADDED", node(name, labels={}), START)
    assert take_reports(outbox) == [(LABEL, "NodesChanged", (name,))]


def test_a_node_that_moves_between_groups_triggers_both() -> None:
    other = settled_group(0, name="other", uid="uid-2", resource_name="tng-other-0123abcd")
    outbox = settled_outbox([settled_group(), other], [node("n", labels=UNPROVED_LABELS)])
    outbox.take_due(START - timedelta(minutes=1))
    moved = node("n", labels={RESOURCE_NAME_LABEL: "tng-other-0123abcd"})
    outbox.changed("Node", "MODIFIED", moved, START)
    triggered = {publication.message.name for publication in outbox.take_due(START)}
    assert triggered == {"train", "other"}


def test_a_node_that_label_node_removes_from_a_group_is_reported_to_that_group() -> None:
    other = settled_group(0, name="other", uid="uid-2", resource_name="tng-other-0123abcd")
    claimed_wrongly = node(labels={RESOURCE_NAME_LABEL: "tng-other-0123abcd"})
    outbox = settled_outbox([settled_group(0), other], [claimed_wrongly])
    outbox.take_due(START - timedelta(minutes=1))
    outbox.changed("Node", "MODIFIED", node(), START)
    triggered = {publication.message.name for publication in outbox.take_due(START)}
    assert "other" in triggered


def test_all_groups_that_claim_a_resource_name_are_triggered() -> None:
    twins = [settled_group(0), settled_group(0, name="forged", uid="uid-2")]
    outbox = settled_outbox(twins)
    outbox.changed("Node", "ADDED", node(), START)
    triggered = {publication.message.name for publication in outbox.take_due(START)}
    assert triggered == {"train", "forged"}


def test_a_node_is_reported_when_its_group_becomes_known() -> None:
    outbox = settled_outbox()
    outbox.changed("Node", "ADDED", node(), START)
    assert outbox.next_due() is None
    outbox.changed("TPUNodeGroup", "ADDED", group(), seconds(1))
    assert take_reports(outbox, 1) == [(CREATE, "Added", ()), *REPORTED]


def test_a_node_is_reported_when_its_group_gets_its_label() -> None:
    outbox = settled_outbox([group(resource_name="", finalizers=())], [node()])
    outbox.changed("TPUNodeGroup", "MODIFIED", group(), START)
    assert take_reports(outbox) == REPORTED


def test_only_the_newest_nodes_of_unknown_groups_are_cached() -> None:
    strays = [node(f"tng-gone-0123abcd-{index:04}", labels={}) for index in range(MAX_STRAYS + 5)]
    outbox = settled_outbox([], strays)
    assert len(outbox.cache.nodes) == MAX_STRAYS
    outbox.changed("TPUNodeGroup", "ADDED", group(resource_name="tng-gone-0123abcd"), START)
    names = [name for one in outbox.take_due(START) for name in one.message.nodes]
    assert names == [raw["metadata"]["name"] for raw in strays[5:]]


def test_the_nodes_of_a_group_are_of_an_unknown_one_when_it_is_deleted() -> None:
    nodes = [node(f"{RESOURCE_NAME}-{index:04}") for index in range(MAX_STRAYS + 5)]
    outbox = settled_outbox([settled_group()], nodes)
    assert len(outbox.cache.nodes) == MAX_STRAYS + 5
    outbox.changed("TPUNodeGroup", "DELETED", settled_group(), START)
    assert len(outbox.cache.nodes) == MAX_STRAYS


def test_foreign_nodes_are_not_cached() -> None:
    outbox = settled_outbox([settled_group(0)], [foreign_node(f"n-{i}") for i in range(100)])
    assert len(outbox.cache.nodes) == 0


def test_pending_messages_about_a_deleted_group_are_dropped() -> None:
    outbox = settled_outbox([group()])
    outbox.changed("TPUNodeGroup", "MODIFIED", group(deleting=True), START)
    outbox.changed("TPUNodeGroup", "DELETED", group(deleting=True), START)
    assert (outbox.next_due(), len(outbox.cache.groups)) == (None, 0)


def test_a_deletion_replaces_a_pending_message_to_create_resources() -> None:
    outbox = settled_outbox([group()])
    outbox.changed("TPUNodeGroup", "MODIFIED", group(generation=2), START)
    outbox.changed("TPUNodeGroup", "MODIFIED", group(generation=3, deleting=True), START)
    assert take_reports(outbox) == [(TEAR_DOWN, "Deleting", ())]


AFTER_A_START: dict[str, tuple[list[Raw], list[Raw], list[Report]]] = {
    "settled": ([settled_group()], [node()], []),
    "settled, without Nodes": ([settled_group(0)], [], []),
    "being deleted": ([group(deleting=True)], [], [(TEAR_DOWN, "Deleting", ())]),
    "not owned": (
        [settled_group(0, finalizers=())],
        [],
        [(CREATE, "Added", ())],
    ),
    "owned, without label": ([settled_group(0, resource_name="")], [], [(CREATE, "Added", ())]),
    "changed since the last status": (
        [settled_group(0, generation=2)],
        [],
        [(CREATE, "Added", ())],
    ),
    "without status": ([group()], [], [(CREATE, "Added", ())]),
    "not Ready": ([settled_group(1, ready="False")], [node()], REPORTED),
    "not Ready, without Nodes": ([settled_group(0, ready="False")], [], []),
    "Node not Ready": ([settled_group(1)], [node(ready="Unknown")], REPORTED),
    "Node without TPU": ([settled_group(1)], [node(allocatable="0")], REPORTED),
    "Node lost its proof": ([settled_group(1)], [node(labels={})], REPORTED),
    "Node deleted": ([settled_group(1)], [], [(LABEL, "NodesChanged", ())]),
}


@pytest.mark.parametrize("kinds", [("TPUNodeGroup", "Node"), ("Node", "TPUNodeGroup")], ids=str)
@pytest.mark.parametrize(
    "groups, nodes, expected", AFTER_A_START.values(), ids=AFTER_A_START.keys()
)
def test_a_start_reports_objects_whose_state_needs_a_step(
    groups: list[Raw], nodes: list[Raw], expected: list[Report], kinds: tuple[WatchedKind, ...]
) -> None:
    outbox, objects = Outbox(), {"TPUNodeGroup": groups, "Node": nodes}
    for kind in kinds:
        outbox.relisted(kind, objects[kind], START)
    assert take_reports(outbox) == expected


def test_groups_do_not_wait_for_nodes_that_cannot_be_listed() -> None:
    outbox = Outbox()
    outbox.relisted("TPUNodeGroup", [group(deleting=True)], START)
    assert take_reports(outbox) == [(TEAR_DOWN, "Deleting", ())]


def test_a_list_without_changes_reports_nothing() -> None:
    groups, nodes = [group(ready="False")], [node(ready="False")]
    outbox = settled_outbox(groups, nodes)
    outbox.relisted("TPUNodeGroup", groups, START)
    outbox.relisted("Node", nodes, START)
    assert outbox.next_due() is None


RELISTS: dict[str, tuple[WatchedKind, list[Raw], list[Report]]] = {
    "a deleted Node": ("Node", [], REPORTED),
    "a changed Node": ("Node", [node(ready="False")], REPORTED),
    "a Node with another proof": ("Node", [node(labels={**OWN_LABELS, VM_ID_LABEL: "1"})], REPORTED),
    "a new Node": ("Node", [node(), node(f"{RESOURCE_NAME}-cd34")], [(LABEL, "NodesChanged", (f"{RESOURCE_NAME}-cd34",))]),
    "a deleted group": ("TPUNodeGroup", [], []),
    "a changed group": ("TPUNodeGroup", [settled_group(generation=2)], [(CREATE, "SpecChanged", ())]),
    "a group that is being deleted": ("TPUNodeGroup", [settled_group(deleting=True)], [(TEAR_DOWN, "Deleting", ())]),
    "a new group": ("TPUNodeGroup", [settled_group(), group("new", uid="uid-2", resource_name="")], [(CREATE, "Added", ())]),
    "a recreated group": ("TPUNodeGroup", [group(uid="uid-2", resource_name="", finalizers=())], [(CREATE, "Added", ())]),
}  # fmt: skip


@pytest.mark.parametrize("kind, objects, expected", RELISTS.values(), ids=RELISTS.keys())
def test_a_new_list_reports_only_changes(
    kind: WatchedKind, objects: list[Raw], expected: list[Report]
) -> None:
    outbox = settled_outbox([settled_group()], [node()])
    outbox.relisted(kind, objects, START)
    assert take_reports(outbox) == expected


def set_ready(outbox: Outbox, at_s: float, ready: str) -> None:
    """Change the Ready condition of the Node."""
    outbox.changed("Node", "MODIFIED", node(ready=ready), seconds(at_s))


def test_the_first_change_is_reported_immediately_and_the_next_at_growing_intervals() -> None:
    outbox = settled_outbox([settled_group()], [node()])
    moments: list[float] = []
    for tenth in range(300):
        set_ready(outbox, tenth / 10, "True" if tenth % 2 else "False")
        if outbox.take_due(seconds(tenth / 10)):
            moments.append(tenth / 10)
    assert moments == [0, 3, 9, 18, 28]


def test_the_last_change_is_reported_after_its_interval() -> None:
    outbox = settled_outbox([settled_group()], [node()])
    set_ready(outbox, 0, "False")
    assert take_reports(outbox, 0) == REPORTED
    set_ready(outbox, 0.1, "True")
    assert take_reports(outbox, 2.9) == []
    assert outbox.next_due() == seconds(3)
    assert take_reports(outbox, 3) == REPORTED
    assert outbox.next_due() is None


def test_a_change_after_a_quiet_time_is_reported_immediately() -> None:
    outbox = settled_outbox([settled_group()], [node()])
    set_ready(outbox, 0, "False")
    outbox.take_due(seconds(0))
    set_ready(outbox, 6, "True")
    assert take_reports(outbox, 6) == REPORTED
    set_ready(outbox, 6.1, "False")
    assert outbox.next_due() == seconds(9)


def test_the_node_that_completes_the_slice_is_reported_immediately() -> None:
    outbox = settled_outbox([group(ready="False", observed=1, node_count=2)])
    outbox.take_due(START)
    names = [f"{RESOURCE_NAME}-{index:04}" for index in range(2)]
    for at_s, name, ready in ((1, 0, "False"), (1.1, 1, "False"), (1.2, 0, "True")):
        outbox.changed("Node", "MODIFIED", node(names[name], ready=ready), seconds(at_s))
    outbox.take_due(seconds(1.2))
    assert outbox.next_due() != seconds(1.3)
    outbox.changed("Node", "MODIFIED", node(names[1]), seconds(1.3))
    assert outbox.next_due() == seconds(1.3)


def test_nodes_of_a_group_that_is_being_deleted_are_not_reported() -> None:
    outbox = settled_outbox([settled_group(deleting=True)], [node()])
    outbox.take_due(START)
    outbox.changed("Node", "DELETED", node(), START)
    assert outbox.next_due() is None


def test_the_interval_of_one_group_and_step_does_not_delay_another() -> None:
    outbox = settled_outbox([settled_group()], [node()])
    set_ready(outbox, 0, "False")
    outbox.take_due(seconds(0))
    set_ready(outbox, 0.1, "True")
    outbox.changed("TPUNodeGroup", "MODIFIED", settled_group(deleting=True), seconds(0.1))
    assert take_reports(outbox, 0.1) == [(TEAR_DOWN, "Deleting", ())]


def test_64_nodes_that_join_within_a_minute_cause_about_10_messages_that_name_each() -> None:
    outbox = settled_outbox([group(ready="False", observed=1)])
    outbox.take_due(START - timedelta(minutes=1))
    changes = sorted(
        (at_s, stage, index)
        for index in range(64)
        for stage, at_s in enumerate((index * 60 / 64, index * 60 / 64 + 4, index * 60 / 64 + 6))
    )
    stages: tuple[dict[str, Any], ...] = (
        {"ready": "False", "capacity": ""},
        {"ready": "False"},
        {},
    )
    messages: list[tuple[float, tuple[str, ...]]] = []
    last_change: dict[str, float] = {}
    for at_s, stage, index in changes:
        messages += _drain(outbox, at_s)
        raw = node(f"{RESOURCE_NAME}-{index:04}", labels=UNPROVED_LABELS, **stages[stage])
        outbox.changed("Node", "MODIFIED" if stage else "ADDED", raw, seconds(at_s))
        last_change[raw["metadata"]["name"]] = at_s
    messages += _drain(outbox, 120)
    assert 8 <= len(messages) <= 12
    for name, at_s in last_change.items():
        assert any(
            name in names and at_s <= reported_s <= at_s + 10 for reported_s, names in messages
        )


def _drain(outbox: Outbox, until_s: float) -> list[tuple[float, tuple[str, ...]]]:
    """Return the messages that are due until then, each with its time."""
    messages = []
    while (due := outbox.next_due()) is not None and due <= seconds(until_s):
        for publication in outbox.take_due(due):
            messages.append(((due - START).total_seconds(), publication.message.nodes))
    return messages


def test_more_than_100_names_are_sent_in_several_messages() -> None:
    outbox = settled_outbox([settled_group(0)])
    names = [f"{RESOURCE_NAME}-{index:04}" for index in range(250)]
    for name in names:
        outbox.changed("Node", "ADDED", node(name), START)
    publications = outbox.take_due(START)
    assert [len(one.message.nodes) for one in publications] == [100, 100, 50]
    assert [name for one in publications for name in one.message.nodes] == names


def test_a_pending_trigger_has_at_most_the_first_5000_names() -> None:
    trigger = PendingTrigger(Cause.NODES_CHANGED, START)
    trigger.add_names(f"n-{number}" for number in range(4_999))
    trigger.add_names(["n-0", "late", "too-late"])
    assert (len(trigger.names), list(trigger.names)[-1]) == (5_000, "late")


def test_a_batch_has_at_most_the_requested_number_and_the_next_has_the_rest() -> None:
    outbox = settled_outbox()
    for index in range(5):
        outbox.changed("TPUNodeGroup", "ADDED", group(f"g{index}", uid=f"u{index}"), START)
    first, second = outbox.take_due(START, most=3), outbox.take_due(START, most=3)
    names = [one.message.name for one in first], [one.message.name for one in second]
    assert names == (["g0", "g1", "g2"], ["g3", "g4"])


def test_an_unpublished_message_is_due_again_with_the_changes_since_then() -> None:
    outbox = settled_outbox([settled_group(2)], [node(), node(f"{RESOURCE_NAME}-cd34")])
    set_ready(outbox, 0, "False")
    taken = outbox.take_due(seconds(0))
    other = node(f"{RESOURCE_NAME}-cd34", ready="False")
    outbox.changed("Node", "MODIFIED", other, seconds(0.5))
    outbox.returned(taken, seconds(1))
    assert take_reports(outbox, 6.9) == []
    [publication] = outbox.take_due(seconds(7))
    assert publication.message.nodes == (NODE, f"{RESOURCE_NAME}-cd34")
    assert publication.message.at == seconds(0.5)


def test_a_trigger_is_pending_in_each_moment_of_an_outage_until_it_is_published() -> None:
    outbox = settled_outbox([group()])
    outbox.changed("TPUNodeGroup", "MODIFIED", group(generation=2), START)
    pending = [outbox.triggers.count_pending(CREATE)]
    taken = outbox.take_due(START)
    pending.append(outbox.triggers.count_pending(CREATE))
    outbox.changed("TPUNodeGroup", "MODIFIED", group(generation=3), seconds(1))
    pending.append(outbox.triggers.count_pending(CREATE))
    outbox.returned(taken, seconds(10))
    pending.append(outbox.triggers.count_pending(CREATE))
    outbox.take_due(seconds(20))
    outbox.returned([], seconds(20))
    assert (pending, outbox.triggers.count_pending(CREATE)) == ([1, 1, 1, 1], 0)


def test_attempts_to_publish_are_at_most_ten_seconds_apart() -> None:
    outbox = settled_outbox([group()])
    outbox.changed("TPUNodeGroup", "MODIFIED", group(generation=2), START)
    moments: list[float] = []
    while (due := outbox.next_due()) is not None and len(moments) < 8:
        moments.append((due - START).total_seconds())
        outbox.returned(outbox.take_due(due), due)
    assert moments == [0, 6, 16, 26, 36, 46, 56, 66]


def test_an_outage_of_an_hour_loses_no_change_and_causes_one_message_for_each_step() -> None:
    outbox = settled_outbox([settled_group()], [node()])
    for minute in range(60):
        set_ready(outbox, minute * 60, "True" if minute % 2 else "False")
        outbox.changed(
            "TPUNodeGroup", "MODIFIED", settled_group(generation=minute + 2), seconds(minute * 60)
        )
        outbox.returned(outbox.take_due(seconds(minute * 60 + 30)), seconds(minute * 60 + 30))
    assert sorted(take_reports(outbox, 3600)) == [(CREATE, "SpecChanged", ()), *REPORTED]


SUPERSEDED: dict[str, Raw] = {
    "deleted": {},
    "recreated": group(uid="uid-2"),
    "being deleted": group(deleting=True),
}


@pytest.mark.parametrize("current", SUPERSEDED.values(), ids=SUPERSEDED.keys())
def test_an_unpublished_message_is_dropped_when_its_group_is_deleted_or_recreated(
    current: Raw,
) -> None:
    outbox = settled_outbox([group()])
    outbox.changed("TPUNodeGroup", "MODIFIED", group(generation=2), START)
    taken = outbox.take_due(START)
    outbox.relisted("TPUNodeGroup", [current] if current else [], seconds(1))
    outbox.take_due(seconds(1))
    outbox.returned(taken, seconds(2))
    assert outbox.next_due() is None


def test_a_clock_that_is_set_back_delays_no_message() -> None:
    outbox = settled_outbox([settled_group()], [node()])
    set_ready(outbox, 0, "False")
    outbox.take_due(seconds(0))
    set_ready(outbox, 0.1, "True")
    assert take_reports(outbox, -3600) == REPORTED


MALFORMED_NODES: dict[str, Raw] = {
    "no status": {"metadata": {"name": NODE, "uid": "u"}},
    "nulls": {"metadata": {"name": NODE, "uid": "u", "labels": None}, "spec": None, "status": None},
    "wrong shapes": {
        "metadata": {"name": NODE, "uid": 7, "labels": [], "finalizers": "x"},
        "spec": {"providerID": 7},
        "status": {"conditions": {"Ready": "True"}, "capacity": [], "allocatable": "4"},
    },
    "odd conditions": {"metadata": {"name": NODE}, "status": {"conditions": [None, "Ready", {}]}},
}


@pytest.mark.parametrize("raw", MALFORMED_NODES.values(), ids=MALFORMED_NODES.keys())
def test_a_malformed_node_is_reported(raw: Raw) -> None:
    outbox = settled_outbox([settled_group(0)])
    outbox.changed("Node", "ADDED", raw, START)
    assert take_reports(outbox) == REPORTED


def take_requests(outbox: Outbox, at_s: float = 0) -> list[tuple[str, ...]]:
    """Return the names in each message to approve_join."""
    found = outbox.take_due(seconds(at_s))
    assert {(one.step, str(one.message.cause)) for one in found} <= {
        ("approve_join", "JoinRequested")
    }
    return [one.message.requests for one in found]


REQUESTS: dict[str, tuple[Raw, list[tuple[str, ...]]]] = {
    "by a token of this system": (signing_request(), [("csr-x",)]),
    "by a token of kubeadm": (signing_request(group="system:bootstrappers:kubeadm:x"), []),
    "approved by this system": (signing_request("ApprovedByTpuFunctions"), []),
    "with a name that is no DNS name": (signing_request(name="node-csr-A_b"), [("node-csr-A_b",)]),
    "with an invalid name": (signing_request(name="a/b"), []),
    "from 20 minutes ago": (signing_request(created="2025-12-31T23:40:00Z"), []),
    "approved by another approver": (signing_request("AutoApproved"), [("csr-x",)]),
}


@pytest.mark.parametrize("case", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "watched"])
def test_only_certificate_requests_that_approve_join_handles_are_reported(
    case: tuple[Raw, list[tuple[str, ...]]], listed: bool
) -> None:
    raw, expected = case
    outbox = settled_outbox()
    if listed:
        outbox.relisted("CertificateSigningRequest", [raw], START)
    else:
        outbox.changed("CertificateSigningRequest", "ADDED", raw, START)
    assert take_requests(outbox) == expected
    outbox.changed("CertificateSigningRequest", "DELETED", raw, seconds(60))
    assert take_requests(outbox, 60) == []


def test_requests_of_many_vms_are_sent_in_batches_of_twenty_and_resent_after_a_failure() -> None:
    outbox = settled_outbox()
    names = [f"csr-{number}" for number in range(45)]
    for number, name in enumerate(names):
        raw = signing_request(name=name, token_id=f"{number:06}")
        outbox.changed("CertificateSigningRequest", "ADDED", raw, START)
    batches = [tuple(names[:20]), tuple(names[20:40]), tuple(names[40:])]
    taken = outbox.take_due(START)
    assert [one.message.requests for one in taken] == batches
    outbox.returned(taken, START)
    assert take_requests(outbox, 0) == []
    assert take_requests(outbox, 10) == batches


def test_at_most_five_requests_a_minute_are_reported_for_each_token() -> None:
    outbox = Outbox()
    names = [f"flood-{number}" for number in range(9)]
    for name in names:
        outbox.changed("CertificateSigningRequest", "ADDED", signing_request(name=name), START)
    other = signing_request(name="other", token_id="zzzzzz")
    outbox.changed("CertificateSigningRequest", "ADDED", other, START)
    assert take_requests(outbox) == [(*names[:5], "other")]
    later = signing_request(name="later")
    outbox.changed("CertificateSigningRequest", "ADDED", later, seconds(60))
    assert take_requests(outbox, 60) == [("later",)]
