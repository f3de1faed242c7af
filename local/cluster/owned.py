"""Removes the objects of a run from a named cluster, by one table of collections.

Objects that a run applies have a label. Objects that the product and the VMs create are identified by
name, label or group, and are newer than the claim. The claim is the namespace of the product, which a
run creates first and removes last; its annotation describes the run's process.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import psutil

from local.base.cluster_client import ClusterClient, Document
from local.cluster.manifests import (
    ALL_SLICES,
    GROUP_CRD,
    GROUPS,
    NAMESPACE,
    NODES,
    SELECTOR,
    TOKENS,
    WEBHOOKS,
    collection_path,
    describe,
    is_local,
    item_path,
    read_labelled_manifests,
)
from local.jobsets.objects import (
    DEPLOYMENTS,
    JOBS,
    JOBSETS,
    LEADER_WORKER_SETS,
    PATHS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
)

CLAIM = "tpu-functions.dev/local-run"
"""The annotation of the namespace that describes the process of the run."""
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_EVENTS = "/api/v1/events"
_RESOURCE_NAME = "tpu-functions.dev/resource-name"
"""The label of the product's bootstrap tokens."""
_BOOTSTRAP_GROUP = "system:bootstrappers:tpu-functions"
_VM_PREFIX = "tng-"
_COMPONENTS = "tpu-functions-"
"""The prefix of the steps' names in Events."""
_OPTIONS = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
_POLL_S = 0.2
_GONE_WITHIN_S = 90.0


@dataclass(frozen=True)
class _Collection:
    """The objects of a run in the list at ``path``."""

    kind: str
    path: str
    is_owned: Callable[[Document], bool] = lambda _: True


async def remove_owned(client: ClusterClient) -> list[str]:
    """Remove all objects of runs, and return their descriptions. No function and no VM may run.

    Raises `local.base.cluster_client.Refused`, and `TimeoutError` for an object that stays.
    """
    deadline = asyncio.get_running_loop().time() + _GONE_WITHIN_S
    claim, crd = await client.find(NAMESPACE), await client.find(GROUP_CRD)
    since = claim["metadata"]["creationTimestamp"] if claim and is_local(claim) else None
    removed: list[str] = []
    for collection in _collections(since, owns_groups=crd is not None and is_local(crd)):
        removed += await _remove(client, collection, deadline)
    return removed


def _creates_labelled(one: Document) -> bool:
    return is_local(one["spec"]["template"])


async def find_claim(client: ClusterClient) -> str:
    """Describe the process of the run that has claimed the cluster; empty if none has."""
    namespace = await client.find(NAMESPACE) or {"metadata": {}}
    return str(namespace["metadata"].get("annotations", {}).get(CLAIM, ""))


def describe_process(process: psutil.Process) -> str:
    """Describe a process; no other process has the same description."""
    started = datetime.fromtimestamp(int(process.create_time()), UTC)
    return f"process {process.pid} on {socket.gethostname()}, started at {started:%F %T} UTC"


def is_running(description: str) -> bool:
    """Whether a process of this machine has the description."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            if describe_process(process) == description:
                return True
    return False


async def _remove(client: ClusterClient, collection: _Collection, deadline: float) -> list[str]:
    removed: dict[str, None] = {}
    while left := [one for one in await client.list(collection.path) if collection.is_owned(one)]:
        names = [describe({**one, "kind": collection.kind}) for one in left]
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError(f"{names[0]} is still there")
        for one in left:
            path = item_path(collection.path, one)
            if collection.path == GROUPS:
                await client.request("PATCH", path, {"metadata": {"finalizers": None}})
            await client.delete(path, one["metadata"]["uid"], **_OPTIONS)
        removed |= dict.fromkeys(names)
        await asyncio.sleep(_POLL_S)
    return list(removed)


def _collections(since: str | None, *, owns_groups: bool) -> Iterator[_Collection]:
    """All collections, in the order of removal; without a claim, only objects with the label."""

    def is_new(one: Document) -> bool:
        return since is not None and one["metadata"]["creationTimestamp"] >= since

    def is_of_vm(one: Document) -> bool:
        return is_new(one) and one["metadata"]["name"].startswith(_VM_PREFIX)

    def is_by_token(request: Document) -> bool:
        return is_new(request) and _BOOTSTRAP_GROUP in request["spec"].get("groups", ())

    def is_by_step(event: Document) -> bool:
        component = event.get("source", {}).get("component", "")
        return is_new(event) and component.startswith(_COMPONENTS)

    yield _Collection("MutatingWebhookConfiguration", f"{WEBHOOKS}?labelSelector={SELECTOR}")
    for kind in (JOBSETS, LEADER_WORKER_SETS, DEPLOYMENTS, JOBS):
        yield _Collection(kind, f"{PATHS[kind]}?labelSelector={SELECTOR}")
    for kind in (STATEFUL_SETS, REPLICA_SETS):  # of the former: without the label
        yield _Collection(kind, PATHS[kind], _creates_labelled)
    yield _Collection(PODS, f"{PATHS[PODS]}?labelSelector={SELECTOR}")
    if owns_groups:
        yield _Collection("TPUNodeGroup", GROUPS)
    yield _Collection("Node", NODES, is_of_vm)
    yield _Collection("Lease", _LEASES, is_of_vm)
    yield _Collection("Secret", f"{TOKENS}?labelSelector={_RESOURCE_NAME}", is_new)
    yield _Collection("CertificateSigningRequest", _CSRS, is_by_token)
    yield _Collection("Event", _EVENTS, is_by_step)
    applied = reversed(read_labelled_manifests(ALL_SLICES))  # the namespace is last
    for kind, path in dict.fromkeys((one["kind"], collection_path(one)) for one in applied):
        yield _Collection(kind, f"{path}?labelSelector={SELECTOR}")
