"""The supply for VMs: capacity, quotas, reservations, images, addresses, policy.

Capacity and quotas are unlimited until a fault limits them. Images, networks and machine types
exist by the inventory; reservations must be set before they can be used.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from local.base.faults import set_limit
from local.gce import links
from local.gce.environment import Environment
from local.gce.refusals import (
    AGENT_LACKS_PERMISSION,
    DISK_TYPE,
    DISK_TYPE_ABSENT,
    IMAGE_ABSENT,
    MACHINE_TYPE_ABSENT,
    NO_BULK_CAPACITY,
    NO_CAPACITY,
    ORG_POLICY,
    RESERVATION_ABSENT,
    RESERVATION_FAMILY,
    RESERVATION_FULL,
    RESERVATION_MISMATCH,
    RESERVATION_NEEDED,
    RESERVATION_NOT_READY,
    RESOURCE_QUOTA,
    SUBNET_FULL,
    SUBNETWORK_ABSENT,
    TPU_MISMATCH,
    VM_QUOTA,
    OperationError,
)
from local.gce.schema import Document
from local.gce.topology import chips_of, count_vms, family_of

_NO_PD = frozenset({"ct6e", "tpu7x"})
"""Families that take Hyperdisk only: documented for v6e, assumed for TPU7x."""
_CREATE = "compute.instances.create"
MODELS = ("STANDARD", "SPOT", "FLEX_START")
"""The provisioning models whose VMs use the capacity of their zone. Others use a reservation."""
ANY_MODEL = "any"
METRICS = {
    "resourcePolicies": "RESOURCE_POLICIES",
    "instanceTemplates": "INSTANCE_TEMPLATES",
    "instanceGroupManagers": "INSTANCE_GROUP_MANAGERS",
    "instances": "INSTANCES",
}
"""The quota of each collection."""


@dataclass(frozen=True)
class Order:
    """The requirements of one VM. References are paths."""

    project: str
    zone: str
    machine_type: str
    model: str = "STANDARD"
    image: str = ""
    network: str = ""
    subnetwork: str = ""
    disk_type: str = ""
    reservation: str = ""
    reserved_only: bool = False
    topology: str = ""
    by_group: bool = False

    @property
    def family(self) -> str:
        """The machine family."""
        return family_of(self.machine_type)

    @property
    def chips(self) -> int:
        """The TPU chips of the VM."""
        return chips_of(self.machine_type)

    @property
    def region(self) -> str:
        """The region of the zone."""
        return links.region_of(self.zone)

    @property
    def pools(self) -> set[tuple[str, str, str]]:
        """The limits of hosts that concern it: that of its provisioning model, and that of all."""
        return {(self.zone, self.family, model) for model in (ANY_MODEL, self.model)}


@dataclass
class Reservation:
    """A reservation of a number of VMs of a machine type. ``ends``: when it ends, in calendar mode."""

    machine_type: str
    vms: int
    ready: bool = True
    used: int = 0
    ends: datetime | None = None


def read_order(
    project: str, zone: str, properties: Document, *, topology: str = "", by_group: bool = False
) -> Order:
    """The requirements of a VM with these properties."""
    scheduling = properties["scheduling"]
    boot = next((disk for disk in properties["disks"] if disk.get("boot")), properties["disks"][0])
    parameters = boot.get("initializeParams") or {}
    interface = properties["networkInterfaces"][0]
    affinity = properties.get("reservationAffinity") or {}
    values = affinity.get("values") or [""]
    return Order(
        project=project,
        zone=zone,
        machine_type=links.name_of(properties["machineType"]),
        model=scheduling["provisioningModel"],
        image=_path(parameters.get("sourceImage", ""), project),
        network=_path(interface.get("network", ""), project),
        subnetwork=_path(interface.get("subnetwork", ""), project),
        disk_type=links.name_of(parameters.get("diskType", "")),
        reservation=_reservation_path(values[0], project, zone),
        reserved_only=affinity.get("consumeReservationType") == "SPECIFIC_RESERVATION",
        topology=topology,
        by_group=by_group,
    )


def _path(reference: str, project: str) -> str:
    return links.find_path(reference, project) or reference


def _reservation_path(value: str, project: str, zone: str) -> str:
    """Resolve a reservation's name or ``projects/P/reservations/N`` to its path. A block or sub-block of
    it counts as the whole."""
    if not value:
        return ""
    parts = value.partition("/reservationBlocks/")[0].split("/")
    owner = parts[1] if len(parts) > 2 else project
    return f"projects/{owner}/zones/{zone}/reservations/{parts[-1]}"


class Supply:
    """The available and the used supply."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._hosts: dict[tuple[str, str, str], int] = {}
        self._taken: Counter[tuple[str, str, str]] = Counter()
        self._chip_quota: dict[tuple[str, str], int] = {}
        self._chips: Counter[tuple[str, str]] = Counter()
        self._count_quota: dict[str, int] = {}
        self.reservations: dict[str, Reservation] = {}
        self.missing: set[str] = set()
        self.full_subnetworks: set[str] = set()
        self.constraints: dict[str, str] = {}
        self.most_vms = 1000
        """VMs of a zonal group: documented; Google raises it for a project on request."""

    def limit_hosts(self, zone: str, family: str, vms: int | None, model: str) -> None:
        """Limit the VMs of a family in a zone, of one provisioning model or of all together; ``None`` is
        unlimited."""
        set_limit(self._hosts, (zone, family, model), vms)

    def limit_chips(self, region: str, family: str, chips: int | None) -> None:
        """Limit the TPU chips of a family in a region; ``None`` is unlimited."""
        set_limit(self._chip_quota, (region, family), chips)

    def limit_count(self, collection: str, count: int | None) -> None:
        """Limit the policies, templates or groups of a project; ``None`` is unlimited."""
        set_limit(self._count_quota, collection, count)

    def check_count(self, collection: str, project: str, count: int) -> None:
        """Raise `Refused` (403) if a project has used up its quota of a collection."""
        limit = self._count_quota.get(collection)
        if limit is not None and count >= limit:
            metric = METRICS[collection]
            raise RESOURCE_QUOTA.refused(metric=metric, limit=f"{limit}.0", region=project)

    def find_end(self, order: Order) -> datetime | None:
        """When the reservation of a VM ends; ``None``: never, or it has none."""
        reservation = self.reservations.get(order.reservation) if order.reserved_only else None
        return reservation.ends if reservation is not None else None

    def take(self, order: Order) -> None:
        """Take a host for a VM."""
        self._move(order, 1)

    def give_back(self, order: Order) -> None:
        """Return the host of a VM."""
        self._move(order, -1)

    def _move(self, order: Order, by: int) -> None:
        reservation = self.reservations.get(order.reservation)
        if order.reserved_only and reservation is not None:
            reservation.used += by
        else:
            for key in order.pools:
                self._taken[key] += by
        self._chips[order.region, order.family] += by * order.chips

    def find_obstacle(
        self, order: Order, count: int = 1, *, bulk: bool = False
    ) -> OperationError | None:
        """Find why ``count`` such VMs cannot be created now; ``None`` if they can."""
        return (
            self._find_forbidden(order)
            or self.find_missing(order)
            or self._find_mismatch(order)
            or self._find_reservation_error(order, count)
            or self._find_shortage(order, count, bulk=bulk)
        )

    def _find_forbidden(self, order: Order) -> OperationError | None:
        agent = self._environment.agent(order.project)
        project = f"projects/{order.project}"
        if order.by_group and not agent.may(_CREATE, project):
            return AGENT_LACKS_PERMISSION.error(permission=_CREATE, resource=project)
        constraint = self.constraints.get(order.project)
        if constraint:
            return ORG_POLICY.error(constraint=constraint, project=order.project)
        return None

    def _find_mismatch(self, order: Order) -> OperationError | None:
        if order.family in _NO_PD and order.disk_type.startswith("pd-"):
            return DISK_TYPE.error(disk_type=order.disk_type, machine_type=order.machine_type)
        if order.topology and count_vms(order.topology, order.machine_type) is None:
            return TPU_MISMATCH.error(machine_type=order.machine_type, topology=order.topology)
        return None

    def _find_reservation_error(self, order: Order, count: int) -> OperationError | None:
        if not order.reserved_only:
            bound = order.model == "RESERVATION_BOUND"
            return RESERVATION_NEEDED.error() if bound else None
        reservation = self.reservations.get(order.reservation)
        name = order.reservation
        end = self.find_end(order)
        if reservation is None or (end is not None and end <= self._environment.clock.now()):
            return RESERVATION_ABSENT.error(reservation=name)
        if not reservation.ready:
            return RESERVATION_NOT_READY.error(reservation=name)
        if family_of(reservation.machine_type) != order.family:
            family = family_of(reservation.machine_type)
            return RESERVATION_FAMILY.error(reservation=name, family=family)
        if reservation.machine_type != order.machine_type:
            return RESERVATION_MISMATCH.error(reservation=name)
        if reservation.used + count > reservation.vms:
            return RESERVATION_FULL.error(reservation=name)
        return None

    def _find_shortage(self, order: Order, count: int, *, bulk: bool) -> OperationError | None:
        quota = self._chip_quota.get((order.region, order.family))
        needed = self._chips[order.region, order.family] + count * order.chips
        if quota is not None and needed > quota:
            return _quota_error(order, quota)
        if order.subnetwork in self.full_subnetworks:
            return SUBNET_FULL.error(subnetwork=order.subnetwork)
        fits = all(
            self._taken[key] + count <= self._hosts[key] for key in order.pools & {*self._hosts}
        )
        if order.reserved_only or fits:
            return None
        if not bulk:
            return NO_CAPACITY.error(project=order.project, zone=order.zone)
        return NO_BULK_CAPACITY.error(_stockout(order), project=order.project, zone=order.zone)

    def find_missing(self, order: Order) -> OperationError | None:
        """Find a named resource that does not exist: machine type, image, network, disk type."""
        inventory = self._environment.inventory
        place = f"projects/{order.project}/zones/{order.zone}"
        if not inventory.has_machine_type(order.zone, order.machine_type):
            return MACHINE_TYPE_ABSENT.error(
                machine_type=links.url(f"{place}/machineTypes/{order.machine_type}"),
                name=order.machine_type,
                zone=order.zone,
            )
        if self._lacks("images", order.image):
            return IMAGE_ABSENT.error(image=links.url(order.image))
        for kind, path in (("network", order.network), ("subnetwork", order.subnetwork)):
            if self._lacks(f"{kind}s", path):
                return SUBNETWORK_ABSENT.error(kind=kind, network=links.url(path))
        if order.disk_type and not inventory.has("diskTypes", order.disk_type):
            disk_type = links.url(f"{place}/diskTypes/{order.disk_type}")
            return DISK_TYPE_ABSENT.error(disk_type=disk_type)
        return None

    def _lacks(self, kind: str, path: str) -> bool:
        """Whether a named resource does not exist."""
        exists = self._environment.inventory.has(kind, path) and path not in self.missing
        return bool(path) and not exists


def _quota_error(order: Order, limit: int) -> OperationError:
    info = {
        "quotaInfo": {
            "metricName": "compute.googleapis.com/tpus_per_tpu_family",
            "limitName": "TPUS-PER-TPU-FAMILY-per-project-region",
            "limit": limit,
            "dimensions": {"region": order.region, "tpu_family": order.family.upper()},
        }
    }
    return VM_QUOTA.error(
        info, metric="TPUS_PER_TPU_FAMILY", limit=f"{limit}.0", region=order.region
    )


def _stockout(order: Order) -> Document:
    return {
        "errorInfo": {
            "reason": "resource_availability",
            "domain": "compute.googleapis.com",
            "metadatas": {"zone": order.zone, "vmType": order.machine_type},
        }
    }
