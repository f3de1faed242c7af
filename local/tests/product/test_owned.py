# ruff: noqa: E501  (a table reads best with a row on a line)
"""The objects of a run, and no others, are removed from a named cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec

from local import jobsets
from local.cluster import owned
from local.cluster.manifests import (
    ALL_SLICES,
    GROUPS,
    NODES,
    TOKENS,
    Manifest,
    collection_path,
    item_path,
    label_workload,
    read_labelled_manifests,
    read_manifests,
)
from local.cluster.owned import describe_process, is_running, remove_owned
from local.tests.jobsets.cluster import jobset
from local.tests.product.small_cluster import (
    OURS,
    SmallCluster,
    claim,
    manifest,
    open_cluster,
)
from local.vm.kubeadm import signing_request
from tests.support.harness import ROOT

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
EVENTS = "/api/v1/events"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
SETS = "/apis/apps/v1/replicasets"
LISTS = (
    SETS,
    NODES,
    LEASES,
    TOKENS,
    CSRS,
    EVENTS,
    JOBSETS,
    GROUPS,
    "/api/v1/pods",
    "/api/v1/namespaces",
)
JOBSET_CRD = yaml.safe_load((Path(jobsets.__file__).parent / "crd.yaml").read_text())
GROUP_CRD = next(one for one in read_manifests() if one["kind"] == "CustomResourceDefinition")
GROUP = yaml.safe_load((ROOT / "examples" / "v6e-single-host.yaml").read_text())


@pytest.mark.parametrize(
    "collection, metadata, path",
    [
        pytest.param("/api/v1/nodes", {"name": "n"}, "/api/v1/nodes/n", id="of the cluster"),
        pytest.param(
            GROUPS,
            {"name": "n", "namespace": "team"},
            "/apis/tpu.google.com/v1alpha1/namespaces/team/tpunodegroups/n",
            id="in a list of all namespaces",
        ),
        pytest.param(
            "/api/v1/namespaces/team/secrets",
            {"name": "n", "namespace": "team"},
            "/api/v1/namespaces/team/secrets/n",
            id="in the list of its namespace",
        ),
        pytest.param("/api/v1/pods?labelSelector=a=b/c", {"name": "n", "namespace": "team"}, "/api/v1/namespaces/team/pods/n", id="in a list with a selector"),
        pytest.param("/api/v1/namespaces", {"name": "n"}, "/api/v1/namespaces/n", id="a namespace"),
    ],
)  # fmt: skip
def test_the_path_of_an_item_of_a_list(collection: str, metadata: Manifest, path: str) -> None:
    assert item_path(collection, {"metadata": metadata}) == path


def node(name: str) -> Manifest:
    return manifest("Node", name)


def replica_set(name: str, labels: dict[str, str]) -> Manifest:
    """A ReplicaSet of a Deployment: only its template has the labels."""
    metadata = {"labels": {"app": name, **labels}}
    template = {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}}
    spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
    return manifest("ReplicaSet", name, "apps/v1", namespace="default") | {"spec": spec}


def lease(name: str) -> Manifest:
    return manifest("Lease", name, "coordination.k8s.io/v1", namespace="kube-node-lease")


def token(token_id: str, **labels: str) -> Manifest:
    return manifest(
        "Secret",
        f"bootstrap-token-{token_id}",
        namespace="kube-system",
        labels={f"tpu-functions.dev/{key.replace('_', '-')}": each for key, each in labels.items()},
        type="bootstrap.kubernetes.io/token",
    )


def event(name: str, component: str) -> Manifest:
    about = {"kind": "Pod", "name": "p", "namespace": "default"}
    source = {"component": component}
    return manifest("Event", name, namespace="default", involvedObject=about, source=source)


def pod(name: str, **labels: str) -> Manifest:
    spec = {"containers": [{"name": "c", "image": "i"}]}
    return manifest("Pod", name, namespace="default", labels=labels, spec=spec)


def role(name: str) -> Manifest:
    return manifest("ClusterRole", name, "rbac.authorization.k8s.io/v1", rules=[])


def group(name: str) -> Manifest:
    """Build a TPUNodeGroup with the product's finalizer."""
    metadata = {"name": name, "namespace": "default", "finalizers": ["tpu-functions.dev/teardown"]}
    return {**GROUP, "metadata": metadata}


