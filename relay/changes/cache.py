"""The relay's cache of the cluster: its groups, the Nodes that may belong to them, and their claims.

Memory is bounded: nothing is kept of a foreign Node, and Nodes that claim an unknown group are limited
in number.
"""

from collections.abc import Iterable
from typing import TypeVar

from relay.changes.fingerprints import GroupFingerprint, GroupKey, NodeFingerprint

T = TypeVar("T")

MAX_STRAYS = 5_000
"""The limit of Nodes that claim an unknown group; the oldest is dropped. A cluster has no more Nodes."""


class ClusterCache:
    """Groups and Nodes, indexed by resource name.

    A resource name may be claimed by several groups, because users can write labels: all of them
    get a message then, and the steps prove which claim is right.
    """

    def __init__(self) -> None:
        self.groups: dict[GroupKey, GroupFingerprint] = {}
        self.nodes: dict[str, NodeFingerprint] = {}
        """By name; changed by `put_node` and `drop_node` alone, as the groups are by theirs."""
        self._groups_by_claim: dict[str, dict[GroupKey, None]] = {}
        self._nodes_by_claim: dict[str, dict[str, None]] = {}
        self._strays: dict[str, None] = {}

    def list_claimed_groups(self, claims: Iterable[str]) -> list[GroupFingerprint]:
        """The groups that have one of these resource names."""
        keys = {key: None for claim in claims for key in self._groups_by_claim.get(claim, ())}
        return [self.groups[key] for key in keys]

    def list_claiming_nodes(self, resource_name: str) -> list[NodeFingerprint]:
        """The Nodes that may belong to the group of this resource name."""
        return [self.nodes[name] for name in self._nodes_by_claim.get(resource_name, ())]

    def put_group(self, group: GroupFingerprint) -> None:
        """Add or replace a group."""
        before = self.groups.get(group.key)
        self.groups[group.key] = group
        if before is not None and before.resource_name == group.resource_name:
            return
        if before is not None:
            self._unlink_group(before)
        if group.resource_name:
            self._groups_by_claim.setdefault(group.resource_name, {})[group.key] = None
            self._update_strays(group.resource_name)

    def drop_group(self, key: GroupKey) -> None:
        """Remove a group. Its Nodes then claim an unknown group."""
        group = self.groups.pop(key, None)
        if group is not None:
            self._unlink_group(group)

    def put_node(self, node: NodeFingerprint) -> None:
        """Add or replace a Node."""
        before = self.nodes.get(node.name)
        self.nodes[node.name] = node
        if before is None or before.claims != node.claims:
            self._unlink_node(before)
            for claim in node.claims:
                self._nodes_by_claim.setdefault(claim, {})[node.name] = None
            self._update_stray(node)

    def drop_node(self, name: str) -> None:
        """Remove a Node."""
        self._unlink_node(self.nodes.pop(name, None))

    def _unlink_group(self, group: GroupFingerprint) -> None:
        _discard(self._groups_by_claim, group.resource_name, group.key)
        self._update_strays(group.resource_name)

    def _unlink_node(self, node: NodeFingerprint | None) -> None:
        if node is None:
            return
        self._strays.pop(node.name, None)
        for claim in node.claims:
            _discard(self._nodes_by_claim, claim, node.name)

    def _update_strays(self, resource_name: str) -> None:
        for node in self.list_claiming_nodes(resource_name):
            self._update_stray(node)

    def _update_stray(self, node: NodeFingerprint) -> None:
        if any(claim in self._groups_by_claim for claim in node.claims):
            self._strays.pop(node.name, None)
            return
        self._strays[node.name] = None
        if len(self._strays) > MAX_STRAYS:
            self.drop_node(next(iter(self._strays)))


def _discard(index: dict[str, dict[T, None]], key: str, value: T) -> None:
    entries = index.get(key, {})
    entries.pop(value, None)
    if not entries:
        index.pop(key, None)
