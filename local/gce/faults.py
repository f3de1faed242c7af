"""Faults that can be injected into the simulated Compute Engine.

Every public method of `Faults` is a fault. Over HTTP, it is a POST to ``/_simulator/<method>`` with its
arguments as a JSON object. Verbs are those of the call log, such
as ``instances.setMetadata``; patterns as in a shell match many (``instances.*``, ``*.delete``).
Resources are named by their path, ``projects/P/zones/Z/instances/N``.
"""

from __future__ import annotations

from collections.abc import Callable

from local.base.controls import UnknownFault
from local.base.faults import FaultControls, switch
from local.gce.callers import Caller, Principal
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
from local.gce.supply import Reservation

Act = Callable[[Caller, str, str, Document | None], Document]
"""Makes a call as a caller: caller, HTTP method, path, body."""

PERSON = Caller(Principal("alice@example.com"), "google-cloud-sdk gcloud/540.0.0,gzip(gfe)")
"""A person who makes changes manually."""


class Faults(FaultControls[Refused, OperationError]):
    """Injects faults."""

    plan: ComputeFaultPlan

    def __init__(self, context: Context, resources: Resources, act: Act) -> None:
        super().__init__(context.fault_plan, context.operations.forget)
        self._supply = context.supply
        self._resources = resources
        self._act = act
        self._sinks_are_broken = False

    @property
    def sinks_are_broken(self) -> bool:
        """Whether log sinks lose all entries."""
        return self._sinks_are_broken

    def _make_refusal(self, http: int, reason: str, message: str) -> Refused:
        log = LOG_STATUSES.get(http, FAILED_PRECONDITION)
        return Refused(http, reason, message or BACKEND_ERROR.message, log=log)

    # supply

    def set_capacity(self, zone: str, family: str, vms: int | None = None) -> None:
        """A zone has room for ``vms`` VMs of a machine family in all; without it, for any number.

        Running VMs stay. Groups that wait retry immediately.
        """
        self._supply.limit_hosts(zone, family, vms)
        self._resources.groups.retry_creation()

    def set_chip_quota(self, region: str, family: str, chips: int | None = None) -> None:
        """The project may have so many TPU chips of a family in a region; without it, any number."""
        self._supply.limit_chips(region, family, chips)
        self._resources.groups.retry_creation()

    def set_count_quota(self, collection: str, count: int | None = None) -> None:
        """A project may have so many ``resourcePolicies``, ``instanceTemplates``, and so on."""
        self._supply.limit_count(collection, count)

    def set_reservation(
        self, reservation: str, machine_type: str, vms: int, ready: bool = True
    ) -> None:
        """A reservation exists: for ``vms`` VMs of one machine type."""
        used = self._supply.reservations.get(reservation, Reservation("", 0)).used
        self._supply.reservations[reservation] = Reservation(machine_type, vms, ready, used)
        self._resources.groups.retry_creation()

    def remove_reservation(self, reservation: str) -> None:
        """A reservation does not exist any more."""
        self._supply.reservations.pop(reservation, None)

    def remove_resource(self, resource: str, removed: bool = True) -> None:
        """An image, network or subnetwork does not exist, or exists again."""
        switch(self._supply.missing, resource, removed)
        self._resources.groups.retry_creation()

    def fill_subnetwork(self, subnetwork: str, full: bool = True) -> None:
        """A subnetwork has no free address, or has some again."""
        switch(self._supply.full_subnetworks, subnetwork, full)
        self._resources.groups.retry_creation()

    def set_org_policy(self, project: str, constraint: str = "") -> None:
        """An organization policy forbids every new VM of a project; without one, none does."""
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
        """The next so many operations that match end in an error and change nothing.

        Of a VM's operations, only inserts and setMetadata can fail.
        """
        log = LOG_STATUSES.get(http, FAILED_PRECONDITION)
        error = OperationError(code, message or INTERNAL_ERROR.message, http, log)
        self.plan.add_failure(verbs, operations, error)

    def rate_limit(self, calls: int = 0, seconds: float = 0.0, http: int = 403) -> None:
        """The next so many calls, or all of the next so many seconds, exceed the rate quota."""
        self.plan.limit_rate(calls, seconds, http)

    def set_rate_quota(self, requests: int | None = None) -> None:
        """A project may make so many calls a minute of each quota group; without it, any number.

        Quota groups are reads and queries (changes, and reads of a group's VMs), each for regions
        and for the project. They are refilled at every full minute.
        """
        self.plan.set_rate_quota(requests)

    def remove_permission(self, email: str, permission: str, removed: bool = True) -> None:
        """A principal has lost an IAM permission, or has it again.

        The groups' agent is a principal too: ``NUMBER@cloudservices.gserviceaccount.com``.
        """
        super().remove_permission(email, permission, removed)
        self._resources.groups.retry_creation()

    def disable_api(self, project: str, disabled: bool = True) -> None:
        """The Compute Engine API is not enabled in a project, or is again."""
        self.plan.set_disabled(project, disabled)

    # the audit log

    def break_sinks(self, broken: bool = True) -> None:
        """Log sinks lose all entries, as sinks without their permission do, or work again.

        Cloud Logging keeps the entries.
        """
        self._sinks_are_broken = broken

    # VMs and groups

    def preempt(self, instance: str) -> None:
        """A SPOT VM is preempted; one that is still being created fails to start."""
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
        """The host of a VM fails."""
        self._find_running(instance).lose_host("compute.instances.hostError")

    def host_maintenance(self, instance: str) -> None:
        """The host of a VM is maintained; a TPU VM cannot move."""
        vm = self._find_running(instance)
        vm.lose_host("compute.instances.terminateOnHostMaintenance", principal="")

    def act_by_hand(self, method: str, path: str, body: Document | None = None) -> Document:
        """A person with all permissions makes a call: ``act_by_hand("DELETE", vm)``.

        ``path`` is that of a resource, perhaps with a verb (``.../reset``).
        Returns the answer, or raises `Refused`.
        """
        return self._act(PERSON, method, path, body)

    def use_group(self, group: str, backend_service: str = "") -> None:
        """A backend service uses a group, which prevents its deletion; without one, none does."""
        found = self._resources.groups.store.find(group)
        if found is None:
            raise UnknownFault(f"there is no {group}")
        found.backend_service = backend_service

    def break_wiring(self, group: str, outcome: str = "NEVER") -> None:
        """The activation of a slice's interconnect never ends (``NEVER``), or fails (``FAILED``).

        ``ACTIVE`` ends the fault for the next activation.
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