async def request_certificate(cluster: SmallCluster, user: str) -> None:
    request = signing_request(ec.generate_private_key(ec.SECP256R1()), "tng-a-1")
    async with cluster.client_of(user) as client:
        await client.create(CSRS, request)


async def list_all(cluster: SmallCluster) -> set[tuple[str, str]]:
    """Return all objects of the kinds that a run creates: path of the list and name."""
    paths = {*LISTS, *map(collection_path, read_labelled_manifests(ALL_SLICES))}
    return {(path, name) for path in paths for name in await cluster.list_names(path)}


def test_all_objects_of_a_run_and_no_others_are_removed(tmp_path: Path) -> None:
    _, *applied = read_labelled_manifests(ALL_SLICES)
    applied = [one for one in applied if one["metadata"]["name"] != "jobsets.jobset.x-k8s.io"]

    async def story() -> None:
        async with open_cluster(tmp_path) as cluster:
            await cluster.create(JOBSET_CRD, jobset("theirs"), role("theirs"))
            await cluster.create(node("tng-older"), lease("tng-older"))
            await cluster.create(token("older1", resource_name="tng-older"))
            await cluster.create(event("older", "tpu-functions-sweep"))
            await request_certificate(cluster, "vm")
            others = await list_all(cluster)

            await cluster.create(claim())
            claimed = await list_all(cluster)
            await cluster.create(
                node("worker-1"),
                lease("worker-1"),
                token("worker"),
                pod("theirs"),
                replica_set("theirs", {}),
            )
            await cluster.create(event("theirs", "scheduler"))
            await request_certificate(cluster, "guest")
            others |= await list_all(cluster) - claimed

            await cluster.create(node("tng-a-1"), lease("tng-a-1"))
            await cluster.create(token("tokena", resource_name="tng-a"))
            await cluster.create(event("ours", "tpu-functions-sweep"))
            await request_certificate(cluster, "vm")
            await cluster.create(label_workload(jobset("ours")), pod("ours", **OURS))
            await cluster.create(replica_set("ours", OURS))
            await cluster.create(*applied, group("training"))

            removed = await remove_owned(cluster.client)
            assert await list_all(cluster) == others
            assert removed[:7] == [
                "JobSet default/ours",
                "ReplicaSet default/ours",
                "Pod default/ours",
                "TPUNodeGroup default/training",
                "Node tng-a-1",
                "Lease kube-node-lease/tng-a-1",
                "Secret kube-system/bootstrap-token-tokena",
            ]
            assert removed[-1] == "Namespace tpu-functions"
            assert len(removed) == 9 + len(applied) + 1
            assert await remove_owned(cluster.client) == []

    asyncio.run(story())


def test_without_a_claim_only_objects_with_the_label_are_removed(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_cluster(tmp_path) as cluster:
            await cluster.create(manifest("Namespace", "tpu-functions"), pod("ours", **OURS))
            await cluster.create(node("tng-a-1"), token("tokena", resource_name="tng-a"))
            assert await remove_owned(cluster.client) == ["Pod default/ours"]

    asyncio.run(story())


def test_the_groups_of_an_installation_are_not_removed(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_cluster(tmp_path) as cluster:
            await cluster.create(claim(), GROUP_CRD, group("training"))
            assert await remove_owned(cluster.client) == ["Namespace tpu-functions"]
            assert await cluster.list_names(GROUPS) == ["training"]

    asyncio.run(story())


def test_the_error_about_a_remaining_object_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owned, "_GONE_WITHIN_S", 0.0)

    async def story() -> None:
        async with open_cluster(tmp_path) as cluster:
            await cluster.create(claim(), node("tng-a-1"))
            await remove_owned(cluster.client)

    with pytest.raises(TimeoutError, match=r"^Node tng-a-1 is still there$"):
        asyncio.run(story())


def test_a_run_counts_as_running_while_its_process_exists() -> None:
    here = describe_process(psutil.Process())
    assert is_running(here)
    assert not is_running(here.replace("started at 2", "started at 1")), "the pid of an earlier one"
    assert not is_running("")
