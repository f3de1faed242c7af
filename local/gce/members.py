"""The VMs of a managed instance group: creation, loss, repair, deletion.

INDIVIDUAL: each VM is created and retried by itself. BULK: nothing is created until there is
capacity for all; until then the group retries without a log entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from local.base.clock import Timer
from local.gce import links
from local.gce.context import Context
from local.gce.group_settings import GroupSettings
from local.gce.instance import Instance, Ownership
from local.gce.refusals import OperationError
from local.gce.schema import Document
from local.gce.vm_factory import VmFactory

_REMEMBERED_ERRORS = 100
_FALLEN = frozenset({"STOPPING", "TERMINATED"})


class Member:
    """One managed instance: a name, and a VM when there is one.

    ``version`` is the path of its template.
    """

    __slots__ = (
        "action",
        "attempts",
        "error",
        "instance",
        "instance_id",
        "name",
        "timer",
        "version",
    )

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version
        self.action = "CREATING"
        self.instance: Instance | None = None
        self.instance_id = ""
        self.attempts = 0
        self.error: OperationError | None = None
        self.timer: Timer | None = None

    def cancel_timer(self) -> None:
        """Cancel the timer."""
        if self.timer is not None:
            self.timer.cancel()


class Members:
    """All managed instances of one group. It is the `local.gce.instance.Owner` of their VMs.

    ``on_change`` is called when VMs are created or deleted, ``on_emptied`` when the last member is gone.
    """

    def __init__(
        self,
        context: Context,
        vms: VmFactory,
        group: GroupSettings,
        on_change: Callable[[], None],
        on_emptied: Callable[[], None],
    ) -> None:
        self._context = context
        self._vms = vms
        self._group = group
        self._on_change = on_change
        self._on_emptied = on_emptied
        self._members: dict[str, Member] = {}
        self._check: Timer | None = None
        self._not_before = context.clock.now()
        self.bulk_in_progress = False
        self.checked_at: datetime | None = None
        self.obstacle: OperationError | None = None
        self.errors: list[Document] = []

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def find(self, name: str) -> Member | None:
        """Find a member by name."""
        return self._members.get(name)

    @property
    def all_run(self) -> bool:
        """Whether every VM is RUNNING, and there are some."""
        return bool(self._members) and all(
            member.instance is not None and member.instance.status == "RUNNING" for member in self
        )

    @property
    def settled(self) -> bool:
        """Whether no change is in progress or planned."""
        return not self.bulk_in_progress and all(member.action == "NONE" for member in self)

    # growing

    def grow(self, count: int) -> None:
        """Add members and begin the creation of their VMs."""
        new = [self._add() for _ in range(count)]
        if not new:
            return
        if not self._group.is_bulk:
            for member in new:
                self._make(member)
            return
        self.bulk_in_progress = True
        self.obstacle = None
        if self._group.model == "FLEX_START":
            for member in new:
                self._make(member)
            self._wait_for_grant()
        else:
            self.retry_creation()

    def _wait_for_grant(self) -> None:
        delay = self._context.draw(self._context.timings.flex_start_grant_s)
        self._not_before = self._context.clock.now() + timedelta(seconds=delay)
        self._check = self._context.clock.call_later(delay, self.retry_creation)

    def _add(self) -> Member:
        name = self._vms.draw_name(self._members)
        member = self._members[name] = Member(name, self._group.template)
        return member

    def retry_creation(self) -> None:
        """In BULK mode: create all VMs if there is capacity for all."""
        waiting = [member for member in self if self._waits(member)]
        if not self.bulk_in_progress or not waiting or self._context.clock.now() < self._not_before:
            return
        if self._check is not None:
            self._check.cancel()
        self.checked_at = self._context.clock.now()
        order = self._vms.read_order(waiting[0].version)
        self.obstacle = self._context.supply.find_obstacle(order, len(waiting), bulk=True)
        if self.obstacle is not None:
            self._check = self._context.later(
                self._context.timings.bulk_check_s, self.retry_creation
            )
            return
        for member in waiting:
            if member.instance is None:
                self._make(member)
            else:
                member.instance.provision()

    def _waits(self, member: Member) -> bool:
        if member.action != "CREATING" or member.attempts:
            return False
        return member.instance is None or member.instance.status == "PENDING"

    def _make(self, member: Member) -> None:
        """Begin the insert of a member's VM as the service agent."""
        owner = Ownership(self, grants=self._group.is_bulk)
        member.instance = self._vms.make(member.name, member.version, owner, member.instance_id)
        member.instance.create(self._vms.log_insert(member.instance))

    # what VMs report

    def vm_running(self, instance: Instance) -> None:
        """Handle a VM that runs, for the first time or again."""
        member = self._members.get(instance.name)
        if member is None or member.action == "DELETING":
            return
        member.cancel_timer()
        member.action = "NONE"
        member.attempts = 0
        member.error = None
        self._end_bulk_when_made()
        self._on_change()

    def vm_failed(self, instance: Instance, error: OperationError) -> None:
        """Handle a VM that could not be created: retry with exponential backoff."""
        member = self._members[instance.name]
        member.instance = None
        member.error = error
        self._remember(member, error)
        pause = self._context.draw(self._context.timings.create_retry_s) * 2**member.attempts
        limit = self._context.timings.create_retry_limit_s
        if pause < limit:
            member.attempts += 1
        member.timer = self._context.clock.call_later(min(pause, limit), lambda: self._make(member))

    def _remember(self, member: Member, error: OperationError) -> None:
        self.errors.append(
            {
                "timestamp": links.pacific(self._context.clock.now()),
                "error": error.document(),
                "instanceActionDetails": {
                    "action": member.action,
                    "instance": links.url(self._vms.path(member.name)),
                    "version": {"instanceTemplate": links.url(member.version)},
                },
            }
        )
        del self.errors[:-_REMEMBERED_ERRORS]

    def vm_paused(self, instance: Instance) -> None:
        """Handle a VM that will be restarted, in BULK mode together with the others."""
        others = [one.instance for one in self if one.instance is not instance]
        for other in others if self._group.is_bulk else ():
            if other is not None and other.status == "RUNNING":
                other.lose_host("compute.instances.instanceManagerHaltForRestart")
        self._on_change()

    def vm_down(self, instance: Instance) -> None:
        """Handle a VM that has stopped: repair it, if the group repairs."""
        self._on_change()
        self._plan_repair(instance)

    def vm_gone(self, instance: Instance) -> None:
        """Handle a VM that is deleted, by the group or not."""
        member = self._members.get(instance.name)
        if member is None:
            return
        member.cancel_timer()
        member.instance = None
        member.instance_id = instance.id if self._context.timings.repair_keeps_id else ""
        self._on_change()
        if member.action == "DELETING":
            self._forget(member)
        elif member.action == "RECREATING":
            self._make(member)
        else:
            self._plan_repair(instance)

    # repairing

    def _plan_repair(self, instance: Instance) -> None:
        member = self._members.get(instance.name)
        if member is None or member.action not in ("NONE", "CREATING"):
            return
        member.cancel_timer()
        member.action = "NONE"
        self._end_bulk_when_made()
        if not self._group.repairs:
            return
        member.timer = self._context.later(
            self._context.timings.repair_after_s, lambda: self._begin_repair(member)
        )

    def _begin_repair(self, member: Member) -> None:
        instance = member.instance
        if instance is not None and instance.status not in _FALLEN:
            return
        member.action = "RECREATING"
        if instance is None:
            self._make(member)
            return
        self._context.audit.write_system_event(
            "compute.instances.repair.recreateInstance",
            instance.path,
            instance.id,
            message=self._repair_message(instance),
        )
        member.timer = self._context.later(
            self._context.timings.repair_delete_after_s, lambda: self._replace(member)
        )

    def _repair_message(self, instance: Instance) -> str:
        return (
            f"Instance Group Manager '{self._context.numbered(self._group.path)}' initiated "
            f"recreateInstance on instance '{self._context.numbered(instance.path)}'. Reason: "
            f"Instance eligible for repair: instance should be RUNNING, but is {instance.status}."
        )

    def _replace(self, member: Member) -> None:
        if member.instance is None:
            self._make(member)
        elif not member.instance.leaving:
            self._delete_vm(member.instance)

    # shrinking

    @property
    def wanted(self) -> int:
        """The number of members that are not being deleted."""
        return sum(member.action != "DELETING" for member in self)

    def shrink(self, count: int) -> None:
        """Delete VMs, the last ones first."""
        members = [member for member in self if member.action != "DELETING"]
        for member in members[len(members) - count :]:
            member.cancel_timer()
            member.action = "DELETING"
            if member.instance is None:
                self._forget(member)
            elif not member.instance.leaving:
                self._delete_vm(member.instance)
        self._end_bulk_when_made()

    def _end_bulk_when_made(self) -> None:
        """End the bulk creation if all VMs are created."""
        if not self.bulk_in_progress or any(member.action == "CREATING" for member in self):
            return
        self.bulk_in_progress = False
        self.obstacle = None
        if self._check is not None:
            self._check.cancel()

    def _delete_vm(self, instance: Instance) -> None:
        operation = self._context.operations.begin(
            self._context.agent(self._group.project),
            "instances.delete",
            instance.path,
            instance.id,
            request={"requestId": self._context.uuid()},
        )
        instance.delete(operation)

    def _forget(self, member: Member) -> None:
        del self._members[member.name]
        if not self._members:
            self._on_emptied()

    # what the API shows

    def documents(self) -> list[Document]:
        """The managed instances in responses."""
        return [self._document(member) for member in self]

    def _document(self, member: Member) -> Document:
        document: Document = {
            "name": member.name,
            "instance": links.url(self._vms.path(member.name)),
            "currentAction": member.action,
            "targetStatus": "RUNNING",
            "version": {"instanceTemplate": links.url(member.version)},
        }
        if member.instance is not None:
            document["id"] = member.instance.id
            document["instanceStatus"] = member.instance.status
        if member.error is not None:
            document["lastAttempt"] = {"errors": {"errors": [member.error.document()]}}
        return document
