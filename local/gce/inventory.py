"""The zones, machine types, images, networks and disk types that exist.

Without a table, every well-formed name exists, as in tests of the product. `make local` and the
demos use the table ``inventory.yaml``, which users extend with a file of the same form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from local.gce import links

TABLE = Path(__file__).with_name("inventory.yaml")
_LISTS = ("images", "joiningImages", "networks", "subnetworks", "diskTypes", "kubernetesVersions")
_KEYS = ("machineTypes", *_LISTS)
_UNREADABLE = (OSError, yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
"""What reading YAML raises, also for values that do not have the type of their tag or form."""


class InventoryUnreadable(Exception):
    """The file is not an inventory; the message says why."""


@dataclass(frozen=True)
class Inventory:
    """An inventory. Images, networks and subnetworks are paths; names may end in ``*``."""

    machine_types: Mapping[str, Sequence[str]]
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def has_zone(self, zone: str) -> bool:
        """Whether a zone exists."""
        return zone in self.machine_types

    def has_region(self, region: str) -> bool:
        """Whether a region has a zone."""
        return any(links.region_of(zone) == region for zone in self.machine_types)

    def has_machine_type(self, zone: str, name: str) -> bool:
        """Whether a zone has a machine type."""
        return _is_listed(name, self.machine_types.get(zone, ()))

    def has(self, kind: str, name: str) -> bool:
        """Whether one of ``images``, ``networks``, ``subnetworks``, ``diskTypes`` and so on exists."""
        return _is_listed(name, self.lists.get(kind, ()))


class UnrestrictedInventory(Inventory):
    """An inventory in which every well-formed name exists."""

    def __init__(self) -> None:
        super().__init__({})

    def has_zone(self, zone: str) -> bool:
        return links.is_zone(zone)

    def has_region(self, region: str) -> bool:
        return links.is_region(region)

    def has_machine_type(self, zone: str, name: str) -> bool:
        return bool(zone and name)

    def has(self, kind: str, name: str) -> bool:
        return bool(kind and name)


def read_inventory(more: Path | None = None) -> Inventory:
    """Read the table and a user's additions. Raises `InventoryUnreadable`."""
    tables = [yaml.safe_load(TABLE.read_text()), *([] if more is None else [_read(more)])]
    machine_types: dict[str, list[str]] = {}
    for table in tables:
        for zone, names in (table.get("machineTypes") or {}).items():
            machine_types.setdefault(zone, []).extend(names)
    lists = {kind: [name for one in tables for name in one.get(kind) or ()] for kind in _LISTS}
    lists["images"] += lists["joiningImages"]
    return Inventory(machine_types, lists)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        table = yaml.safe_load(path.read_text())
    except _UNREADABLE as error:
        raise InventoryUnreadable(f"--inventory {path}: {error}") from error
    if not isinstance(table, dict):
        raise InventoryUnreadable(f"--inventory {path}: it must be a map of {', '.join(_KEYS)}")
    unknown = sorted(map(str, set(table) - set(_KEYS)))
    if unknown:
        what = f"{', '.join(unknown)} is not known; known are {', '.join(_KEYS)}"
        raise InventoryUnreadable(f"--inventory {path}: {what}")
    zones = table.get("machineTypes") or {}
    if not isinstance(zones, dict) or not all(links.is_zone(str(zone)) for zone in zones):
        raise InventoryUnreadable(
            f"--inventory {path}: machineTypes must be zones, each with a list of machine types"
        )
    lists = {f"machineTypes.{zone}": names for zone, names in zones.items()}
    lists |= {kind: table.get(kind) or [] for kind in _LISTS}
    for kind, names in lists.items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InventoryUnreadable(f"--inventory {path}: {kind} must be a list of strings")
    return table


def _is_listed(name: str, names: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in names)
