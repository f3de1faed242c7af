"""What the kinds share whose Pods are created by Kubernetes' own controllers, or by users."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from shared.base.documents import Document, read_mapping, read_texts
from shared.slices.kinds.kind import Claim, Found, Rules, find_suspension_time, is_suspended
from shared.slices.units import Demand, Need, Unit, UnitState, has_opted_out, read_demand

if TYPE_CHECKING:
    from shared.ports.kubernetes.cluster import Cluster

FEW_OWNERS = 8
"""More owners in a namespace than this are listed together instead of read one by one."""


class OwnedKind:
    """A kind whose owner alone decides how long each unit is needed. `UnitKind` has the meanings.

    ``foreign``: the labels or annotations of Pods that another kind has.
    """

    name: str
    api_version = "apps/v1"
    is_always_on = False
    exclusive_topology = ""
    is_assigned = False
    foreign: tuple[str, ...] = ()

    def find_index(self, _demand: Demand) -> int | None:
        """The number of a Pod in its owner, if it has one."""
        return 0

    def find_state(self, _unit: Unit, owner: Document) -> UnitState:
        """Whether an owner that exists needs the unit's slice, apart from suspension."""
        return build_state(owner, "")

    def find_size(self, _owner: Document) -> tuple[int, str]:
        """The Pods of a slice of several hosts, and the violation if the owner gets no such slice."""
        return 1, ""

    def claim(self, demand: Demand) -> Claim | None:
        owner, given = demand.controller, demand.labels.keys() | demand.annotations.keys()
        kind = (self.api_version.rpartition("/")[0], self.name)
        is_mine = owner is not None and (owner.group, owner.kind) == kind
        if owner is None or not is_mine or not given.isdisjoint(self.foreign):
            return None
        index = self.find_index(demand)
        refusal = (
            f"{self.name} {owner.name} is not Indexed: slices are created only for those with "
            "completionMode: Indexed"
        )
        # Of as many Pods as there are hosts, whatever the first number is, one leads.
        is_leader = (index or 0) % demand.hosts == 0
        return Claim(self, is_leader, refusal="" if index is not None else refusal)

    def find_unit(self, demand: Demand) -> Unit | None:
        """The owner if its slice has several hosts, otherwise the Pod's number in it."""
        assert demand.controller is not None
        member = "" if demand.hosts > 1 else str(self.find_index(demand) or 0)
        return Unit(self.name, demand.namespace, demand.controller.name, member)

    def find(self, cluster: Cluster, demand: Demand) -> Found:
        unit = self.find_unit(demand)
        assert unit is not None
        owner = cluster.find_owner(self.name, unit.namespace, unit.owner)
        hosts, violation = self.find_size(owner) if owner and demand.hosts > 1 else (1, "")
        return Found(unit, add_opt_out(self._decide(unit, owner, None)), hosts, violation)

    def read_states(
        self, cluster: Cluster, units: Collection[Unit], rules: Rules
    ) -> Mapping[Unit, UnitState]:
        owners = _read_owners(cluster, self.name, units)
        return {one: self._decide(one, owners.get(one.owner_key), rules) for one in units}

    def find_pod_violation(self, _demand: Demand, _unit: Unit) -> str:
        return ""  # controllers set what names the unit

    def names_unit(self, pod: Document, unit: Unit) -> bool:
        demand = read_demand(pod)
        return self.claim(demand) is not None and self.find_unit(demand) == unit

    def list_pods(self, cluster: Cluster, unit: Unit) -> list[dict[str, Any]]:
        """The Pod that leads the unit, if it exists."""
        name = f"{unit.owner}-{unit.member or 0}" if self.name != "Pod" else unit.owner
        pod = cluster.find_pod(unit.namespace, name)
        return [pod] if pod is not None and self.names_unit(pod, unit) else []

    def _decide(self, unit: Unit, owner: Document | None, rules: Rules | None) -> UnitState:
        gone = find_gone(unit, owner)
        if gone is not None or owner is None:
            return gone or UnitState(Need.OWNER_GONE)
        state = self.find_state(unit, owner)
        if state.need is not Need.NEEDED or not is_suspended(owner):
            return state
        since, after = find_suspension_time(owner), rules and rules.suspended_release
        if rules is None or not after or since is None or rules.now - since < after:
            return UnitState(Need.SUSPENDED, owner=owner)
        minutes = int((rules.now - since) / timedelta(minutes=1))
        why = f"{self.name} {unit.owner} has been suspended for {minutes} minutes"
        return UnitState(Need.NOT_NEEDED, why, since + after, owner)


def find_gone(unit: Unit, owner: Document | None) -> UnitState | None:
    """The state of a unit whose owner does not exist or is being deleted; ``None`` for others."""
    if owner is None:
        return UnitState(Need.OWNER_GONE, f"{unit.kind} {unit.owner} no longer exists")
    if "deletionTimestamp" in owner["metadata"]:
        why = f"{unit.kind} {unit.owner} is being deleted"
        return UnitState(Need.OWNER_GONE, why, owner=owner, is_ending=True)
    return None


def add_opt_out(state: UnitState) -> UnitState:
    """The state for a Pod that waits: its owner may have opted out of slices."""
    metadata = read_mapping(state.owner or {}, "metadata")
    is_out = has_opted_out(read_texts(metadata, "labels"), read_texts(metadata, "annotations"))
    is_out &= state.need is Need.NEEDED
    return UnitState(Need.OPTED_OUT, owner=state.owner) if is_out else state


def build_state(owner: Document, why: str) -> UnitState:
    """Not needed for this reason; needed if it is empty."""
    return UnitState(Need.NOT_NEEDED if why else Need.NEEDED, why, owner=owner)


def _read_owners(
    cluster: Cluster, kind: str, units: Iterable[Unit]
) -> dict[tuple[str, str, str], Document]:
    """The owners of units that exist, by their key: a few one by one, else those of a namespace."""
    by_namespace: dict[str, set[str]] = {}
    for unit in units:
        by_namespace.setdefault(unit.namespace, set()).add(unit.owner)
    found: dict[tuple[str, str, str], Document] = {}
    for namespace, owners in by_namespace.items():
        each = (cluster.find_owner(kind, namespace, name) for name in sorted(owners))
        is_few = len(owners) <= FEW_OWNERS
        for one in each if is_few else cluster.list_owners(kind, namespace):
            if one is not None and one["metadata"]["name"] in owners:
                found[kind, namespace, one["metadata"]["name"]] = one
    return found
