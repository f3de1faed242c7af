"""The kubelets of a pool's VMs: each registers and maintains its Node until its VM is deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from local.base.clock import Clock
from local.gke.nodes import PoolNode
from local.vm.agents import Boot
from local.vm.conversation import Identity
from local.vm.kubelet import (
    KubeletBehaviour,
    Node,
    chips_of,
    relabel_node,
    remove_node,
    run_kubelet,
)
from local.vm.transport import Network

SIMULATED = "local/simulated"
"""The label of the Nodes of simulated VMs, which have no real kubelet."""

Identify = Callable[[str], Identity]


class Kubelets:
    """Registers the Nodes of VMs in a cluster; a `local.gke.Nodes`.

    ``identify`` returns a kubelet's identity. ``administrator`` deletes the Nodes of deleted VMs,
    as GKE's own controller does.
    """

    def __init__(
        self,
        clock: Clock,
        network: Network,
        identify: Identify,
        administrator: Identity,
        *,
        behaviour: KubeletBehaviour = KubeletBehaviour(),  # noqa: B008 - it is frozen
    ) -> None:
        self._clock = clock
        self._network = network
        self._identify = identify
        self._administrator = administrator
        self._behaviour = behaviour
        self._boots: dict[str, Boot] = {}

    def add(self, node: PoolNode) -> None:
        """Let a kubelet register and maintain this Node."""
        registered = Node(
            name=node.name,
            provider_id=f"gce://{node.project}/{node.zone}/{node.name}",
            labels={**node.labels, SIMULATED: "true"},
            taints=node.taints,
            chips=chips_of(node.machine_type),
        )
        boot = self._boots[node.name] = Boot(self._clock, self._network)
        identity = self._identify(node.name)
        conversation = run_kubelet(identity, registered, self._behaviour, self._clock.now)
        boot.converse(conversation)

    def remove(self, name: str) -> None:
        """Stop the kubelet and delete its Node."""
        self._boots.pop(name).end()
        removal = remove_node(self._administrator, name)
        Boot(self._clock, self._network).converse(removal)

    def relabel(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change labels of a Node, as GKE's own controller does."""
        change = relabel_node(self._administrator, name, changes)
        Boot(self._clock, self._network).converse(change)
