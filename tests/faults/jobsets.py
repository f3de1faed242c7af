"""Lifecycles of a JobSet's slice, in which a process is killed."""

from __future__ import annotations

from typing import Any

from shared.settings import GKE, TPU_NODE_GROUP
from tests.stories.jobsets import RUNS_FOREVER, apply, apply_options, phases
from tests.stories.node_pool_slices import SETTINGS as POOL_SETTINGS
from tests.support import jobset_objects as objects
from tests.support.harness import Harness

GROUPS = "/apis/tpu.google.com/v1alpha1/tpunodegroups"
SETTINGS: dict[str, dict[str, Any]] = {
    TPU_NODE_GROUP: {"slice_provider": TPU_NODE_GROUP},
    GKE: {"slice_provider": GKE, "gke": POOL_SETTINGS},
}


def prepare(harness: Harness, namespaces: str = "") -> None:
    """Create the options of slices, and let Pods run until they are deleted."""
    apply_options(harness, **({"namespaces": namespaces} if namespaces else {}))
    harness.jobsets.behaviour = RUNS_FOREVER


def post(harness: Harness, topology: str = "2x2") -> None:
    """Create a JobSet with one Job: of one host, or of two for another topology."""
    hosts = 1 if topology == "2x2" else 2
    apply(harness, objects.small_jobset(topology=topology, hosts=hosts))


def running(harness: Harness) -> int:
    return phases(harness).count("Running")


def slices(harness: Harness) -> list[tuple[str, str, bool]]:
    """List name, topology (empty for a pool of one host), and whether the slice has a release
    deadline."""
    groups = harness.simulation.admin("GET", GROUPS)["items"]
    return [_read_group(one) for one in groups] + [
        _read_pool(one, harness) for one in pools(harness)
    ]


def pools(harness: Harness) -> list[str]:
    return [path.rpartition("/")[2] for path in harness.gke.leftovers()]


def _read_group(group: dict[str, Any]) -> tuple[str, str, bool]:
    metadata = group["metadata"]
    has_deadline = any(key.endswith("release-after") for key in metadata["annotations"])
    return metadata["name"], group["spec"]["topology"], has_deadline


def _read_pool(name: str, harness: Harness) -> tuple[str, str, bool]:
    pool = harness.gke.find_pool(name)
    assert pool is not None
    has_deadline = any(key.endswith("release-after") for key in pool.content["config"]["labels"])
    topology = pool.content.get("placementPolicy", {}).get("tpuTopology", "")
    return name, topology, has_deadline
