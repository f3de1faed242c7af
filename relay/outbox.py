"""What the relay has to tell, and when: watch events become messages in the steps' inboxes.

Pure: no I/O, no clock, no randomness. Changes go in (`Outbox.changed`, `Outbox.relisted`), messages
come out when they are due (`Outbox.take_due`), and those that could not be published go back in
(`Outbox.returned`). A message is an occasion to look, so telling too often is harmless and cheap to
prove right; what must never be lost is the last change.

======================================================  ==================
what                                                    whose inbox
======================================================  ==================
group appeared; its generation, pause, resource-name    create_resources
label or owning finalizers changed
its deletionTimestamp appeared; its finalizers changed  tear_down
while it is being deleted
Node of a group appeared, went, became Ready or not,    label_node
got or lost ``google.com/tpu``, its labels or its
providerID changed; a group met Nodes that claim it
======================================================  ==================

After a start the state decides instead, since nobody knows what was missed: a settled group is not
told about, so a restart of the relay wakes nobody in a settled fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from relay.fleet import Fleet
from relay.pacing import Slot, Story
from relay.sightings import (
    TRUE,
    GroupKey,
    GroupSighting,
    NodeSighting,
    group_news,
    has_missed_node_news,
    is_echo,
    missed_group_news,
    sight_group,
    sight_node,
)
from shared.occasions import MAX_NAMES, Cause, Message

Kind = Literal["TPUNodeGroup", "Node"]
Event = Literal["ADDED", "MODIFIED", "DELETED"]

KINDS: tuple[Kind, ...] = ("TPUNodeGroup", "Node")
CREATE_RESOURCES, TEAR_DOWN, LABEL_NODE = "create_resources", "tear_down", "label_node"
INBOXES = (CREATE_RESOURCES, TEAR_DOWN, LABEL_NODE)
"""The steps that the relay tells anything."""


@dataclass(frozen=True)
class Publication:
    """A message and the step whose inbox it is for."""

    step: str
    message: Message


class Outbox:
    """What is known of the fleet, and what of it somebody has yet to be told."""

    def __init__(self) -> None:
        self._fleet = Fleet()
        self._slots: dict[tuple[GroupKey, str], Slot] = {}
        self._untold: dict[tuple[GroupKey, str], Slot] = {}
        self._listed: set[Kind] = set()

    @property
    def group_count(self) -> int:
        """How many TPUNodeGroups are known."""
        return len(self._fleet.groups)

    @property
    def node_count(self) -> int:
        """How many Nodes are remembered: those that may be a group's."""
        return len(self._fleet.node_names)

    def count_untold(self, step: str) -> int:
        """How many groups wait for a message to this step, for whatever reason."""
        return sum(1 for _, untold in self._untold if untold == step)

    def changed(self, kind: Kind, event: Event, object: Mapping[str, Any], now: datetime) -> None:  # noqa: A002
        """A watch says that an object has appeared, changed or gone."""
        if kind == "Node":
            self._node_changed(event, sight_node(object), now)
        else:
            self._group_changed(event, sight_group(object), now)

    def relisted(self, kind: Kind, objects: Iterable[Mapping[str, Any]], now: datetime) -> None:
        """All objects of a kind, freshly listed: only what differs from before is news.

        The first list of a kind has no before: what is to be told follows from the state, about the
        Nodes of a group as soon as both kinds have been listed.
        """
        first = kind not in self._listed
        self._listed.add(kind)
        if kind == "Node":
            self._relist_nodes([sight_node(raw) for raw in objects], first, now)
        else:
            self._relist_groups([sight_group(raw) for raw in objects], first, now)
        if first and self._listed.issuperset(KINDS):
            self._tell_missed_nodes(now)

    def next_due(self) -> datetime | None:
        """When `take_due` has something to give; ``None`` while there is nothing to tell."""
        return min((slot.due for slot in self._untold.values() if slot.due), default=None)

    def take_due(self, now: datetime, most: int | None = None) -> list[Publication]:
        """The messages that are due, those of ``most`` groups and steps if given, longest first.

        Whoever takes them publishes them, or gives them back (`returned`).
        """
        due = [key for key, slot in self._untold.items() if slot.is_due(now)]
        return [
            publication
            for key, step in due[:most]
            for publication in self._take(self._fleet.get_group(key), step, now)
        ]

    def returned(self, publications: Sequence[Publication], now: datetime) -> None:
        """These could not be published: they are due again, later. What is moot is dropped."""
        parts: dict[tuple[GroupKey, str], list[Message]] = {}
        for publication in publications:
            message = publication.message
            group_key = message.namespace, message.name
            parts.setdefault((group_key, publication.step), []).append(message)
        for (group_key, step), messages in parts.items():
            self._put_back(group_key, step, messages, now)

    def _group_changed(self, event: Event, group: GroupSighting, now: datetime) -> None:
        if event == "DELETED":
            self._forget_group(group.key)
        else:
            self._see_group(group, now)

    def _node_changed(self, event: Event, node: NodeSighting, now: datetime) -> None:
        if event == "DELETED":
            self._miss_node(node.name, now)
        else:
            self._see_node(node, now, live=True)

    def _relist_groups(self, groups: list[GroupSighting], first: bool, now: datetime) -> None:
        listed = {group.key for group in groups}
        for known in self._fleet.groups:
            if known.key not in listed:
                self._forget_group(known.key)
        for group in groups:
            if first:
                self._fleet.put_group(group)
                self._tell_group(group, missed_group_news(group), now)
            else:
                self._see_group(group, now)

    def _relist_nodes(self, nodes: list[NodeSighting], first: bool, now: datetime) -> None:
        listed = {node.name for node in nodes}
        for known in self._fleet.node_names:
            if known not in listed:
                self._miss_node(known, now)
        for node in nodes:
            if first:
                self._remember_node(node)
            else:
                self._see_node(node, now, live=False)

    def _see_group(self, group: GroupSighting, now: datetime) -> None:
        before = self._fleet.find_group(group.key)
        if before is not None and before.uid != group.uid:
            self._forget_group(group.key)
            before = None
        self._fleet.put_group(group)
        self._tell_group(group, group_news(before, group), now)
        if before is None or before.resource_name != group.resource_name:
            self._tell_nodes(group, self._fleet.list_claiming_nodes(group.resource_name), now)

    def _forget_group(self, key: GroupKey) -> None:
        self._fleet.drop_group(key)
        for step in INBOXES:
            self._drop_slot(key, step)

    def _see_node(self, node: NodeSighting, now: datetime, *, live: bool) -> None:
        before = self._fleet.find_node(node.name)
        self._remember_node(node)
        if before == node or (live and before is not None and is_echo(before, node)):
            return
        claims = node.claims | (before.claims if before is not None else frozenset())
        for group in self._fleet.list_claimed_groups(claims):
            self._tell_nodes(group, [node], now)

    def _miss_node(self, name: str, now: datetime) -> None:
        node = self._fleet.find_node(name)
        if node is None:
            return
        self._fleet.drop_node(name)
        for group in self._fleet.list_claimed_groups(node.claims):
            self._tell_nodes(group, [node], now)

    def _remember_node(self, node: NodeSighting) -> None:
        if node.claims:
            self._fleet.put_node(node)
        else:
            self._fleet.drop_node(node.name)

    def _tell_missed_nodes(self, now: datetime) -> None:
        for group in self._fleet.groups:
            nodes = self._fleet.list_claiming_nodes(group.resource_name)
            if has_missed_node_news(group, nodes):
                self._tell(group, LABEL_NODE, Cause.NODES_CHANGED, now, nodes)

    def _tell_nodes(
        self, group: GroupSighting, nodes: Sequence[NodeSighting], now: datetime
    ) -> None:
        if nodes and not group.deleting:  # then they are tear_down's, which reads them itself
            at_once = self._is_last_one_ready(group, nodes)
            self._tell(group, LABEL_NODE, Cause.NODES_CHANGED, now, nodes, at_once=at_once)

    def _is_last_one_ready(self, group: GroupSighting, changed: Sequence[NodeSighting]) -> bool:
        """Whether the slice may just have become whole, which is what somebody waits for."""
        if group.ready == TRUE or not all(node.is_ready for node in changed):
            return False
        claiming = self._fleet.list_claiming_nodes(group.resource_name)
        return sum(node.is_ready for node in claiming) == group.node_count

    def _tell_group(self, group: GroupSighting, cause: Cause | None, now: datetime) -> None:
        if cause is Cause.DELETING:
            self._drop_slot(group.key, CREATE_RESOURCES)  # the step would only send it on
            self._tell(group, TEAR_DOWN, cause, now)
        elif cause is not None:
            self._tell(group, CREATE_RESOURCES, cause, now)

    def _tell(
        self,
        group: GroupSighting,
        step: str,
        cause: Cause,
        now: datetime,
        nodes: Sequence[NodeSighting] = (),
        *,
        at_once: bool = False,
    ) -> None:
        slot = self._slot(group.key, step)
        slot.add(cause, tuple(node.name for node in nodes), now, at_once=at_once)
        self._untold[group.key, step] = slot

    def _drop_slot(self, key: GroupKey, step: str) -> None:
        self._slots.pop((key, step), None)
        self._untold.pop((key, step), None)

    def _slot(self, key: GroupKey, step: str) -> Slot:
        return self._slots.setdefault((key, step), Slot())

    def _take(self, group: GroupSighting, step: str, now: datetime) -> list[Publication]:
        story = self._untold.pop((group.key, step)).take(now)
        names = tuple(story.names)
        return [
            Publication(
                step,
                Message(
                    namespace=group.namespace,
                    name=group.name,
                    uid=group.uid,
                    cause=story.cause,
                    at=story.at,
                    nodes=names[start : start + MAX_NAMES],
                ),
            )
            for start in range(0, len(names) or 1, MAX_NAMES)
        ]

    def _put_back(self, key: GroupKey, step: str, messages: list[Message], now: datetime) -> None:
        group, first = self._fleet.find_group(key), messages[0]
        if group is None or group.uid != first.uid:
            return
        if group.deleting and step == CREATE_RESOURCES:
            return
        story = Story(first.cause, first.at)
        story.add_names(name for message in messages for name in message.nodes)
        slot = self._slot(key, step)
        slot.put_back(story, now)
        self._untold[key, step] = slot
