"""The lives of workloads that get slices, with the real controllers of their kinds, all in one cluster.

The control plane, JobSet and LeaderWorkerSet are real, and the product's own webhooks review the Pods.
VMs and kubelets are simulated: a Pod of a Job ends as its annotation says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
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
from local.control_plane.plane import OwnControlPlane
from local.show.workload_demo import EXAMPLES, OPTIONS, TEMPLATE, WORKLOADS
from local.tests.real_parts import get_workload_controllers, open_own_control_plane
from shared.base.slice_names import job_key
from shared.slices.by_node_group.provider import RELEASE_ANNOTATION
from tests.real.inventory import list_everything
from tests.real.life import END, PODS, Document, living
from tests.real.life import Life as InCluster

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.xdist_group("workloads"),
]

WITHIN_S = 120.0
KINDS = ["LeaderWorkerSet", "Deployment", "Job"]


class Life:
    """A workload of an example under another name, in a cluster in which the product runs."""

    def __init__(self, client: ClusterClient, kind: str, name: str, **spec: Any) -> None:
        self.client, self.kind, self.name = client, kind, name
        manifest = yaml.safe_load((EXAMPLES / WORKLOADS[kind].example).read_text())
        manifest["metadata"]["name"] = name
        manifest["spec"] |= spec
        if kind == "jobset":
            manifest["spec"]["replicatedJobs"][0]["replicas"] = 1
        if kind == "job":
            manifest["spec"]["backoffLimit"] = 1
            own = {"job-key": job_key("default", f"Job/{name}/")}
            manifest["spec"]["template"]["spec"]["nodeSelector"] |= own
        self.manifest = label_workload(manifest)
        self.size = 1 if kind == "deployment" else 2

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
        assert len(slices) <= 3, "more slices than groups or replicas"
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

    async def end(self, phase: str, *pods: Document) -> None:
        """End Pods, or all."""
        for pod in pods or await self.pods():
            path = f"{PODS}/{pod['metadata']['name']}"
            change = {"metadata": {"annotations": {END: phase}}}
            code, answer = await self.client.request("PATCH", path, change)
            assert code == 200, answer

    async def until(self, condition: Callable[[], Awaitable[object]], what: str) -> None:
        """Wait until a condition holds."""
        try:
            async with asyncio.timeout(WITHIN_S):
                while not await condition():
                    await asyncio.sleep(0.1)
        except TimeoutError:
            found = [(one["metadata"], one.get("status")) for one in await self.pods()]
            raise AssertionError(f"{self.name}: not in {WITHIN_S:.0f} s: {what}: {found}") from None

    async def until_slices_are_gone(self) -> None:
        """Wait until its slices are gone."""

        async def are_gone() -> bool:
            return not await self.slices()

        await self.until(are_gone, "its slices are gone")

    async def until_gone(self) -> None:
        """Wait until the workload, its Pods and slices are gone."""

        async def is_gone() -> bool:
            return await self.client.find(object_path(self.manifest)) is None

        await self.until(is_gone, "it is gone")
        await self.run(0, 0)

    async def delete(self, policy: str = "Background") -> None:
        """Delete the workload, and wait until nothing of it is left."""
        options = {"propagationPolicy": policy}
        code, answer = await self.client.request("DELETE", object_path(self.manifest), options)
        assert code == 200, answer
        await self.until_gone()


async def serve_groups(inside: InCluster, policy: str) -> None:
    """A LeaderWorkerSet of one group: two groups and one again, a rolling update, the end."""
    network = {"subdomainPolicy": policy}
    life = Life(inside.client, "lws", policy.lower(), networkConfig=network)
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


async def serve_replicas(inside: InCluster) -> None:
    """A Deployment: one replica, three and none."""
    life = Life(inside.client, "deployment", "replicas")
    await life.apply()
    for replicas in (1, 3, 0):
        await life.change({"replicas": replicas})
        await life.run(replicas, replicas)
    await life.delete()


async def train(inside: InCluster) -> None:
    """An Indexed Job: it is suspended and resumed, completes, and its slice is deleted."""
    job = Life(inside.client, "job", "train")
    await job.apply()
    await job.run(2, 1)
    nodes = await job.nodes()
    for is_suspended, count in ((True, 0), (False, 2)):
        await job.change({"suspend": is_suspended})
        await job.run(count, 1)
    assert await job.nodes() == nodes, "the slice is kept meanwhile"
    await job.end("Succeeded")
    # Not its Pods: the control plane deletes them some time after their Nodes.
    await job.until_slices_are_gone()
    found = await inside.client.find(object_path(job.manifest))
    assert found is not None
    assert found["status"]["succeeded"] == 2
    await job.delete()


async def expire(inside: InCluster) -> None:
    """An Indexed Job that its time to live deletes, in the foreground."""
    job = Life(inside.client, "job", "brief", ttlSecondsAfterFinished=1)
    await job.apply()
    await job.run(2, 1)
    await job.end("Succeeded")
    await job.until_gone()


@pytest.fixture(scope="module")
def cluster() -> Iterator[OwnControlPlane]:
    """A cluster with JobSet and LeaderWorkerSet."""
    folder = get_workload_controllers()
    with (
        open_own_control_plane() as plane,
        workload_controllers.running(plane, folder, workload_controllers.JOBSET),
        workload_controllers.running(plane, folder, workload_controllers.LWS),
    ):
        yield plane


@asynccontextmanager
async def beginning(cluster: OwnControlPlane, folder: Path) -> AsyncIterator[InCluster]:
    """Run the product in a cluster for all kinds; at the end, nothing is left."""
    before = list_everything(cluster)
    async with living(cluster, folder) as life:
        data = yaml.safe_load(TEMPLATE.read_text())["data"]
        data["namespaces"] = json.dumps({"default": {"kinds": KINDS, "slices": 16, "chips": 128}})
        await life.ask("PATCH", OPTIONS, {"data": data})
        yield life
        assert life.supervisor.gce.leftovers() == []
        nodes = [one["metadata"]["name"] for one in await life.client.list(NODES)]
        assert not [name for name in nodes if name.startswith("tng-")]
    assert list_everything(cluster) ^ before == set()


LIVES: dict[str, tuple[Callable[[InCluster], Coroutine[Any, Any, None]], ...]] = {
    "servers": (
        partial(serve_groups, policy="Shared"),
        partial(serve_groups, policy="UniquePerReplica"),
        serve_replicas,
    ),
    "jobs": (train, expire),
}
"""Lives beside each other. Groups of LeaderWorkerSets are not tied: they would take the free hosts of a
suspended Job."""


@pytest.mark.parametrize("name", LIVES)
async def test_workloads_get_slices_keep_and_lose_them_with_their_own_controllers(
    name: str, cluster: OwnControlPlane, tmp_path: Path
) -> None:
    async with beginning(cluster, tmp_path) as inside, asyncio.TaskGroup() as lives:
        for live in LIVES[name]:
            lives.create_task(live(inside))


async def be_created(_: Life) -> None:
    """Nothing is awaited."""


async def have_slice(life: Life) -> None:
    """Its slice is being created."""
    await life.until(life.slices, "its slice exists")


async def join(life: Life) -> None:
    """A Node has joined; the slice is not Ready."""

    async def has_joined() -> bool:
        names = {one["metadata"]["name"] for one in await life.slices()}
        nodes = await life.client.list(NODES)
        label = "cloud.google.com/tpu-node-group-name"
        return any(one["metadata"]["labels"].get(label) in names for one in nodes)

    await life.until(has_joined, "a Node has joined")
    for group in await life.slices():
        ready = [one for one in group["status"]["conditions"] if one["type"] == "Ready"]
        assert [one["status"] for one in ready] == ["False"]


async def work(life: Life) -> None:
    """Its Pods run."""
    await life.run(life.size, 1)


async def restart(life: Life) -> None:
    """A Pod that failed, or was deleted, is replaced."""
    await work(life)
    before, (pod, *_) = await life.uids(), await life.pods()
    if life.kind in ("jobset", "job"):
        await life.end("Failed", pod)
    else:
        await life.client.request("DELETE", f"{PODS}/{pod['metadata']['name']}")

    async def is_replaced() -> bool:
        return not await life.uids() <= before

    await life.until(is_replaced, "a Pod is replaced")


async def be_released(life: Life) -> None:
    """Its slice is released, because it has ended or is scaled to zero."""
    await work(life)
    if life.kind in ("jobset", "job"):
        await life.end("Succeeded")
    else:
        await life.change({"replicas": 0})

    async def is_released() -> bool:
        marks = [one["metadata"] for one in await life.slices()]
        return any(
            RELEASE_ANNOTATION in one.get("annotations", {}) or "deletionTimestamp" in one
            for one in marks
        )

    await life.until(is_released, "its slice is released")


MOMENTS = {
    "new": be_created,
    "creating": have_slice,
    "joined": join,
    "running": work,
    "restarting": restart,
    "released": be_released,
}
POLICIES = ("Foreground", "Background")


@pytest.mark.parametrize("kind", ["jobset", "lws", "deployment", "job"])
async def test_a_deletion_at_any_moment_leaves_nothing(
    kind: str, cluster: OwnControlPlane, tmp_path: Path
) -> None:
    async def live(life: Life, moment: str, policy: str) -> None:
        await life.apply()
        await MOMENTS[moment](life)
        await life.delete(policy)

    async with beginning(cluster, tmp_path) as inside, asyncio.TaskGroup() as lives:
        for moment, policy in product(MOMENTS, POLICIES):
            life = Life(inside.client, kind, f"{policy}-{moment}".lower())
            lives.create_task(live(life, moment, policy))
