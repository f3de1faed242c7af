"""JobSets in a named cluster: those of a run, by their label, and those of others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from local.base.cluster_client import ClusterClient, Document
from local.cluster.manifests import LABEL, LABEL_VALUE, is_local
from local.jobsets.objects import JOBS, JOBSETS, PATHS, PODS

SELECTOR = f"{LABEL}={LABEL_VALUE}"
"""The JobSets of a run, their Jobs, and the Pods of these."""
JOBSETS_OF_RUN, JOBS_OF_RUN, PODS_OF_RUN = (
    f"{PATHS[kind]}?labelSelector={SELECTOR}" for kind in (JOBSETS, JOBS, PODS)
)
_DEPLOYMENTS = "/apis/apps/v1/deployments"
_CONTROLLER = re.compile(r"(.+-)?jobset-controller(-manager)?")
"""The Deployment of JobSet's controller, as JobSet's manifests and its chart name it."""
_CHIPS = "google.com/tpu"


def mark(jobset: Mapping[str, Any]) -> Document:
    """The JobSet with the label of a run, on itself and on its Jobs and Pods."""
    marked: Document = deepcopy(dict(jobset))
    _label(marked)
    for replicated in marked["spec"]["replicatedJobs"]:
        _label(replicated["template"])
        _label(replicated["template"]["spec"]["template"])
    return marked


def _label(holder: Document) -> None:
    metadata = holder.setdefault("metadata", {})
    metadata["labels"] = {**metadata.get("labels", {}), LABEL: LABEL_VALUE}


async def list_others(client: ClusterClient) -> list[Document]:
    """The JobSets that are not of a run and whose Pods request chips."""
    found = await client.list(PATHS[JOBSETS])
    return [one for one in found if not is_local(one) and _requests_chips(one)]


async def has_controller(client: ClusterClient) -> bool:
    """Whether JobSet's own controller is installed."""
    deployments = await client.list(_DEPLOYMENTS)
    return any(_CONTROLLER.fullmatch(one["metadata"]["name"]) for one in deployments)


def _requests_chips(jobset: Document) -> bool:
    return any(
        str(((container.get("resources") or {}).get(kind) or {}).get(_CHIPS, 0)) != "0"
        for container in _containers(jobset)
        for kind in ("requests", "limits")
    )


def _containers(jobset: Document) -> Iterator[Document]:
    for replicated in jobset["spec"].get("replicatedJobs") or ():
        spec = replicated["template"]["spec"]["template"].get("spec") or {}
        containers: Sequence[Document] = spec.get("containers") or ()
        yield from containers
