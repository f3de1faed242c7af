"""LeaderWorkerSets: one slice for each group, or of one host for each Pod of a group.

A group is a leader Pod, ``serve-3``, and its workers, ``serve-3-1`` and on. LeaderWorkerSet recreates
them under these names after a failure and in a rolling update, so that the slice is kept. Labels and
annotations are those of LeaderWorkerSet 0.9.0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.base.documents import Document, read_mapping, read_texts
from shared.base.names import WORKER_INDEX
from shared.base.pods import parse_count, read_count
from shared.slices.kinds.jobset import MAX_JOBS
from shared.slices.kinds.kind import (
    Claim,
    Entries,
    Found,
    Members,
    Rules,
    UnitKind,
    add_opt_out,
    build_state,
    find_template_change,
)
from shared.slices.units import Demand, Need, Unit, UnitState, UnservableError, read_demand

if TYPE_CHECKING:
    from shared.ports.kubernetes.cluster import Cluster

_PREFIX = "leaderworkerset.sigs.k8s.io"
_NAME, _SIZE = f"{_PREFIX}/name", f"{_PREFIX}/size"
_GROUP = f"{_PREFIX}/group-index"
_SUBGROUP_SIZE = f"{_PREFIX}/subgroup-size"
_HAS_TPU_LEADER = f"{_PREFIX}/leader-requests-tpus"
"""The annotation of workers whose leader requests chips."""
_COMPONENT = "kueue.x-k8s.io/component-workload-index"
"""On Kueue's Workload for a group: its number."""


