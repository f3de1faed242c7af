"""Checks that a named cluster can serve a run; changes nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from local.base.cluster_client import ClusterClient
from local.cluster.manifests import (
    ALL_SLICES,
    JOBSET_CRD,
    Manifest,
    describe,
    is_local,
    object_path,
    read_labelled_manifests,
)
from local.cluster.owned import find_claim
from local.jobsets.objects import (
    CHIPS,
    DEPLOYMENTS,
    JOBS,
    JOBSETS,
    LEADER_WORKER_SETS,
    PATHS,
    STATEFUL_SETS,
)

OLDEST = (1, 30)
"""The oldest supported version of Kubernetes."""
_FOR_JOINING = (
    "kube-public/configmaps/cluster-info",
    "kube-system/configmaps/kubeadm-config",
    "kube-system/configmaps/kubelet-config",
)
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_SHOWN = 6
_OTHERWISE = {
    JOBSETS: "let this run simulate its controller: ARGS=--controllers=simulated",
    LEADER_WORKER_SETS: "use a control plane of this machine: ARGS=--real, without KUBECONFIG",
}
_WORKLOADS = (LEADER_WORKER_SETS, DEPLOYMENTS, STATEFUL_SETS, JOBS)
_NAMESPACE = "default"
"""The namespace in which a run switches kinds on."""


async def find_obstacle(
    client: ClusterClient, kubeconfig: Path, *, gives_slices: bool, needs: Collection[str] = ()
) -> str:
    """Describe what prevents a run, and what to do; empty if nothing does.

    Workloads with TPUs are an obstacle only to a run that creates slices for them (``gives_slices``).
    ``needs`` are kinds that must be installed with their controllers.
    """
    if not await _is_administrator(client):
        return (
            "The kubeconfig's user is not the cluster's administrator. Name a user that is bound to "
            "cluster-admin: a CRD and ClusterRoles are applied."
        )
    if too_old := describe_version((await client.request("GET", "/version"))[1]):
        return too_old
    namespaces = "/api/v1/namespaces"
    if absent := [one for one in _FOR_JOINING if await client.find(f"{namespaces}/{one}") is None]:
        remedy = "Name a cluster that `kubeadm init` has set up."
        return _render("VMs cannot join as `kubeadm join` does, without:", absent, remedy)
    present = await _find_present(client)
    if foreign := [describe(one) for one in present if not is_local(one)]:
        remedy = "Both would work on the same groups. Name a cluster without it, or uninstall it."
        return _render("tpu-functions or tpu-operator is installed:", foreign, remedy)
    if present:
        process = await find_claim(client) or "its process is unknown"
        return (
            f"Another run uses the cluster or was killed: {process}.\n"
            f"End it by Ctrl-C. If it was killed, remove what is left: {clean_command(kubeconfig)}"
        )
    for kind in needs:
        if (await client.request("GET", PATHS[kind]))[0] == 404:
            return f"{kind} is not installed. Install it, or {_OTHERWISE[kind]}"
    if gives_slices and (found := [one async for one in _list_workloads(client)]):
        return _render(
            "This run would give simulated slices to workloads that request TPUs, and there are:",
            [describe(one) for one in found],
            "Delete them, or name a cluster without them.",
        )
    return ""


def describe_version(version: Mapping[str, Any]) -> str:
    """Describe a cluster that is older than the manifests allow; empty if it is not."""
    if (int(version["major"]), int(version["minor"].rstrip("+"))) >= OLDEST:
        return ""
    return (
        f"It runs Kubernetes {version['gitVersion']}. Name a cluster of {OLDEST[0]}.{OLDEST[1]} or "
        "newer: the manifests have ValidatingAdmissionPolicies."
    )


def clean_command(kubeconfig: Path) -> str:
    """The command that removes what a killed run has left."""
    return f"make demo KUBECONFIG={kubeconfig} ARGS=--clean"


async def _is_administrator(client: ClusterClient) -> bool:
    review = {"spec": {"resourceAttributes": {"verb": "*", "group": "*", "resource": "*"}}}
    code, answer = await client.request("POST", _REVIEWS, review)
    return code == 201 and bool(answer["status"]["allowed"])


async def _list_workloads(client: ClusterClient) -> AsyncIterator[Manifest]:
    """The workloads with TPUs of kinds that may get slices, in namespaces that may."""
    for kind in (JOBSETS, *_WORKLOADS):
        for one in await client.list(PATHS[kind]):
            is_served = kind == JOBSETS or one["metadata"]["namespace"] == _NAMESPACE
            if is_served and CHIPS in json.dumps(one["spec"]):
                yield {**one, "kind": kind}


async def _find_present(client: ClusterClient) -> list[Manifest]:
    """The objects that a run would create and that exist.

    tpu-operator has a CRD of the same name. JobSet's CRD is used as it is.
    """
    paths = map(object_path, read_labelled_manifests(ALL_SLICES))
    found = [await client.find(path) for path in paths if path != JOBSET_CRD]
    return [one for one in found if one is not None]


def _render(head: str, found: Sequence[str], remedy: str) -> str:
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return "\n".join([head, *(f"  {one}" for one in [*found[:_SHOWN], *more]), remedy])
