"""What there is of us, or of tpu-operator, in a cluster; and how it is removed again.

All that a run on somebody's cluster applies bears a label. The namespace is its claim: made first,
removed last, with a note of who made it. What the product and the VMs make is known by its name.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
from cryptography import x509
from cryptography.x509.oid import NameOID

from local.base.cluster_client import ClusterClient, Document
from local.cluster.jobset_leftovers import find_marked, find_others, remove_marked
from local.cluster.manifests import (
    FOR_PODS,
    LABEL,
    LABEL_VALUE,
    Manifest,
    describe,
    is_local,
    object_path,
    read_manifests,
    read_manifests_for_jobsets,
)

RUN = "tpu-functions.dev/local-run"
"""An annotation of the namespace: whose run it is."""
NAMESPACE = "/api/v1/namespaces/tpu-functions"
GROUPS = "/apis/tpu.google.com/v1alpha1/tpunodegroups"
NODES = "/api/v1/nodes"
TOKENS = "/api/v1/namespaces/kube-system/secrets"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_OUR_CRD = f"{_CRDS}/tpunodegroups.tpu.google.com"
JOBSET_CRD = f"{_CRDS}/jobsets.jobset.x-k8s.io"
_ANY_SLICES = "tpu-node-group"
"""With these, a run puts all into a cluster that a run ever does."""
_OF_OPERATOR = {
    **{
        f"CustomResourceDefinition {kind}.tpu.google.com": f"{_CRDS}/{kind}.tpu.google.com"
        for kind in ("workloadpolicies", "instancetemplates", "managedinstancegroups")
    },
    "Namespace tpu-node-group": "/api/v1/namespaces/tpu-node-group",
}
_RESOURCE_NAME = "tpu-functions.dev/resource-name"
_VM_PREFIX = "tng-"
_COMPONENTS = "tpu-functions-"
"""What the steps call themselves in Events begins with it."""
_PART_OF = "app.kubernetes.io/part-of"
_POLL_S = 0.2
_GONE_WITHIN_S = 90.0


@dataclass(frozen=True)
class Run:
    """Whose process has claimed a cluster."""

    pid: int
    started: int
    host: str

    @classmethod
    def this(cls) -> Run:
        """This process."""
        return cls(os.getpid(), int(psutil.Process().create_time()), socket.gethostname())

    @classmethod
    def parse(cls, text: str) -> Run | None:
        """From what `render` has written; ``None`` for anything else."""
        with suppress(ValueError):
            pid, started, host = text.split(" ")
            return cls(int(pid), int(started), host)
        return None

    def render(self) -> str:
        """As an annotation's value."""
        return f"{self.pid} {self.started} {self.host}"

    def goes_on(self) -> bool:
        """Whether that process still runs; of another machine nothing is known."""
        if self.host != socket.gethostname():
            return False
        with suppress(psutil.NoSuchProcess):
            return int(psutil.Process(self.pid).create_time()) == self.started
        return False


@dataclass(frozen=True)
class Leftovers:
    """What was found, in words, by whose it is. ``jobsets`` are those of others that ask for chips."""

    installation: Sequence[str] = ()
    operator: Sequence[str] = ()
    earlier_run: Sequence[str] = ()
    jobsets: Sequence[str] = ()
    run: Run | None = None


@dataclass
class _Sorting:
    installation: list[str] = field(default_factory=list)
    operator: list[str] = field(default_factory=list)
    earlier_run: list[str] = field(default_factory=list)

    def add(self, manifest: Manifest, found: Document) -> None:
        labels = found["metadata"].get("labels", {})
        if is_local(found):
            self.earlier_run.append(describe(manifest))
        elif object_path(manifest) == JOBSET_CRD:
            pass  # JobSet is installed, which is no leftover
        elif object_path(manifest) == _OUR_CRD and labels.get(_PART_OF) != "tpu-functions":
            self.operator.append(describe(manifest))
        else:
            self.installation.append(describe(manifest))


async def find_leftovers(client: ClusterClient) -> Leftovers:
    """What is there of an installation, of tpu-operator's, and of an earlier run of this kind."""
    manifests = manifests_for_a_named_cluster(_ANY_SLICES)
    objects = await asyncio.gather(*(client.find(object_path(one)) for one in manifests))
    sorting = _Sorting()
    for manifest, found in zip(manifests, objects, strict=True):
        if found is not None:
            sorting.add(manifest, found)
    children = await asyncio.gather(*(client.find(path) for path in _OF_OPERATOR.values()))
    sorting.operator += [
        name for name, found in zip(_OF_OPERATOR, children, strict=True) if found is not None
    ]
    groups = await client.list(GROUPS)
    if groups:
        owner = sorting.earlier_run or sorting.operator or sorting.installation
        owner.insert(0, _count("TPUNodeGroups", groups))
    jobsets = await find_marked(client)
    if jobsets:
        sorting.earlier_run.insert(0, _count("JobSets", jobsets))
    others = [_name_of(one) for one in await find_others(client)]
    namespace = await client.find(NAMESPACE)
    run = None if namespace is None else _run_of(namespace)
    return Leftovers(sorting.installation, sorting.operator, sorting.earlier_run, others, run)


def _count(kind: str, found: Sequence[Document]) -> str:
    names = ", ".join(_name_of(one) for one in found[:5])
    return f"{len(found)} {kind} ({names}{', ...' if len(found) > 5 else ''})"


def manifests_for_a_named_cluster(slices: str) -> list[Manifest]:
    """What is applied to somebody's cluster, with the label by which it is found again.

    ``slices`` are what JobSets get; empty where they get none.
    """
    more = read_manifests_for_jobsets(slices) if slices else []
    return [
        {**one, "metadata": {**one["metadata"], "labels": {**_labels(one), LABEL: LABEL_VALUE}}}
        for one in (*read_manifests(without=FOR_PODS), *more)
    ]


