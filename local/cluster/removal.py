"""Removes from a named cluster all that a run has left there, whatever its state.

What a run applies has a label. What the product and the VMs create is known by name, and is newer than
the run's namespace.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from local.base.cluster_client import ClusterClient, Document
from local.cluster.jobsets import JOBS_OF_RUN, JOBSETS_OF_RUN, PODS_OF_RUN
from local.cluster.leftovers import GROUP_CRD, GROUPS, NAMESPACE, NODES, TOKENS, Run
from local.cluster.manifests import (
    ALL_SLICES,
    LABEL,
    LABEL_VALUE,
    collection_path,
    is_local,
    item_path,
    object_path,
    read_labelled_manifests,
)

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_EVENTS = "/api/v1/events?fieldSelector=involvedObject.kind%3D{}"
_RESOURCE_NAME = "tpu-functions.dev/resource-name"
_VM_PREFIX = "tng-"
_COMPONENTS = "tpu-functions-"
"""The prefix of the steps' names in Events."""
_POLL_S = 0.2
_GONE_WITHIN_S = 90.0


@dataclass(frozen=True)
class _Collection:
    """The objects to delete from the list at ``path``."""

    path: str
    is_ours: Callable[[Document], bool]
    options: Mapping[str, Any] = field(default_factory=dict)
    drops_finalizers: bool = False


async def remove_everything(client: ClusterClient, run: Run | None = None) -> None:
    """Remove what a run has left; no function and no VM may run any more.

    Without ``run``, that of any run. Raises `local.base.cluster_client.Refused`, and `TimeoutError`
    when an object is not deleted in time.
    """
    namespace = await client.find(NAMESPACE)
    if namespace is None or not is_local(namespace):
        return
    if run is not None and Run.of(namespace) != run:
        return  # another run has cleaned up, and has claimed the cluster
    crd = await client.find(GROUP_CRD)
    since = namespace["metadata"]["creationTimestamp"]
    async with asyncio.timeout(_GONE_WITHIN_S):
        for collection in _collections(since, owns_groups=crd is not None and is_local(crd)):
            await _remove(client, collection)


def _collections(since: str, *, owns_groups: bool) -> Iterator[_Collection]:
    """All collections, in the order of removal."""

    def new(is_ours: Callable[[Document], bool]) -> Callable[[Document], bool]:
        return lambda one: one["metadata"]["creationTimestamp"] >= since and is_ours(one)

    yield _Collection(JOBSETS_OF_RUN, is_local)
    yield _Collection(JOBS_OF_RUN, is_local, {"propagationPolicy": "Background"})
    yield _Collection(PODS_OF_RUN, is_local, {"gracePeriodSeconds": 0})
    if owns_groups:
        yield _Collection(GROUPS, lambda _: True, drops_finalizers=True)
    yield _Collection(NODES, new(_is_named_like_a_vm))
    yield _Collection(_LEASES, new(_is_named_like_a_vm))
    yield _Collection(TOKENS, new(_is_our_token))
    yield _Collection(CSRS, new(_asks_for_a_vm))
    applied = [one for one in read_labelled_manifests(ALL_SLICES) if object_path(one) != NAMESPACE]
    for path in dict.fromkeys(collection_path(one) for one in reversed(applied)):
        yield _Collection(f"{path}?labelSelector={LABEL}={LABEL_VALUE}", is_local)
    yield _Collection("/api/v1/namespaces", lambda one: is_local(one) and _is_our_namespace(one))
    yield _Collection(_EVENTS.format("TPUNodeGroup"), new(lambda _: True))
    yield _Collection(_EVENTS.format("Node"), new(_is_about_a_vm))
    yield _Collection(_EVENTS.format("Pod"), new(_is_from_a_step))
    yield _Collection(_EVENTS.format("JobSet"), new(_is_from_a_step))


async def _remove(client: ClusterClient, collection: _Collection) -> None:
    while left := [one for one in await client.list(collection.path) if collection.is_ours(one)]:
        for one in left:
            path = item_path(collection.path, one)
            if collection.drops_finalizers:
                await client.request("PATCH", path, {"metadata": {"finalizers": None}})
            await client.delete(path, one["metadata"]["uid"], **collection.options)
        await asyncio.sleep(_POLL_S)


def _is_our_namespace(found: Document) -> bool:
    return NAMESPACE.endswith(f"/{found['metadata']['name']}")


def _is_named_like_a_vm(found: Document) -> bool:
    return str(found["metadata"]["name"]).startswith(_VM_PREFIX)


def _is_our_token(found: Document) -> bool:
    return _RESOURCE_NAME in found["metadata"].get("labels", {}) or is_local(found)


def _asks_for_a_vm(request: Document) -> bool:
    """Whether a signing request is for the kubelet of a VM."""
    return node_of(request).startswith(_VM_PREFIX)


def _is_about_a_vm(event: Document) -> bool:
    return str(event["involvedObject"]["name"]).startswith(_VM_PREFIX)


def _is_from_a_step(event: Document) -> bool:
    return str(event.get("source", {}).get("component", "")).startswith(_COMPONENTS)


def node_of(request: Document) -> str:
    """The Node for whose kubelet a signing request asks; empty for other requests."""
    try:
        pem = base64.b64decode(request["spec"]["request"])
        subject = x509.load_pem_x509_csr(pem).subject
    except ValueError:
        return ""  # no request that a kubelet makes
    names: list[Any] = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    prefix, _, node = str(names[0].value if names else "").rpartition(":")
    return node if prefix == "system:node" else ""
