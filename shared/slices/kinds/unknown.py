"""A kind that this version does not know: a later one has created the slice. It is never needed."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from shared.slices.kinds.kind import Claim, Rules, UnitKind
from shared.slices.units import Demand, Need, Unit, UnitState

if TYPE_CHECKING:
    from shared.ports.kubernetes.cluster import Cluster


class UnknownKind(UnitKind):
    """It claims no Pod. Its slices are deleted when no Pods with TPU chips run on them any more."""

    api_version = ""

    def __init__(self, name: str) -> None:
        self.name = name

    def claim(self, _demand: Demand) -> Claim | None:
        return None

    def read_states(
        self, _cluster: Cluster, units: Collection[Unit], _rules: Rules
    ) -> dict[Unit, UnitState]:
        why = f"this version knows no units of the kind {self.name}"
        return {unit: UnitState(Need.NOT_NEEDED, why) for unit in units}

    def list_pods(self, _cluster: Cluster, _unit: Unit) -> list[dict[str, Any]]:
        return []
