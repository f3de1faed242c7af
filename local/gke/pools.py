"""Node pools: their content, documents and Nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from local.base.clock import Clock
from local.gce.links import fingerprint
from local.gke.nodes import Nodes, PoolNode
from local.gke.operations import Failure, Operation
from local.gke.wire import Document, copy

_SCOPES = (
    "devstorage.read_only", "logging.write", "monitoring", "service.management.readonly",
    "servicecontrol", "trace.append",
)  # fmt: skip
_VERSION = "1.34.9-gke.1131000"
_IN_PLACE = ("labels", "taints", "tags")
"""Parts of a pool's config that an update changes in existing Nodes."""
_ANEW = ("linuxNodeConfig", "resourceLabels")
"""Parts for which an update recreates the Nodes; for ``resourceLabels`` by gcloud's help."""
_WRAPPED = {"resourceLabels": "labels"}
"""Fields of an update with other names in the config."""
UPDATED = (*_IN_PLACE, *_ANEW)


class Pool:
    """One node pool. ``busy`` is the operation that changes it now."""

    def __init__(self, content: Document, place: str, cluster: str) -> None:
        self.content = content
        self.place = place
        self.cluster = cluster
        self.status = "PROVISIONING"
        self.failure: Failure | None = None
        self.busy: Operation | None = None
        self.nodes: list[PoolNode] = []

    @property
    def name(self) -> str:
        """The name of the pool."""
        return str(self.content["name"])

    @property
    def path(self) -> str:
        """The path below its location: ``clusters/C/nodePools/N``."""
        return f"clusters/{self.cluster}/nodePools/{self.name}"

    @property
    def etag(self) -> str:
        """A function of the content and the status."""
        return fingerprint((repr(self.content), self.status))[:11] + "="

    def document(self, project: str, version: str) -> Document:
        """The pool as the API answers it."""
        root = f"https://container.googleapis.com/{version}/projects/{project}/{self.place}"
        document = {
            **copy(self.content),
            "etag": self.etag,
            "selfLink": f"{root}/{self.path}",
            "status": self.status,
        }
        if self.failure is not None:
            document["statusMessage"] = self.failure.message
            document["conditions"] = self.failure.conditions()
        return document

    def settle(self, status: str, failure: Failure | None = None) -> None:
        """Set a status that remains until the next operation."""
        self.status = status
        self.failure = failure


def complete(body: Document, project: str, cluster: str, zone: str, random: Random) -> Document:
    """The content of a new pool: the request, and the fields that GKE adds, as recorded."""
    pool = copy(body)
    config = pool.setdefault("config", {})
    disk, size = config.get("diskType", "pd-balanced"), config.get("diskSizeGb", 100)
    pool["config"] = {
        "bootDisk": {"diskType": disk, "sizeGb": str(size)},
        "diskSizeGb": size,
        "diskType": disk,
        "effectiveCgroupMode": "EFFECTIVE_CGROUP_MODE_V2",
        "imageType": "COS_CONTAINERD",
        "kubeletConfig": {"insecureKubeletReadonlyPortEnabled": False, "maxParallelImagePulls": 2},
        "loggingConfig": {"variantConfig": {"variant": "DEFAULT"}},
        "machineType": "e2-medium",
        "metadata": {"disable-legacy-endpoints": "true"},
        "oauthScopes": [f"https://www.googleapis.com/auth/{scope}" for scope in _SCOPES],
        "serviceAccount": "default",
        "shieldedInstanceConfig": {"enableIntegrityMonitoring": True},
        "windowsNodeConfig": {},
        **config,
        "resourceLabels": {
            **config.get("resourceLabels", {}),
            "goog-gke-node-pool-provisioning-model": "spot" if config.get("spot") else "on-demand",
        },
    }
    if "autoscaling" in pool:
        pool["autoscaling"].setdefault("locationPolicy", "BALANCED")
    pods = int(pool.get("maxPodsConstraint", {}).get("maxPodsPerNode", 110))
    region = "-".join(zone.split("-")[:2])
    suffix = f"{random.getrandbits(32):08x}"
    group = f"gke-{cluster[:16]}-{pool['name'][:16]}-{suffix}-grp"
    network = {
        "networkTierConfig": {"networkTier": "NETWORK_TIER_DEFAULT"},
        "podIpv4CidrBlock": f"10.{random.randrange(64, 128)}.0.0/14",
        "podRange": f"gke-{cluster}-pods-{random.getrandbits(32):08x}",
        "subnetwork": f"projects/{project}/regions/{region}/subnetworks/default",
    }
    defaults: dict[str, Any] = {
        "instanceGroupUrls": [
            f"https://www.googleapis.com/compute/v1/projects/{project}/zones/{zone}"
            f"/instanceGroupManagers/{group}"
        ],
        "locations": [zone],
        "management": {"autoRepair": True, "autoUpgrade": True},
        "maxPodsConstraint": {"maxPodsPerNode": str(pods)},
        "podIpv4CidrSize": 32 - math.ceil(math.log2(2 * pods)),
        "upgradeSettings": {"maxSurge": 1, "strategy": "SURGE"},
        "version": _VERSION,
    }
    upgrade = {**defaults["upgradeSettings"], **pool.get("upgradeSettings", {})}
    network = {**network, **pool.get("networkConfig", {})}
    return {**defaults, **pool, "upgradeSettings": upgrade, "networkConfig": network}


def updated(content: Document, body: Document) -> tuple[Document, bool]:
    """The content after an update, and whether its Nodes are recreated."""
    changed = copy(content)
    for name in UPDATED:
        if name in body:
            wrapped = body[name]
            changed["config"][name] = wrapped.get(_WRAPPED.get(name, name), wrapped)
    own = {
        key: value
        for key, value in content["config"]["resourceLabels"].items()
        if key.startswith("goog-")
    }
    changed["config"]["resourceLabels"] |= own
    return changed, any(name in body for name in _ANEW)


class Registrar:
    """Registers the Nodes of pools, one after the other, and deletes them."""

    def __init__(
        self,
        clock: Clock,
        random: Random,
        between_s: tuple[float, float],
        nodes: Nodes,
    ) -> None:
        self._clock = clock
        self._random = random
        self._between_s = between_s
        self._nodes = nodes
        self._there: set[str] = set()

    def add(self, pool: Pool, nodes: list[PoolNode]) -> None:
        """Handle VMs that run: those that still exist after their boot time become Nodes."""
        pool.nodes = [*pool.nodes, *nodes]
        for node in nodes:
            self._clock.call_later(
                self._random.uniform(*self._between_s), self._register(pool, node)
            )

    def _register(self, pool: Pool, node: PoolNode) -> Callable[[], None]:
        def register() -> None:
            current = next((one for one in pool.nodes if one.name == node.name), None)
            if current is not None:
                self._there.add(node.name)
                self._nodes.add(current)

        return register

    def relabel(self, pool: Pool, labels: Mapping[str, str]) -> None:
        """Replace the labels that users have given a pool: those of its Nodes change in place."""
        before = pool.content["config"].get("labels") or {}
        if before == labels:
            return
        changes = {**dict.fromkeys(before), **labels}
        pool.nodes = [node.relabelled(changes) for node in pool.nodes]
        for node in pool.nodes:
            if node.name in self._there:
                self._nodes.relabel(node.name, changes)

    def remove(self, pool: Pool, nodes: list[PoolNode]) -> None:
        """Handle VMs that are deleted."""
        pool.nodes = [node for node in pool.nodes if node not in nodes]
        for node in nodes:
            if node.name in self._there:
                self._there.remove(node.name)
                self._nodes.remove(node.name)
