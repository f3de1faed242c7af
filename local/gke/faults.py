"""Faults on demand in the simulated GKE.

Each public method of `Faults` is a fault; its docstring is in the reference page. POST to
``/_simulator/<method>`` with the arguments as a JSON object does the same. Verbs are those of the call
log, such as ``nodePools.create``, or shell patterns (``nodePools.*``).
"""

from __future__ import annotations

from collections.abc import Mapping

from local.base.controls import UnknownFault, Valid
from local.base.faults import FaultControls, common_arguments, set_limit
from local.gce import links
from local.gce.refusals import FAILED_PRECONDITION, LOG_STATUSES, Refused
from local.gce.supply import ANY_MODEL, MODELS
from local.gke.calls import METHODS
from local.gke.fault_plan import PoolFaultPlan
from local.gke.machines import FAMILIES
from local.gke.operations import Failure
from local.gke.pool_api import PERMISSIONS, PoolApi
from local.gke.refusals import INTERNAL, UNAVAILABLE

_STATUSES = {3: "INVALID_ARGUMENT", 8: "RESOURCE_EXHAUSTED", 13: "INTERNAL"}


class Faults(FaultControls[Refused, Failure]):
    """The faults of the simulated GKE."""

    plan: PoolFaultPlan

    def __init__(self, plan: PoolFaultPlan, pools: PoolApi) -> None:
        super().__init__(plan, pools.operations.forget)
        self._pools = pools

    @property
    def valid(self) -> Mapping[str, Valid]:
        """The valid arguments, by name."""
        regions = self._pools.regions
        return {
            **common_arguments(METHODS, PERMISSIONS),
            "zone": Valid(
                lambda zone: links.is_zone(zone) and links.region_of(zone) in regions,
                f"a zone of the clusters' regions: {', '.join(sorted(regions))}",
            ),
            "region": Valid.among(regions),
            "family": Valid.among(FAMILIES),
            "model": Valid.among((ANY_MODEL, *MODELS)),
            "code": Valid(_STATUSES.__contains__, "one of 3, 8, 13"),
        }

    def _make_refusal(self, http: int, reason: str, message: str) -> Refused:
        log = LOG_STATUSES.get(http, FAILED_PRECONDITION)
        return Refused(http, reason, message or UNAVAILABLE.message, log=log, status=log[1])

    # supply

    def set_capacity(
        self, zone: str, family: str, vms: int | None = None, model: str = ANY_MODEL
    ) -> None:
        """Limit the VMs of a machine family (``ct6e-standard``) in a zone to ``vms``; without it, remove
        the limit. With a ``model`` (``SPOT``) the limit is that provisioning model's; reserved VMs never
        count. Running VMs stay."""
        self.plan.limit_room(zone, family, vms, model)

    def set_chip_quota(self, region: str, family: str, chips: int | None = None) -> None:
        """Limit the TPU chips of a family in a region; without ``chips``, remove the limit."""
        self.plan.limit_chips(region, family, chips)

    def set_reservation(self, reservation: str, vms: int | None = None) -> None:
        """Limit the VMs of the reservation of this name to ``vms``; without it, remove the limit."""
        set_limit(self.plan.reservations, reservation, vms)

    # calls

    def fail_operations(
        self, verbs: str, operations: int = 1, code: int = 13, message: str = ""
    ) -> None:
        """Let the next matching operations fail with a gRPC code.

        The pool stays in ERROR, whether its creation or its deletion failed.
        """
        status = _STATUSES.get(code, "UNKNOWN")
        failure = Failure(code, status, message or INTERNAL.message)
        self.plan.add_failure(verbs, operations, failure)

    # pools

    def lose_nodes(self, pool: str, nodes: int = 1) -> None:
        """Remove VMs of a running pool; they are not recreated."""
        found = self._pools.find(pool)
        if found is None or found.status != "RUNNING":
            raise UnknownFault(f"there is no running pool {pool}")
        self._pools.lose(found, nodes)

    def repair_nodes(self, pool: str) -> None:
        """Create the VMs that a pool has lost, under other names; it runs without an error then."""
        found = self._pools.find(pool)
        if found is None or found.status != "RUNNING_WITH_ERROR":
            raise UnknownFault(f"there is no pool {pool} that has lost nodes")
        self._pools.repair(found)

    def make_pool(self, cluster: str, name: str, labels: dict[str, str] | None = None) -> None:
        """Create a pool of one small VM with these labels, as a person would; it runs immediately."""
        self._pools.create_without_operation(cluster, name, labels or {})
