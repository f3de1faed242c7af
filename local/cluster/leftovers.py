"""Finds in a named cluster what prevents a run: an installation, tpu-operator, what a run has left.

All that a run applies has a label. The namespace is its claim: created first, removed last, with an
annotation that names the process.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from local.base.cluster_client import ClusterClient, Document
from local.cluster.jobsets import JOBSETS_OF_RUN, list_others
from local.cluster.manifests import (
    ALL_SLICES,
    Manifest,
    describe,
    is_local,
    object_path,
    read_labelled_manifests,
)

RUN = "tpu-functions.dev/local-run"
"""The annotation of the namespace that names the process of a run."""
NAMESPACE = "/api/v1/namespaces/tpu-functions"
GROUPS = "/apis/tpu.google.com/v1alpha1/tpunodegroups"
NODES = "/api/v1/nodes"
TOKENS = "/api/v1/namespaces/kube-system/secrets"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP_CRD = f"{_CRDS}/tpunodegroups.tpu.google.com"
JOBSET_CRD = f"{_CRDS}/jobsets.jobset.x-k8s.io"
_OF_OPERATOR = {
    **{
        f"CustomResourceDefinition {kind}.tpu.google.com": f"{_CRDS}/{kind}.tpu.google.com"
        for kind in ("workloadpolicies", "instancetemplates", "managedinstancegroups")
    },
    "Namespace tpu-node-group": "/api/v1/namespaces/tpu-node-group",
}
_PART_OF = "app.kubernetes.io/part-of"


@dataclass(frozen=True)
class Run:
    """The process that has claimed a cluster."""

    pid: int
    started: int
    host: str

    @classmethod
    def this(cls) -> Run:
        """This process."""
        return cls(os.getpid(), int(psutil.Process().create_time()), socket.gethostname())

    @classmethod
    def parse(cls, text: str) -> Run | None:
        """Parse the annotation's value; ``None`` if `render` has not written it."""
        with suppress(ValueError):
            pid, started, host = text.split(" ")
            return cls(int(pid), int(started), host)
        return None

    @classmethod
    def of(cls, namespace: Document | None) -> Run | None:
        """The run that has claimed the namespace."""
        annotations = (namespace or {"metadata": {}})["metadata"].get("annotations", {})
        return cls.parse(annotations.get(RUN, ""))

    def render(self) -> str:
        """The annotation's value."""
        return f"{self.pid} {self.started} {self.host}"

    def is_running(self) -> bool:
        """Whether the process runs; ``False`` for a process of another machine."""
        if self.host != socket.gethostname():
            return False
        with suppress(psutil.NoSuchProcess):
            return int(psutil.Process(self.pid).create_time()) == self.started
        return False


@dataclass(frozen=True)
class Leftovers:
    """What was found, in words. ``jobsets`` are those of others that request chips."""

    installation: Sequence[str] = ()
    operator: Sequence[str] = ()
    earlier_run: Sequence[str] = ()
    jobsets: Sequence[str] = ()
    run: Run | None = None


async def find_leftovers(client: ClusterClient) -> Leftovers:
    """Find objects of an installation, of tpu-operator and of an earlier run."""
    manifests = read_labelled_manifests(ALL_SLICES)
    objects = await asyncio.gather(*(client.find(object_path(one)) for one in manifests))
    installation: list[str] = []
    operator: list[str] = []
    earlier_run: list[str] = []
    for manifest, found in zip(manifests, objects, strict=True):
        if found is None:
            continue
        if is_local(found):
            earlier_run.append(describe(manifest))
        elif _is_of_operator(manifest, found):
            operator.append(describe(manifest))
        elif object_path(manifest) != JOBSET_CRD:
            installation.append(describe(manifest))
    for name, path in _OF_OPERATOR.items():
        if await client.find(path) is not None:
            operator.append(name)
    if groups := await client.list(GROUPS):
        (earlier_run or operator or installation).insert(0, _count("TPUNodeGroups", groups))
    if jobsets := await client.list(JOBSETS_OF_RUN):
        earlier_run.insert(0, _count("JobSets", jobsets))
    others = [_name_of(one) for one in await list_others(client)]
    run = Run.of(await client.find(NAMESPACE))
    return Leftovers(installation, operator, earlier_run, others, run)


def _is_of_operator(manifest: Manifest, found: Document) -> bool:
    """The CRD has the same name in both; only that of tpu-functions has the label."""
    labels = found["metadata"].get("labels", {})
    return object_path(manifest) == GROUP_CRD and labels.get(_PART_OF) != "tpu-functions"


def _count(kind: str, found: Sequence[Document]) -> str:
    names = ", ".join(_name_of(one) for one in found[:5])
    return f"{len(found)} {kind} ({names}{', ...' if len(found) > 5 else ''})"


def _name_of(found: Document) -> str:
    return f"{found['metadata']['namespace']}/{found['metadata']['name']}"
