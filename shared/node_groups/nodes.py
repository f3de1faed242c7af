"""Which Nodes of the cluster are a group's, and what its Nodes must look like."""

from __future__ import annotations

from typing import Any

from shared.base.names import VM_ID_LABEL
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.resources import machine_of
from shared.ports.kubernetes.nodes import Node


def proof_patch(
    group: NodeGroup, node: Node, machine_type: str, vm_id: str
) -> dict[str, dict[str, Any]]:
    """The merge patch that makes a Node's labels and taints right; empty if they are.

    The user's taints are set once, with the proof: whoever removes one later means it. The list of
    taints is written as a whole, and so only if the Node is still as it was read.
    """
    assert group.spec is not None
    wanted = {**group.node_labels(machine_of(group, machine_type)), VM_ID_LABEL: vm_id}
    patch: dict[str, dict[str, Any]] = {}
    if any(node.labels.get(key) != value for key, value in wanted.items()):
        patch["metadata"] = {"labels": wanted}
    kept = [dict(entry) for entry in node.taints]
    missing = [
        {"key": taint.key, "value": taint.value, "effect": taint.effect}
        for taint in group.spec.node_taints
        if not any(entry.get("key") == taint.key for entry in kept)
    ]
    if missing and not node.proved_vm_id:
        patch["spec"] = {"taints": [*kept, *missing]}
        version = {"resourceVersion": node.raw["metadata"]["resourceVersion"]}
        patch["metadata"] = {**patch.get("metadata", {}), **version}
    return patch


def bears_name_of(group: NodeGroup, node: Node) -> bool:
    """Whether a Node has a VM's name and place of this group's. Its labels prove nothing: they can
    be put on any Node."""
    spec = group.spec
    assert spec is not None
    place = f"gce://{spec.project}/{spec.zone}/{node.vm}"
    return node.provider_id in ("", place) and node.vm.startswith(f"{group.resource_name}-")
