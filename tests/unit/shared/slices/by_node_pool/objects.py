"""Leaders and node pools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from shared.base.environment import Variables
from shared.ports.gke_settings import GkeSettings, read_gke_settings
from shared.slices.selectors import SPOT
from shared.slices.units import Demand, Unit
from tests.support.builders import DATA
from tests.support.slices import asked, build_pool

DOCUMENT: dict[str, Any] = yaml.safe_load((DATA / "tpu_provisioner.yaml").read_text())
POD: dict[str, Any] = DOCUMENT["fixtures"]["pod"]
ENVIRONMENT = {
    "GCP_PROJECT_ID": "my-project",
    "GCP_CLUSTER_LOCATION": "us-east5",
    "GCP_CLUSTER": "my-cluster",
    "GCP_ZONE": "us-east5-a",
}


def read_settings(environment: Mapping[str, str]) -> GkeSettings:
    variables = Variables(environment)
    settings = read_gke_settings(variables)
    variables.check()
    return settings


SETTINGS = read_settings(ENVIRONMENT)
TOLERATION = {"key": SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"}


def pod(**change: Any) -> dict[str, Any]:
    """Return the Pod of the table with the changes of a row."""
    maps = {
        name: {
            key: value
            for key, value in {**POD[name], **(change.get(name) or {})}.items()
            if value is not None
        }
        for name in ("labels", "annotations", "node_selector")
    }
    containers = change.get("containers", [change.get("tpu", 4)])
    return {
        "metadata": {
            "name": POD["name"],
            "namespace": change.get("namespace", POD["namespace"]),
            "uid": "pod-uid",
            "creationTimestamp": "2026-11-20T09:59:00Z",
            "labels": maps["labels"],
            "annotations": maps["annotations"],
            "ownerReferences": [change.get("owner", POD["owner"])],
        },
        "spec": {
            "nodeSelector": maps["node_selector"],
            "tolerations": change.get("tolerations", []),
            "affinity": change.get("affinity", {}),
            "containers": [
                {"name": f"c{number}", "resources": {"requests": {"google.com/tpu": str(chips)}}}
                for number, chips in enumerate(containers)
            ],
        },
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", **POD["pod_scheduled"]}],
        },
    }


def leader(**change: Any) -> tuple[Demand, Unit]:
    return asked(pod(**change))


def body(settings: GkeSettings = SETTINGS, **change: Any) -> dict[str, Any]:
    return dict(build_pool(*leader(**change), settings).body)


def pool(**change: Any) -> dict[str, Any]:
    """Return the pool of the table's Pod as GKE returns it."""
    return {**body(), "status": "RUNNING", "etag": "e", **change}


def labelled(**labels: str | None) -> dict[str, Any]:
    """Return the pool with other labels; a label of this system is named by its last word."""
    found = pool()
    known = {
        key.rpartition("-")[2]: key for key in found["config"]["labels"] if "parent" not in key
    }
    known |= {"parent": "google.com/tpu-provisioner-parent-name"}
    for name, value in labels.items():
        key = known.get(name, name)
        found["config"]["labels"].pop(key, None)
        if value is not None:
            found["config"]["labels"][key] = value
    return found
