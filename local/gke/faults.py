"""Faults that can be injected into the simulated GKE.

Every public method of `Faults` is a fault. Over HTTP, it is a POST to ``/_simulator/<method>`` with its
arguments as a JSON object. Verbs are those of the call log, such as
``nodePools.create``; patterns as in a shell match many (``nodePools.*``).
"""

from __future__ import annotations

from local.base.controls import UnknownFault
from local.base.faults import FaultControls
from local.gce.refusals import FAILED_PRECONDITION, LOG_STATUSES, Refused
from local.gke.fault_plan import PoolFaultPlan
from local.gke.operations import Failure
from local.gke.pool_api import PoolApi
from local.gke.refusals import INTERNAL, UNAVAILABLE

_STATUSES = {3: "INVALID_ARGUMENT", 8: "RESOURCE_EXHAUSTED", 13: "INTERNAL"}


class Faults(FaultControls[Refused, Failure]):
    """Injects faults."""

    plan: PoolFaultPlan

    def __init__(self, plan: PoolFaultPlan, pools: PoolApi) -> None:
        super().__init__(plan, pools.operations.forget)
        self._pools = pools

    def _make_refusal(self, http: int, reason: str, message: str) -> Refused:
        log = LOG_STATUSES.get(http, FAILED_PRECONDITION)
        return Refused(http, reason, message or UNAVAILABLE.message, log=log, status=log[1])

    # supply

    def set_capacity(self, zone: str, family: str, vms: int | None = None) -> None:
        """A zone has room for `vms` VMs of a machine family (``ct6e-standard``) in all; without it,
        for any number. VMs that run already stay."""
        self.plan.limit_room(zone, family, vms)

    def set_chip_quota(self, region: str, family: str, chips: int | None = None) -> None:
        """The project may have so many TPU chips of a family in a region; without it, any number."""
        self.plan.limit_chips(region, family, chips)

    # calls

    def fail_operations(
        self, verbs: str, operations: int = 1, code: int = 13, message: str = ""
    ) -> None:
        """The next so many operations that match end in an error, with a gRPC code.

        A pool whose creation fails stays, in ERROR; one whose deletion fails too.
        """
        status = _STATUSES.get(code, "UNKNOWN")
        failure = Failure(code, status, message or INTERNAL.message)
        self.plan.add_failure(verbs, operations, failure)

    # pools

    def lose_nodes(self, pool: str, nodes: int = 1) -> None:
        """So many VMs of a running pool (named by its own name) are gone, and do not come back."""
        found = self._pools.find(pool)
        if found is None or found.status != "RUNNING":
            raise UnknownFault(f"there is no running pool {pool}")
        self._pools.lose(found, nodes)

    def make_pool(self, cluster: str, name: str, labels: dict[str, str] | None = None) -> None:
        """A person has made a pool of one small VM, with such labels, at once."""
        self._pools.make_by_hand(cluster, name, labels or {})
