"""The lives of workloads that get slices, with the real controllers of their kinds, all in one cluster.

The control plane and LeaderWorkerSet are real, and the product's own webhooks review the Pods. VMs and
kubelets are simulated.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.base.cluster_client import ClusterClient
from local.cluster.manifests import (
    GROUPS,
    NODES,
    collection_path,
    label_workload,
    object_path,
)
from local.control_plane import workload_controllers
from local.jobsets import PodBehaviour
from local.run.supervisor import TPU_NODE_GROUP, Setup, open_supervisor
from local.show.workload_demo import EXAMPLES, OPTIONS, SWEEP_EVERY_S, TEMPLATE, WORKLOADS
from local.tests.real_parts import get_workload_controllers, open_own_control_plane
from tests.processes.quick import QUICK_AGENTS, QUICK_GCE
from tests.real.inventory import list_everything

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.xdist_group("workloads"),
]

PODS = "/api/v1/namespaces/default/pods"
WITHIN_S = 90.0
KINDS = ["LeaderWorkerSet", "Deployment", "Job"]
Document = dict[str, Any]


class Life:
    """A workload of an example under another name, in a cluster in which the product runs."""

    def __init__(self, client: ClusterClient, kind: str, name: str, **spec: Any) -> None:
        self.client = client
        manifest = yaml.safe_load((EXAMPLES / WORKLOADS[kind].example).read_text())
        manifest["metadata"]["name"] = name
        manifest["spec"] |= spec
        self.manifest = label_workload(manifest)
        self.name = name

    async def apply(self) -> None:
        """Create the workload."""
        await self.client.create(collection_path(self.manifest), self.manifest)

    async def change(self, spec: Mapping[str, Any]) -> None:
        """Change fields of the spec."""
        code, answer = await self.client.request(
            "PATCH", object_path(self.manifest), {"spec": spec}
        )
        assert code == 200, answer

    async def pods(self) -> list[Document]:
        """The Pods of the workload."""
        found = await self.client.list(PODS)
        return [one for one in found if one["metadata"]["name"].startswith(f"{self.name}-")]

    async def slices(self) -> list[Document]:
        """The slices of the workload."""
        found = await self.client.list(GROUPS)
        return [one for one in found if one["metadata"]["name"].startswith(f"{self.name}-")]

    async def run(self, count: int, slices: int, *, without: frozenset[str] = frozenset()) -> Life:
        """Wait until so many Pods run, none of them one of ``without``, and so many slices are left."""
        async with asyncio.timeout(WITHIN_S):
            while not await self._runs(count, slices, without):
                await asyncio.sleep(0.2)
        return self

    async def _runs(self, count: int, most: int, without: frozenset[str]) -> bool:
        pods, slices = await self.pods(), await self.slices()
        live = [one for one in pods if one["status"].get("phase") not in ("Succeeded", "Failed")]
        nodes = [one["spec"]["nodeName"] for one in live if "nodeName" in one["spec"]]
        assert len(nodes) == len(set(nodes)), f"two Pods are on one Node: {nodes}"
        assert len(slices) <= 2, "more slices than groups or replicas"
        phases = [one["status"].get("phase") for one in pods]
        is_new = without.isdisjoint(one["metadata"]["uid"] for one in pods)
        return (
            is_new
            and phases in (["Running"] * count, ["Succeeded"] * count)
            and len(slices) == most
        )

    async def uids(self) -> frozenset[str]:
        """The uids of the Pods."""
        return frozenset(one["metadata"]["uid"] for one in await self.pods())

    async def nodes(self) -> set[str]:
        """The Nodes of the Pods."""
        return {one["spec"]["nodeName"] for one in await self.pods()}

    async def delete(self) -> None:
        """Delete the workload, and wait until its Pods and slices are gone."""
        options = {"propagationPolicy": "Background"}
        code, answer = await self.client.request("DELETE", object_path(self.manifest), options)
        assert code == 200, answer
        await self.run(0, 0)


async def serve_groups(client: ClusterClient, policy: str) -> None:
    """A LeaderWorkerSet of one group: two groups and one again, a rolling update, the end."""
    network = {"subdomainPolicy": policy}
    life = Life(client, "lws", policy.lower(), networkConfig=network)
    await life.apply()
    await life.run(2, 1)
    first = await life.nodes()
    await life.change({"replicas": 2})
    await life.run(4, 2)
    assert first < await life.nodes(), "the first group stays where it is"
    await life.change({"replicas": 1})
    await life.run(2, 1)
    template = {"workerTemplate": {"metadata": {"annotations": {"example.com/revision": "2"}}}}
    before = await life.uids()
    await life.change({"leaderWorkerTemplate": template})
    await life.run(2, 1, without=before)
    assert await life.nodes() == first, "a rolling update keeps the slice"
    await life.delete()


async def serve_replicas(client: ClusterClient) -> None:
    """A Deployment: one replica, two and none."""
    life = Life(client, "deployment", "replicas")
    await life.apply()
    for replicas in (1, 2, 0):
        await life.change({"replicas": replicas})
        await life.run(replicas, replicas)
    await life.delete()


async def train(client: ClusterClient) -> None:
    """An Indexed Job: it completes, and its slice is deleted."""
    life = Life(client, "job", "train")
    await life.apply()
    await life.run(2, 1)
    # Not its Pods: the control plane deletes them some time after their Nodes.
    async with asyncio.timeout(WITHIN_S):
        while await life.slices():
            await asyncio.sleep(0.2)
    job = await client.find(object_path(life.manifest))
    assert job is not None
    assert job["status"]["succeeded"] == 2
    await life.delete()


async def test_workloads_get_slices_keep_and_lose_them_with_their_own_controllers(
    tmp_path: Path,
) -> None:
    folder = get_workload_controllers()
    with (
        open_own_control_plane() as plane,
        workload_controllers.running(plane, folder, workload_controllers.LWS),
    ):
        before = list_everything(plane)
        setup = Setup(
            tmp_path,
            kubeconfig=plane.kubeconfig,
            calls_webhooks=True,
            workloads=True,
            gce=QUICK_GCE,
            agents=QUICK_AGENTS,
            scripts=0,
            slices=TPU_NODE_GROUP,
            pods=PodBehaviour(run_s=1.0, stop_s=0.2),
            sweep_every_s=SWEEP_EVERY_S,
        )
        async with (
            open_supervisor(setup, lambda _: None) as supervisor,
            supervisor.client() as client,
        ):
            data = yaml.safe_load(TEMPLATE.read_text())["data"]
            limits = {"default": {"kinds": KINDS, "slices": 7, "chips": 48}}
            data["namespaces"] = json.dumps(limits)
            await client.request("PATCH", OPTIONS, {"data": data})
            async with asyncio.TaskGroup() as lives:
                for policy in ("Shared", "UniquePerReplica"):
                    lives.create_task(serve_groups(client, policy))
                lives.create_task(serve_replicas(client))
                lives.create_task(train(client))
            assert supervisor.gce.leftovers() == []
            nodes = [one["metadata"]["name"] for one in await client.list(NODES)]
            assert not [name for name in nodes if name.startswith("tng-")]
        assert list_everything(plane) ^ before == set()
