"""One managed instance group: its settings, and how the API shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from local.gce import links
from local.gce.members import Members
from local.gce.operations import Operation
from local.gce.schema import Document
from local.gce.topology import chips_of
from local.gce.wiring import Wiring

if TYPE_CHECKING:
    from local.gce.world import World

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


class Group:
    """One managed instance group.

    ``settings`` is the client's part of the resource (what insert and patch sent), with all
    references turned into full URLs; ``template`` and ``policy`` are paths, the latter perhaps
    empty, as is ``topology``.
    """

    def __init__(
        self, world: World, path: str, group_id: str, settings: Document, topology: str
    ) -> None:
        self._world = world
        self.path = path
        self.id = group_id
        self.settings = settings
        self.topology = topology
        self.readable = False
        self.busy: Operation | None = None
        self.deleting = False
        self._ending = False
        self.revision = 0
        self.backend_service = ""
        self._created = links.pacific(world.clock.now())
        self.members = Members(world, self)
        self.wiring = Wiring(world, path, topology)

    @property
    def project(self) -> str:
        """The project's id."""
        return self.path.split("/")[1]

    @property
    def zone(self) -> str:
        """The zone's name."""
        return self.path.split("/")[3]

    @property
    def name(self) -> str:
        """The group's name."""
        return links.name_of(self.path)

    @property
    def base_name(self) -> str:
        """What the names of its VMs begin with."""
        return str(self.settings.get("baseInstanceName") or self.name)

    @property
    def template(self) -> str:
        """The path of the template for new VMs."""
        return str(links.find_path(self.settings["instanceTemplate"], self.project))

    @property
    def policy(self) -> str:
        """The path of the workload policy; empty when there is none."""
        reference = (self.settings.get("resourcePolicies") or {}).get("workloadPolicy", "")
        return links.find_path(reference, self.project) or ""

    @property
    def is_bulk(self) -> bool:
        """Whether its VMs are made all or none."""
        return self.mode == "BULK"

    @property
    def mode(self) -> str:
        """``targetSizePolicy.mode``."""
        return str((self.settings.get("targetSizePolicy") or {}).get("mode", "INDIVIDUAL"))

    @property
    def repairs(self) -> bool:
        """Whether it makes lost VMs anew."""
        policy = self.settings.get("instanceLifecyclePolicy") or {}
        return not self.deleting and policy.get("defaultActionOnFailure", "REPAIR") == "REPAIR"

    @property
    def model(self) -> str:
        """The provisioning model of new VMs."""
        return str(self.template_properties(self.template)["scheduling"]["provisioningModel"])

    @property
    def all_instances_properties(self) -> Document:
        """What every new VM gets over the template's: ``metadata`` and ``labels``, both maps."""
        config: Document = self.settings.get("allInstancesConfig") or {}
        return config.get("properties") or {}

    def template_properties(self, template: str) -> Document:
        """The properties of a template of the group, which cannot be deleted while it is used."""
        properties: Document = self._world.templates.shelf.get(template).document()["properties"]
        return properties

    @property
    def target_size(self) -> int:
        """How many VMs it shall have."""
        return int(self.settings["targetSize"])

    def resize(self, size: int) -> None:
        """Set the target size and begin to reach it."""
        self.settings["targetSize"] = size
        self.revision += 1
        missing = size - self.members.wanted
        if missing > 0:
            self.members.grow(missing)
        elif missing < 0:
            self.members.shrink(-missing)

    def drop(self, names: Iterable[str]) -> None:
        """Delete members, and want fewer from now on."""
        before = self.members.wanted
        self.members.drop(names)
        self.settings["targetSize"] = self.target_size - (before - self.members.wanted)
        self.revision += 1

    def dissolve(self) -> None:
        """Begin to delete all VMs; `emptied` is called when they are gone."""
        self.deleting = True
        self.wiring.dissolve()
        self.members.shrink(self.members.wanted)
        if not len(self.members):
            self.emptied()

    def vms_changed(self) -> None:
        """VMs of the group came or went."""
        self.wiring.follow(all_run=self.members.all_run)

    def emptied(self) -> None:
        """The last member has gone."""
        self.wiring.clear()
        if self.deleting and not self._ending:
            self._ending = True
            self._world.groups.end_delete(self)

    @property
    def fingerprint(self) -> str:
        """Changes with every change of the settings."""
        return links.fingerprint((self.path, self.id, str(self.revision)))

    def uses(self, path: str) -> bool:
        """Whether it, or one of its VMs, needs a template or a policy."""
        if path in (self.template, self.policy):
            return True
        return any(member.version == path for member in self.members)

    def summary(self) -> Document:
        """The group for people: its VMs, and why it waits if it does."""
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
        """The group as the API answers it."""
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
            "serviceAccount": self._world.agent_email(self.project),
            "satisfiesPzi": True,
            "satisfiesPzs": True,
            "selfLink": links.url(self.path),
            "status": self._status(),
        }

    def _current_actions(self) -> dict[str, int]:
        counts = Counter(member.action.lower() for member in self.members)
        return {action: counts[action.lower()] for action in _ACTIONS}

    def _status(self) -> Document:
        extra = self.all_instances_properties
        status: Document = {
            "isStable": not self.deleting and self.members.settled,
            "versionTarget": {
                "isReached": all(member.version == self.template for member in self.members)
            },
            "allInstancesConfig": {"effective": self.members.all_have(extra)},
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
        if applied := self.wiring.document():
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
