"""The condition NodesJoined: how many Nodes are missing, why, and what the user must do."""

from datetime import datetime, timedelta

from functions.label_node.observed_nodes import ObservedNodes
from shared.base.names import VM_ID_LABEL
from shared.base.reasons import VM_LOSSES, Reason
from shared.node_groups.membership import build_provider_id
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.readiness import awaiting_message
from shared.node_groups.recovery import describe_next, describe_recovery, find_restore_end
from shared.node_groups.status import MAX_PENDING, Status, Type
from shared.ports.kubernetes.nodes import Node

VISIBLE_AFTER = timedelta(minutes=1)
"""A list of VMs has all VMs that were created longer ago."""
CORRECT_PROVIDER_ID = (
    "Correct --provider-id of the kubelet, delete the Node, and restart the kubelet."
)
_NOT_JOINED = (Reason.AWAITING_NODE_JOIN, Reason.NODE_JOIN_TIMEOUT)
_NEVER_COMPLETE = "Before the slice was complete, "
"""The beginning of the message if VMs are gone from a BULK slice that was never complete. Nothing else
in the status says it: the names of these VMs may be unknown."""


def add_condition(observed: ObservedNodes, known: Status, now: datetime) -> Status:
    """``known``, which has the counts, with NodesJoined."""
    counts = known.counts
    if counts.joined >= counts.desired:
        of_all = "The node has" if counts.desired == 1 else f"All {counts.desired} nodes have"
        message = f"{of_all} joined the cluster"
        return known.with_condition(Type.NODES_JOINED, True, "Joined", message, observed.group, now)
    before = known.conditions.get(Type.NODES_JOINED)
    was_reported = before is not None and before.message.startswith(_NEVER_COMPLETE)
    gone = _count_gone_early(observed, known, now, was_reported=was_reported)
    if gone:
        lost = [entry.why for entry in known.pending if entry.why in VM_LOSSES]
        reason = Reason(lost[0]) if lost else Reason.NODE_LOST
        others = "The others wait and are billed. " if gone < counts.desired else ""
        # The slice of a workload is replaced then, also if nothing can restore it.
        until = find_restore_end(known, reason) if observed.group.workload else ""
        message = (
            f"{_NEVER_COMPLETE}{gone} of its {counts.desired} VMs were deleted. Compute Engine does not "
            f"recreate VMs of a BULK slice. {others}{describe_next(observed.group, known, until)}"
        )
    elif not observed.has_all_vms and was_reported:
        return known  # only a list of all VMs can refute it
    else:
        # The most severe reason of the VMs that have not joined. Without one, a complete slice has lost
        # a VM.
        whys = [entry.why for entry in known.pending if entry.name not in observed.joined]
        reason = Reason.NODE_LOST if known.completed_at else Reason.AWAITING_NODE_JOIN
        reason = known.find_end(now) or reason
        reason = Reason(whys[0]) if whys else reason
        message = _describe_missing(observed, known, reason)
    return known.with_condition(Type.NODES_JOINED, False, reason, message, observed.group, now)


def _count_gone_early(
    observed: ObservedNodes, known: Status, now: datetime, *, was_reported: bool
) -> int:
    """The number of VMs that are gone from a BULK slice that was never complete. Compute Engine does not
    recreate them."""
    created = known.conditions.get(Type.MIG_READY)
    if not observed.group.spec.is_bulk or known.completed_at is not None:
        return 0
    if created is None or not created.is_true:
        return 0
    if observed.has_all_vms and now - created.since >= VISIBLE_AFTER:
        return max(0, observed.group.spec.node_count - len(observed.members))
    lost = [entry.name for entry in known.pending if entry.why == Reason.NODE_LOST]
    # A VM that was not read may only be stopped.
    read = {name: vm is None for name, vm in observed.instances.items()}
    return sum(read.get(name, was_reported) for name in lost)


