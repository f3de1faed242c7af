"""Instance templates, global and regional. A template never changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from local.gce import links
from local.gce.calls import Call, Route
from local.gce.records import Record, Records
from local.gce.refusals import (
    BAD_VALUE,
    FLEX_START_ENDLESS,
    METADATA_KEY,
    METADATA_TOO_LARGE,
    REQUIRED,
    SPOT_RESTARTS,
    TEMPLATE_IN_USE,
    TPU_MIGRATES,
)
from local.gce.schema import Document
from local.gce.topology import chips_of

_MAX_VALUE = 262144
_MAX_ALL = 512 * 1024
_MAX_KEY = 128
_KEY_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


class Templates(Records):
    """All instance templates."""

    kind = "compute#instanceTemplate"
    in_use = TEMPLATE_IN_USE

    def routes(self) -> tuple[Route, ...]:
        """The methods about global templates and about regional ones."""
        verb = "instanceTemplates"
        return (
            *self._routes("global instanceTemplates", verb),
            *self._routes("regions instanceTemplates", "regionInstanceTemplates"),
            Route("GET aggregated instanceTemplates", f"{verb}.aggregatedList", self.list_all),
        )

    def _routes(self, base: str, verb: str) -> tuple[Route, ...]:
        return (
            Route(f"POST {base}", f"{verb}.insert", self.insert, "InstanceTemplate"),
            Route(f"GET {base}", f"{verb}.list", self.list),
            Route(f"GET {base} NAME", f"{verb}.get", self.get),
            Route(f"DELETE {base} NAME", f"{verb}.delete", self.delete),
        )

    def complete(self, call: Call) -> Document:
        """Validate a new template and add the service's defaults. Raises `Refused`."""
        properties = call.body.get("properties")
        if properties is None:
            raise REQUIRED.refused(field="resource.properties")
        call.caller.demand_act_as(properties.get("serviceAccounts"))
        own: Document = {
            "description": call.body.get("description", ""),
            "properties": complete_properties(properties, call.project, "resource.properties"),
        }
        if call.location.startswith("regions/"):
            own["region"] = links.url(f"projects/{call.project}/{call.location}")
        return own

    def find_for_group(self, path: str) -> Record | None:
        """Find the template for the group service, which sees it with a lag."""
        record = self.store.find(path)
        if record is None or not record.readable:
            return record
        age_s = (self._context.clock.now() - record.created).total_seconds()
        return record if age_s >= self._lag_s(record) else None

    def _lag_s(self, record: Record) -> float:
        """The lag of one template, derived from its id."""
        low, high = self._context.timings.template_visibility_lag_s
        return low + (high - low) * (int(record.id) % 1000) / 1000


def complete_properties(properties: Document, project: str, field: str) -> Document:
    """Add the defaults to the properties of VMs. Raises `Refused`."""
    if not properties.get("machineType"):
        raise REQUIRED.refused(field=f"{field}.machineType")
    disks = properties.get("disks") or []
    if not disks:
        raise REQUIRED.refused(field=f"{field}.disks")
    interfaces = properties.get("networkInterfaces") or [{}]
    return {
        **properties,
        "disks": [_complete_disk(index, disk) for index, disk in enumerate(disks)],
        "metadata": metadata_document(
            read_metadata(properties.get("metadata"), f"{field}.metadata")
        ),
        "networkInterfaces": [
            _complete_interface(index, interface, project)
            for index, interface in enumerate(interfaces)
        ],
        "scheduling": _complete_scheduling(properties, f"{field}.scheduling"),
    }


def _complete_disk(index: int, disk: Document) -> Document:
    return {
        "type": "PERSISTENT",
        "mode": "READ_WRITE",
        "deviceName": f"persistent-disk-{index}",
        **disk,
        "kind": "compute#attachedDisk",
        "index": index,
    }


def _complete_interface(index: int, interface: Document, project: str) -> Document:
    completed = {"kind": "compute#networkInterface", "name": f"nic{index}", **interface}
    if not interface.get("subnetwork"):
        completed.setdefault("network", "global/networks/default")
    for key in ("network", "subnetwork"):
        if reference := completed.get(key):
            path = links.find_path(reference, project)
            completed[key] = links.url(path) if path else reference
    return completed


def _complete_scheduling(properties: Document, field: str) -> Document:
    scheduling: Mapping[str, Any] = properties.get("scheduling") or {}
    model = scheduling.get("provisioningModel", "STANDARD")
    ends = model == "SPOT" or bool(scheduling.get("preemptible"))
    if ends and scheduling.get("automaticRestart"):
        raise SPOT_RESTARTS.refused(field=field)
    if model == "FLEX_START" and not scheduling.get("maxRunDuration"):
        raise FLEX_START_ENDLESS.refused(field=field)
    tpu = chips_of(links.name_of(properties["machineType"])) > 0
    if tpu and scheduling.get("onHostMaintenance") == "MIGRATE":
        raise TPU_MIGRATES.refused(field=field)
    return {
        "onHostMaintenance": "TERMINATE" if tpu or ends else "MIGRATE",
        "automaticRestart": not ends and model != "FLEX_START",
        **scheduling,
        "preemptible": ends,
        "provisioningModel": model,
    }


def read_metadata(metadata: Mapping[str, Any] | None, field: str) -> dict[str, str]:
    """Parse a metadata message. Raises `Refused` for invalid keys and for too large items."""
    items: dict[str, str] = {}
    for index, item in enumerate((metadata or {}).get("items") or []):
        key, where = str(item.get("key", "")), f"{field}.items[{index}]"
        if key in items:
            raise METADATA_KEY.refused(field=f"{where}.key", value=key, why="Duplicate key.")
        check_metadata_item(key, str(item.get("value", "")), where)
        items[key] = str(item.get("value", ""))
    check_metadata_size(items, field)
    return items


def check_metadata_item(key: str, value: str, field: str) -> None:
    """Raise `Refused` for a key that breaks its pattern or a value that is too large."""
    if not key or len(key) >= _MAX_KEY or not _KEY_CHARACTERS.issuperset(key):
        why = "Must be a match of regex '[a-zA-Z0-9-_]+' and less than 128 bytes."
        raise METADATA_KEY.refused(field=f"{field}.key", value=key, why=why)
    size = len(value.encode())
    if size > _MAX_VALUE:
        raise METADATA_TOO_LARGE.refused(field=f"{field}.value", limit=_MAX_VALUE, size=size)


def check_metadata_size(items: Mapping[str, str], field: str) -> None:
    """Raise `Refused` when all items together are too large."""
    size = sum(len(key) + len(value.encode()) for key, value in items.items())
    if size >= _MAX_ALL:
        raise METADATA_TOO_LARGE.refused(field=field, limit=_MAX_ALL, size=size)


def metadata_document(items: dict[str, str]) -> Document:
    """The metadata in responses; without ``items`` if there are none."""
    document: Document = {
        "kind": "compute#metadata",
        "fingerprint": links.metadata_fingerprint(items),
    }
    if items:
        document["items"] = [{"key": key, "value": value} for key, value in items.items()]
    return document


def check_region_of_template(path: str, region: str) -> None:
    """Raise `Refused` when a regional template is in another region than the group."""
    scope = path.split("/")[2:4]
    if scope[0] == "regions" and scope[1] != region:
        raise BAD_VALUE.refused(
            field="resource.instanceTemplate",
            value=links.url(path),
            why="The regional instance template must be in the region of the group.",
        )
