"""StatefulSets: one slice of several hosts for all replicas, or one of one host for each ordinal."""

from shared.base.documents import Document, read_mapping
from shared.base.pods import parse_count, read_count
from shared.slices.kinds.kind import UnitKind, find_template_change
from shared.slices.units import Demand, Unit


class OrdinalKind(UnitKind):
    """StatefulSets that no LeaderWorkerSet has."""

    name = "StatefulSet"
    foreign = ("leaderworkerset.sigs.k8s.io/name",)

    def find_index(self, demand: Demand) -> int | None:
        # The label with this number exists only since Kubernetes 1.28.
        return parse_count(demand.name.rpartition("-")[2]) or 0

    def find_size(self, owner: Document) -> tuple[int, str]:
        spec = read_mapping(owner, "spec")
        start = read_count(read_mapping(spec, "ordinals"), "start", 0)
        violation = (
            f"StatefulSet {owner['metadata']['name']} has ordinals.start {start}: it must be 0, because "
            "the Pods of a slice of several hosts are its workers 0 and on"
        )
        return read_count(spec, "replicas", 1), violation if start else ""

    def find_unneeded_reason(self, unit: Unit, owner: Document) -> str:
        spec = read_mapping(owner, "spec")
        replicas = read_count(spec, "replicas", 1)
        start = read_count(read_mapping(spec, "ordinals"), "start", 0)
        if not replicas:
            return f"StatefulSet {unit.owner} has no replicas"
        ordinal = parse_count(unit.member)  # others may have written the marks of a slice
        is_there = not unit.member or (ordinal is not None and 0 <= ordinal - start < replicas)
        return "" if is_there else f"StatefulSet {unit.owner} has no Pod {unit.member} any more"

    def find_change(self, unit: Unit, owner: Document) -> str:
        spec, status = read_mapping(owner, "spec"), read_mapping(owner, "status")
        if read_count(status, "updatedReplicas", 0) < read_count(spec, "replicas", 1):
            return ""
        return find_template_change(unit, read_mapping(spec, "template"))


STATEFUL_SET = OrdinalKind()
