"""Which calls and operations of the simulated GKE are to fail."""

from __future__ import annotations

from local.base.faults import FaultPlan, set_limit
from local.gce.refusals import Refused
from local.gke.operations import Failure


class PoolFaultPlan(FaultPlan[Refused, Failure]):
    """The common plan with capacity and the quota of chips."""

    def __init__(self) -> None:
        super().__init__()
        self._room: dict[tuple[str, str, str], int] = {}
        self._chips: dict[tuple[str, str], int] = {}
        self.reservations: dict[str, int] = {}
        """VMs by the reservation's name; others are unlimited."""

    def limit_room(self, zone: str, family: str, vms: int | None, model: str) -> None:
        """Limit the VMs of a family in a zone, of one provisioning model or of all together; ``None`` is
        unlimited."""
        set_limit(self._room, (zone, family, model), vms)

    def find_room(self, zone: str, family: str, model: str) -> int | None:
        """The limit; ``None`` if there is none."""
        return self._room.get((zone, family, model))

    def limit_chips(self, region: str, family: str, chips: int | None) -> None:
        """Limit the TPU chips of a family in a region; ``None`` is unlimited."""
        set_limit(self._chips, (region, family), chips)

    def chip_quota(self, region: str, family: str) -> int | None:
        """The quota of chips."""
        return self._chips.get((region, family))
