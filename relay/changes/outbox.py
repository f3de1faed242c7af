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
Node of a group appeared, went, became Ready with all   label_node
its chips or no longer is, its labels or its providerID
changed; a group met Nodes that claim it
Pod of a JobSet waits for a slice, or for another       provision_slice
JobSet completed, failed or went                        release_slice
======================================================  ==================

After a start the state decides instead, since nobody knows what was missed: a settled group is not
told about, so a restart of the relay wakes nobody in a settled fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from relay.changes.cache import Fleet
from relay.changes.fingerprints import (
    TRUE,
    GroupKey,
    GroupSighting,
    NodeSighting,
    group_news,
    has_identity,
    has_missed_node_news,
    is_node_news,
    missed_group_news,
    sight_group,
    sight_node,
)
from relay.changes.jobsets import Jobs
from relay.changes.pending import Publication, Slots, Subject
from relay.kinds import CREATE_RESOURCES, LABEL_NODE, TEAR_DOWN, Change, Kind
from shared.base.names import KIND
from shared.frame.message import Cause

_OF_GROUPS = frozenset[Kind]({"TPUNodeGroup", "Node"})


class Outbox:
    """What is known of the fleet, and what of it somebody has yet to be told."""

    def __init__(self, on_skipped: Callable[[Kind], None] = lambda _: None) -> None:
        """``on_skipped`` is called for each object that has no identity, and so is not read."""
        self._on_skipped = on_skipped
        self._fleet = Fleet()
        self._slots = Slots()
        self._jobs = Jobs(self._slots)
        self._listed: set[Kind] = set()

    @property
    def group_count(self) -> int:
        """How many TPUNodeGroups are known."""
        return len(self._fleet.groups)

    @property
    def node_count(self) -> int:
        """How many Nodes are remembered: those that may be a group's."""
        return len(self._fleet.node_names)

    @property
    def waiting_pod_count(self) -> int:
        """How many Pods wait for a slice."""
        return self._jobs.waiting_count

    @property
    def jobset_count(self) -> int:
        """How many JobSets are remembered: those that ask for TPU chips."""
        return self._jobs.jobset_count

    def count_untold(self, step: str) -> int:
        """How many objects wait for a message to this step, for whatever reason."""
        return self._slots.count_untold(step)

    def changed(self, kind: Kind, event: Change, object: Mapping[str, Any], now: datetime) -> None:  # noqa: A002
        """A watch says that an object has appeared, changed or gone."""
        if not self._is_readable(kind, object):
            return
        match kind, event:
            case "Node", _:
                self._node_changed(event, sight_node(object), now)
            case "TPUNodeGroup", _:
                self._group_changed(event, sight_group(object), now)
            case "Pod", "DELETED":
                self._jobs.miss_pod(object)
            case "Pod", _:
                self._jobs.see_pod(object, now)
            case "JobSet", "DELETED":
                self._jobs.miss_jobset(object, now)
            case "JobSet", _:
                self._jobs.see_jobset(object, now)

    def relisted(self, kind: Kind, objects: Iterable[Mapping[str, Any]], now: datetime) -> None:
        """All objects of a kind, freshly listed: only what differs from before is news.

        The first list of a kind has no before: what is to be told follows from the state, about the
        Nodes of a group as soon as both kinds have been listed.
        """
        first = kind not in self._listed
        self._listed.add(kind)
        objects = [raw for raw in objects if self._is_readable(kind, raw)]
        match kind:
            case "Node":
                self._relist_nodes([sight_node(raw) for raw in objects], first, now)
            case "TPUNodeGroup":
                self._relist_groups([sight_group(raw) for raw in objects], first, now)
            case "Pod":
                self._jobs.relist_pods(objects, now)
            case "JobSet":
                self._jobs.relist_jobsets(objects, now)
        if first and kind in _OF_GROUPS and self._listed.issuperset(_OF_GROUPS):
            self._tell_missed_nodes(now)

    def next_due(self) -> datetime | None:
        """When `take_due` has something to give; ``None`` while there is nothing to tell."""
        return self._slots.next_due()

    def take_due(self, now: datetime, most: int | None = None) -> list[Publication]:
        """The messages that are due, those of ``most`` objects and steps if given, longest first.

        Whoever takes them publishes them, or gives them back (`returned`).
        """
        return self._slots.take_due(now, most)

    def returned(self, publications: Sequence[Publication], now: datetime) -> None:
        """These could not be published: they are due again, later. What is moot is dropped."""
        self._slots.put_back(publications, now, self._is_moot)

    def _is_readable(self, kind: Kind, raw: Mapping[str, Any]) -> bool:
        is_readable = has_identity(raw, is_namespaced=kind != "Node")
        if not is_readable:
            self._on_skipped(kind)
        return is_readable

    def _group_changed(self, event: Change, group: GroupSighting, now: datetime) -> None:
        if event == "DELETED":
            self._forget_group(group.key)
        else:
            self._see_group(group, now)

    def _node_changed(self, event: Change, node: NodeSighting, now: datetime) -> None:
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
        group = self._fleet.find_group(key)
        if group is not None:
            self._fleet.drop_group(key)
            for step in (CREATE_RESOURCES, TEAR_DOWN, LABEL_NODE):
                self._slots.drop(_subject(group), step)

    def _see_node(self, node: NodeSighting, now: datetime, *, live: bool) -> None:
        before = self._fleet.find_node(node.name)
        self._remember_node(node)
        if not is_node_news(before, node, live=live):
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
            self._slots.drop(_subject(group), CREATE_RESOURCES)  # the step would only send it on
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
        names = [node.name for node in nodes]
        self._slots.tell(_subject(group), step, cause, now, names, at_once=at_once)

    def _is_moot(self, subject: Subject, step: str) -> bool:
        if subject.kind != KIND:
            return self._jobs.is_moot(subject)
        group = self._fleet.find_group(subject.key)
        if group is None or group.uid != subject.uid:
            return True
        return group.deleting and step == CREATE_RESOURCES


def _subject(group: GroupSighting) -> Subject:
    return Subject(group.namespace, group.name, group.uid)
