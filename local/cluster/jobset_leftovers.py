"""JobSets in somebody's cluster: those of a run, by their label, and those of others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from local.base.cluster_client import ClusterClient, Document
from local.cluster.manifests import LABEL, LABEL_VALUE, is_local
from local.jobsets.objects import JOBS, JOBSETS, PATHS, PODS, path_of

SELECTOR = f"{LABEL}={LABEL_VALUE}"
"""The JobSets of a run, their Jobs, and the Pods of these."""
_DEPLOYMENTS = "/apis/apps/v1/deployments"
_CONTROLLER = re.compile(r"(.+-)?jobset-controller(-manager)?")
"""As JobSet's manifests, and its chart, name the Deployment of its controller."""
_CHIPS = "google.com/tpu"
_POLL_S = 0.2
_GONE_WITHIN_S = 60.0


def mark(jobset: Mapping[str, Any]) -> Document:
    """The JobSet with the label by which it is found again, and all that is made for it."""
    marked: Document = deepcopy(dict(jobset))
    _label(marked)
    for replicated in marked["spec"]["replicatedJobs"]:
        _label(replicated["template"])
        _label(replicated["template"]["spec"]["template"])
    return marked


def _label(holder: Document) -> None:
    metadata = holder.setdefault("metadata", {})
    metadata["labels"] = {**metadata.get("labels", {}), LABEL: LABEL_VALUE}


async def find_marked(client: ClusterClient) -> list[Document]:
    """The JobSets of a run."""
    return await client.list(_marked(JOBSETS))


async def find_others(client: ClusterClient) -> list[Document]:
    """The JobSets of others whose Pods ask for chips."""
    found = await client.list(PATHS[JOBSETS])
    return [one for one in found if not is_local(one) and _asks_for_chips(one)]


async def has_controller(client: ClusterClient) -> bool:
    """Whether JobSet's own controller is installed there, beside its definition."""
    deployments = await client.list(_DEPLOYMENTS)
    return any(_CONTROLLER.fullmatch(one["metadata"]["name"]) for one in deployments)


async def delete_marked(client: ClusterClient) -> bool:
    """Begin to delete the JobSets of a run; whether anything is left of them.

    Their Jobs and Pods go as the cluster's controllers and kubelets have it.
    """
    for one in await find_marked(client):
        await client.delete(path_of(JOBSETS, one), one["metadata"]["uid"])
    return any([await client.list(_marked(kind)) for kind in (JOBSETS, JOBS, PODS)])


async def remove_marked(client: ClusterClient) -> None:
    """Delete them by force, where no kubelet runs any more that would end their Pods.

    Raises `TimeoutError` when something does not go away.
    """
    options: dict[str, dict[str, Any]] = {
        JOBSETS: {},
        JOBS: {"propagationPolicy": "Background"},
        PODS: {"gracePeriodSeconds": 0},
    }
    async with asyncio.timeout(_GONE_WITHIN_S):
        for kind, how in options.items():
            while left := await client.list(_marked(kind)):
                for one in left:
                    await client.delete(path_of(kind, one), one["metadata"]["uid"], **how)
                await asyncio.sleep(_POLL_S)


def _marked(kind: str) -> str:
    return f"{PATHS[kind]}?labelSelector={SELECTOR}"


def _asks_for_chips(jobset: Document) -> bool:
    return any(
        str(((container.get("resources") or {}).get(part) or {}).get(_CHIPS, 0)) != "0"
        for container in _containers(jobset)
        for part in ("requests", "limits")
    )


def _containers(jobset: Document) -> Iterator[Document]:
    for replicated in jobset["spec"].get("replicatedJobs") or ():
        spec = replicated["template"]["spec"]["template"].get("spec") or {}
        containers: Sequence[Document] = spec.get("containers") or ()
        yield from containers