class LeaderWorkerSetKind(UnitKind):
    """LeaderWorkerSets. The member of a unit is the group, as in ``3``; or group and worker, as in
    ``3/1``, of a worker whose slice has one host."""

    name = "LeaderWorkerSet"
    api_version = "leaderworkerset.x-k8s.io/v1"
    exclusive_topology = f"{_PREFIX}/exclusive-topology"

    def claim(self, demand: Demand) -> Claim | None:
        """Whether the Pod is of a group. Its leader leads, or worker 1 if the leader has no chips."""
        if _NAME not in demand.labels:
            return None
        group, worker = _read_indexes(demand)
        if group is None or worker is None:
            label = _GROUP if group is None else WORKER_INDEX
            return Claim(
                self, True, f"the Pod has no number in its label {label}: LeaderWorkerSet sets it"
            )
        first = _find_first(demand)
        is_leader = demand.chips > 0 and (demand.hosts == 1 or worker in (0, first))
        refusal = (
            "no slices are created for subgroups of a LeaderWorkerSet: use a group for each slice"
        )
        has_subgroups = _SUBGROUP_SIZE in demand.annotations
        return Claim(self, is_leader, refusal if has_subgroups else "")

    def find_unit(self, demand: Demand) -> Unit | None:
        """The group; the worker in it if its slice has one host."""
        group, worker = _read_indexes(demand)
        member = f"{group}/{worker}" if worker and demand.hosts == 1 else str(group)
        return Unit(self.name, demand.namespace, demand.labels[_NAME], member)

    def find(self, cluster: Cluster, demand: Demand) -> Found:
        """The group of a Pod that waits. One that a rolling update adds is needed, too."""
        found = super().find(cluster, demand)
        state = self._add_surge(cluster, found.unit, found.state, {})
        size = parse_count(demand.annotations.get(_SIZE)) or 1
        first = 0 if demand.labels.get(WORKER_INDEX) == "0" else _find_first(demand)
        hosts = size - first if demand.hosts > 1 else 1
        violation = _find_mix_violation(state.owner or {})
        if not violation and size > 1 and self.exclusive_topology in demand.annotations:
            violation = self._find_spread_violation(demand)
        return Found(found.unit, add_opt_out(state), hosts, violation)

    def read_states(
        self, cluster: Cluster, units: Collection[Unit], rules: Rules
    ) -> Mapping[Unit, UnitState]:
        """The state of each of these groups."""
        leaders: dict[tuple[str, str, str], Document] = {}
        return {
            unit: self._add_surge(cluster, unit, state, leaders)
            for unit, state in super().read_states(cluster, units, rules).items()
        }

    def find_unneeded_reason(self, unit: Unit, owner: Document) -> str:
        """Why the group or the worker is not among those of the spec."""
        spec = read_mapping(owner, "spec")
        group, _, worker = unit.member.partition("/")
        size = read_count(read_mapping(spec, "leaderWorkerTemplate"), "size", 1)
        number, index = parse_count(group), parse_count(worker or 0)  # others may have written them
        if number is None or number >= read_count(spec, "replicas", 1):
            return f"LeaderWorkerSet {unit.owner} has no group {group} any more"
        gone = f"group {group} of LeaderWorkerSet {unit.owner} has no Pod {worker} any more"
        return gone if index is None or index >= size else ""

    def find_change(self, unit: Unit, owner: Document) -> str:
        """As of other kinds. The first unit of a group of single hosts is its leader's."""
        spec, status = read_mapping(owner, "spec"), read_mapping(owner, "status")
        if read_count(status, "updatedReplicas", 0) < read_count(spec, "replicas", 1):
            return ""
        given = read_mapping(spec, "leaderWorkerTemplate")
        worker = read_mapping(given, "workerTemplate")
        leader = read_mapping(given, "leaderTemplate") or worker
        if "/" not in unit.member and read_demand(leader).chips:
            return ""
        index = unit.member.partition("/")[2]
        return find_template_change(replace(unit, member=index), worker)

    def find_pod_violation(self, demand: Demand, unit: Unit) -> str:
        """The labels must be those of the Pod with this name: its slice would be that of another."""
        group, worker = _read_indexes(demand)
        name = f"{unit.owner}-{group}" + (f"-{worker}" if worker else "")
        controller = f"{unit.owner}-{group}" if worker else unit.owner
        owner = demand.controller
        is_set = owner is not None and (owner.kind, owner.name) == ("StatefulSet", controller)
        if is_set and demand.name == name:
            return ""
        return (
            f"the Pod's labels are those of Pod {name} of StatefulSet {controller}: only Pods that "
            f"LeaderWorkerSet {unit.owner} creates get its slices"
        )

    def list_units(self, owner: Document, workload: Document, entries: Entries) -> Members:
        """Those of the group that the Workload is for."""
        group = parse_count(read_texts(workload["metadata"], "annotations").get(_COMPONENT))
        given = read_mapping(owner["spec"], "leaderWorkerTemplate")
        if group is None or "subGroupPolicy" in given or _find_mix_violation(owner):
            raise UnservableError("only groups of equal Pods, and without subgroups, get slices so")
        is_exclusive = self.exclusive_topology in read_texts(owner["metadata"], "annotations")
        worker = read_mapping(given, "workerTemplate")
        leader, has_leader = given.get("leaderTemplate", worker), "leaderTemplate" in given
        pods = [leader, *[worker] * (min(read_count(given, "size", 1), MAX_JOBS) - 1)]
        asking = [index for index, one in enumerate(pods) if read_demand(one).chips]
        for index in asking:
            podset = ("worker" if index else "leader") if has_leader else "main"
            entry = self.find_entry(entries, podset, pods[index])
            is_whole = entry.demand.hosts > 1
            violation = self._find_spread_violation(entry.demand)
            if violation and is_exclusive and len(pods) > 1:
                raise UnservableError(violation)
            if is_whole and entry.demand.hosts != len(asking):
                raise UnservableError("a group must have a Pod with chips for each host")
            yield str(group) if is_whole or not index else f"{group}/{index}", entry, owner
            if is_whole:
                return

    def _find_spread_violation(self, demand: Demand) -> str:
        """The violation if each Pod of a group has a slice, and the annotation puts them on one."""
        if demand.hosts > 1:
            return ""
        return (
            f"a slice of topology {demand.topology} has 1 host with {demand.chips} chips, so each Pod "
            f"of a group gets its own; by the annotation {self.exclusive_topology}, all would have to "
            "run on the leader's: remove it, or request the chips of one host of a larger slice"
        )

    def list_pods(self, cluster: Cluster, unit: Unit) -> list[dict[str, Any]]:
        """The Pods of the group with chips."""
        labels = f"{_NAME}={unit.owner},{_GROUP}={unit.member.partition('/')[0]}"
        pods = cluster.list_selected_pods(unit.namespace, labels)
        return [pod for pod in pods if self.names_unit(pod, unit)]

    def _add_surge(
        self,
        cluster: Cluster,
        unit: Unit,
        state: UnitState,
        leaders: dict[tuple[str, str, str], Document],
    ) -> UnitState:
        """The state by the replicas of the leaders' StatefulSet, if these are more than the spec's:
        LeaderWorkerSet adds groups in a rolling update with maxSurge, and removes groups by it."""
        if state.need is not Need.NOT_NEEDED or state.owner is None:
            return state
        if not self.find_unneeded_reason(unit, state.owner):
            return state  # for another reason
        if unit.owner_key not in leaders:
            found = cluster.find_owner("StatefulSet", unit.namespace, unit.owner)
            leaders[unit.owner_key] = read_mapping(found or {"spec": {"replicas": 0}}, "spec")
        spec = read_mapping(state.owner, "spec")
        counts = (read_count(one, "replicas", 1) for one in (spec, leaders[unit.owner_key]))
        surged = {**state.owner, "spec": {**spec, "replicas": max(counts)}}
        return build_state(state.owner, self.find_unneeded_reason(unit, surged))


def _read_indexes(demand: Demand) -> tuple[int | None, int | None]:
    """The numbers of the group, and of the Pod in it."""
    return parse_count(demand.labels.get(_GROUP)), parse_count(demand.labels.get(WORKER_INDEX))


def _find_first(worker: Demand) -> int:
    """The number of the first Pod with chips, by what a worker says of its leader."""
    return 0 if worker.annotations.get(_HAS_TPU_LEADER) == "true" else 1


def _find_mix_violation(owner: Document) -> str:
    """The violation if leaders and workers ask for different slices, and some of several hosts."""
    templates = read_mapping(read_mapping(owner, "spec"), "leaderWorkerTemplate")
    asked = (read_demand(read_mapping(templates, f"{one}Template")) for one in ("leader", "worker"))
    asking = [one for one in asked if one.chips]
    wishes = {(one.chips, one.topology, one.accelerator) for one in asking}
    if len(wishes) < 2 or all(one.hosts == 1 for one in asking):
        return ""
    name = read_mapping(owner, "metadata")["name"]
    return (
        f"the leaderTemplate of LeaderWorkerSet {name} asks for other chips, topologies or accelerators "
        "than its workerTemplate: they must be equal, because a group has one slice"
    )


LEADER_WORKER_SET = LeaderWorkerSetKind()