def group_path(group: Document) -> str:
    """The URL path of a TPUNodeGroup."""
    metadata = group["metadata"]
    where = f"namespaces/{metadata['namespace']}/tpunodegroups/{metadata['name']}"
    return GROUPS.replace("tpunodegroups", where)


def _labels(manifest: Manifest) -> dict[str, str]:
    labels: dict[str, str] = manifest["metadata"].get("labels", {})
    return labels


def _name_of(found: Document) -> str:
    return f"{found['metadata']['namespace']}/{found['metadata']['name']}"


def _run_of(namespace: Document) -> Run | None:
    return Run.parse(namespace["metadata"].get("annotations", {}).get(RUN, ""))


# --- removal ---


@dataclass(frozen=True)
class _Object:
    path: str
    uid: str


async def remove_everything(client: ClusterClient, run: Run | None = None) -> None:
    """Remove all that a run has left, whatever state it is in; no function and no VM runs any more.

    Without ``run``, whosever run it was. Raises `local.base.cluster_client.Refused`, and `TimeoutError`
    when something does not go away.
    """
    namespace = await client.find(NAMESPACE)
    if namespace is None or not is_local(namespace):
        return
    if run is not None and _run_of(namespace) != run:
        return  # somebody else was faster, and has claimed the cluster
    since = namespace["metadata"]["creationTimestamp"]
    await remove_marked(client)
    crd = await client.find(_OUR_CRD)
    if crd is not None and is_local(crd):
        await _force_groups(client)
    made = await _find_made(client, since)
    applied = [one for one in await _find_applied(client) if one.path != NAMESPACE]
    await _delete(client, [*made, *reversed(applied)])
    await _delete(client, [_object(NAMESPACE, namespace)])
    await _delete_events(client, since)


async def _force_groups(client: ClusterClient) -> None:
    """Nobody is left who could take the finalizers off, and nothing behind the groups any more."""
    for group in await client.list(GROUPS):
        path = group_path(group)
        await client.request("PATCH", path, {"metadata": {"finalizers": None}})
        await client.delete(path, group["metadata"]["uid"])


async def _find_made(client: ClusterClient, since: str) -> list[_Object]:
    """Nodes of VMs, with their Leases and signing requests, and bootstrap tokens."""
    kinds: dict[str, Callable[[Document], bool]] = {
        NODES: _is_named_like_a_vm,
        _LEASES: _is_named_like_a_vm,
        TOKENS: lambda one: _RESOURCE_NAME in one["metadata"].get("labels", {}) or is_local(one),
        CSRS: lambda one: _subject(one).startswith(f"system:node:{_VM_PREFIX}"),
    }
    return [
        _object(f"{path}/{one['metadata']['name']}", one)
        for path, is_ours in kinds.items()
        for one in await client.list(path)
        if one["metadata"]["creationTimestamp"] >= since and is_ours(one)
    ]


async def _find_applied(client: ClusterClient) -> list[_Object]:
    paths = [object_path(manifest) for manifest in manifests_for_a_named_cluster(_ANY_SLICES)]
    found = await asyncio.gather(*(client.find(path) for path in paths))
    return [
        _object(path, one)
        for path, one in zip(paths, found, strict=True)
        if one is not None and is_local(one)
    ]


async def _delete(client: ClusterClient, objects: Iterable[_Object]) -> None:
    """Delete, and wait until they are gone."""
    waiting = list(objects)
    for one in waiting:
        await client.delete(one.path, one.uid)
    async with asyncio.timeout(_GONE_WITHIN_S):
        for one in waiting:
            while await _is_there(client, one):
                await asyncio.sleep(_POLL_S)


async def _is_there(client: ClusterClient, wanted: _Object) -> bool:
    found = await client.find(wanted.path)
    return found is not None and found["metadata"]["uid"] == wanted.uid


async def _delete_events(client: ClusterClient, since: str) -> None:
    for kind, is_ours in _OF_OUR_EVENTS.items():
        path = f"/api/v1/events?fieldSelector=involvedObject.kind%3D{kind}"
        for event in await client.list(path):
            if is_ours(event) and event["metadata"]["creationTimestamp"] >= since:
                namespace, name = event["metadata"]["namespace"], event["metadata"]["name"]
                path = f"/api/v1/namespaces/{namespace}/events/{name}"
                await client.delete(path, event["metadata"]["uid"])


def _is_told_by_us(event: Document) -> bool:
    component: str = event.get("source", {}).get("component", "")
    return component.startswith(_COMPONENTS)


_OF_OUR_EVENTS: Mapping[str, Callable[[Document], bool]] = {
    "TPUNodeGroup": lambda _: True,
    "Node": lambda event: _is_vm(event["involvedObject"]["name"]),
    "Pod": _is_told_by_us,
    "JobSet": _is_told_by_us,
}
"""By what they are about. What the cluster itself notes of Pods ends with its hour."""


def _object(path: str, found: Document) -> _Object:
    return _Object(path, found["metadata"]["uid"])


def _is_named_like_a_vm(found: Document) -> bool:
    return _is_vm(found["metadata"]["name"])


def _is_vm(name: str) -> bool:
    return name.startswith(_VM_PREFIX)


def _subject(request: Document) -> str:
    """The common name that a signing request asks for."""
    pem = base64.b64decode(request["spec"]["request"])
    names: list[Any] = x509.load_pem_x509_csr(pem).subject.get_attributes_for_oid(
        NameOID.COMMON_NAME
    )
    return str(names[0].value) if names else ""
