"""The Nodes of a pool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Protocol

from local.gke.machines import Machine, find_machine

_EFFECTS = {
    "NO_SCHEDULE": "NoSchedule",
    "PREFER_NO_SCHEDULE": "PreferNoSchedule",
    "NO_EXECUTE": "NoExecute",
}


@dataclass(frozen=True)
class PoolNode:
    """A VM of a pool, with labels and taints (``key=value:Effect``) of its Node."""

    name: str
    project: str
    zone: str
    machine_type: str
    labels: Mapping[str, str]
    taints: tuple[str, ...]

    def relabelled(self, changes: Mapping[str, str | None]) -> PoolNode:
        """The same with other labels, without those that are ``None``."""
        labels = {**self.labels, **changes}
        kept = {key: value for key, value in labels.items() if value is not None}
        return replace(self, labels=kept)


class Nodes(Protocol):
    """The cluster that a pool's VMs join."""

    def add(self, node: PoolNode) -> None:
        """Handle a VM that runs: it will register a Node."""

    def remove(self, name: str) -> None:
        """Handle a VM that is deleted: delete its Node."""

    def relabel(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Set labels of a Node, or remove those that are ``None``."""


def make_nodes(
    pool: Mapping[str, Any], project: str, random: Random, *, tpu_taint: bool
) -> list[PoolNode]:
    """The Nodes of a pool; those of a TPU pool have GKE's own labels and, if wanted, taint besides."""
    config, zone = pool["config"], pool["locations"][0]
    machine = find_machine(config["machineType"])
    stem = f"gke-tpu-{random.getrandbits(32):08x}" if machine else f"gke-{pool['name'][:30]}"
    labels = {**config.get("labels", {}), **_own_labels(pool, zone, machine)}
    taints = [
        f"{taint['key']}={taint.get('value', '')}:{_EFFECTS[taint['effect']]}"
        for taint in config.get("taints", ())
    ]
    if machine and tpu_taint:
        taints.append("google.com/tpu=present:NoSchedule")
    return [
        PoolNode(
            name=f"{stem}-{random.getrandbits(20):05x}",
            project=project,
            zone=zone,
            machine_type=config["machineType"],
            labels=labels,
            taints=tuple(taints),
        )
        for _ in range(pool.get("initialNodeCount", 0))
    ]


def _own_labels(pool: Mapping[str, Any], zone: str, machine: Machine | None) -> dict[str, str]:
    config = pool["config"]
    labels = {
        "cloud.google.com/gke-nodepool": pool["name"],
        "cloud.google.com/gke-os-distribution": "cos",
        "node.kubernetes.io/instance-type": config["machineType"],
        "topology.kubernetes.io/zone": zone,
        "topology.kubernetes.io/region": zone.rpartition("-")[0],
    }
    if config.get("spot"):
        labels["cloud.google.com/gke-spot"] = "true"
    if machine:
        labels |= {
            "cloud.google.com/gke-tpu-accelerator": machine.accelerator,
            "cloud.google.com/gke-tpu-topology": _topology(pool, machine),
            "cloud.google.com/gke-accelerator-count": str(machine.chips),
        }
    reservation = (config.get("reservationAffinity") or {}).get("values")
    if reservation:
        labels["cloud.google.com/reservation-name"] = reservation[0].rpartition("/")[2]
        if "/" in reservation[0]:
            labels["cloud.google.com/reservation-project"] = reservation[0].split("/")[1]
    return labels


def _topology(pool: Mapping[str, Any], machine: Machine) -> str:
    """The topology of a workload policy: the end of its name, by convention."""
    placement = pool.get("placementPolicy") or {}
    named = re.search(r"[0-9]+(x[0-9]+)+$", placement.get("policyName", ""))
    return placement.get("tpuTopology") or (named[0] if named else machine.own_topology)
