"""Leaked slices: resources on Compute Engine with this cluster's ownership mark whose group is gone, and
node pools that have lost their labels.

A group is removed when none of its resources exist, unless somebody removes its finalizer. A group that
another finalizer keeps counts as gone then, because `tear_down` does nothing for it. So does a group
that is in another project, zone or region, or whose slice has another name: the cluster's id is part of
that, and a function may have used the id of a cluster that was rebuilt since. All functions are pure.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from functions.report_leaks.idle import TpuNode
from shared.base.documents import read_list, read_mapping, read_text
from shared.base.fields import count
from shared.base.names import FINALIZER, POOL_LABEL, RESOURCE_NAME_LABEL, find_resource_name
from shared.base.slice_names import may_be_slice_name
from shared.base.timestamps import guess_time
from shared.node_groups import node_group
from shared.node_groups.node_group import NodeGroup
from shared.ports.gce.values import ListedResource
from shared.slices.by_node_pool import found_pools

PREFIX = "tng-"
"""The prefix of the names of all resources of groups."""
LISTED_KINDS = (MIG_SERVICE, TEMPLATE_SERVICE, POLICY_SERVICE) = (
    "instance_group_managers",
    "instance_templates",
    "resource_policies",
)
"""The resources of a group, by the client library's names, in the order of their deletion."""
MIN_AGE = timedelta(hours=1)
MAX_NAMED_VMS = 16

_NOUNS = {
    MIG_SERVICE: "managed instance group",
    TEMPLATE_SERVICE: "instance template",
    POLICY_SERVICE: "workload policy",
}
Places = Collection[tuple[str, str]]
"""Project and location (``""``: global) of resources; empty if they are not known."""
_MARK = re.compile(
    r"tpu-functions cluster=(?P<cluster>\S+) group=(?P<group>[^\s/]+/[^\s/]+) uid=(?P<uid>\S+)"
)


@dataclass(frozen=True)
class Leak:
    """The remaining resources of a group, in the order of their deletion."""

    project: str
    group: str
    uid: str
    resources: tuple[ListedResource, ...]
    vms: tuple[str, ...] = ()
    """The names of the VMs of its managed instance group."""

    @property
    def name(self) -> str:
        return self.resources[0].name


def is_abandoned(raw: Mapping[str, Any]) -> bool:
    """Whether a group is being deleted without this system's finalizer: nothing deletes its slice."""
    metadata = read_mapping(raw, "metadata")
    return "deletionTimestamp" in metadata and FINALIZER not in read_list(metadata, "finalizers")


def list_places(raw: Mapping[str, Any], cluster: str) -> Places:
    """Where a group's resources are by its status and its spec; empty if its spec cannot be read."""
    group = node_group.parse(raw, cluster)
    specs = (group.spec, group.given or group.spec) if isinstance(group, NodeGroup) else ()
    return {(one.project, where) for one in specs for where in ("", one.region, one.zone)}


def find_leaks(
    listed: Iterable[ListedResource], groups: Mapping[str, Places], cluster: str, now: datetime
) -> tuple[Leak, ...]:
    """The slices of this cluster whose group is not in ``groups``, by uid, or not in their place, or has
    another name for its slice. Those with a managed instance group, which are billed, come first, then
    the oldest.

    ``groups`` must be read after ``listed``, because a group exists before its resources. A slice is
    reported when one of its resources is an hour old.
    """
    found: dict[tuple[str, str, str], list[ListedResource]] = defaultdict(list)
    for resource in listed:
        mark = _MARK.fullmatch(resource.description)
        if mark is None:
            continue
        places = groups.get(mark["uid"])
        name = node_group.resource_name(cluster, mark["group"].partition("/")[2], mark["uid"])
        is_there = places is not None and (not places or resource.place in places)
        is_ours = mark["cluster"] == cluster or places is not None
        if is_ours and not (is_there and resource.name == name):
            found[resource.project, mark["group"], mark["uid"]].append(resource)
    oldest = {key: min(one.created or now for one in resources) for key, resources in found.items()}
    return tuple(
        Leak(*key, tuple(sorted(found[key], key=lambda one: LISTED_KINDS.index(one.service))))
        for key in sorted(found, key=lambda key: (not _has_mig(found[key]), oldest[key], key))
        if now - oldest[key] >= MIN_AGE
    )


def _has_mig(resources: Iterable[ListedResource]) -> bool:
    return any(one.service == MIG_SERVICE for one in resources)


def find_nodes_without_group(
    nodes: Iterable[Mapping[str, Any]], groups: Iterable[Mapping[str, Any]], now: datetime
) -> tuple[str, ...]:
    """The names of Nodes that are an hour old, and have the label or the name of a Node of a group that
    is not in ``groups``. Groups must be read first: a group is removed after its Nodes."""

    def read_label(raw: Mapping[str, Any]) -> str:
        return read_text(read_mapping(read_mapping(raw, "metadata"), "labels"), RESOURCE_NAME_LABEL)

    found, names = [], {read_label(raw) for raw in groups}
    for raw in nodes:
        metadata = raw["metadata"]
        resource_name = read_label(raw) or find_resource_name(metadata["name"].partition(".")[0])
        created = guess_time(metadata.get("creationTimestamp")) or now
        if resource_name and resource_name not in names and now - created >= MIN_AGE:
            found.append(metadata["name"])
    return tuple(sorted(found))


def find_pools_without_labels(nodes: Iterable[TpuNode], now: datetime) -> tuple[str, ...]:
    """The names of TPU node pools that have a slice's name, a Node that is an hour old, and no Node with
    its labels. `release_slice` takes them for others' and never deletes them."""
    old, managed = set[str](), set[str]()
    for node in nodes:
        name = node.labels.get(POOL_LABEL, "")
        if RESOURCE_NAME_LABEL in node.labels:  # of a TPUNodeGroup that was created for a workload
            continue
        if found_pools.is_managed({"name": name, "config": {"labels": node.labels}}):
            managed.add(name)
        elif may_be_slice_name(name) and node.chips and now - (node.created or now) >= MIN_AGE:
            old.add(name)
    return tuple(sorted(old - managed))


def render_names(names: Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    shown, more = ", ".join(names[:MAX_NAMED_VMS]), len(names) - MAX_NAMED_VMS
    return f"{shown} and {more} more" if more > 0 else shown


def render_message(leak: Leak) -> str:
    """The remaining resources in words."""
    with_vms = f" with {count(len(leak.vms), 'VM')} ({render_names(leak.vms)})" if leak.vms else ""
    left = ", ".join(
        f"{_NOUNS[one.service]} {one.name}{with_vms if one.service == MIG_SERVICE else ''}"
        for one in leak.resources
    )
    return (
        f"TPUNodeGroup {leak.group} (uid {leak.uid}) or its finalizer is gone, or its slice has "
        f"another name or place, and project {leak.project} still has its {left}. They stay until you "
        "delete them, and running VMs are billed."
    )


def render_pool_message(name: str) -> str:
    """A node pool without its labels in words."""
    return (
        f"Node pool {name} has the name of a slice and not its labels: somebody has replaced them, and "
        "nothing releases it. It is billed until you delete it; its workload may still run on it."
    )
