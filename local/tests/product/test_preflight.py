# ruff: noqa: E501  (a table reads best with a row on a line)
"""The preflight check of a named cluster: obstacles, and messages with the remedy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from local import jobsets
from local.cluster.manifests import read_leader_worker_set_crd, read_manifests
from local.cluster.preflight import describe_version, find_obstacle
from local.tests.jobsets.cluster import jobset
from local.tests.product.small_cluster import (
    OURS,
    SmallCluster,
    claim,
    manifest,
    open_cluster,
)

Manifest = dict[str, Any]
KUBECONFIG = Path("/home/me/config")
JOBSET_CRD = yaml.safe_load((Path(jobsets.__file__).parent / "crd.yaml").read_text())
GROUP_CRD = next(one for one in read_manifests() if one["kind"] == "CustomResourceDefinition")
CLEAN = (
    "End it by Ctrl-C. If it was killed, remove what is left: "
    "make demo KUBECONFIG=/home/me/config ARGS=--clean"
)
UNINSTALL = "Both would work on the same groups. Name a cluster without it, or uninstall it."


def find(
    folder: Path, *manifests: Manifest, gives_slices: bool = False, needs: Sequence[str] = ()
) -> list[str]:
    """Return the lines of the preflight check of a cluster with these objects."""

    async def look() -> str:
        async with open_cluster(folder) as cluster:
            await cluster.create(*manifests)
            return await find_obstacle(
                cluster.client, KUBECONFIG, gives_slices=gives_slices, needs=needs
            )

    return asyncio.run(look()).splitlines()


@pytest.mark.parametrize(
    "manifests, lines",
    [
        pytest.param([], [], id="nothing"),
        pytest.param([JOBSET_CRD, jobset("train")], [], id="JobSets that do not matter"),
        pytest.param(
            [manifest("Namespace", "tpu-functions")],
            ["tpu-functions or tpu-operator is installed:", "  Namespace tpu-functions", UNINSTALL],
            id="an installation",
        ),
        pytest.param(
            [GROUP_CRD],
            [
                "tpu-functions or tpu-operator is installed:",
                "  CustomResourceDefinition tpunodegroups.tpu.google.com",
                UNINSTALL,
            ],
            id="a CRD of tpu-operator",
        ),
        pytest.param(
            [claim(), manifest("ServiceAccount", "relay", namespace="tpu-functions")],
            [
                "tpu-functions or tpu-operator is installed:",
                "  ServiceAccount tpu-functions/relay",
                UNINSTALL,
            ],
            id="leftovers of a run and an installation",
        ),
        pytest.param([claim()], ["Another run uses the cluster or was killed: process 1 on elsewhere.", CLEAN], id="another run"),
        pytest.param(
            [{**GROUP_CRD, "metadata": {**GROUP_CRD["metadata"], "labels": OURS}}],
            [
                "Another run uses the cluster or was killed: its process is unknown.",
                CLEAN,
            ],
            id="leftovers of a run without its namespace",
        ),
    ],
)  # fmt: skip
def test_the_error_of_the_preflight_names_the_obstacle_and_the_remedy(
    tmp_path: Path, manifests: list[Manifest], lines: list[str]
) -> None:
    assert find(tmp_path, *manifests) == lines


def test_an_error_about_many_objects_names_six(tmp_path: Path) -> None:
    manifests = read_manifests()
    lines = find(tmp_path, *manifests)
    assert len(lines) == 1 + 6 + 1 + 1
    assert lines[7] == f"  and {len(manifests) - 6} more"


def deployment(name: str, namespace: str, chips: str) -> Manifest:
    container = {
        "name": "main",
        "resources": {"limits": {"google.com/tpu": chips} if chips else {}},
    }
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
    return manifest("Deployment", name, "apps/v1", namespace=namespace) | {"spec": spec}


def test_existing_workloads_that_would_get_slices_prevent_a_run_with_slices(tmp_path: Path) -> None:
    web, serve = deployment("web", "default", ""), deployment("serve", "default", "4")
    other = deployment("other", "kube-system", "4")
    found = [JOBSET_CRD, jobset("train"), web, serve, other]
    assert find(tmp_path, *found, gives_slices=True) == [
        "This run would give simulated slices to workloads that request TPUs, and there are:",
        "  JobSet default/train",
        "  Deployment default/serve",
        "Delete them, or name a cluster without them.",
    ]


@pytest.mark.parametrize(
    "kind, otherwise",
    [
        ("JobSet", "let this run simulate its controller: ARGS=--controllers=simulated"),
        ("LeaderWorkerSet", "use a control plane of this machine: ARGS=--real, without KUBECONFIG"),
    ],
)
def test_a_kind_must_be_installed_where_its_own_controller_runs_it(
    tmp_path: Path, kind: str, otherwise: str
) -> None:
    crd = {"JobSet": JOBSET_CRD, "LeaderWorkerSet": read_leader_worker_set_crd()}[kind]
    assert find(tmp_path, gives_slices=True, needs=[kind]) == [
        f"{kind} is not installed. Install it, or {otherwise}"
    ]
    assert find(tmp_path, crd, gives_slices=True, needs=[kind]) == []


def test_a_cluster_without_the_objects_of_kubeadm_is_an_error(tmp_path: Path) -> None:
    async def look() -> str:
        async with open_cluster(tmp_path) as cluster:
            for name in ("kubeadm-config", "kubelet-config"):
                await _delete(cluster, f"/api/v1/namespaces/kube-system/configmaps/{name}")
            return await find_obstacle(cluster.client, KUBECONFIG, gives_slices=False)

    assert asyncio.run(look()).splitlines() == [
        "VMs cannot join as `kubeadm join` does, without:",
        "  kube-system/configmaps/kubeadm-config",
        "  kube-system/configmaps/kubelet-config",
        "Name a cluster that `kubeadm init` has set up.",
    ]


async def _delete(cluster: SmallCluster, path: str) -> None:
    code, _ = await cluster.client.request("DELETE", path)
    assert code == 200


def test_a_user_other_than_the_administrator_is_an_error(tmp_path: Path) -> None:
    async def look() -> str:
        async with open_cluster(tmp_path) as cluster, cluster.client_of("guest") as guest:
            return await find_obstacle(guest, KUBECONFIG, gives_slices=False)

    assert asyncio.run(look()) == (
        "The kubeconfig's user is not the cluster's administrator. Name a user that is bound to "
        "cluster-admin: a CRD and ClusterRoles are applied."
    )


@pytest.mark.parametrize(
    "major, minor, expected",
    [
        ("1", "30", ""),
        ("1", "33+", ""),
        ("2", "0", ""),
        ("1", "29+", "It runs Kubernetes v1.29+. Name a cluster of 1.30 or newer: the manifests have ValidatingAdmissionPolicies."),
    ],
)  # fmt: skip
def test_the_error_about_an_old_cluster_has_its_version(
    major: str, minor: str, expected: str
) -> None:
    version = {"major": major, "minor": minor, "gitVersion": f"v{major}.{minor}"}
    assert describe_version(version) == expected
