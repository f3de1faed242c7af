"""Creates the VMs of a group: name, properties, log entries."""

from __future__ import annotations

import string
from collections.abc import Container

from local.gce.context import Context
from local.gce.group_settings import GroupSettings
from local.gce.instance import Instance, Ownership
from local.gce.instance_document import read_items
from local.gce.instances import Instances
from local.gce.operation import Operation
from local.gce.schema import Document
from local.gce.supply import Order, read_order
from local.gce.templates import metadata_document

_ALPHABET = string.ascii_lowercase + string.digits
_SUFFIX = 4


class VmFactory:
    """Creates the VMs of one group."""

    def __init__(self, context: Context, instances: Instances, group: GroupSettings) -> None:
        self._context = context
        self._instances = instances
        self._group = group

    def path(self, name: str) -> str:
        """The path of a group's VM."""
        return f"projects/{self._group.project}/zones/{self._group.zone}/instances/{name}"

    def draw_name(self, taken: Container[str]) -> str:
        """Draw an unused name: the base name and four random characters."""
        while True:
            suffix = "".join(self._context.random.choices(_ALPHABET, k=_SUFFIX))
            name = f"{self._group.base_name}-{suffix}"
            if name not in taken and self._instances.store.find(self.path(name)) is None:
                return name

    def read_order(self, version: str) -> Order:
        """The requirements of one VM of a template."""
        return read_order(
            self._group.project,
            self._group.zone,
            self._group.template_properties(version),
            topology=self._group.topology,
            by_group=True,
        )

    def make(self, name: str, version: str, owner: Ownership, instance_id: str) -> Instance:
        """Create a VM object; an empty ``instance_id`` means a new one."""
        return self._instances.make(
            self.path(name),
            self._properties(version),
            self.read_order(version),
            owner,
            instance_id=instance_id,
        )

    def log_insert(self, instance: Instance) -> Operation:
        """Begin the insert of a VM, as the service agent."""
        return self._context.operations.begin(
            self._context.agent(self._group.project),
            "instances.insert",
            instance.path,
            instance.id,
            request=self._logged_request(instance),
            logged=self._context.timings.bulk_vms_are_logged or not self._group.is_bulk,
        )

    def _properties(self, version: str) -> Document:
        """The template's properties with the group's additions."""
        properties = self._group.template_properties(version)
        extra = self._group.all_instances_properties
        items = {
            **read_items(properties),
            **(extra.get("metadata") or {}),
            "instance-template": self._context.numbered(version),
            "created-by": self._context.numbered(self._group.path),
        }
        labels = {**(properties.get("labels") or {}), **(extra.get("labels") or {})}
        labelled = {"labels": labels} if labels else {}
        return {**properties, "metadata": metadata_document(items), **labelled}

    def _logged_request(self, instance: Instance) -> Document:
        zone = self._context.numbered(f"projects/{instance.project}/zones/{instance.zone}")
        location = zone.replace("/zones/", "/locations/")
        group = f"{location}/instanceGroupManagers/{self._group.name}@{self._group.id}"
        return {
            "name": instance.name,
            "machineType": f"{zone}/machineTypes/{instance.machine_type}",
            "requestId": self._context.uuid(),
            "links": [
                {
                    "type": "MEMBER_OF",
                    "source": group,
                    "target": f"{location}/instances/{instance.name}",
                }
            ],
        }
