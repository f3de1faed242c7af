"""One VM: its status from PROVISIONING to its end, its metadata, its agent.

The VM agent is created at the first boot and stays until the VM is deleted: it is the boot disk too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Protocol

from local.base.clock import Callback, Timer
from local.base.machine import VmAgent
from local.gce import links
from local.gce.callers import Caller, Principal
from local.gce.context import Context
from local.gce.instance_document import read_items, render_fixed
from local.gce.operation import Operation
from local.gce.refusals import CANCELED, OperationError
from local.gce.schema import Document
from local.gce.store import Store
from local.gce.supply import Order
from local.gce.templates import metadata_document
from local.gce.timings import Range

SYSTEM = Caller(Principal("system@google.com"))


class Owner(Protocol):
    """The group of a VM."""

    def vm_running(self, instance: Instance) -> None:
        """Handle a VM that runs, for the first time or again."""

    def vm_failed(self, instance: Instance, error: OperationError) -> None:
        """Handle a VM that could not be created."""

    def vm_down(self, instance: Instance) -> None:
        """Handle a VM that has stopped."""

    def vm_paused(self, instance: Instance) -> None:
        """Handle a VM that has stopped and that Compute Engine restarts."""

    def vm_gone(self, instance: Instance) -> None:
        """Handle a VM that is deleted."""


@dataclass(frozen=True)
class Ownership:
    """The owner of a VM: a group, or ``None``.

    ``grants``: the owner grants FLEX_START VMs their hosts, all or none.
    """

    owner: Owner | None = None
    grants: bool = False


class Instance:
    """One VM, its agent's `local.base.machine.Machine`. ``store`` holds it while it exists."""

    def __init__(
        self,
        context: Context,
        store: Store[Instance],
        path: str,
        properties: Document,
        order: Order,
        ownership: Ownership,
        *,
        address: str,
        instance_id: str = "",
    ) -> None:
        self._context = context
        self._store = store
        self._ownership = ownership
        self.path = path
        self.id = instance_id or links.numeric_id(context.random)
        self.order = order
        self.properties = properties
        self.status = "PROVISIONING"
        self.readable = True
        self.busy: Operation | None = None
        self.leaving = False
        self.metadata = read_items(properties)
        self.serial_output = ""
        self.guest_attributes: dict[tuple[str, str], str] = {}
        self._shown = self.metadata
        self._agent: VmAgent | None = None
        self._powered = False
        self._on_host = False
        self._timer: Timer | None = None
        self._transition: Operation | None = None
        self._run_limit: Timer | None = None
        self._ends: datetime | None = None
        self._maintenance: Document | None = None
        self._started: datetime | None = None
        self._stopped: datetime | None = None
        self._fixed = render_fixed(path, self.id, context.clock.now(), properties, order, address)

    # the interface for the VM agent

    @property
    def project(self) -> str:
        """The project's id."""
        return self.order.project

    @property
    def zone(self) -> str:
        """The zone's name."""
        return self.order.zone

    @property
    def name(self) -> str:
        """The instance's name."""
        return links.name_of(self.path)

    @property
    def machine_type(self) -> str:
        """The bare machine type."""
        return self.order.machine_type

    @property
    def image(self) -> str:
        """The path of the boot disk's image."""
        return self.order.image

    def attributes(self) -> Mapping[str, str]:
        """The metadata attributes as the metadata server shows them now."""
        return MappingProxyType(self._shown)

    def write_serial(self, text: str) -> None:
        """Write to serial port 1."""
        self.serial_output += text

    def set_guest_attribute(self, namespace: str, key: str, value: str) -> None:
        """Write a guest attribute."""
        self.guest_attributes[namespace, key] = value

    # the API's document

    def document(self) -> Document:
        """The resource in responses."""
        document = {
            **self._fixed,
            "status": self.status,
            "metadata": metadata_document(self.metadata),
            "fingerprint": links.fingerprint((self.id, self.status)),
        }
        status = dict(self._fixed["resourceStatus"])
        if self._maintenance is not None:
            status["upcomingMaintenance"] = self._maintenance
        if self._ends is not None:
            status["scheduling"] = {"terminationTimestamp": links.pacific(self._ends)}
        document["resourceStatus"] = status
        if self._started is not None:
            document["lastStartTimestamp"] = links.pacific(self._started)
        if self._stopped is not None:
            document["lastStopTimestamp"] = links.pacific(self._stopped)
        return document

    def set_maintenance(self, maintenance: Document | None, message: str) -> None:
        """Announce maintenance of the host (``UpcomingMaintenance``), or end it. The entry is that of
        Google's page on host events; its ``metadata`` has the same fields."""
        self._maintenance = maintenance
        self._context.audit.write_system_event(
            "compute.instances.upcomingMaintenance",
            self.path,
            self.id,
            message=message,
            metadata={"upcomingMaintenance": maintenance} if maintenance else None,
        )

    # lifecycle

    def create(self, operation: Operation) -> None:
        """Begin the creation. A FLEX_START VM is PENDING until it is granted."""
        self.busy = self._transition = operation
        self._store.put(self)
        if self.order.model != "FLEX_START":
            self.provision()
            return
        self.status = "PENDING"
        if not self._ownership.grants:
            self._after(self._context.timings.flex_start_grant_s, self._ask_for_grant)

    def _ask_for_grant(self) -> None:
        if self._context.supply.find_obstacle(self.order) is None:
            self.provision()
        else:
            self._after(self._context.timings.bulk_check_s, self._ask_for_grant)

    def provision(self) -> None:
        """Take a host and start, or fail."""
        self.status = "PROVISIONING"
        obstacle = self._context.supply.find_obstacle(self.order)
        if obstacle is not None:
            self._after(self._context.timings.failed_insert_s, lambda: self.fail(obstacle))
            return
        self._take_host()
        self._after(self._operation_time("instances.insert"), self._created)

    def _created(self) -> None:
        error = self._context.fault_plan.take_failure("instances.insert")
        if error is not None:
            self.fail(error)
            return
        self._context.audit.write_location(self.path, self.id)
        self._boot()

    def fail(self, error: OperationError) -> None:
        """Fail the insert and remove the VM."""
        self._remove()
        self._finish_transition(error)
        if self._ownership.owner is not None:
            self._ownership.owner.vm_failed(self, error)

    def _boot(self) -> None:
        """Start the VM agent: STAGING, the operation's end, RUNNING."""
        self.status = "STAGING"
        self.busy = None
        self._finish_transition()
        self._after(self._context.timings.running_after_insert_s, self._running)

    def _running(self) -> None:
        self.status = "RUNNING"
        self._started = self._context.clock.now()
        self.limit_run()
        self.power_on()
        if self._ownership.owner is not None:
            self._ownership.owner.vm_running(self)

    def limit_run(self) -> None:
        """Set the end of a VM that runs: that of its ``maxRunDuration`` or of its reservation. That
        ``terminationTimestamp`` has the latter is assumed."""
        if self.status != "RUNNING" or self._started is None:
            return
        limit = self.properties["scheduling"].get("maxRunDuration")
        after = timedelta(seconds=float(limit.get("seconds", 0))) if limit else None
        ends = (self._started + after if after else None, self._context.supply.find_end(self.order))
        if self._run_limit is not None:
            self._run_limit.cancel()
        self._ends = min(filter(None, ends), default=None)
        if self._ends is not None:
            seconds = max(0.0, (self._ends - self._context.clock.now()).total_seconds())
            self._run_limit = self._context.clock.call_later(seconds, self._run_is_over)

    def _run_is_over(self) -> None:
        """Handle the end of the run. Its log entries are assumed."""
        verb = "instances.delete" if self._ends_by_delete() else "instances.stop"
        operation = self._context.operations.begin(SYSTEM, verb, self.path, self.id)
        if self._ends_by_delete():
            self.delete(operation)
        else:
            self.stop(operation)

    def _ends_by_delete(self) -> bool:
        action: str = self.properties["scheduling"].get("instanceTerminationAction", "STOP")
        return action == "DELETE"

    def delete(self, operation: Operation) -> None:
        """Begin the deletion, in any state."""
        self._begin_stop()
        self.busy = self._transition = operation
        self.leaving = True
        self._after(self._operation_time("instances.delete"), self._end)

    def stop(self, operation: Operation) -> None:
        """Begin the stop."""
        self._begin_stop()
        self.busy = self._transition = operation
        self._after(self._operation_time("instances.stop"), self._finish_stop)
        if self._ownership.owner is not None:
            self._ownership.owner.vm_down(self)

    def start(self, operation: Operation) -> None:
        """Begin the start, if the VM is TERMINATED."""
        if self.status != "TERMINATED":
            self._context.operations.finish(operation)
            return
        self.busy = self._transition = operation
        obstacle = self._context.supply.find_obstacle(self.order)
        if obstacle is not None:
            self._after(
                self._context.timings.failed_insert_s, lambda: self._fail_to_start(obstacle)
            )
            return
        self._take_host()
        self.status = "STAGING"
        self._after(self._operation_time("instances.start"), self._boot)

    def _fail_to_start(self, error: OperationError) -> None:
        self.busy = None
        self._finish_transition(error)

    def preempt(self) -> None:
        """Preempt the VM: a system event, then TERMINATED or deleted."""
        self._context.audit.write_system_event("compute.instances.preempted", self.path, self.id)
        self._begin_stop()
        if self._ends_by_delete():
            self.leaving = True
            self._after(self._context.timings.preemption_s, self._end)
        else:
            self._after(self._context.timings.preemption_s, self._finish_stop)
        if self._ownership.owner is not None:
            self._ownership.owner.vm_down(self)

    def _end(self) -> None:
        self._remove()
        self._finish_transition()
        if self._ownership.owner is not None:
            self._ownership.owner.vm_gone(self)

    def lose_host(self, method: str, principal: str = SYSTEM.email) -> None:
        """Stop because of the host; a VM with ``automaticRestart`` restarts."""
        self._context.audit.write_system_event(method, self.path, self.id, principal=principal)
        self._begin_stop()
        owner = self._ownership.owner
        if not self.properties["scheduling"]["automaticRestart"]:
            self._finish_stop()
            if owner is not None:
                owner.vm_down(self)
            return
        self.status = "REPAIRING"
        self._after(self._context.timings.automatic_restart_after_s, self._restart)
        if owner is not None:
            owner.vm_paused(self)

    def _restart(self) -> None:
        self._context.audit.write_system_event(
            "compute.instances.automaticRestart", self.path, self.id, principal=""
        )
        self._boot()

    def release(self, operation: Operation) -> bool:
        """Release the VM from an operation; false if another operation has taken it over."""
        mine = self.busy is operation
        if mine:
            self.busy = None
        return mine

    # metadata and power

    def set_metadata(self, items: dict[str, str]) -> None:
        """Replace the metadata; the VM agent sees it a little later."""
        self.metadata = items
        self._context.later(self._context.timings.metadata_propagation_s, lambda: self._show(items))

    def _show(self, items: dict[str, str]) -> None:
        if items is not self.metadata or items is self._shown:
            return
        self._shown = items
        if self._powered and self._agent is not None:
            self._agent.metadata_changed()

    def power_on(self) -> None:
        """Boot the VM agent with the current metadata."""
        self._shown = self.metadata
        self._powered = True
        if self._agent is None:
            self._agent = self._context.agents(self)
        self._agent.power_on()

    def power_off(self) -> None:
        """Take the power from the VM agent, if it runs."""
        if self._powered and self._agent is not None:
            self._powered = False
            self._agent.power_off()

    def _begin_stop(self) -> None:
        self._cancel_timers()
        self._ends = None
        self._finish_transition(CANCELED.error())
        self.power_off()
        self.status = "STOPPING"

    def _finish_stop(self) -> None:
        self.busy = None
        self.status = "TERMINATED"
        self._stopped = self._context.clock.now()
        self._release_host()
        self._finish_transition()

    def _remove(self) -> None:
        self._cancel_timers()
        self.busy = None
        self.leaving = True
        self._release_host()
        self._store.drop(self)

    def _finish_transition(self, error: OperationError | None = None) -> None:
        """End the operation of the current transition, if it has one."""
        operation, self._transition = self._transition, None
        if operation is not None:
            self._context.operations.finish(operation, error)

    def _take_host(self) -> None:
        self._on_host = True
        self._context.supply.take(self.order)

    def _release_host(self) -> None:
        if self._on_host:
            self._on_host = False
            self._context.supply.give_back(self.order)

    def _operation_time(self, verb: str) -> Range:
        low, high = self._context.timings.operation(verb)
        slower = self._context.fault_plan.slowness(verb)
        return low + slower, high + slower

    def _after(self, delay_s: Range, callback: Callback) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._context.later(delay_s, callback)

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._run_limit):
            if timer is not None:
                timer.cancel()
