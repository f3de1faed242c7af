"""One managed instance group and its document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from local.gce import links
from local.gce.context import Context
from local.gce.group_settings import GroupSettings
from local.gce.instances import Instances
from local.gce.interconnect import Interconnect
from local.gce.members import Members
from local.gce.operation import Operation
from local.gce.schema import Document
from local.gce.templates import Templates
from local.gce.topology import chips_of
from local.gce.vm_factory import VmFactory

_ACTIONS = (
    "abandoning", "creating", "creatingWithoutRetries", "deleting", "none", "recreating",
    "refreshing", "restarting", "resuming", "starting", "stopping", "suspending", "verifying",
)  # fmt: skip
_STATUSES = (
    "deprovisioning", "nonExistent", "pending", "pendingStop", "provisioning", "repairing",
    "running", "staging", "stopped", "stopping", "suspended", "suspending", "terminated",
)  # fmt: skip
_ONE = {"fixed": 1, "calculated": 1}
_UPDATE_POLICY = {
    "type": "OPPORTUNISTIC",
    "minimalAction": "REPLACE",
    "replacementMethod": "SUBSTITUTE",
    "maxSurge": _ONE,
    "maxUnavailable": _ONE,
    "minReadySec": 0,
}
_LIFECYCLE = {
    "defaultActionOnFailure": "REPAIR",
    "forceUpdateOnRepair": "NO",
    "onFailedHealthCheck": "DEFAULT_ACTION",
}
_KEPT = ("description", "allInstancesConfig", "namedPorts", "autoHealingPolicies", "targetPools",
         "statefulPolicy", "distributionPolicy", "resourcePolicies")  # fmt: skip


class Group(GroupSettings):
    """One managed instance group: its settings, its VMs, the interconnect of its slice."""

    def __init__(
        self,
        context: Context,
        templates: Templates,
        instances: Instances,
        path: str,
        group_id: str,
        settings: Document,
        topology: str,
    ) -> None:
        super().__init__(templates, path, group_id, settings, topology)
        self.readable = False
        self.busy: Operation | None = None
        self._on_emptied: Callable[[], None] | None = None
        self.revision = 0
        self.backend_service = ""
        self._created = links.pacific(context.clock.now())
        self._agent_email = context.agent_email(self.project)
        vms = VmFactory(context, instances, self)
        self.members = Members(context, vms, self, self._vms_changed, self._emptied)
        self.interconnect = Interconnect(context, path, topology)

    def resize(self, size: int) -> None:
        """Set the target size and begin to reach it."""
        self.settings["targetSize"] = size
        self.revision += 1
        missing = size - self.members.wanted
        if missing > 0:
            self.members.grow(missing)
        elif missing < 0:
            self.members.shrink(-missing)

    def dissolve(self, on_emptied: Callable[[], None]) -> None:
        """Begin to delete all VMs; ``on_emptied`` is called once, when they are gone."""
        self.deleting = True
        self._on_emptied = on_emptied
        self.interconnect.dissolve()
        self.members.shrink(self.members.wanted)
        if not len(self.members):
            self._emptied()

    def _vms_changed(self) -> None:
        """Handle a change of the VMs."""
        self.interconnect.follow(all_run=self.members.all_run)

    def _emptied(self) -> None:
        """Handle the deletion of the last VM."""
        self.interconnect.clear()
        on_emptied, self._on_emptied = self._on_emptied, None
        if on_emptied is not None:
            on_emptied()

    @property
    def fingerprint(self) -> str:
        """Changes with every change of the settings."""
        return links.fingerprint((self.path, self.id, str(self.revision)))

    def uses(self, path: str) -> bool:
        """Whether it uses a template or a policy."""
        return path in (self.template, self.policy)

    def summary(self) -> Document:
        """A summary for users: the VMs, and why the group waits."""
        obstacle = self.members.obstacle
        return {
            "path": self.path,
            "targetSize": self.target_size,
            "deleting": self.deleting,
            "waitsFor": obstacle.message if obstacle else "",
            "members": {
                member.name: member.instance.status if member.instance else ""
                for member in self.members
            },
        }

    def document(self) -> Document:
        """The resource in responses."""
        zone = f"projects/{self.project}/zones/{self.zone}"
        template = self.settings["instanceTemplate"]
        size = self.target_size
        return {
            "kind": "compute#instanceGroupManager",
            "id": self.id,
            "creationTimestamp": self._created,
            "name": self.name,
            **{key: self.settings[key] for key in _KEPT if key in self.settings},
            "zone": links.url(zone),
            "instanceTemplate": template,
            "versions": [{"instanceTemplate": template, "targetSize": {"calculated": size}}],
            "instanceGroup": links.url(f"{zone}/instanceGroups/{self.name}"),
            "baseInstanceName": self.base_name,
            "fingerprint": self.fingerprint,
            "currentActions": self._current_actions(),
            "targetSize": size,
            "targetStoppedSize": 0,
            "targetSuspendedSize": 0,
            "targetSizePolicy": {"mode": self.mode},
            "standbyPolicy": {"mode": "MANUAL"},
            "listManagedInstancesResults": self.settings.get(
                "listManagedInstancesResults", "PAGELESS"
            ),
            "updatePolicy": {**_UPDATE_POLICY, **(self.settings.get("updatePolicy") or {})},
            "instanceLifecyclePolicy": {
                **_LIFECYCLE,
                **(self.settings.get("instanceLifecyclePolicy") or {}),
            },
            "serviceAccount": self._agent_email,
            "satisfiesPzi": True,
            "satisfiesPzs": True,
            "selfLink": links.url(self.path),
            "status": self._status(),
        }

    def _current_actions(self) -> dict[str, int]:
        counts = Counter(member.action.lower() for member in self.members)
        return {action: counts[action.lower()] for action in _ACTIONS}

    def _status(self) -> Document:
        status: Document = {
            "isStable": not self.deleting and self.members.settled,
            "versionTarget": {"isReached": True},
            "allInstancesConfig": {"effective": True},
            "stateful": {
                "hasStatefulConfig": False,
                "isStateful": False,
                "perInstanceConfigs": {"allEffective": True},
            },
        }
        if self.is_bulk:
            status["bulkInstanceOperation"] = self._bulk_operation()
        if chips_of(links.name_of(self.template_properties(self.template)["machineType"])):
            status["currentInstanceStatuses"] = self._current_statuses()
        if applied := self.interconnect.document():
            status["appliedAcceleratorTopologies"] = applied
        return status

    def _bulk_operation(self) -> Document:
        members = self.members
        operation: Document = {"inProgress": members.bulk_in_progress}
        if members.bulk_in_progress and members.checked_at is not None:
            check: Document = {"timestamp": links.pacific(members.checked_at)}
            if members.obstacle is not None:
                check["error"] = {"errors": [members.obstacle.document()]}
            operation["lastProgressCheck"] = check
        return operation

    def _current_statuses(self) -> dict[str, int]:
        counts = Counter(
            member.instance.status.lower() if member.instance else "nonexistent"
            for member in self.members
        )
        return {status: counts[status.lower()] for status in _STATUSES}
