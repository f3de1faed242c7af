"""Validates a new pool before its creation begins."""

from __future__ import annotations

import re

from local.gke import machines
from local.gke.cluster import Cluster
from local.gke.refusals import (
    AUTO_UPGRADE,
    IMAGE_STREAMING,
    LOCATION,
    MACHINE_TYPE,
    MAX_PODS,
    NAME,
    RESERVED_LABEL,
    SINGLE_HOST,
    SLICE_SIZE,
)
from local.gke.wire import Document

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?")
_RESERVED = re.compile(r"(?:[^/]+\.)?(?:kubernetes|k8s)\.io")
_ALLOWED = re.compile(r"(?:[^/]+\.)?(?:node|kubelet)\.kubernetes\.io")
"""Prefixes that a kubelet may set by itself (documented)."""


def check(pool: Document, cluster: Cluster) -> None:
    """Raise `Refused` for the first violation in a requested pool."""
    config = pool.get("config") or {}
    if not _NAME.fullmatch(pool.get("name", "")):
        raise NAME.refused(name=pool.get("name", ""))
    management = pool.get("management")
    if cluster.release_channel and management is not None and not management.get("autoUpgrade"):
        raise AUTO_UPGRADE.refused(channel=cluster.release_channel)
    for zone in pool.get("locations") or ():
        if not zone.startswith(f"{cluster.region}-"):
            raise LOCATION.refused(zone=zone, location=cluster.location)
    pods = int((pool.get("maxPodsConstraint") or {}).get("maxPodsPerNode", 110))
    if not 8 <= pods <= 256:
        raise MAX_PODS.refused(pods=pods)
    _check_config(config)
    _check_machine(pool, config.get("machineType", "e2-medium"), cluster.zone_of(pool))


def _check_config(config: Document) -> None:
    for key in config.get("labels") or {}:
        prefix = key.rpartition("/")[0]
        if _RESERVED.fullmatch(prefix) and not _ALLOWED.fullmatch(prefix):
            raise RESERVED_LABEL.refused(key=key)
    streams = (config.get("gcfsConfig") or {}).get("enabled")
    if config.get("secondaryBootDisks") and not streams:
        raise IMAGE_STREAMING.refused()


def _check_machine(pool: Document, machine_type: str, zone: str) -> None:
    if not machines.exists(machine_type):
        raise MACHINE_TYPE.refused(machine_type=machine_type, zone=zone)
    machine = machines.find_machine(machine_type)
    placement = pool.get("placementPolicy") or {}
    if machine is None or not placement:
        return
    count, topology = pool.get("initialNodeCount", 0), placement.get("tpuTopology", "")
    if count == 1 or topology == machine.own_topology:
        raise SINGLE_HOST.refused()
    if topology and machines.count_hosts(topology, machine) != count:
        raise SLICE_SIZE.refused(count=count, topology=topology)
