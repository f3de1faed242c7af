"""What happens to the Nodes of a group, and what its status reports about them."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from functions.label_node import (
    counts,
    interconnect_condition,
    joined_condition,
    maintenance_condition,
    run_end,
)
from functions.label_node.joined_condition import (
    CORRECT_PROVIDER_ID,
    VISIBLE_AFTER,
    describe_provider_id,
)
from functions.label_node.observe import NothingToCount
from functions.label_node.observed_nodes import ObservedNodes
from shared.base.names import (
    CORRECTIONS_KEY,
    MAINTENANCE_LABEL,
    RESOURCE_NAME_LABEL,
    TOKEN_KEY,
    VM_ID_LABEL,
)
from shared.base.timestamps import CLOCKS_DIFFER_BY, render_time
from shared.frame.plan import Action, Each, Emit, Plan, Send
from shared.node_groups import membership, readiness, recovery
from shared.node_groups.actions import DeleteNode, PatchNode, RevokeToken
from shared.node_groups.bootstrap import find_token
from shared.node_groups.status import MIG, State, Status, Type
from shared.node_groups.work import WriteStatus, message_about
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.events import Event
from shared.ports.kubernetes.nodes import Node
from shared.triggers import routes
from shared.triggers.message import BATCH, Cause
from shared.triggers.trigger import Trigger

MAX_CORRECTIONS = 5
"""The labels of a Node are corrected so often within `CORRECTIONS_WITHIN`, since its kubelet or another
program may insist on others. Labels that show whose Node it is are always corrected."""
CORRECTIONS_WITHIN = timedelta(minutes=10)


def decide(observed: ObservedNodes | NothingToCount, now: datetime) -> Plan:
    """Decide what to do to the Nodes, and what the status reports."""
    group = observed.group
    if isinstance(observed, NothingToCount):
        if group.deleting is not None:
            return Plan("Deleting")
        if recovery.is_repair_begun(group, observed.status):
            return Plan("Repairing")
        if observed.can_be_served:
            return Plan("NotOwned")
        # Only create_resources reports this. It has not yet if the group was accepted before the project
        # was removed from the settings, or by a version that could read the spec.
        forward = Send(routes.CREATE_RESOURCES, (message_about(group, Cause.FORWARDED, now),))
        is_accepted = observed.status.is_true(Type.ACCEPTED)
        return Plan("NotServed", best_effort=(forward,) if is_accepted else ())
    nodes = _revoke_together(
        Each(node.name, actions)
        for node in _order_nodes(observed.nodes, observed.trigger)
        if (actions := tuple(_plan_node(observed, node, now)))
    )
    rest, desired = message_about(group, Cause.CONTINUED, now), observed.group.spec.node_count
    if observed.is_debounced:
        announced = maintenance_condition.add_announcement(observed, now)
        if announced == observed.status:
            return Plan("Debounced", each=nodes, resume=rest)
        write = WriteStatus(readiness.conclude(group, announced, now))
        resync = Send(routes.LABEL_NODE, (message_about(group, Cause.RESYNC, now),))
        return Plan("Announced", first=(write,), each=nodes, best_effort=(resync,))
    # First, because the labels of hundreds of Nodes follow, and events about their VMs read it.
    announced = maintenance_condition.add_condition(observed, observed.status, now)
    first = (WriteStatus(readiness.conclude(group, announced, now)),)
    known = counts.count(observed, now)
    known = joined_condition.add_condition(observed, known, now)
    known = interconnect_condition.add_condition(observed.mig, observed.group, known, now)
    known = maintenance_condition.add_condition(observed, known, now)
    known = run_end.add_run_end(observed, known)
    write = WriteStatus(readiness.conclude(group, known, now))
    have_all_joined = len(observed.joined) >= desired
    outcome = "AllJoined" if have_all_joined else "Counting"
    return Plan(
        "AllReady" if len(observed.ready) >= desired else outcome,
        first=first if announced != observed.status else (),
        each=nodes,
        resume=rest,
        after=(
            write,
            *run_end.list_events(observed, known, now),
            *_list_node_events(observed, now),
            *_list_vm_events(observed, now),
        ),
        best_effort=(
            *_plan_triggers(observed, now, have_all_joined=have_all_joined),
            *_plan_repair(observed, write.status, now),
        ),
    )


def _plan_repair(observed: ObservedNodes, known: Status, now: datetime) -> Iterator[Send]:
    """Trigger tear_down if the slice is lost, and its repair is due."""
    if recovery.is_repair_due(observed.group, known, now):
        yield Send(routes.TEAR_DOWN, (message_about(observed.group, Cause.FORWARDED, now),))


def _order_nodes(nodes: Iterable[Node], trigger: Trigger) -> list[Node]:
    """The Nodes in the order of the plan: those that the trigger names, then the others by name.

    After a message that continues a plan: all Nodes from the first that it names on, because more may
    be left than a message has room for (`message.MAX_NAMES`). At least one Node has its actions
    executed, so each message begins at a later name, and the sequence ends even if the actions have no
    effect. Only the VMs of the named Nodes, and of Nodes without proof, are read. The others are only
    labelled: a resync deletes those whose VMs are gone.
    """
    if trigger.cause == Cause.CONTINUED:
        first = min(trigger.nodes, default="")
        return sorted((node for node in nodes if node.name >= first), key=lambda node: node.name)
    named = set(trigger.nodes)
    return sorted(nodes, key=lambda node: (node.name not in named, node.name))


def _revoke_together(planned: Iterable[Each]) -> tuple[Each, ...]:
    """The same actions, but one call revokes the tokens of up to `BATCH` VMs, before their Nodes are
    patched."""
    nodes = tuple(planned)
    vms = [one.actions[0].vm for one in nodes if isinstance(one.actions[0], RevokeToken)]
    batches = (tuple(vms[start : start + BATCH]) for start in range(0, len(vms), BATCH))
    of_vm = {vm: batch for batch in batches for vm in batch}
    return tuple(
        replace(one, actions=(replace(first, together=of_vm[first.vm]), *one.actions[1:]))
        if isinstance(first := one.actions[0], RevokeToken)
        else one
        for one in nodes
    )


def _plan_node(observed: ObservedNodes, node: Node, now: datetime) -> Iterator[Action]:
    group, instance = observed.group, observed.instances.get(node.vm)
    if node.vm in observed.instances and instance is None:
        if membership.may_match(group, node):
            yield DeleteNode(node.name, node.uid)
        return
    if not observed.matches(node):
        return
    # The token is revoked first. A proved Node's is revoked only by an hourly resync, so the token would
    # remain long if the order were reversed and the second call failed.
    with_tokens = group.spec.joins_with_tokens  # otherwise the metadata may name any token
    if with_tokens and instance is not None:
        token = find_token(instance.metadata, now)
        is_new = node.proved_vm_id != instance.id
        # A call of inject_token may take effect after the revocation: a resync of a Ready group repeats
        # it.
        is_repetition = observed.trigger.is_resync and observed.status.is_true(Type.READY)
        if token is not None and (is_new or (is_repetition and token.expires > now)):
            yield RevokeToken(token.id, node.vm)
    patch = _add_maintenance(_build_patch(observed, node, now), node, instance)
    if patch:
        yield PatchNode(node.name, node.uid, patch)


def _build_patch(observed: ObservedNodes, node: Node, now: datetime) -> dict[str, Any]:
    """The patch of a matching Node; empty if its labels are correct, or are contested."""
    group, instance = observed.group, observed.instances.get(node.vm)
    patch = membership.build_node_patch(group, node, observed.status.machine_type, instance)
    if not patch or not node.proved_vm_id:
        return patch
    is_listed = node.labels.get(RESOURCE_NAME_LABEL) == group.resource_name
    is_own = instance is None or node.proved_vm_id == instance.id
    count, since = _count_corrections(node, now)
    if is_listed and is_own and count >= MAX_CORRECTIONS:
        return {}
    annotations = {CORRECTIONS_KEY: f"{count + 1} {render_time(since)}"}
    return {**patch, "metadata": {**patch.get("metadata", {}), "annotations": annotations}}


def _add_maintenance(
    patch: dict[str, Any], node: Node, instance: Instance | None
) -> dict[str, Any]:
    """The patch with the label of announced maintenance, or its removal."""
    if instance is None:
        return patch
    value = maintenance_condition.render_label(instance.maintenance)
    if node.labels.get(MAINTENANCE_LABEL) == value:
        return patch
    metadata = patch.get("metadata", {})
    labels = {**metadata.get("labels", {}), MAINTENANCE_LABEL: value}
    return {**patch, "metadata": {**metadata, "labels": labels}}


def _count_corrections(node: Node, now: datetime) -> tuple[int, datetime]:
    """The corrections of the Node's labels that count, and the time of the first of them."""
    count, since = node.corrections
    is_recent = since is not None and abs(now - since) < CORRECTIONS_WITHIN
    return (count, since) if since is not None and is_recent else (0, now)


