"""JobSets whose slices are GKE's node pools."""

from __future__ import annotations

import json
from typing import Any

from local.base.http import Request
from local.cloud.simulation import Options
from shared.ports.gke_settings import GkeSettings
from shared.settings import GKE
from tests.stories.jobsets import (
    NAME,
    apply,
    apply_options,
)
from tests.support import jobset_objects as objects
from tests.support.harness import GKE_CLUSTER, GKE_REGION, Harness

ZONE = f"{GKE_REGION}-c"
SETTINGS = GkeSettings("my-gcp-project", GKE_REGION, GKE_CLUSTER, zone=ZONE)
POOLS = f"/v1/{SETTINGS.cluster_path}/nodePools"
CREATING = (
    f"Pod NodePoolCreationStarted: Creating node pool {NAME}, 4 hosts of ct6e-standard-4t (4x4), for "
    "Job train-workers-0 of JobSet train"
)


def new_harness(options: Options | None = None) -> Harness:
    """A simulation in which JobSets get node pools."""
    harness = Harness(options, slices={"slice_provider": GKE, "gke": SETTINGS})
    apply_options(harness)
    return harness


def post(harness: Harness, replicas: int = 1, reservation: str = "") -> None:
    jobset = objects.jobset()
    job = jobset["spec"]["replicatedJobs"][0]
    job["replicas"] = replicas
    if reservation:
        selector = job["template"]["spec"]["template"]["spec"]["nodeSelector"]
        selector["cloud.google.com/reservation-name"] = reservation
    apply(harness, jobset)


def is_gone(harness: Harness) -> bool:
    return harness.gke.leftovers() == []


def send(harness: Harness, method: str, path: str, body: dict[str, Any]) -> None:
    """A user's request to GKE."""
    headers = {"content-type": "application/json"}
    data = json.dumps(body).encode()
    answer = harness.gke.handle(
        Request.of(method, f"http://container.local{path}", headers=headers, body=data)
    )
    assert answer.status == 200, answer.body
