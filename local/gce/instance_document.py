"""The parts of a VM's document that do not change after its creation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from local.gce import links
from local.gce.schema import Document
from local.gce.supply import Order

_FIXED = (
    "description", "labels", "scheduling", "serviceAccounts", "canIpForward",
    "minCpuPlatform", "advancedMachineFeatures", "reservationAffinity", "resourcePolicies",
    "guestAccelerators",
)  # fmt: skip
_SHIELDED = {"enableIntegrityMonitoring": True, "enableSecureBoot": False, "enableVtpm": True}


def render_fixed(
    path: str, instance_id: str, created: datetime, properties: Document, order: Order, address: str
) -> Document:
    """Render the parts of a VM's document that do not change."""
    zone = f"projects/{order.project}/zones/{order.zone}"
    name = links.name_of(path)
    labels: Mapping[str, str] = properties.get("labels") or {}
    parts = (part for pair in sorted(labels.items()) for part in pair)
    return {
        "kind": "compute#instance",
        "id": instance_id,
        "creationTimestamp": links.pacific(created),
        "name": name,
        **{key: properties[key] for key in _FIXED if key in properties},
        "tags": _tags(properties.get("tags") or {}),
        "machineType": links.url(f"{zone}/machineTypes/{order.machine_type}"),
        "zone": links.url(zone),
        "selfLink": links.url(path),
        "networkInterfaces": [
            _address(interface, order, address if index == 0 else f"10.129.0.{index}")
            for index, interface in enumerate(properties["networkInterfaces"])
        ],
        "disks": [
            _attached(disk, links.url(f"{zone}/disks/{name}{f'-{index}' if index else ''}"))
            for index, disk in enumerate(properties["disks"])
        ],
        "labelFingerprint": links.fingerprint(parts) if labels else links.EMPTY_TAGS,
        "cpuPlatform": "Unknown CPU Platform",
        "deletionProtection": False,
        "startRestricted": False,
        "resourceStatus": {
            "effectiveInstanceMetadata": {"vmDnsSettingMetadataValue": "GlobalDefault"},
            "scheduling": {},
        },
        "shieldedInstanceConfig": _SHIELDED,
        "shieldedInstanceIntegrityPolicy": {"updateAutoLearnPolicy": True},
    }


def read_items(properties: Document) -> dict[str, str]:
    """The metadata of completed properties as keys and values."""
    items: list[Document] = properties["metadata"].get("items", [])
    return {item["key"]: item.get("value", "") for item in items}


def _tags(tags: Document) -> Document:
    items: list[str] = tags.get("items") or []
    return {**tags, "fingerprint": links.fingerprint(items) if items else links.EMPTY_TAGS}


def _address(interface: Document, order: Order, address: str) -> Document:
    """An interface in responses. The subnetwork of an automatic network has the network's name."""
    network = interface.get("network", "")
    automatic = f"projects/{order.project}/regions/{order.region}/subnetworks/"
    return {
        **interface,
        "network": network or links.url(f"projects/{order.project}/global/networks/default"),
        "subnetwork": interface.get("subnetwork") or links.url(automatic + links.name_of(network)),
        "networkIP": address,
        "stackType": "IPV4_ONLY",
        "fingerprint": links.fingerprint((interface["name"], address)),
    }


def _attached(disk: Document, source: str) -> Document:
    """A disk in responses: without ``initializeParams``, with the created disk."""
    parameters = disk.get("initializeParams") or {}
    shown = {key: value for key, value in disk.items() if key != "initializeParams"}
    return {
        "interface": "SCSI",
        **shown,
        "source": source,
        "diskSizeGb": str(parameters.get("diskSizeGb", "10")),
        "architecture": "X86_64",
        "licenses": [],
        "guestOsFeatures": [{"type": "UEFI_COMPATIBLE"}, {"type": "GVNIC"}],
    }
