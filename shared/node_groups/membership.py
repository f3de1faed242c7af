"""Whose Node is this: what proves that a Node is a group's, and what the proof looks like."""

from __future__ import annotations

from typing import Any

from shared.base.names import VM_ID_LABEL
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.resources import machine_of
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.nodes import Node


def is_match(group: NodeGroup, node: Node, instance: Instance) -> bool:
    """Whether this Node runs on this VM, and the VM is the group's."""
    spec = group.spec
    return (
        node.provider_id == f"gce://{spec.project}/{spec.zone}/{instance.name}"
        and node.vm == instance.name
        and instance.is_member_of(spec.zone, group.resource_name)
        and not is_of_predecessor(group, node, instance)
    )


def is_of_predecessor(group: NodeGroup, node: Node, instance: Instance) -> bool:
    """Whether the Node tells of a VM that had this one's name before.

    Where VMs join by other means, nobody removes what a predecessor has left: the new kubelet takes
    it over, and it is the new VM's from the kubelet's first report on.
    """
    if instance.created is None or node.created >= instance.created:
        return False
    bootstraps = group.spec.bootstrap is not None
    return bootstraps or node.heard_of is None or node.heard_of < instance.created


def proof_patch(
    group: NodeGroup, node: Node, machine_type: str, vm_id: str
) -> dict[str, dict[str, Any]]:
    """The merge patch that makes a Node's labels and taints right; empty if they are.

    The user's taints are set once, with the proof: whoever removes one later means it. The list of
    taints is written as a whole, and so only if the Node is still as it was read.
    """
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
    place = f"gce://{spec.project}/{spec.zone}/{node.vm}"
    return node.provider_id in ("", place) and node.vm.startswith(f"{group.resource_name}-")
