"""Deployments, and ReplicaSets of no Deployment: each Pod has a slice of one host.

Their Pods have no ordinals: which slice is whose follows from all Pods and slices of the owner
(`shared.slices.assignment`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from shared.base.documents import Document, read_mapping, read_mappings, read_text, read_texts
from shared.base.pods import find_controller, parse_count
from shared.slices.assignment import PodView
from shared.slices.kinds.kind import Claim, Found, Rules, UnitKind, add_opt_out, assign_pods
from shared.slices.kinds.pod import refuse_hosts
from shared.slices.units import Demand, Need, Unit, UnitState, has_opted_out, read_demand

if TYPE_CHECKING:
    from shared.ports.kubernetes.cluster import Cluster

_HASH = "pod-template-hash"
"""The label of a Deployment's Pods with the end of their ReplicaSet's name."""
_REPLICA_SET = "ReplicaSet"


class ReplicaKind(UnitKind):
    """Deployments or, as a row of its own, ReplicaSets of no Deployment."""

    is_assigned = True

    def __init__(self, name: str) -> None:
        self.name = name

    def claim(self, demand: Demand) -> Claim | None:
        owner, is_bare = demand.controller, self.name == _REPLICA_SET
        is_mine = owner is not None and (owner.group, owner.kind) == ("apps", _REPLICA_SET)
        if not is_mine or (_HASH in demand.labels) is is_bare:
            return None
        return Claim(self, is_leader=True, refusal=refuse_hosts(f"a {self.name}'s Pod", demand))

    def find_unit(self, _demand: Demand) -> Unit | None:
        return None

    def show_unit(self, demand: Demand) -> str:
        return self._name_owner(demand).shown

    def find(self, cluster: Cluster, demand: Demand) -> Found:
        """The Pod's owner as a unit without a member, and all Pods of the owner."""
        assert demand.controller is not None
        unit = self._name_owner(demand)
        owner = replica_set = cluster.find_owner(
            _REPLICA_SET, unit.namespace, demand.controller.name
        )
        above = find_controller(replica_set["metadata"]) if replica_set else None
        if self.name != _REPLICA_SET and replica_set:
            owner = cluster.find_owner(self.name, unit.namespace, unit.owner)
        elif above:
            violation = (
                f"ReplicaSet {unit.owner} is controlled by {read_text(above, 'kind')} "
                f"{read_text(above, 'name')}: no slices are created for its Pods"
            )
            return Found(unit, UnitState(Need.NEEDED, owner=owner), 1, violation)
        state = add_opt_out(self.decide_state(unit, owner))
        is_there = state.need is not Need.OWNER_GONE
        pods = self._view_pods(cluster, unit, owner) if owner and is_there else ()
        return Found(unit, state, 1, pods=pods)

    def read_states(
        self, cluster: Cluster, units: Collection[Unit], rules: Rules
    ) -> Mapping[Unit, UnitState]:
        found: dict[Unit, UnitState] = {}
        for key in dict.fromkeys(one.owner_key for one in units):
            mine = [one for one in units if one.owner_key == key]
            owner = cluster.find_owner(*key)
            state = self.decide_state(mine[0], owner, rules)
            if owner is None or state.need is not Need.NEEDED:
                found |= dict.fromkeys(mine, state)
                continue
            pods = self._view_pods(cluster, mine[0], owner)
            assigned = assign_pods(cluster, self, mine[0], pods, rules.views.get(key, {}))
            why = f"no Pod of {self.name} {mine[0].owner} needs it"
            unneeded = UnitState(Need.NOT_NEEDED, why, owner=owner, is_ending=True)
            ordinals = {*assigned.values()}
            found |= {
                one: state if parse_count(one.member) in ordinals else unneeded for one in mine
            }
        return found

    def names_unit(self, pod: Document, unit: Unit) -> bool:
        """Whether a Pod is one of the unit's owner: on the Nodes of its slice, it is the unit's."""
        demand = read_demand(pod)
        is_mine = demand.namespace == unit.namespace and self.claim(demand) is not None
        return is_mine and _owner_name(demand) == unit.owner

    def _name_owner(self, demand: Demand) -> Unit:
        return Unit(self.name, demand.namespace, _owner_name(demand), "")

    def list_pods(self, cluster: Cluster, unit: Unit) -> list[dict[str, Any]]:
        owner = cluster.find_owner(*unit.owner_key)
        return [] if owner is None else self._list_pods(cluster, unit, owner)

    def _view_pods(self, cluster: Cluster, unit: Unit, owner: Document) -> tuple[PodView, ...]:
        return tuple(filter(None, map(_view, self._list_pods(cluster, unit, owner))))

    def _list_pods(self, cluster: Cluster, unit: Unit, owner: Document) -> list[dict[str, Any]]:
        selector = read_mapping(read_mapping(owner, "spec"), "selector")
        labels = read_texts(selector, "matchLabels")
        term = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        pods = cluster.list_selected_pods(unit.namespace, term)
        return [pod for pod in pods if self.names_unit(pod, unit)]


def _owner_name(demand: Demand) -> str:
    """The Deployment's name: its ReplicaSets have it with the hash of the template at the end."""
    name = demand.controller.name if demand.controller else ""
    return name.removesuffix(f"-{demand.labels[_HASH]}") if _HASH in demand.labels else name


def _view(pod: Document) -> PodView | None:
    """A Pod that runs with TPU chips, or that waits for a slice or will, as soon as the scheduler has
    tried it. A Pod that a queue holds does not wait yet; one that asks for several hosts gets none."""
    metadata, spec = read_mapping(pod, "metadata"), read_mapping(pod, "spec")
    phase, node = read_text(read_mapping(pod, "status"), "phase"), read_text(spec, "nodeName")
    demand = read_demand(pod)
    has_ended = phase in ("Succeeded", "Failed") or "deletionTimestamp" in metadata
    is_held = any(True for _ in read_mappings(spec, "schedulingGates"))
    is_out = is_held or not demand.topology or has_opted_out(demand.labels, demand.annotations)
    if has_ended or not demand.chips or (not node and (is_out or demand.hosts > 1)):
        return None
    return PodView(read_text(metadata, "creationTimestamp"), demand.uid, node)


DEPLOYMENT = ReplicaKind("Deployment")
REPLICA_SET = ReplicaKind("ReplicaSet")
