"""Faults on demand in the simulated Compute Engine.

Each public method of `Faults` is a fault; its docstring is in the reference page. POST to
``/_simulator/<method>`` with the arguments as a JSON object does the same. Verbs are those of the
call log, such as ``instances.setMetadata``, or shell patterns (``instances.*``, ``*.delete``).
Resources are named by path, ``projects/P/zones/Z/instances/N``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta

from local.base.controls import UnknownFault, Valid
from local.base.faults import FaultControls, common_arguments, switch
from local.gce import links
from local.gce.callers import Caller, Principal
from local.gce.calls import Route
from local.gce.context import Context
from local.gce.fault_plan import ComputeFaultPlan
from local.gce.instance import Instance
from local.gce.refusals import (
    BACKEND_ERROR,
    FAILED_PRECONDITION,
    INTERNAL_ERROR,
    LOG_STATUSES,
    PREEMPTED_AT_START,
    OperationError,
    Refused,
)
from local.gce.resources import Resources
from local.gce.schema import Document
from local.gce.supply import ANY_MODEL, METRICS, MODELS, Reservation
from local.gce.topology import FAMILIES, chips_of, family_of

Act = Callable[[Caller, str, str, Document | None], Document]
"""Makes a call: caller, HTTP method, path, body."""

_SUBNETWORK = "projects/P/regions/R/subnetworks/N"
_MORE_PERMISSIONS = {
    "compute.instances.create", "compute.instanceTemplates.useReadOnly",
    "compute.resourcePolicies.use", "iam.serviceAccounts.actAs",
}  # fmt: skip
"""What the API demands beside the permissions of its methods."""

PERSON = Caller(Principal("alice@example.com"), "google-cloud-sdk gcloud/540.0.0,gzip(gfe)")
"""A person who changes resources manually."""


class Faults(FaultControls[Refused, OperationError]):
    """The faults of the simulated Compute Engine."""

    plan: ComputeFaultPlan

    def __init__(
        self, context: Context, resources: Resources, act: Act, routes: Sequence[Route]
    ) -> None:
        super().__init__(context.fault_plan, context.operations.forget)
        self._context = context
        self._routes = routes
        self._supply = context.supply
        self._resources = resources
        self._act = act
        self._sinks_are_broken = False

    @property
    def sinks_are_broken(self) -> bool:
        """True if log sinks drop all entries."""
        return self._sinks_are_broken

    @property
    def valid(self) -> Mapping[str, Valid]:
        """The valid arguments, by name."""
        inventory, projects = self._context.inventory, self._context.projects
        types = {name for names in inventory.machine_types.values() for name in names}
        zones, regions = inventory.machine_types, map(links.region_of, inventory.machine_types)
        known = {route.permission for route in self._routes} | _MORE_PERMISSIONS
        zonal = "projects/P/zones/Z"
        return {
            **common_arguments({route.verb for route in self._routes}, known),
            "zone": Valid(inventory.has_zone, _list(zones) or "a zone, as in us-central1-c"),
            "region": Valid(inventory.has_region, _list(regions) or "a region, as in us-central1"),
            "family": Valid.among({family_of(name) for name in types} or FAMILIES),
            "machine_type": Valid(
                lambda name: name in types or (not types and chips_of(name)),
                _list(types) or "a machine type with TPUs, as in ct6e-standard-4t",
            ),
            "model": Valid.among((ANY_MODEL, *MODELS)),
            "collection": Valid.among(METRICS),
            "project": Valid.among(projects),
            "constraint": Valid(
                lambda text: not text or text.startswith("constraints/"),
                "empty, or constraints/NAME",
            ),
            "outcome": Valid.among(("NEVER", "FAILED", "ACTIVE")),
            "rate_limit.http": Valid((403, 429).__contains__, "403 or 429"),
            "act_as_user.method": Valid.among({route.pattern.split()[0] for route in self._routes}),
            "reservation": _path(f"{zonal}/reservations/N"),
            "instance": _path(f"{zonal}/instances/N"),
            "group": _path(f"{zonal}/instanceGroupManagers/N"),
            "subnetwork": _path(_SUBNETWORK),
            "resource": _path(
                "projects/P/global/images/N",
                "projects/P/global/images/family/N",
                "projects/P/global/networks/N",
                _SUBNETWORK,
            ),
        }

    def _make_refusal(self, http: int, reason: str, message: str) -> Refused:
        log = LOG_STATUSES.get(http, FAILED_PRECONDITION)
        return Refused(http, reason, message or BACKEND_ERROR.message, log=log)

    # supply

    def set_capacity(
        self, zone: str, family: str, vms: int | None = None, model: str = ANY_MODEL
    ) -> None:
        """Limit the VMs of a machine family in a zone to ``vms``; without it, remove the limit.

        With a ``model`` (``SPOT``) the limit is that provisioning model's; reserved VMs never count.
        Running VMs stay. Waiting MIGs check again immediately.
        """
        self._supply.limit_hosts(zone, family, vms, model)
        self._resources.groups.retry_creation()

    def set_chip_quota(self, region: str, family: str, chips: int | None = None) -> None:
        """Limit the TPU chips of a family in a region; without ``chips``, remove the limit."""
        self._supply.limit_chips(region, family, chips)
        self._resources.groups.retry_creation()

    def set_count_quota(self, collection: str, count: int | None = None) -> None:
        """Limit how many ``resourcePolicies``, ``instanceTemplates`` (and so on) a project has; without
        ``count``, remove the limit."""
        self._supply.limit_count(collection, count)

    def set_group_limit(self, vms: int = 1000) -> None:
        """Change the limit of a MIG's VMs, as Google does on request."""
        self._supply.most_vms = vms

    def set_reservation(
        self,
        reservation: str,
        machine_type: str,
        vms: int,
        ready: bool = True,
        hours: float | None = None,
    ) -> None:
        """Create or change a reservation for ``vms`` VMs of a machine type.

        With ``hours`` it is in calendar mode: it ends after so many, and ends its VMs.
        """
        used = self._supply.reservations.get(reservation, Reservation("", 0)).used
        end = self._context.clock.now() + timedelta(hours=hours) if hours is not None else None
        self._supply.reservations[reservation] = Reservation(machine_type, vms, ready, used, end)
        for vm in self._resources.instances.store:
            if vm.order.reserved_only and vm.order.reservation == reservation:
                vm.limit_run()
        self._resources.groups.retry_creation()

    def remove_reservation(self, reservation: str) -> None:
        """Delete a reservation."""
        self._supply.reservations.pop(reservation, None)

    def remove_resource(self, resource: str, removed: bool = True) -> None:
        """Remove an image, network or subnetwork, or restore it."""
        switch(self._supply.missing, resource, removed)
        self._resources.groups.retry_creation()

    def fill_subnetwork(self, subnetwork: str, full: bool = True) -> None:
        """Use up the addresses of a subnetwork, or free them."""
        switch(self._supply.full_subnetworks, subnetwork, full)
        self._resources.groups.retry_creation()

    def set_org_policy(self, project: str, constraint: str = "") -> None:
        """Forbid new VMs in a project by an organization policy; without a constraint, allow them."""
        self._supply.constraints[project] = constraint
        self._resources.groups.retry_creation()

    # calls

    def fail_operations(
        self,
        verbs: str,
        operations: int = 1,
        code: str = "INTERNAL_ERROR",
        message: str = "",
        http: int = 500,
    ) -> None:
        """Let the next matching operations fail without a change.

        Of a VM's operations, only inserts and setMetadata can fail.
        """
        log = LOG_STATUSES.get(http, FAILED_PRECONDITION)
        error = OperationError(code, message or INTERNAL_ERROR.message, http, log)
        self.plan.add_failure(verbs, operations, error)

    def rate_limit(self, calls: int = 0, seconds: float = 0.0, http: int = 403) -> None:
        """Reject the next calls, or all calls of the next seconds, because of the rate quota."""
        self.plan.limit_rate(calls, seconds, http)

    def set_rate_quota(self, requests: int | None = None) -> None:
        """Limit the calls a minute of each quota group of a project; without it, remove the limit.

        There are four quota groups: reads, and queries (mutations, and lists of a MIG's VMs), each
        regional and global. A limit starts again at each full minute.
        """
        self.plan.set_rate_quota(requests)

    def remove_permission(self, email: str, permission: str, removed: bool = True) -> None:
        """Take an IAM permission from a principal, or give it back.

        The service agent that creates a MIG's VMs is a principal, too:
        ``NUMBER@cloudservices.gserviceaccount.com``.
        """
        super().remove_permission(email, permission, removed)
        self._resources.groups.retry_creation()

    def disable_api(self, project: str, disabled: bool = True) -> None:
        """Disable the Compute Engine API in a project, or enable it."""
        self.plan.set_disabled(project, disabled)

    def hide_scope(self, scope: str, hidden: bool = True) -> None:
        """Let aggregated lists lack a scope (``zones/Z``, ``regions/R``) and say so, or have it again.

        Other calls reach it.
        """
        switch(self.plan.unreachable, scope, hidden)

    # the audit log

    def break_sinks(self, broken: bool = True) -> None:
        """Let log sinks drop all entries, as sinks without their permission do, or deliver again.

        Cloud Logging keeps the entries.
        """
        self._sinks_are_broken = broken

    # VMs and groups

    def preempt(self, instance: str) -> None:
        """Preempt a SPOT VM; one that is being created fails to start."""
        vm = self._find(instance)
        if vm.order.model != "SPOT":
            raise UnknownFault(f"{instance} is {vm.order.model}, only SPOT VMs are preempted")
        if vm.status == "RUNNING":
            vm.preempt()
        elif vm.status == "PROVISIONING":
            vm.fail(PREEMPTED_AT_START.error())
        else:
            raise UnknownFault(f"{instance} is {vm.status}")

    def host_error(self, instance: str) -> None:
        """Let the host of a VM fail."""
        self._find_running(instance).lose_host("compute.instances.hostError")

    def host_maintenance(self, instance: str) -> None:
        """Terminate a VM for the maintenance of its host; a TPU VM cannot migrate."""
        vm = self._find_running(instance)
        vm.lose_host("compute.instances.terminateOnHostMaintenance", principal="")

    def announce_maintenance(
        self, instance: str, hours: float = 24.0, ongoing: bool = False
    ) -> None:
        """Announce maintenance of a VM's host that begins in so many hours and takes four."""
        start = self._context.clock.now() + timedelta(hours=hours)
        announced = {
            "canReschedule": False,
            "maintenanceReasons": ["PLANNED_UPDATE"],
            "maintenanceStatus": "ONGOING" if ongoing else "PENDING",
            "type": "SCHEDULED",
            "windowStartTime": links.pacific(start),
            "latestWindowStartTime": links.pacific(start),
            "windowEndTime": links.pacific(start + timedelta(hours=4)),
        }
        message = f"Maintenance is {'ongoing' if ongoing else 'scheduled'}"
        self._find(instance).set_maintenance(announced, message)

    def end_maintenance(self, instance: str) -> None:
        """Report that a VM's maintenance is completed."""
        self._find(instance).set_maintenance(None, "Maintenance is completed")

    def act_as_user(self, method: str, path: str, body: Document | None = None) -> Document:
        """Make a call as a person with all permissions: ``act_as_user("DELETE", vm)``.

        ``path`` is a resource, optionally with a verb (``.../reset``).
        Returns the answer, or raises `Refused`.
        """
        return self._act(PERSON, method, path, body)

    def use_group(self, group: str, backend_service: str = "") -> None:
        """Let a backend service use a MIG, so that it cannot be deleted; without one, end that."""
        found = self._resources.groups.store.find(group)
        if found is None:
            raise UnknownFault(f"there is no {group}")
        found.backend_service = backend_service

    def break_interconnect(self, group: str, outcome: str = "NEVER") -> None:
        """Let the interconnect of a MIG's slice never come up (``NEVER``), or fail (``FAILED``).

        ``ACTIVE`` lets the next one come up.
        """
        self.plan.set_interconnect(group, outcome)

    def _find(self, path: str) -> Instance:
        instance = self._resources.instances.store.find(path)
        if instance is None:
            raise UnknownFault(f"there is no {path}")
        return instance

    def _find_running(self, path: str) -> Instance:
        instance = self._find(path)
        if instance.status != "RUNNING":
            raise UnknownFault(f"{path} is {instance.status}")
        return instance


def _list(names: Iterable[str]) -> str:
    known = sorted(set(names))
    return f"one of {', '.join(known)}" if known else ""


def _path(*forms: str) -> Valid:
    """The paths of these forms, whose capitals stand for names."""
    pattern = re.compile("|".join(re.sub(r"\b[A-Z]\b", "[^/]+", form) for form in forms))
    return Valid(pattern.fullmatch, " or ".join(forms))