def _list_node_events(observed: ObservedNodes, now: datetime) -> Iterator[Emit]:
    """The Events on Nodes that do not count or had a wrong label, at most `BATCH` of each kind: all
    Nodes of a large slice may have the same defect, and the group's own Events come after these."""
    for node in islice(observed.without_provider_id(), BATCH):
        text = f"Node {node.name} joined without a ProviderID"
        yield Emit(Event("MissingProviderID", text, is_warning=True), node.reference, once=True)
    for node in islice((node for node in observed.nodes if observed.has_wrong_id(node)), BATCH):
        text = (
            f"Node {node.name} had the id of another VM in its label {VM_ID_LABEL}. Its kubelet runs on "
            f"VM {node.vm}: the label is corrected, and the Node is kept."
        )
        yield Emit(Event("VmIdCorrected", text, is_warning=True), node.reference, once=True)
    often = (
        one for one in observed.nodes if _count_corrections(one, now)[0] >= MAX_CORRECTIONS - 1
    )
    for node in islice(often, BATCH):
        text = (
            f"Something has set labels of Node {node.name} again after {MAX_CORRECTIONS} corrections in "
            "ten minutes: they are corrected less often now. To find it: kubectl get node "
            f"{node.name} -o yaml --show-managed-fields"
        )
        yield Emit(Event("LabelsContested", text, is_warning=True), node.reference, once=True)
    for vm, node in observed.misnamed[:BATCH]:
        text = (
            f"Node {node.name} names VM {vm} in its ProviderID, but a Node must have its VM's "
            f"name: it is not counted, and not deleted with the group. Delete it and register "
            f"the kubelet as {vm} (--hostname-override; kubeadm: nodeRegistration.name)."
        )
        yield Emit(Event("NodeNameMismatch", text, is_warning=True), node.reference, once=True)
    for node in islice(observed.with_other_provider_id.values(), BATCH):
        text = (
            f"{describe_provider_id(observed.group, node)}: it is not counted, and not deleted with the "
            f"group. {CORRECT_PROVIDER_ID}"
        )
        yield Emit(Event("NodeNameMismatch", text, is_warning=True), node.reference, once=True)


