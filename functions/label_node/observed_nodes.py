"""A group's VMs and Nodes, as observed: which are its own, which have joined, which are ready."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property

from functions.label_node import vm_reasons
from shared.base.reasons import VM_LOSSES
from shared.node_groups.membership import find_vm_of_misnamed, is_match, is_stale, may_match
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.resources import machine_of
from shared.node_groups.status import Pending, Status
from shared.ports.gce.values import UP, Instance, Mig
from shared.ports.kubernetes.nodes import Node
from shared.triggers.trigger import Trigger


@dataclass(frozen=True)
class ObservedNodes:
    """A group's VMs and Nodes, as far as they were read."""

    group: NodeGroup
    status: Status
    trigger: Trigger
    join_timeout: timedelta
    nodes: tuple[Node, ...] = ()
    instances: Mapping[str, Instance | None] = field(default_factory=dict)
    """The VMs that were read, by name (``None``: it does not exist)."""
    has_all_vms: bool = False
    """Whether ``instances`` has all VMs of the group."""
    unread_nodes: frozenset[str] = frozenset()
    """Names of Nodes that there was no time to read."""
    mig: Mig | None = None
    """Read only if its interconnect matters now."""
    is_debounced: bool = False
    """Whether only the VM that the trigger names was read: a later trigger counts the slice."""

    @cached_property
    def chips(self) -> int:
        """The chips of each VM; 0 if not known yet."""
        machine = machine_of(self.group, self.status.machine_type)
        return machine.chips if machine else 0

    @cached_property
    def joined(self) -> Mapping[str, Node]:
        """The VMs that have joined, each with its Node.

        Ready Nodes come last: of two Nodes of one VM the last one counts.
        """
        matching = sorted(filter(self.matches, self.nodes), key=lambda node: node.is_ready)
        return {node.vm: node for node in matching}

    @cached_property
    def ready(self) -> Mapping[str, Node]:
        """Those of the joined VMs that run and whose Nodes are ready and offer all chips."""
        return {
            vm: node
            for vm, node in self.joined.items()
            if node.is_ready and node.offers(self.chips) and not self.is_down(vm)
        }

    @cached_property
    def members(self) -> Mapping[str, Instance]:
        """The VMs that were read and are members of the group's MIG."""
        return {vm: one for vm, one in self.instances.items() if one is not None and one.is_member}

    @cached_property
    def misnamed(self) -> tuple[tuple[str, Node], ...]:
        """The Nodes whose providerID names a VM of the group and whose name is not the VM's, with it."""
        found = ((find_vm_of_misnamed(self.group, node), node) for node in self.nodes)
        return tuple((vm, node) for vm, node in found if vm is not None)

    @cached_property
    def with_other_provider_id(self) -> Mapping[str, Node]:
        """The members whose Nodes have the providerID of something else, each with its Node."""
        named = (node for node in self.nodes if node.provider_id and node.vm in self.members)
        return {node.vm: node for node in named if not may_match(self.group, node)}

    @cached_property
    def stale(self) -> Mapping[str, Node]:
        """The members whose name a Node of an earlier VM has, each with it."""
        found = ((node, self.members.get(node.vm)) for node in self.nodes)
        return {node.vm: node for node, vm in found if vm and is_stale(self.group, node, vm)}

    def has_wrong_id(self, node: Node) -> bool:
        """Whether a Node matches its VM and its label has another id, which is corrected now."""
        vm = self.instances.get(node.vm) if self.group.spec.joins_with_tokens else None
        is_other = vm is not None and node.proved_vm_id not in ("", vm.id)
        return is_other and self.matches(node)

    @property
    def vms_of_deleted_nodes(self) -> list[str]:
        """The running VMs whose Nodes the trigger names and that have none now."""
        listed = {*(node.vm for node in self.nodes), *self.unread_nodes}
        named = {name.partition(".")[0] for name in self.trigger.nodes} - listed
        running = {vm for vm, one in self.members.items() if one.status == "RUNNING"}
        return sorted(named & running)

    @cached_property
    def reported_lost(self) -> frozenset[str]:
        """The VMs whose loss the status reports."""
        return frozenset(entry.name for entry in self.status.pending if entry.why in VM_LOSSES)

    @cached_property
    def earlier(self) -> Mapping[str, Pending]:
        """What the status reports about VMs that were not ready, by VM."""
        return {
            entry.name: entry for entry in self.status.pending if entry.why in vm_reasons.SEVERITY
        }

    def is_down(self, vm: str) -> bool:
        """Whether a VM does not run or, if it was not read, is reported lost. Its Node may be Ready."""
        if vm not in self.instances:
            return vm in self.reported_lost
        instance = self.instances[vm]
        return instance is not None and instance.status not in UP

    def without_provider_id(self) -> Iterator[Node]:
        """Nodes that registered without a providerID, so that they count as no VM's."""
        return (
            node
            for node in self.nodes
            if not node.provider_id and self.instances.get(node.vm) is not None
        )

    def matches(self, node: Node) -> bool:
        """Whether a Node matches its VM or, if the VM was not read, has the proof."""
        if node.vm not in self.instances:
            return bool(node.proved_vm_id) and may_match(self.group, node)
        instance = self.instances[node.vm]
        return instance is not None and is_match(self.group, node, instance)
