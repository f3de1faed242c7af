"""Faults on demand: what goes wrong in the simulated Compute Engine, and when.

Every public method of `Faults` is a fault. The same can be asked for over HTTP by POST to
``/_simulator/<method>`` with its arguments as a JSON object. Verbs are those of the call log, such
as ``instances.setMetadata``; patterns as in a shell match many (``instances.*``, ``*.delete``).
Resources are named by their path, ``projects/P/zones/Z/instances/N``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from local.controls import UnknownFault
from local.gce.calls import Caller, Principal, Route
from local.gce.instance import Instance
from local.gce.refusals import (
    API_DISABLED,
    BACKEND_ERROR,
    FAILED_PRECONDITION,
    INTERNAL_ERROR,
    LOG_STATUSES,
    PREEMPTED_AT_START,
    RATE_LIMITED,
    RATE_LIMITED_429,
    OperationError,
    Refused,
)
from local.gce.schema import Document
from local.gce.supply import Reservation
from local.planned import Planned, Slowness

if TYPE_CHECKING:
    from local.gce.world import World

PERSON = Caller(Principal("alice@example.com"), "google-cloud-sdk gcloud/540.0.0,gzip(gfe)")
"""Somebody who changes things by hand."""


class Faults:
    """Makes things go wrong."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._refusals = Planned[Refused]()
        self._lost_answers = Planned[Refused]()
        self._errors = Planned[OperationError]()
        self._slow = Slowness()
        self._rate_limited_calls = 0
        self._rate_limited_until = datetime.min
        self._rate_limit_http = 403
        self._rate_quota: int | None = None
        self._minute = datetime.min
        self._calls_of_minute: Counter[tuple[str, bool]] = Counter()
        self._denied: defaultdict[str, set[str]] = defaultdict(set)
        self._disabled: set[str] = set()
        self._wiring: dict[str, str] = {}

    # supply

    def set_capacity(self, zone: str, family: str, vms: int | None = None) -> None:
        """A zone has room for ``vms`` VMs of a machine family in all; without it, for any number.

        VMs that run already stay. Groups that wait look again at once.
        """
        self._world.supply.limit_hosts(zone, family, vms)
        self._world.groups.look_again()

    def set_chip_quota(self, region: str, family: str, chips: int | None = None) -> None:
        """The project may have so many TPU chips of a family in a region; without it, any number."""
        self._world.supply.limit_chips(region, family, chips)
        self._world.groups.look_again()

    def set_count_quota(self, collection: str, count: int | None = None) -> None:
        """A project may have so many ``resourcePolicies``, ``instanceTemplates``, and so on."""
        self._world.supply.limit_count(collection, count)

    def set_reservation(
        self, reservation: str, machine_type: str, vms: int, ready: bool = True
    ) -> None:
        """A reservation exists: for ``vms`` VMs of one machine type."""
        used = self._world.supply.reservations.get(reservation, Reservation("", 0)).used
        self._world.supply.reservations[reservation] = Reservation(machine_type, vms, ready, used)
        self._world.groups.look_again()

    def remove_reservation(self, reservation: str) -> None:
        """A reservation exists no more."""
        self._world.supply.reservations.pop(reservation, None)

    def remove_resource(self, resource: str, removed: bool = True) -> None:
        """An image, network or subnetwork does not exist, or exists again."""
        _switch(self._world.supply.missing, resource, removed)
        self._world.groups.look_again()

    def fill_subnetwork(self, subnetwork: str, full: bool = True) -> None:
        """A subnetwork has no free address, or has some again."""
        _switch(self._world.supply.full_subnetworks, subnetwork, full)
        self._world.groups.look_again()

    def set_org_policy(self, project: str, constraint: str = "") -> None:
        """An organization policy forbids every new VM of a project; without one, none does."""
        self._world.supply.constraints[project] = constraint
        self._world.groups.look_again()

    # calls

    def fail_next(
        self,
        verbs: str,
        calls: int = 1,
        http: int = 503,
        reason: str = "backendError",
        message: str = "",
        carried_out: bool = False,
    ) -> None:
        """The next so many calls that match are refused.

        With ``carried_out`` each is done first and only its answer is lost.
        """
        log = LOG_STATUSES.get(http, FAILED_PRECONDITION)
        refused = Refused(http, reason, message or BACKEND_ERROR.message, log=log)
        (self._lost_answers if carried_out else self._refusals).add(verbs, calls, refused)

    def fail_operations(
        self,
        verbs: str,
        operations: int = 1,
        code: str = "INTERNAL_ERROR",
        message: str = "",
        http: int = 500,
    ) -> None:
        """The next so many operations that match end in an error and change nothing.

        Of a VM's operations, inserts and setMetadata can.
        """
        log = LOG_STATUSES.get(http, FAILED_PRECONDITION)
        error = OperationError(code, message or INTERNAL_ERROR.message, http, log)
        self._errors.add(verbs, operations, error)

    def slow_operations(self, verbs: str, seconds: float) -> None:
        """Operations that match take so much longer from now on; 0 ends it."""
        self._slow.set(verbs, seconds)

    def rate_limit(self, calls: int = 0, seconds: float = 0.0, http: int = 403) -> None:
        """The next so many calls, or all of the next so many seconds, exceed the rate quota."""
        self._rate_limited_calls = calls
        self._rate_limited_until = self._world.clock.now() + timedelta(seconds=seconds)
        self._rate_limit_http = http

    def set_rate_quota(self, requests: int | None = None) -> None:
        """A project may make so many calls a minute of each quota group; without it, any number.

        Groups are reads and queries (what changes something, and what asks a group about its VMs),
        of regions and of the project each. They are filled up at every full minute.
        """
        self._rate_quota = requests

    def remove_permission(self, email: str, permission: str, removed: bool = True) -> None:
        """A principal has lost an IAM permission, or has it again.

        The groups' agent is a principal too: ``NUMBER@cloudservices.gserviceaccount.com``.
        """
        _switch(self._denied[email], permission, removed)
        self._world.groups.look_again()

    def disable_api(self, project: str, disabled: bool = True) -> None:
        """The Compute Engine API is not enabled in a project, or is again."""
        _switch(self._disabled, project, disabled)

    def forget_operations(self) -> None:
        """Operations that are DONE are known no more."""
        self._world.operations.forget()

    # VMs and groups

    def preempt(self, instance: str) -> None:
        """A SPOT VM is taken back; one that is still being made fails to start."""
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

    def guest_shutdown(self, instance: str) -> None:
        """Somebody shuts a VM down from within."""
        self._find_running(instance).shut_down_by_guest()

    def act_by_hand(self, method: str, path: str, body: Document | None = None) -> Document:
        """A person with all permissions makes a call: ``act_by_hand("DELETE", vm)``.

        ``path`` is that of a resource, perhaps with a verb and a query (``.../resize?size=2``).
        Returns the answer, or raises `Refused`.
        """
        return self._world.act(PERSON, method, path, body)

    def use_group(self, group: str, backend_service: str = "") -> None:
        """A backend service uses a group, which can then not be deleted; without one, none does."""
        found = self._world.groups.shelf.find(group)
        if found is None:
            raise UnknownFault(f"there is no {group}")
        found.backend_service = backend_service

    def break_wiring(self, group: str, outcome: str = "NEVER") -> None:
        """The slice of a group is never wired (``NEVER``), or that fails (``FAILED``).

        ``ACTIVE`` mends it for the next time.
        """
        self._wiring[group] = outcome

    # what the simulator asks

    def refuse(self, route: Route, project: str) -> None:
        """Raise `Refused` when the next call is to fail before it is read."""
        number = self._world.projects[project]
        if project in self._disabled:
            raise API_DISABLED.refused(number=number)
        now = self._world.clock.now()
        window = self._rate_limited_until != datetime.min and now < self._rate_limited_until
        if window or self._rate_limited_calls > 0:
            self._rate_limited_calls -= 0 if window else 1
            raise self._rate_limit_refusal(route, number)
        if self._rate_quota is not None and self._count(route, now) > self._rate_quota:
            raise self._rate_limit_refusal(route, number)

    def _count(self, route: Route, now: datetime) -> int:
        """How many calls of this one's quota group the present minute has seen."""
        minute = now.replace(second=0, microsecond=0)
        if minute != self._minute:
            self._minute = minute
            self._calls_of_minute.clear()
        group = _metric(route), " global " in route.pattern
        self._calls_of_minute[group] += 1
        return self._calls_of_minute[group]

    def _rate_limit_refusal(self, route: Route, number: str) -> Refused:
        if self._rate_limit_http == 429:
            return RATE_LIMITED_429.refused()
        return RATE_LIMITED.refused(metric=_metric(route), number=number)

    def take_refusal(self, verb: str, *, carried_out: bool) -> Refused | None:
        """The refusal that is planned for a call of this verb, used up by asking."""
        return (self._lost_answers if carried_out else self._refusals).take(verb)

    def take_operation_error(self, verb: str) -> OperationError | None:
        """The error that is planned for an operation of this verb, used up by asking."""
        return self._errors.take(verb)

    def slowness(self, verb: str) -> float:
        """How many seconds longer an operation of this verb takes."""
        return self._slow.of(verb)

    def denied_to(self, email: str) -> frozenset[str]:
        """The permissions that a principal has lost."""
        return frozenset(self._denied.get(email, ()))

    def wiring_outcome(self, group: str) -> str:
        """The state that a slice's wiring ends in; empty when it never ends."""
        outcome = self._wiring.get(group, "ACTIVE")
        return "" if outcome == "NEVER" else outcome

    def _find(self, path: str) -> Instance:
        instance = self._world.instances.shelf.find(path)
        if instance is None:
            raise UnknownFault(f"there is no {path}")
        return instance

    def _find_running(self, path: str) -> Instance:
        instance = self._find(path)
        if instance.status != "RUNNING":
            raise UnknownFault(f"{path} is {instance.status}")
        return instance


def _metric(route: Route) -> str:
    """The rate quota that a call counts against, as Compute Engine's page on rate quotas has it."""
    asks_group = route.verb.endswith((".listManagedInstances", ".listErrors"))
    return "Queries" if route.writes or asks_group else "Read requests"


def _switch(items: set[str], item: str, on: bool) -> None:
    if on:
        items.add(item)
    else:
        items.discard(item)
