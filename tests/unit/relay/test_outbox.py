"""What is news, whose inbox it goes to, and when: tables on made-up times."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from relay.changes.cache import MAX_STRAYS
from relay.changes.coalescing import PendingTrigger
from relay.changes.outbox import Outbox
from relay.changes.pending import OutgoingMessage
from relay.kinds import WatchedKind
from shared.base.names import (
    FINALIZER,
    RESOURCE_NAME_LABEL,
    THEIR_FINALIZER_PREFIX,
    TOPOLOGY_LABEL,
    VM_ID_LABEL,
)
from shared.frame.message import Cause
from tests.unit.relay.objects import (
    OUR_LABELS,
    RESOURCE_NAME,
    Raw,
    foreign_node,
    group,
    node,
    settled_group,
    signing_request,
)

Told = tuple[str, str, tuple[str, ...]]
"""Step, cause and Node names of a message."""

START = datetime(2026, 1, 1, tzinfo=UTC)
NODE = f"{RESOURCE_NAME}-ab12"


def seconds(amount: float) -> datetime:
    """That much after the start."""
    return START + timedelta(seconds=amount)


def settled_outbox(groups: Iterable[Raw] = (), nodes: Iterable[Raw] = ()) -> Outbox:
    """An outbox that has seen these since long and has nothing to tell."""
    outbox = Outbox()
    outbox.relisted("TPUNodeGroup", groups, START - timedelta(hours=1))
    outbox.relisted("Node", nodes, START - timedelta(hours=1))
    outbox.take_due(START - timedelta(hours=1))
    return outbox


def brief(publications: list[OutgoingMessage]) -> list[Told]:
    """Step, cause and Node names of each message."""
    return [(one.step, str(one.message.cause), one.message.nodes) for one in publications]


def told(outbox: Outbox, at_s: float = 0) -> list[Told]:
    """What is due then."""
    return brief(outbox.take_due(seconds(at_s)))


CREATE, TEAR_DOWN, LABEL = "create_resources", "tear_down", "label_node"

GROUP_CHANGES: dict[str, tuple[Raw, Raw, list[Told]]] = {
    "a new spec": (group(), group(generation=2), [(CREATE, "SpecChanged", ())]),
    "a pause": (group(), group(paused="true"), [(CREATE, "MetadataChanged", ())]),
    "the end of a pause": (group(paused="true"), group(), [(CREATE, "MetadataChanged", ())]),
    "our label lost": (group(), group(resource_name=""), [(CREATE, "MetadataChanged", ())]),
    "our finalizer lost": (group(), group(finalizers=()), [(CREATE, "MetadataChanged", ())]),
    "our finalizer and label set, by ourselves": (
        group(finalizers=(), resource_name=""),
        group(),
        [],
    ),
    "our label changed to another": (
        group(),
        group(resource_name="tng-other-01234567"),
        [(CREATE, "MetadataChanged", ())],
    ),
    "our finalizer set, and a pause with it": (
        group(finalizers=(), resource_name=""),
        group(paused="true"),
        [(CREATE, "MetadataChanged", ())],
    ),
    "tpu-operator's finalizer gone": (
        group(finalizers=(f"{THEIR_FINALIZER_PREFIX}-mig",)),
        group(finalizers=()),
        [(CREATE, "MetadataChanged", ())],
    ),
    "somebody else's finalizer": (group(), group(finalizers=(FINALIZER, "example.com/x")), []),
    "a status": (group(), group(ready="False", observed=1, nodes_ready=1), []),
    "the deletion": (group(), group(deleting=True, generation=2), [(TEAR_DOWN, "Deleting", ())]),
    "another finalizer gone while deleting": (
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
def test_a_change_of_a_group_goes_to_the_step_it_concerns(
    before: Raw, after: Raw, expected: list[Told]
) -> None:
    outbox = settled_outbox([before])
    outbox.changed("TPUNodeGroup", "MODIFIED", after, START)
    assert told(outbox) == expected


def test_a_new_group_goes_to_create_resources_with_its_uid_and_the_time() -> None:
    outbox = settled_outbox()
    outbox.changed("TPUNodeGroup", "ADDED", group(finalizers=(), resource_name=""), START)
    [publication] = outbox.take_due(START)
    message = publication.message
    assert (publication.step, message.namespace, message.name) == (CREATE, "default", "train")
    assert (message.uid, message.cause, message.at) == ("uid-1", Cause.ADDED, START)


def without(*labels: str) -> dict[str, str]:
    """Our labels, some of them missing."""
    return {key: value for key, value in OUR_LABELS.items() if key not in labels}


NEWS: list[Told] = [(LABEL, "NodesChanged", (NODE,))]
HINTED = {RESOURCE_NAME_LABEL: RESOURCE_NAME}

NODE_CHANGES: dict[str, tuple[Raw | None, Raw, list[Told]]] = {
    "appears": (None, node(), NEWS),
    "appears without labels": (None, node(labels={}), NEWS),
    "appears under a name that tells nothing": (
        None,
        node("gke-1", labels=HINTED),
        [(LABEL, "NodesChanged", ("gke-1",))],
    ),
    "is not Ready any more": (node(), node(ready="False"), NEWS),
    "is not heard of": (node(), node(ready="Unknown"), NEWS),
    "is Ready again": (node(ready="Unknown"), node(), NEWS),
    "is Ready before it has chips": (
        node(ready="False", capacity="", allocatable=""),
        node(capacity="", allocatable=""),
        [],
    ),
    "gets TPU capacity": (node(capacity="", allocatable=""), node(allocatable="0"), []),
    "has chips before it is Ready": (node(ready="False", capacity=""), node(ready="False"), []),
    "is Ready with chips": (node(ready="False"), node(), NEWS),
    "has more chips": (node(), node(capacity="8", allocatable="8"), NEWS),
    "is half-way and gets a providerID": (
        node(ready="False", provider_id=""),
        node(capacity="", allocatable=""),
        NEWS,
    ),
    "can allocate its TPU": (node(allocatable="0"), node(), NEWS),
    "loses its TPU": (node(), node(capacity="0", allocatable="0"), NEWS),
    "gets a providerID": (node(provider_id=""), node(), NEWS),
    "loses a label": (node(), node(labels=without(TOPOLOGY_LABEL)), NEWS),
    "loses the label that proves it": (node(), node(labels=without(VM_ID_LABEL)), NEWS),
    "loses the label of its group": (node(), node(labels=without(RESOURCE_NAME_LABEL)), NEWS),
    "gets a wrong label": (node(), node(labels={**OUR_LABELS, TOPOLOGY_LABEL: "9x9"}), NEWS),
    "gets a label before it is proved": (node(labels={}), node(labels=HINTED), NEWS),
    "is another Node of that name": (node(), node(uid="node-uid-2"), NEWS),
    "is proved and becomes Ready at once": (node(labels={}, ready="False"), node(), NEWS),
    "is proved and loses a label at once": (
        node(labels={**without(VM_ID_LABEL), f"{TOPOLOGY_LABEL}-x": "1"}),
        node(),
        NEWS,
    ),
    "is proved by our patch": (node(labels={}), node(), []),
    "is proved anew by our patch": (
        node(labels={**OUR_LABELS, VM_ID_LABEL: "1", TOPOLOGY_LABEL: "9x9"}),
        node(),
        [],
    ),
    "gets a lost label back by our patch": (node(labels=without(TOPOLOGY_LABEL)), node(), []),
    "sends a heartbeat": (node(), node(heartbeat="2026-01-01T00:05:00Z"), []),
    "is cordoned": (node(), node(unschedulable=True), []),
    "gets a taint": (node(), node(taints=("example.com/x",)), []),
    "gets somebody else's label": (node(), node(labels={**OUR_LABELS, "example.com/x": "1"}), []),
    "is foreign": (None, foreign_node("gke-1"), []),
    "has nearly our name": (None, foreign_node(f"{RESOURCE_NAME}-ab123"), []),
}


@pytest.mark.parametrize("before, after, expected", NODE_CHANGES.values(), ids=NODE_CHANGES.keys())
def test_label_node_is_triggered_by_a_node_that(
    before: Raw | None, after: Raw, expected: list[Told]
) -> None:
    outbox = settled_outbox([settled_group()], [before] if before else [])
    outbox.take_due(START - timedelta(minutes=1))
    outbox.changed("Node", "MODIFIED" if before else "ADDED", after, START)
    assert told(outbox) == expected


def test_a_node_that_goes_is_news_under_its_name() -> None:
    outbox = settled_outbox([settled_group()], [node()])
    outbox.changed("Node", "DELETED", node(), START)
    assert told(outbox) == NEWS


def test_a_foreign_node_that_goes_is_no_news() -> None:
    outbox = settled_outbox([settled_group(0)], [foreign_node("gke-1")])
    outbox.changed("Node", "DELETED", foreign_node("gke-1"), START)
    assert told(outbox) == []


def test_a_node_with_a_domain_in_its_name_is_known_by_the_first_label() -> None:
    outbox = settled_outbox([settled_group(0)])
    name = f"{NODE}.us-central1-c.c.project.internal"
    outbox.changed("Node", "ADDED", node(name, labels={}), START)
    assert told(outbox) == [(LABEL, "NodesChanged", (name,))]


def test_a_node_that_moves_between_groups_triggers_both() -> None:
    other = settled_group(0, name="other", uid="uid-2", resource_name="tng-other-0123abcd")
    outbox = settled_outbox([settled_group(), other], [node("n", labels=HINTED)])
    outbox.take_due(START - timedelta(minutes=1))
    moved = node("n", labels={RESOURCE_NAME_LABEL: "tng-other-0123abcd"})
    outbox.changed("Node", "MODIFIED", moved, START)
    woken = {publication.message.name for publication in outbox.take_due(START)}
    assert woken == {"train", "other"}


def test_a_node_that_our_patch_takes_from_a_group_is_reported_to_that_group() -> None:
    other = settled_group(0, name="other", uid="uid-2", resource_name="tng-other-0123abcd")
    claimed_wrongly = node(labels={RESOURCE_NAME_LABEL: "tng-other-0123abcd"})
    outbox = settled_outbox([settled_group(0), other], [claimed_wrongly])
    outbox.take_due(START - timedelta(minutes=1))
    outbox.changed("Node", "MODIFIED", node(), START)
    woken = {publication.message.name for publication in outbox.take_due(START)}
    assert "other" in woken


def test_all_groups_that_claim_a_resource_name_are_triggered() -> None:
    twins = [settled_group(0), settled_group(0, name="forged", uid="uid-2")]
    outbox = settled_outbox(twins)
    outbox.changed("Node", "ADDED", node(), START)
    woken = {publication.message.name for publication in outbox.take_due(START)}
    assert woken == {"train", "forged"}


def test_a_node_waits_for_its_group_to_become_known() -> None:
    outbox = settled_outbox()
    outbox.changed("Node", "ADDED", node(), START)
    assert outbox.next_due() is None
    outbox.changed("TPUNodeGroup", "ADDED", group(), seconds(1))
    assert told(outbox, 1) == [(CREATE, "Added", ()), *NEWS]


def test_a_node_waits_for_the_label_of_its_group() -> None:
    outbox = settled_outbox([group(resource_name="", finalizers=())], [node()])
    outbox.changed("TPUNodeGroup", "MODIFIED", group(), START)
    assert told(outbox) == NEWS


def test_nodes_of_unknown_groups_are_remembered_up_to_a_bound_the_newest_of_them() -> None:
    strays = [node(f"tng-gone-0123abcd-{index:04}", labels={}) for index in range(MAX_STRAYS + 5)]
    outbox = settled_outbox([], strays)
    assert outbox.node_count == MAX_STRAYS
    outbox.changed("TPUNodeGroup", "ADDED", group(resource_name="tng-gone-0123abcd"), START)
    names = [name for one in outbox.take_due(START) for name in one.message.nodes]
    assert names == [raw["metadata"]["name"] for raw in strays[5:]]


def test_nothing_is_kept_of_foreign_nodes() -> None:
    outbox = settled_outbox([settled_group(0)], [foreign_node(f"n-{i}") for i in range(100)])
    assert outbox.node_count == 0


def test_pending_messages_about_a_deleted_group_are_dropped() -> None:
    outbox = settled_outbox([group()])
    outbox.changed("TPUNodeGroup", "MODIFIED", group(deleting=True), START)
    outbox.changed("TPUNodeGroup", "DELETED", group(deleting=True), START)
    assert (outbox.next_due(), outbox.group_count) == (None, 0)


def test_a_deletion_replaces_a_pending_message_to_create_resources() -> None:
    outbox = settled_outbox([group()])
    outbox.changed("TPUNodeGroup", "MODIFIED", group(generation=2), START)
    outbox.changed("TPUNodeGroup", "MODIFIED", group(generation=3, deleting=True), START)
    assert told(outbox) == [(TEAR_DOWN, "Deleting", ())]


AFTER_A_START: dict[str, tuple[list[Raw], list[Raw], list[Told]]] = {
    "settled": ([settled_group()], [node()], []),
    "settled, without Nodes": ([settled_group(0)], [], []),
    "being deleted": ([group(deleting=True)], [], [(TEAR_DOWN, "Deleting", ())]),
    "not taken": (
        [settled_group(0, finalizers=())],
        [],
        [(CREATE, "Added", ())],
    ),
    "taken, without label": ([settled_group(0, resource_name="")], [], [(CREATE, "Added", ())]),
    "changed meanwhile": ([settled_group(0, generation=2)], [], [(CREATE, "Added", ())]),
    "without status": ([group()], [], [(CREATE, "Added", ())]),
    "not Ready": ([settled_group(1, ready="False")], [node()], NEWS),
    "not Ready, without Nodes": ([settled_group(0, ready="False")], [], []),
    "Node not Ready": ([settled_group(1)], [node(ready="Unknown")], NEWS),
    "Node without TPU": ([settled_group(1)], [node(allocatable="0")], NEWS),
    "Node lost its proof": ([settled_group(1)], [node(labels={})], NEWS),
    "Node gone": ([settled_group(1)], [], [(LABEL, "NodesChanged", ())]),
}


@pytest.mark.parametrize("kinds", [("TPUNodeGroup", "Node"), ("Node", "TPUNodeGroup")], ids=str)
@pytest.mark.parametrize(
    "groups, nodes, expected", AFTER_A_START.values(), ids=AFTER_A_START.keys()
)
def test_after_a_start_the_state_decides(
    groups: list[Raw], nodes: list[Raw], expected: list[Told], kinds: tuple[WatchedKind, ...]
) -> None:
    outbox, objects = Outbox(), {"TPUNodeGroup": groups, "Node": nodes}
    for kind in kinds:
        outbox.relisted(kind, objects[kind], START)
    assert told(outbox) == expected


def test_groups_do_not_wait_for_nodes_that_cannot_be_listed() -> None:
    outbox = Outbox()
    outbox.relisted("TPUNodeGroup", [group(deleting=True)], START)
    assert told(outbox) == [(TEAR_DOWN, "Deleting", ())]


def test_a_fresh_list_that_shows_nothing_new_is_quiet() -> None:
    groups, nodes = [group(ready="False")], [node(ready="False")]
    outbox = settled_outbox(groups, nodes)
    outbox.relisted("TPUNodeGroup", groups, START)
    outbox.relisted("Node", nodes, START)
    assert outbox.next_due() is None


RELISTS: dict[str, tuple[WatchedKind, list[Raw], list[Told]]] = {
    "a Node gone": ("Node", [], NEWS),
    "a Node changed": ("Node", [node(ready="False")], NEWS),
    "a Node that looks as if we had labelled it": (
        "Node",
        [node(labels={**OUR_LABELS, VM_ID_LABEL: "1"})],
        NEWS,
    ),
    "a Node new": (
        "Node",
        [node(), node(f"{RESOURCE_NAME}-cd34")],
        [(LABEL, "NodesChanged", (f"{RESOURCE_NAME}-cd34",))],
    ),
    "a group gone": ("TPUNodeGroup", [], []),
    "a group changed": (
        "TPUNodeGroup",
        [settled_group(generation=2)],
        [(CREATE, "SpecChanged", ())],
    ),
    "a group deleted": (
        "TPUNodeGroup",
        [settled_group(deleting=True)],
        [(TEAR_DOWN, "Deleting", ())],
    ),
    "a group new": (
        "TPUNodeGroup",
        [settled_group(), group("new", uid="uid-2", resource_name="")],
        [(CREATE, "Added", ())],
    ),
    "a group made anew": (
        "TPUNodeGroup",
        [group(uid="uid-2", resource_name="", finalizers=())],
        [(CREATE, "Added", ())],
    ),
}


@pytest.mark.parametrize("kind, objects, expected", RELISTS.values(), ids=RELISTS.keys())
def test_a_new_list_reports_only(
    kind: WatchedKind, objects: list[Raw], expected: list[Told]
) -> None:
    outbox = settled_outbox([settled_group()], [node()])
    outbox.relisted(kind, objects, START)
    assert told(outbox) == expected


def flicker(outbox: Outbox, at_s: float, ready: str) -> None:
    """The Node becomes Ready, or not."""
    outbox.changed("Node", "MODIFIED", node(ready=ready), seconds(at_s))


def test_the_first_change_goes_at_once_and_the_next_ones_at_growing_gaps() -> None:
    outbox = settled_outbox([settled_group()], [node()])
    moments: list[float] = []
    for tenth in range(300):
        flicker(outbox, tenth / 10, "True" if tenth % 2 else "False")
        if outbox.take_due(seconds(tenth / 10)):
            moments.append(tenth / 10)
    assert moments == [0, 3, 9, 18, 28]


def test_the_last_change_is_reported_after_its_interval() -> None:
    outbox = settled_outbox([settled_group()], [node()])
    flicker(outbox, 0, "False")
    assert told(outbox, 0) == NEWS
    flicker(outbox, 0.1, "True")
    assert told(outbox, 2.9) == []
    assert outbox.next_due() == seconds(3)
    assert told(outbox, 3) == NEWS
    assert outbox.next_due() is None


def test_after_quiet_a_change_goes_at_once_again() -> None:
    outbox = settled_outbox([settled_group()], [node()])
    flicker(outbox, 0, "False")
    outbox.take_due(seconds(0))
    flicker(outbox, 6, "True")
    assert told(outbox, 6) == NEWS
    flicker(outbox, 6.1, "False")
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


def test_nodes_of_a_group_that_is_being_deleted_are_nobodys_news() -> None:
    outbox = settled_outbox([settled_group(deleting=True)], [node()])
    outbox.take_due(START)
    outbox.changed("Node", "DELETED", node(), START)
    assert outbox.next_due() is None


def test_the_gaps_of_one_group_and_step_hold_up_no_other() -> None:
    outbox = settled_outbox([settled_group()], [node()])
    flicker(outbox, 0, "False")
    outbox.take_due(seconds(0))
    flicker(outbox, 0.1, "True")
    outbox.changed("TPUNodeGroup", "MODIFIED", settled_group(deleting=True), seconds(0.1))
    assert told(outbox, 0.1) == [(TEAR_DOWN, "Deleting", ())]


def test_64_nodes_that_join_within_a_minute_make_about_10_messages_and_none_is_missed() -> None:
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
        raw = node(f"{RESOURCE_NAME}-{index:04}", labels=HINTED, **stages[stage])
        outbox.changed("Node", "MODIFIED" if stage else "ADDED", raw, seconds(at_s))
        last_change[raw["metadata"]["name"]] = at_s
    messages += _drain(outbox, 120)
    assert 8 <= len(messages) <= 12
    for name, at_s in last_change.items():
        assert any(name in names and at_s <= told_s <= at_s + 10 for told_s, names in messages)


def _drain(outbox: Outbox, until_s: float) -> list[tuple[float, tuple[str, ...]]]:
    """What is due until then, each at its own moment."""
    messages = []
    while (due := outbox.next_due()) is not None and due <= seconds(until_s):
        for publication in outbox.take_due(due):
            messages.append(((due - START).total_seconds(), publication.message.nodes))
    return messages


def test_more_than_100_names_make_more_messages() -> None:
    outbox = settled_outbox([settled_group(0)])
    names = [f"{RESOURCE_NAME}-{index:04}" for index in range(250)]
    for name in names:
        outbox.changed("Node", "ADDED", node(name), START)
    publications = outbox.take_due(START)
    assert [len(one.message.nodes) for one in publications] == [100, 100, 50]
    assert [name for one in publications for name in one.message.nodes] == names


def test_of_the_names_of_an_outage_the_first_5000_are_kept() -> None:
    trigger = PendingTrigger(Cause.NODES_CHANGED, START)
    trigger.add_names(f"n-{number}" for number in range(4_999))
    trigger.add_names(["n-0", "late", "too-late"])
    assert (len(trigger.names), list(trigger.names)[-1]) == (5_000, "late")


def test_a_round_takes_no_more_than_asked_for_and_the_next_the_rest() -> None:
    outbox = settled_outbox()
    for index in range(5):
        outbox.changed("TPUNodeGroup", "ADDED", group(f"g{index}", uid=f"u{index}"), START)
    first, second = outbox.take_due(START, most=3), outbox.take_due(START, most=3)
    names = [one.message.name for one in first], [one.message.name for one in second]
    assert names == (["g0", "g1", "g2"], ["g3", "g4"])


def test_what_could_not_be_published_is_due_again_with_what_came_since() -> None:
    outbox = settled_outbox([settled_group(2)], [node(), node(f"{RESOURCE_NAME}-cd34")])
    flicker(outbox, 0, "False")
    taken = outbox.take_due(seconds(0))
    other = node(f"{RESOURCE_NAME}-cd34", ready="False")
    outbox.changed("Node", "MODIFIED", other, seconds(0.5))
    outbox.returned(taken, seconds(1))
    assert told(outbox, 6.9) == []
    [publication] = outbox.take_due(seconds(7))
    assert publication.message.nodes == (NODE, f"{RESOURCE_NAME}-cd34")
    assert publication.message.at == seconds(0.5)


def test_attempts_to_publish_are_never_more_than_ten_seconds_apart() -> None:
    outbox = settled_outbox([group()])
    outbox.changed("TPUNodeGroup", "MODIFIED", group(generation=2), START)
    moments: list[float] = []
    while (due := outbox.next_due()) is not None and len(moments) < 8:
        moments.append((due - START).total_seconds())
        outbox.returned(outbox.take_due(due), due)
    assert moments == [0, 6, 16, 26, 36, 46, 56, 66]


def test_an_outage_of_an_hour_loses_nothing_and_gathers_one_message_a_step() -> None:
    outbox = settled_outbox([settled_group()], [node()])
    for minute in range(60):
        flicker(outbox, minute * 60, "True" if minute % 2 else "False")
        outbox.changed(
            "TPUNodeGroup", "MODIFIED", settled_group(generation=minute + 2), seconds(minute * 60)
        )
        outbox.returned(outbox.take_due(seconds(minute * 60 + 30)), seconds(minute * 60 + 30))
    assert sorted(told(outbox, 3600)) == [(CREATE, "SpecChanged", ()), *NEWS]


MOOT: dict[str, Raw] = {
    "gone": {},
    "made anew": group(uid="uid-2"),
    "being deleted": group(deleting=True),
}


@pytest.mark.parametrize("now_is", MOOT.values(), ids=MOOT.keys())
def test_what_could_not_be_published_is_dropped_when_the_group_is(now_is: Raw) -> None:
    outbox = settled_outbox([group()])
    outbox.changed("TPUNodeGroup", "MODIFIED", group(generation=2), START)
    taken = outbox.take_due(START)
    outbox.relisted("TPUNodeGroup", [now_is] if now_is else [], seconds(1))
    outbox.take_due(seconds(1))
    outbox.returned(taken, seconds(2))
    assert outbox.next_due() is None


def test_a_clock_that_is_set_back_holds_nothing_up() -> None:
    outbox = settled_outbox([settled_group()], [node()])
    flicker(outbox, 0, "False")
    outbox.take_due(seconds(0))
    flicker(outbox, 0.1, "True")
    assert told(outbox, -3600) == NEWS


ODD_NODES: dict[str, Raw] = {
    "no status": {"metadata": {"name": NODE, "uid": "u"}},
    "nulls": {"metadata": {"name": NODE, "uid": "u", "labels": None}, "spec": None, "status": None},
    "wrong shapes": {
        "metadata": {"name": NODE, "uid": 7, "labels": [], "finalizers": "x"},
        "spec": {"providerID": 7},
        "status": {"conditions": {"Ready": "True"}, "capacity": [], "allocatable": "4"},
    },
    "odd conditions": {"metadata": {"name": NODE}, "status": {"conditions": [None, "Ready", {}]}},
}


@pytest.mark.parametrize("raw", ODD_NODES.values(), ids=ODD_NODES.keys())
def test_an_odd_node_is_a_node_still(raw: Raw) -> None:
    outbox = settled_outbox([settled_group(0)])
    outbox.changed("Node", "ADDED", raw, START)
    assert told(outbox) == NEWS


def requests_told(outbox: Outbox, at_s: float = 0) -> list[tuple[str, ...]]:
    """The names in each message to approve_join."""
    found = outbox.take_due(seconds(at_s))
    assert {(one.step, str(one.message.cause)) for one in found} <= {
        ("approve_join", "JoinRequested")
    }
    return [one.message.requests for one in found]


REQUESTS: dict[str, tuple[Raw, list[tuple[str, ...]]]] = {
    "by a token of ours": (signing_request(), [("csr-x",)]),
    "by a token of kubeadm's": (signing_request(group="system:bootstrappers:kubeadm:x"), []),
    "approved by us": (signing_request("ApprovedByTpuFunctions"), []),
    "with a name that is no DNS name": (signing_request(name="node-csr-A_b"), [("node-csr-A_b",)]),
    "with a name that is none": (signing_request(name="a/b"), []),
    "for which no kubelet waits any more": (signing_request(created="2025-12-31T23:40:00Z"), []),
    "approved by somebody else": (signing_request("AutoApproved"), [("csr-x",)]),
}


@pytest.mark.parametrize("case", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "watched"])
def test_which_certificate_requests_are_reported(
    case: tuple[Raw, list[tuple[str, ...]]], listed: bool
) -> None:
    raw, wanted = case
    outbox = settled_outbox()
    if listed:
        outbox.relisted("CertificateSigningRequest", [raw], START)
    else:
        outbox.changed("CertificateSigningRequest", "ADDED", raw, START)
    assert requests_told(outbox) == wanted
    outbox.changed("CertificateSigningRequest", "DELETED", raw, seconds(60))
    assert requests_told(outbox, 60) == []


def test_requests_of_many_vms_go_in_batches_of_twenty_and_again_after_a_failure() -> None:
    outbox = settled_outbox()
    names = [f"csr-{number}" for number in range(45)]
    for number, name in enumerate(names):
        raw = signing_request(name=name, token_id=f"{number:06}")
        outbox.changed("CertificateSigningRequest", "ADDED", raw, START)
    batches = [tuple(names[:20]), tuple(names[20:40]), tuple(names[40:])]
    taken = outbox.take_due(START)
    assert [one.message.requests for one in taken] == batches
    outbox.returned(taken, START)
    assert requests_told(outbox, 0) == []
    assert requests_told(outbox, 10) == batches


def test_five_requests_a_minute_are_reported_for_each_token() -> None:
    outbox = Outbox()
    names = [f"flood-{number}" for number in range(9)]
    for name in names:
        outbox.changed("CertificateSigningRequest", "ADDED", signing_request(name=name), START)
    other = signing_request(name="other", token_id="zzzzzz")
    outbox.changed("CertificateSigningRequest", "ADDED", other, START)
    assert requests_told(outbox) == [(*names[:5], "other")]
    later = signing_request(name="later")
    outbox.changed("CertificateSigningRequest", "ADDED", later, seconds(60))
    assert requests_told(outbox, 60) == [("later",)]
