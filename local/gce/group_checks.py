"""Validates a managed instance group with its template and policy."""

from __future__ import annotations

import re

from local.gce import links
from local.gce.calls import Call
from local.gce.group import Group
from local.gce.refusals import (
    BAD_VALUE,
    BASE_NAME,
    BULK_GROWS,
    BULK_NEEDED,
    BULK_REFUSES_CONFIG,
    BULK_SHRINKS,
    FLEX_START_REPAIRS,
    GANG_SIZE,
    REQUIRED,
    SIZE_AND_TOPOLOGY,
    OperationError,
)
from local.gce.schema import Document
from local.gce.templates import check_metadata_item
from local.gce.topology import count_vms

_BASE_NAME = re.compile(r"[a-z](([-a-z0-9]{0,57})|([-a-z0-9]{0,51}-#{1,10}(\[[0-9]{1,10}\])?))")


def check_fields(body: Document, call: Call, most: int) -> None:
    """Raise `Refused` for missing or invalid fields of a group of at most ``most`` VMs."""
    base_name = body.get("baseInstanceName") or body.get("name") or call.name
    if not _BASE_NAME.fullmatch(base_name):
        raise BASE_NAME.refused(value=base_name)
    if body.get("targetSize") is None:
        raise REQUIRED.refused(field="resource.targetSize")
    check_range(int(body["targetSize"]), "resource.targetSize", most)
    properties = (body.get("allInstancesConfig") or {}).get("properties") or {}
    for key, value in (properties.get("metadata") or {}).items():
        check_metadata_item(key, value, "resource.allInstancesConfig.properties.metadata")


def check_mode(settings: Document, topology: str, *, takes_config: bool) -> None:
    """Raise `Refused` if the mode does not fit the topology or the configuration."""
    bulk = (settings.get("targetSizePolicy") or {}).get("mode") == "BULK"
    if topology and not bulk:
        raise BULK_NEEDED.refused()
    if bulk and not takes_config and settings.get("allInstancesConfig"):
        raise BULK_REFUSES_CONFIG.refused()


def check_template(settings: Document, properties: Document) -> None:
    """Raise `Refused` if the template's VMs do not fit the group."""
    model = properties["scheduling"]["provisioningModel"]
    lifecycle = settings.get("instanceLifecyclePolicy") or {}
    action = lifecycle.get("defaultActionOnFailure", "REPAIR")
    if model == "FLEX_START" and action != "DO_NOTHING":
        raise FLEX_START_REPAIRS.refused(value=action)


def check_new_size(group: Group, size: int, most: int) -> None:
    """Raise `Refused` if a group must not get this size now."""
    check_range(size, "size", most)
    if group.is_bulk and size > group.target_size > 0:
        raise BULK_GROWS.refused(size=size)
    if group.is_bulk and 0 < size < group.target_size and group.members.bulk_in_progress:
        raise BULK_SHRINKS.refused(size=size)
    if size > group.target_size:
        needed = needed_size(group.topology, group.template_properties(group.template), size)
        if needed is not None:
            raise GANG_SIZE.refused(size=size, needed=needed)


def check_range(size: int, field: str, most: int) -> None:
    """Raise `Refused` for a size that no group can have."""
    if not 0 <= size <= most:
        why = f"Values must be within the range: [0, {most}]"
        raise BAD_VALUE.refused(field=field, value=size, why=why)


def find_size_error(group: Group) -> OperationError | None:
    """The error that ends the insert of a group whose size does not fit its topology."""
    size = group.target_size
    needed = needed_size(group.topology, group.template_properties(group.template), size)
    return None if needed is None else SIZE_AND_TOPOLOGY.error(size=size, needed=needed)


def needed_size(topology: str, properties: Document, size: int) -> int | None:
    """The number of VMs that the topology needs, if it is not this size (0: an empty group).

    A machine type that does not fit the topology is refused later, at the creation of a VM.
    """
    machine_type = links.name_of(properties["machineType"])
    needed = count_vms(topology, machine_type) if topology else None
    return needed if size and size != needed else None


def refuse_order(call: Call) -> None:
    """Raise `Refused` for ``orderBy``, which lists of groups' VMs do not support."""
    if order := call.request.argument("orderBy"):
        raise BAD_VALUE.refused(field="orderBy", value=order, why="It is not supported.")
