# ruff: noqa: ARG002  (the kind answers the same whatever it is asked)
"""A kind that this version does not know: a later one has created the slice. It is never needed."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from shared.base.documents import Document
from shared.slices.kinds.kind import Claim, Found, Rules
from shared.slices.units import Demand, Need, Unit, UnitState

if TYPE_CHECKING:
    from shared.ports.kubernetes.cluster import Cluster


class UnknownKind:
    """It claims no Pod. Its slices are deleted when no Pods with TPU chips run on them any more."""

    api_version = ""
    is_always_on = False
    exclusive_topology = ""
    is_assigned = False

    def __init__(self, name: str) -> None:
        self.name = name

    def claim(self, demand: Demand) -> Claim | None:
        return None

    def find_unit(self, demand: Demand) -> Unit | None:
        return None

    def find(self, cluster: Cluster, demand: Demand) -> Found:
        raise LookupError(f"{self.name} claims no Pods")

    def read_states(
        self,
        cluster: Cluster,
        units: Collection[Unit],
        rules: Rules,
    ) -> dict[Unit, UnitState]:
        why = f"this version knows no units of the kind {self.name}"
        return {unit: UnitState(Need.NOT_NEEDED, why) for unit in units}

    def find_pod_violation(self, demand: Demand, unit: Unit) -> str:
        return ""

    def names_unit(self, pod: Document, unit: Unit) -> bool:
        return False

    def list_pods(self, cluster: Cluster, unit: Unit) -> list[dict[str, Any]]:
        return []
