"""StatefulSets: one slice of several hosts for all replicas, or one of one host for each ordinal."""

from shared.base.documents import Document, read_mapping
from shared.base.pods import parse_count
from shared.slices.kinds.owned import OwnedKind, build_state
from shared.slices.units import Demand, Unit, UnitState


class OrdinalKind(OwnedKind):
    """StatefulSets that no LeaderWorkerSet has."""

    name = "StatefulSet"
    foreign = ("leaderworkerset.sigs.k8s.io/name",)

    def find_index(self, demand: Demand) -> int | None:
        # The label with this number exists only since Kubernetes 1.28.
        return parse_count(demand.name.rpartition("-")[2]) or 0

    def find_size(self, owner: Document) -> tuple[int, str]:
        spec = read_mapping(owner, "spec")
        start = _count(read_mapping(spec, "ordinals"), "start", 0)
        violation = (
            f"StatefulSet {owner['metadata']['name']} has ordinals.start {start}: it must be 0, because "
            "the Pods of a slice of several hosts are its workers 0 and on"
        )
        return _count(spec, "replicas", 1), violation if start else ""

    def find_state(self, unit: Unit, owner: Document) -> UnitState:
        spec = read_mapping(owner, "spec")
        replicas, start = (
            _count(spec, "replicas", 1),
            _count(read_mapping(spec, "ordinals"), "start", 0),
        )
        if not replicas:
            return build_state(owner, f"StatefulSet {unit.owner} has no replicas")
        ordinal = parse_count(unit.member)  # others may have written the marks of a slice
        is_there = not unit.member or (ordinal is not None and 0 <= ordinal - start < replicas)
        gone = f"StatefulSet {unit.owner} has no Pod {unit.member} any more"
        return build_state(owner, "" if is_there else gone)


def _count(holder: Document, field: str, default: int) -> int:
    count = parse_count(holder.get(field))
    return default if count is None else count


STATEFUL_SET = OrdinalKind()
