"""How a group makes one VM: its name, its properties, what the audit log shows of it."""

from __future__ import annotations

import string
from collections.abc import Container
from typing import TYPE_CHECKING

from local.gce.instance import Instance, Ownership
from local.gce.instance_document import read_items
from local.gce.operations import Operation
from local.gce.schema import Document
from local.gce.supply import Order, read_order
from local.gce.templates import metadata_document

if TYPE_CHECKING:
    from local.gce.group import Group
    from local.gce.world import World

_ALPHABET = string.ascii_lowercase + string.digits
_SUFFIX = 4


def vm_path(group: Group, name: str) -> str:
    """The path of a group's VM."""
    return f"projects/{group.project}/zones/{group.zone}/instances/{name}"


def draw_name(world: World, group: Group, taken: Container[str]) -> str:
    """The base name and four random characters, as no other VM of the zone has them."""
    while True:
        suffix = "".join(world.random.choices(_ALPHABET, k=_SUFFIX))
        name = f"{group.base_name}-{suffix}"
        if name not in taken and world.instances.shelf.find(vm_path(group, name)) is None:
            return name


def read_vm_order(group: Group, version: str) -> Order:
    """What one VM of a template needs."""
    return read_order(
        group.project,
        group.zone,
        group.template_properties(version),
        topology=group.topology,
        by_group=True,
    )


def make_instance(
    world: World, group: Group, name: str, version: str, owner: Ownership, instance_id: str
) -> Instance:
    """A VM that does not exist yet; an empty ``instance_id`` lets it have a new one."""
    return Instance(
        world,
        vm_path(group, name),
        _properties(world, group, version),
        read_vm_order(group, version),
        owner,
        instance_id=instance_id,
    )


def log_insert(world: World, group: Group, instance: Instance) -> Operation:
    """Begin the insert of a VM, as the service agent."""
    return world.operations.begin(
        world.agent(group.project),
        "instances.insert",
        instance.path,
        instance.id,
        request=_logged_request(world, group, instance),
        logged=world.dials.bulk_vms_are_logged or not group.is_bulk,
    )


def _properties(world: World, group: Group, version: str) -> Document:
    """The template's properties with the group's additions."""
    properties = group.template_properties(version)
    extra = group.all_instances_properties
    items = {
        **read_items(properties),
        **(extra.get("metadata") or {}),
        "instance-template": world.numbered(version),
        "created-by": world.numbered(group.path),
    }
    labels = {**(properties.get("labels") or {}), **(extra.get("labels") or {})}
    labelled = {"labels": labels} if labels else {}
    return {**properties, "metadata": metadata_document(items), **labelled}


def _logged_request(world: World, group: Group, instance: Instance) -> Document:
    zone = world.numbered(f"projects/{instance.project}/zones/{instance.zone}")
    location = zone.replace("/zones/", "/locations/")
    return {
        "name": instance.name,
        "machineType": f"{zone}/machineTypes/{instance.machine_type}",
        "requestId": world.uuid(),
        "links": [
            {
                "type": "MEMBER_OF",
                "source": f"{location}/instanceGroupManagers/{group.name}@{group.id}",
                "target": f"{location}/instances/{instance.name}",
            }
        ],
    }