def _describe_missing(observed: ObservedNodes, known: Status, reason: Reason) -> str:
    names = [entry.name for entry in known.pending if entry.why == reason]
    if reason == Reason.NODE_DELETED:
        return _describe_deleted_nodes(names, is_bulk=observed.group.spec.is_bulk)
    if reason == Reason.NODE_NAME_MISMATCH:
        return _describe_mismatches(observed, names)
    missing = known.counts.desired - known.counts.joined
    message = awaiting_message(missing, known.counts.desired)
    nameless = len(list(observed.without_provider_id()))
    if nameless:  # in tpu-operator's words
        message += f" ({nameless} nodes joined with missing ProviderID)"
    stale = observed.stale if reason in _NOT_JOINED else {}
    kept = [vm for vm, node in stale.items() if node.is_deleting]
    is_late = reason != Reason.AWAITING_NODE_JOIN
    # With tokens, inject_token deletes such a Node when it is silent.
    edited = [
        vm
        for vm, node in stale.items()
        if is_late
        and node.is_ready
        and vm not in kept
        and not observed.group.spec.joins_with_tokens
    ]
    explained = {*kept, *edited}
    if is_late and not (explained and set(names) <= explained):
        shown = ", ".join(_with_status(observed, name) for name in names)
        message += (
            f"; {shown or 'VMs are gone'}. {describe_recovery(observed.group, known, reason)}"
        )
    if kept:
        message = (
            f"{message.removesuffix('.')}. Nodes of earlier VMs are being deleted, and finalizers keep "
            f"them: {', '.join(kept[:MAX_PENDING])}. Remove the finalizers (kubectl edit node NAME): "
            "then the VMs of these names can join."
        )
    if edited:
        message = (
            f"{message.removesuffix('.')}. Nodes are Ready, and have the ids of earlier VMs in the "
            f"label {VM_ID_LABEL}: {', '.join(edited[:MAX_PENDING])}. If somebody has changed it, "
            f"remove it (kubectl label node NAME {VM_ID_LABEL}-): then the Nodes are proved again."
        )
    return message


def _describe_mismatches(observed: ObservedNodes, names: list[str]) -> str:
    others, misnamed = observed.with_other_provider_id, dict(observed.misnamed)
    ids = [describe_provider_id(observed.group, others[vm]) for vm in names if vm in others]
    found = [
        f"Node {misnamed[vm].name} runs on VM {vm}, by its providerID"
        for vm in names
        if vm in misnamed
    ]
    parts = [f"{'; '.join(ids)}. {CORRECT_PROVIDER_ID}"] if ids else []
    if found or not ids:
        what = "; ".join(found) or f"The Nodes of {', '.join(names)} have other names"
        parts.append(
            f"{what}. A Node must have its VM's name: start the kubelet with --hostname-override=VM, "
            "and delete the Node."
        )
    return " ".join(parts)


def describe_provider_id(group: NodeGroup, node: Node) -> str:
    """What is wrong with the providerID of a VM's Node."""
    wanted = build_provider_id(group, node.vm)
    return f"Node {node.name} has the providerID {node.provider_id} and must have {wanted}"


def _with_status(observed: ObservedNodes, name: str) -> str:
    """The name of a VM, with its status if it was read and does not run."""
    vm = observed.instances.get(name)
    return f"{name} ({vm.status})" if vm is not None and vm.status != "RUNNING" else name


def _describe_deleted_nodes(names: list[str], *, is_bulk: bool) -> str:
    if len(names) == 1:
        what = (
            f"Node {names[0]} was deleted; its VM is running. Restart its kubelet or reset the VM"
        )
    else:
        what = (
            f"Nodes {', '.join(names)} were deleted; their VMs are running. Restart their kubelets or "
            "reset the VMs"
        )
    if is_bulk:
        return f"{what}. Do not delete VMs of a BULK slice: Compute Engine does not recreate them."
    them = "VM so that it is" if len(names) == 1 else "VMs so that they are"
    return f"{what}, or delete the {them} recreated."