def _list_vm_events(observed: ObservedNodes, now: datetime) -> Iterator[Emit]:
    """The Events about VMs that have names of the group's and that its MIG does not list."""
    spec, name = observed.group.spec, observed.group.resource_name
    found = (vm for vm in observed.instances.values() if vm is not None and not vm.is_member)
    for vm in islice(
        (vm for vm in found if observed.has_all_vms and vm.status == "RUNNING"), BATCH
    ):
        if vm.created is not None and now - vm.created >= VISIBLE_AFTER + CLOCKS_DIFFER_BY:
            text = (
                f"VM {vm.name} is not a member of the managed instance group {name}: it gets no join "
                "token, and is neither counted nor deleted with this group. If nothing else needs it, "
                f"delete it: gcloud compute instances delete {vm.name} --zone={spec.zone} "
                f"--project={spec.project}"
            )
            yield Emit(Event("ForeignVM", text, is_warning=True, key=vm.name), once=True)


def _plan_triggers(
    observed: ObservedNodes, now: datetime, *, have_all_joined: bool
) -> Iterator[Send]:
    """Trigger inject_token for VMs whose Nodes are stale or deleted, and the steps whose conditions
    contradict what this step has observed."""
    group, known = observed.group, observed.status
    # VMs that cannot join before inject_token has deleted their stale Nodes, or that need a token then.
    vms = [
        node.vm
        for node in observed.nodes
        if (vm := observed.instances.get(node.vm)) is not None
        and membership.is_stale(group, node, vm)
        and node.is_silent
    ]
    vms += (
        vm for vm in observed.vms_of_deleted_nodes if TOKEN_KEY not in observed.members[vm].metadata
    )
    if vms and group.spec.joins_with_tokens:
        message = message_about(group, Cause.VMS_NEED_TOKENS, now, vms=tuple(vms[:BATCH]))
        yield Send(routes.INJECT_TOKEN, (message,))
    if have_all_joined and not known.is_true(Type.TOKENS_INJECTED):
        yield Send(routes.INJECT_TOKEN, (message_about(group, Cause.RESYNC, now),))
    mig = known.resources.get(MIG)
    if mig is None or mig.state not in (State.PENDING, State.CREATING, State.READY):
        return
    is_other_size = observed.has_all_vms and len(observed.members) != group.spec.node_count
    is_granted = group.spec.is_bulk and observed.joined and known.has_api_error(Type.MIG_READY)
    # All VMs of a MIG that is being created: the message of its end is lost, or late.
    has_vms = have_all_joined or (is_granted and mig.state is State.READY)
    contradicts = is_other_size if known.is_true(Type.MIG_READY) else has_vms
    if contradicts:
        yield Send(routes.CREATE_RESOURCES, (message_about(group, Cause.FORWARDED, now),))
