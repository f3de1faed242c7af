"""Lifecycles of a JobSet's slice, in which a process is killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from local.base.http import Request, Response
from local.cloud.simulation import PROJECT
from shared.settings import GKE, TPU_NODE_GROUP
from tests.stories.jobsets import RUNS_FOREVER, apply, apply_options, phases
from tests.stories.node_pool_slices import SETTINGS as POOL_SETTINGS
from tests.support import jobset_objects as objects
from tests.support.class_specs import CLASSES
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


FULL, RESERVED, FREE = (f"us-central1-{zone}" for zone in "bac")
"""Zones without capacity, with a full reservation, and with capacity (`make_class`)."""
RESERVATION = f"projects/{PROJECT}/zones/{RESERVED}/reservations/small"
CANDIDATES = [
    {"zone": FULL},
    {"zone": RESERVED, "provisioningModel": "RESERVATION_BOUND", "reservation": "small"},
    {"zone": FREE},
]


def make_class(
    harness: Harness, candidates: list[dict[str, str]] = CANDIDATES, **spec: Any
) -> None:
    """Create the default class, with these candidates, of which the last one alone has capacity."""
    template = {**objects.TEMPLATE, "spec": {**objects.TEMPLATE["spec"]}}
    template["spec"].pop("nodeLocation")
    template["spec"]["instanceConfig"] = {
        "image": objects.TEMPLATE["spec"]["instanceConfig"]["image"]
    }
    account = f"tpu-nodes@{PROJECT}.iam.gserviceaccount.com"
    made = {"nodePool": {"serviceAccount": account}} if is_gke(harness) else {"template": template}
    manifest = {
        "apiVersion": "tpu-functions.dev/v1alpha1",
        "kind": "TPUSliceClass",
        "metadata": {"name": "v6e"},
        "spec": {"isDefault": True, "candidates": candidates, **made, **spec},
    }
    answer = harness.simulation.admin("POST", CLASSES, manifest)
    assert answer["kind"] == "TPUSliceClass", answer
    limit_zone(harness, FULL, 0)
    limit_reservation(harness, 0)


def is_gke(harness: Harness) -> bool:
    return harness.settings["provision_slice"].slice_provider == GKE


def limit_zone(harness: Harness, zone: str, vms: int | None = None) -> None:
    """Limit the capacity of a zone."""
    if is_gke(harness):
        harness.gke.faults.set_capacity(zone, "ct6e-standard", vms)
    else:
        harness.simulation.gce.faults.set_capacity(zone, "ct6e", vms)


def limit_reservation(harness: Harness, vms: int) -> None:
    if is_gke(harness):
        harness.gke.faults.set_reservation("small", vms)
    else:
        harness.simulation.gce.faults.set_reservation(RESERVATION, "ct6e-standard-4t", vms)


def count_most(harness: Harness) -> list[int]:
    """The most slices, and MIGs, that there were at a call: a list that is kept up to date."""
    most = [0]

    def around(_step: str, request: Request, server: Callable[[Request], Response]) -> Response:
        answer = server(request)
        migs = [one for one in harness.leftovers() if "/instanceGroupManagers/" in one]
        most[0] = max(most[0], len(slices(harness)), len(migs))
        return answer

    harness.hooks.around = around
    return most


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
