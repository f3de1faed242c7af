"""Pods of their own, each with a slice of one host; and Pods of controllers that no kind knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.base.documents import Document, read_mapping, read_text
from shared.slices.kinds.kind import Claim, Found, UnitKind
from shared.slices.units import Demand, Need, Unit, UnitState, read_demand

if TYPE_CHECKING:
    from shared.ports.kubernetes.cluster import Cluster

_POD_GROUP = "kueue.x-k8s.io/pod-group-name"
_OF_NODES = ("DaemonSet", "Node")
"""Controllers whose Pods run on the Nodes that there are."""


class BarePod(UnitKind):
    """The last row: it claims each Pod that no other kind claims."""

    name = "Pod"
    api_version = "v1"

    def claim(self, demand: Demand) -> Claim | None:
        owner, group = demand.controller, demand.labels.get(_POD_GROUP)
        if owner is not None and owner.kind in _OF_NODES:
            return None
        refusal = refuse_hosts("a Pod", demand)
        if owner is not None:
            kind = f"{owner.kind}.{owner.group}" if "." in owner.group else owner.kind
            refusal = f"no slices are created for Pods of {kind} {owner.name}"
        elif group:
            refusal = (
                f"no slices are created for Kueue's Pod groups, as {group}: use a JobSet, a "
                "LeaderWorkerSet or an Indexed Job"
            )
        return Claim(self, is_leader=True, refusal=refusal)

    def find_unit(self, demand: Demand) -> Unit | None:
        return Unit(self.name, demand.namespace, demand.name, "")

    def find(self, _cluster: Cluster, demand: Demand) -> Found:
        unit = Unit(self.name, demand.namespace, demand.name, "")
        return Found(unit, UnitState(Need.NEEDED, owner=demand.raw), hosts=1)

    def find_end(self, owner: Document) -> str:
        phase = read_text(read_mapping(owner, "status"), "phase")
        return phase if phase in ("Succeeded", "Failed") else ""

    def find_change(self, unit: Unit, owner: Document) -> str:
        return "" if read_demand(owner).chips else f"{unit.shown} asks for no TPUs now"


def refuse_hosts(holder: str, demand: Demand) -> str:
    """Why Pods without an order get no slice of several hosts; empty if it has one."""
    if demand.hosts == 1:
        return ""
    return (
        f"the topology {demand.topology} has {demand.hosts} hosts of {demand.chips} chips, and {holder} "
        "gets slices of one host only: use a LeaderWorkerSet or an Indexed Job"
    )


POD = BarePod()
