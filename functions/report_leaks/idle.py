"""Idle slices: no Pod holds a chip of their Nodes. All functions are pure.

A TPUNodeGroup is looked at while it is Ready, a node pool of a workload if its Nodes are an hour old. A
Pod of a DaemonSet holds nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from shared.base.documents import read_mapping, read_texts
from shared.base.names import NODE_KIND, POOL_LABEL, RESOURCE_NAME_LABEL, TPU_RESOURCE
from shared.base.pods import read_count
from shared.base.timestamps import guess_time
from shared.frame.plan import Work
from shared.node_groups import node_group, status
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import Status, Type
from shared.slices.by_node_pool import found_pools

REPORTED_AFTER = timedelta(minutes=55)
"""A slice is reported if it was idle in the run before, an hour ago give or take minutes."""
MIN_AGE_OF_POOL = timedelta(hours=1)


@dataclass(frozen=True)
class TpuNode:
    """The fields of a Node that show its slice; the object is a hundred times larger."""

    name: str
    labels: Mapping[str, str]
    chips: int
    created: datetime | None
    reference: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class SliceInUse:
    """A slice and whether a Pod uses it: a TPUNodeGroup's, with its status, or a node pool, with its
    first Node.

    ``is_used`` is ``None`` if there was no time to read its Pods.
    """

    name: str
    nodes: tuple[TpuNode, ...]
    workload: str
    owner: NodeGroup | TpuNode
    status: Status = field(default_factory=Status)
    is_used: bool | None = None

    @property
    def about(self) -> Mapping[str, Any]:
        """The object of its Events."""
        return self.owner.raw if isinstance(self.owner, NodeGroup) else self.owner.reference

    def is_reported(self, now: datetime) -> bool:
        """Whether it is idle, and as far as the status of a group shows for an hour."""
        since = self.status.idle_since
        is_new = since is None or now - since < REPORTED_AFTER
        return self.is_used is False and not (isinstance(self.owner, NodeGroup) and is_new)


@dataclass(frozen=True)
class WriteIdle:
    """Record since when a group is idle (``None``: it is used), unless it has changed since."""

    group: NodeGroup
    known: Status
    since: datetime | None

    def apply(self, work: Work) -> None:
        known = replace(self.known, idle_since=self.since)
        work.cluster.replace_status(self.group.raw, status.render(known))

    def describe(self) -> str:
        return f"record that {self.group.key} is {'idle' if self.since else 'used'}"


def read_tpu_node(raw: Mapping[str, Any]) -> TpuNode | None:
    """A Node of a slice; ``None`` for any other Node."""
    metadata, labels = raw["metadata"], read_texts(raw["metadata"], "labels")
    if not labels.keys() & {RESOURCE_NAME_LABEL, POOL_LABEL}:
        return None
    chips = read_count(read_mapping(read_mapping(raw, "status"), "capacity"), TPU_RESOURCE, 0)
    named = {key: metadata.get(key, "") for key in ("name", "uid", "resourceVersion")}
    reference = {"apiVersion": "v1", "kind": NODE_KIND, "metadata": named}
    created = guess_time(metadata.get("creationTimestamp"))
    return TpuNode(metadata["name"], labels, chips, created, reference)


def find_slices(
    nodes: Iterable[TpuNode], groups: Iterable[Mapping[str, Any]], cluster: str, now: datetime
) -> Iterator[SliceInUse]:
    """The slices that may be idle, without the answer whether they are."""
    by_group, by_pool = defaultdict[str, list[TpuNode]](list), defaultdict[str, list[TpuNode]](list)
    for node in sorted(nodes, key=lambda one: one.name):
        if name := node.labels.get(RESOURCE_NAME_LABEL):
            by_group[name].append(node)
        else:
            by_pool[node.labels[POOL_LABEL]].append(node)
    for raw in groups:
        group = node_group.parse(raw, cluster)
        known = status.parse_of(group)
        own = by_group.get(group.resource_name)
        is_ready = group.deleting is None and known.is_true(Type.READY)
        if own and is_ready and isinstance(group, NodeGroup):
            yield SliceInUse(group.resource_name, tuple(own), group.workload, group, known)
    for name, own in by_pool.items():
        pool = {"name": name, "config": {"labels": own[0].labels}}
        is_old = all(one.created and now - one.created >= MIN_AGE_OF_POOL for one in own)
        if is_old and found_pools.is_managed(pool):
            unit = found_pools.read_slice(pool).unit
            yield SliceInUse(name, tuple(own), f"{unit.kind} {unit.owner}", own[0])


def plan_writes(slices: Iterable[SliceInUse], now: datetime) -> Iterator[WriteIdle]:
    """The changes in the statuses of groups: of those that are idle or used and were not before."""
    for one in slices:
        if isinstance(one.owner, NodeGroup) and one.is_used is (one.status.idle_since is not None):
            yield WriteIdle(one.owner, one.status, None if one.is_used else now)
