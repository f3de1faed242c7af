"""The kinds of workloads whose units get slices: one table. Each row is a module."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from shared.base.documents import Document
from shared.slices.kinds.deployment import DEPLOYMENT, REPLICA_SET
from shared.slices.kinds.job import JOB
from shared.slices.kinds.jobset import JOBSET
from shared.slices.kinds.kind import Claim, Rules, UnitKind
from shared.slices.kinds.leader_worker_set import LEADER_WORKER_SET
from shared.slices.kinds.pod import POD
from shared.slices.kinds.provisioning_request import PROVISIONING_REQUEST
from shared.slices.kinds.stateful_set import STATEFUL_SET
from shared.slices.units import Demand, Need, Unit, UnitState, waits

if TYPE_CHECKING:
    from shared.ports.kubernetes.cluster import Cluster

KINDS: tuple[UnitKind, ...] = (
    JOBSET,
    LEADER_WORKER_SET,
    JOB,
    STATEFUL_SET,
    DEPLOYMENT,
    REPLICA_SET,
    PROVISIONING_REQUEST,
    POD,
)
"""In this order: the first kind that claims a Pod has it."""


class UnknownKind(UnitKind):
    """A kind of a later version, which has created the slice. It claims no Pod, and is never needed: the
    slice is deleted when no Pods with TPU chips run on it any more."""

    api_version = ""

    def __init__(self, name: str) -> None:
        self.name = name

    def read_states(
        self, _cluster: Cluster, units: Collection[Unit], _rules: Rules
    ) -> dict[Unit, UnitState]:
        why = f"this version knows no units of the kind {self.name}"
        return {unit: UnitState(Need.NOT_NEEDED, why) for unit in units}

    def list_pods(self, _cluster: Cluster, _unit: Unit) -> list[dict[str, Any]]:
        return []


class Leader(NamedTuple):
    """A Pod that waits and stands for its unit's slice, with the claim of its kind."""

    demand: Demand
    claim: Claim

    @property
    def kind(self) -> UnitKind:
        return self.claim.kind


def find_kind(demand: Demand) -> Claim | None:
    """The claim of the Pod's kind; ``None`` if no kind claims it."""
    return next((claim for kind in KINDS if (claim := kind.claim(demand))), None)


def get_kind(name: str) -> UnitKind:
    """The kind of this name; `UnknownKind` for one of a later version."""
    return next((kind for kind in KINDS if kind.name == name), UnknownKind(name))


def find_waiting(pod: Document) -> Leader | None:
    """The Pod, if it waits for a slice; otherwise ``None``. It may be one that does not lead."""
    demand = waits(pod)
    claim = find_kind(demand) if demand is not None else None
    return Leader(demand, claim) if demand and claim else None


def find_leader(pod: Document) -> Leader | None:
    """The Pod as a leader, if it waits for a slice and stands for its unit; otherwise ``None``."""
    found = find_waiting(pod)
    return found if found and found.claim.is_leader else None
