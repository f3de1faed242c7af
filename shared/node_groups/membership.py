"""Which Node is which VM's, and the patch that records the proof on the Node.

No proof uses a time: the clocks of the API server, Compute Engine and the VMs may be minutes apart.
`docs/decisions/clocks.md` lists the evidence and what each piece proves.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from shared.base.names import (
    BOOT_ID_LABEL,
    TOKEN_KEY,
    VM_ID_LABEL,
    VM_STARTED_KEY,
    find_resource_name,
)
from shared.base.reasons import VM_LOSSES, Reason
from shared.base.timestamps import CLOCKS_DIFFER_BY
from shared.frame.plan import Work
from shared.node_groups.bootstrap import Token, find_token
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.resources import machine_of
from shared.node_groups.status import MAX_PENDING, Status, Type
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.nodes import Node

_NOT_JOINED = (Reason.AWAITING_NODE_JOIN, Reason.NODE_JOIN_TIMEOUT)


def mark_members(
    work: Work, group: NodeGroup, found: Mapping[str, Instance | None], nodes: Iterable[Node] = ()
) -> dict[str, Instance | None]:
    """The VMs, with `Instance.is_member` for those in the list of the MIG's members, and for those whose
    id is the proof of one of ``nodes``, which were in it.

    The list may lack a new member: it counts as one when it is read again.
    """
    place = (group.spec.project, group.spec.zone, group.resource_name)
    members = frozenset(node.proved_vm_id for node in nodes)
    ids = {instance.id for instance in found.values() if instance is not None} - members
    if ids:
        members |= work.gce.find_member_ids(*place, ids, work.now)
    return {
        name: replace(instance, is_member=instance.id in members) if instance else None
        for name, instance in found.items()
    }


def is_match(group: NodeGroup, node: Node, instance: Instance) -> bool:
    """Whether this Node runs on this VM, and the VM is the group's.

    A VM without our token key cannot have joined yet, so a Node that was not proved before is foreign,
    whatever it reports. The API server ensures that only the VM's kubelet can register the Node (policy
    tpu-functions-node-registrations).
    """
    is_proved = node.proved_vm_id == instance.id
    can_have_joined = group.spec.bootstrap is None or TOKEN_KEY in instance.metadata
    return (
        (is_proved or can_have_joined)
        and node.provider_id == build_provider_id(group, instance.name)
        and node.vm == instance.name
        and instance.is_member
        and not is_stale(group, node, instance)
    )


def is_stale(group: NodeGroup, node: Node, instance: Instance) -> bool:
    """Whether the Node remains from an earlier VM with this VM's name, and perhaps its id.

    If VMs join by other means, the new kubelet takes over the Node: it is the new VM's as soon as it
    reports another boot than the one of the proof.

    With our tokens, a VM gets one only when the Node of its predecessor is gone, so a Node beside a
    token is the VM's own, even if its label has another id: somebody has changed the label, or restored
    the Node from a backup. A recreated VM has no token key in its metadata. Its predecessor's Node is
    proved for another id or, if the id is the same, silent: a running kubelet does not register again.
    """
    is_proved_for_other = node.proved_vm_id not in ("", instance.id)
    if group.spec.bootstrap is None:
        return is_proved_for_other and node.boot_id == node.proved_boot_id
    return TOKEN_KEY not in instance.metadata and (is_proved_for_other or node.is_silent)


def find_token_of_this_start(instance: Instance, now: datetime) -> Token | None:
    """The VM's token, if it has got one since its last start. A restarted VM may need another one.

    If the start was not known yet when the VM got its token, or an earlier version gave it the token,
    the time of the token decides, by another clock.
    """
    recorded, token = instance.metadata.get(VM_STARTED_KEY, ""), find_token(instance.metadata, now)
    started = instance.started
    if token is None or started is None:
        return None
    is_older = started <= token.given + CLOCKS_DIFFER_BY
    return token if (recorded == started.isoformat() if recorded else is_older) else None


def had_node_at(known: Status, instance: Instance, at: datetime, now: datetime) -> bool:
    """Whether a message of that time about a Node with the VM's name was about the VM's, and not about
    its predecessor's, which is gone before the VM gets its token. A message may be late.

    All VMs had Nodes later than the VM got its token, or the message is later, by the sender's clock.
    """
    token = find_token_of_this_start(instance, now)
    if token is None:
        return False
    joined = known.conditions.get(Type.NODES_JOINED)
    had_all = joined is not None and joined.is_true and joined.since > token.given
    return had_all or at > token.given + CLOCKS_DIFFER_BY


def had_node(group: NodeGroup, known: Status, instance: Instance, now: datetime) -> bool:
    """Whether the VM certainly has had a Node since its last start.

    The status reports that its Node was deleted; or all VMs have had Nodes since it got its token; or
    all VMs had Nodes, and its loss was not reported, five minutes after it was started and got its
    token.
    """
    entry = next((one for one in known.pending if one.name == instance.name), None)
    started, joined = instance.started or instance.created, known.conditions.get(Type.NODES_JOINED)
    if group.spec.joins_with_tokens:
        token = find_token_of_this_start(instance, now)
        if token is None:
            return False
        given = token.given  # by the clock of the status's times
        started = max(started, given) if started is not None else given
        if entry is not None and entry.why == Reason.NODE_DELETED:
            return True
        if entry is not None and entry.why in _NOT_JOINED:
            return False
        if joined is not None and joined.is_true:
            # The count may be older than the loss of the VM's predecessor.
            return known.completed_at is not None and joined.since > given
        has_room = entry is not None or len(known.pending) < MAX_PENDING
        if not has_room and any(one.why in _NOT_JOINED for one in known.pending):
            return False  # the status names others first only if they have a more severe reason
    if known.completed_at is None or started is None:
        return False
    until = joined.since if joined is not None and not joined.is_true else now
    if entry is not None and entry.why in (*VM_LOSSES, Reason.NODE_DELETED):
        until = entry.since
    return started < until - CLOCKS_DIFFER_BY


def build_node_patch(
    group: NodeGroup, node: Node, machine_type: str, instance: Instance | None
) -> dict[str, dict[str, Any]]:
    """The merge patch that corrects a Node's labels and taints; empty if they are correct.

    ``instance`` is the Node's VM; ``None`` if the Node was proved before and its VM was not read. The
    boot is recorded if a new VM's kubelet may take over the Node (`is_stale`).

    The user's taints are set only with the first proof, so that users can remove them later. The patch
    replaces the whole list of taints, so it requires that the Node is unchanged since it was read.
    """
    wanted = dict(group.node_labels(machine_of(group, machine_type)))
    if instance is not None:
        wanted[VM_ID_LABEL] = instance.id
    if instance is not None and group.spec.bootstrap is None and node.boot_id:
        wanted[BOOT_ID_LABEL] = node.boot_id
    patch: dict[str, dict[str, Any]] = {}
    if any(node.labels.get(key) != value for key, value in wanted.items()):
        patch["metadata"] = {"labels": wanted}
    kept = [dict(entry) for entry in node.taints]
    missing = [
        {"key": taint.key, "value": taint.value, "effect": taint.effect}
        for taint in group.spec.node_taints
        if not any((one.get("key"), one.get("effect")) == (taint.key, taint.effect) for one in kept)
    ]
    if missing and not node.proved_vm_id:
        patch["spec"] = {"taints": [*kept, *missing]}
        patch["metadata"] = {**patch.get("metadata", {}), "resourceVersion": node.version}
    return patch


def build_provider_id(group: NodeGroup, vm: str) -> str:
    """The providerID that the Node of a VM of this group must have."""
    return f"gce://{group.spec.project}/{group.spec.zone}/{vm}"


def find_vm_of_misnamed(group: NodeGroup, node: Node) -> str | None:
    """The VM of this group that a Node with another name has in its providerID.

    A providerID is only a claim: such a Node is neither counted nor deleted.
    """
    place = build_provider_id(group, "")
    vm = node.provider_id.removeprefix(place)
    is_of_group = node.provider_id.startswith(place) and is_vm_name(group, vm)
    return vm if is_of_group and vm != node.vm else None


def is_vm_name(group: NodeGroup, name: str) -> bool:
    """Whether a VM of this group can have this name: its MIG's, and four random characters.

    A prefix is not enough: the name of a group can be such that its VMs' names begin with the resource
    name of another group.
    """
    return find_resource_name(name) == group.resource_name


def may_match(group: NodeGroup, node: Node) -> bool:
    """Whether a Node may be that of a VM of this group: its name is a VM's, and its providerID is this
    VM's or empty. Labels do not count, because any Node can have them. `is_match` asks for more."""
    return node.provider_id in ("", build_provider_id(group, node.vm)) and is_vm_name(
        group, node.vm
    )
