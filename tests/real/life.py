"""The life of a JobSet whose Jobs get slices, in a cluster with its own controller.

The product runs as in ``make demo-workload``, and its webhooks review Jobs and Pods. VMs and kubelets
are simulated: a Pod ends as its annotation says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from local.base.cluster_client import ClusterClient
from local.base.events import Event, SubprocessEnded
from local.cloud.simulation import PROJECT
from local.cluster.manifests import GROUPS, label_workload
from local.control_plane import workload_controllers
from local.control_plane.plane import OwnControlPlane
from local.jobsets import REAL_CONTROLLERS, PodBehaviour
from local.run.supervisor import TPU_NODE_GROUP, Setup, Supervisor, open_supervisor
from local.show.workload_demo import OPTIONS, SWEEP_EVERY_S, TEMPLATE
from tests.processes.quick import QUICK_AGENTS, QUICK_GCE
from tests.support.harness import ROOT

EXAMPLE = ROOT / "examples" / "jobset-v6e-multislice.yaml"
JOBSET = workload_controllers.JOBSET.path + "/multislice"
PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
LABELS = "jobset.sigs.k8s.io"
END, HANGS = "tests.tpu-functions.dev/phase", "tests.tpu-functions.dev/hangs"
"""The annotations of a Pod that has ended, and of one that never ends when it is deleted."""
WITHIN_S = 90.0

Document = dict[str, Any]


class Life:
    """A JobSet of two Jobs of two hosts, in a cluster in which the product runs."""

    def __init__(self, supervisor: Supervisor, client: ClusterClient) -> None:
        self.supervisor = supervisor
        self.client = client

    async def apply(self, **spec: Any) -> None:
        """Apply the template of slices and the example."""
        data = yaml.safe_load(TEMPLATE.read_text())["data"]
        await self.ask("PATCH", OPTIONS, {"data": data})
        manifest = label_workload(yaml.safe_load(EXAMPLE.read_text()))
        manifest["spec"] |= spec
        await self.ask("POST", JOBSET.rpartition("/")[0], manifest)

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Document:
        """Send a request that must succeed."""
        code, answer = await self.client.request(method, path, body)
        assert code < 300, answer
        return answer

    async def end_pods(self, phase: str, *names: str, key: str = END) -> None:
        """End the Pods with these host names, or all. With the key `HANGS`: never."""
        for pod in await self.client.list(PODS):
            if pod["spec"]["hostname"] in names or not names:
                path = f"{PODS}/{pod['metadata']['name']}"
                await self.ask("PATCH", path, {"metadata": {"annotations": {key: phase}}})

    async def until(
        self, condition: Callable[[list[Document]], bool], what: str, within_s: float = WITHIN_S
    ) -> None:
        """Wait until a condition holds for the JobSet's Pods."""
        try:
            async with asyncio.timeout(within_s):
                while not condition(await self.client.list(PODS)):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pods = [(one["metadata"], one["status"]) for one in await self.client.list(PODS)]
            raise AssertionError(f"not in {within_s:.0f} s: {what}: {pods}") from None

    async def until_reported(self, reason: str) -> list[str]:
        """Wait for Events whose reason ends so; return their messages."""
        found: list[str] = []
        async with asyncio.timeout(WITHIN_S):
            while not found:
                await asyncio.sleep(0.1)
                events = await self.client.list(EVENTS)
                found = [one["message"] for one in events if one["reason"].endswith(reason)]
        return found

    def environment(self, identity: str) -> dict[str, str]:
        """The environment of a step that runs in this process."""
        supervisor = self.supervisor
        return {
            "PUBSUB_PROJECT": PROJECT,
            "PUBSUB_EMULATOR_HOST": supervisor.pubsub_address,
            "COMPUTE_ENDPOINT": supervisor.compute_url,
            "KUBECONFIG": str(supervisor.cluster.kubeconfig_of(identity)),
            "JOBSET_PROVIDER": TPU_NODE_GROUP,
        }

    async def run(self, attempt: int) -> dict[str, set[str]]:
        """Wait until all Pods of an attempt run; return the Nodes of each Job."""

        def is_running(pod: Document) -> bool:
            labels = pod["metadata"]["labels"]
            is_current = labels[f"{LABELS}/restart-attempt"] == str(attempt)
            return bool(is_current and pod["status"]["phase"] == "Running")

        await self.until(
            lambda pods: [is_running(one) for one in pods] == [True] * 4, "four Pods run"
        )
        nodes: dict[str, set[str]] = {}
        for pod in await self.client.list(PODS):
            name = pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
            nodes.setdefault(name, set()).add(pod["spec"]["nodeName"])
        return nodes

    async def until_jobset_is_gone(self) -> None:
        """Wait until the JobSet and its Pods do not exist any more."""
        async with asyncio.timeout(WITHIN_S):
            while (await self.client.request("GET", JOBSET))[0] != 404:
                await asyncio.sleep(0.1)
        assert await self.client.list(PODS) == []

    async def until_slices_are_gone(self) -> None:
        """Wait until no slice and no VM is left."""
        async with asyncio.timeout(WITHIN_S):
            while await self.client.list(GROUPS) or self.supervisor.gce.leftovers():
                await asyncio.sleep(0.1)


@asynccontextmanager
async def living(cluster: OwnControlPlane, folder: Path, **settings: Any) -> AsyncIterator[Life]:
    """Run the product in the cluster, with other settings of the supervisor.

    Fails if one of its processes has crashed.
    """
    ends, hangs = partial(_read, END), partial(_read, HANGS)
    chosen: dict[str, Any] = {
        "calls_webhooks": True,
        "pods": PodBehaviour(run_s=0.0, ends=ends, stop_s=0.2, hangs=lambda pod: bool(hangs(pod))),
        **settings,
    }
    setup = Setup(
        folder,
        kubeconfig=cluster.kubeconfig,
        gce=QUICK_GCE,
        agents=QUICK_AGENTS,
        scripts=0,
        slices=TPU_NODE_GROUP,
        jobset=REAL_CONTROLLERS,
        sweep_every_s=SWEEP_EVERY_S,
        **chosen,
    )
    ended: list[SubprocessEnded] = []

    def observe(event: Event) -> None:
        if isinstance(event, SubprocessEnded):
            ended.append(event)

    async with open_supervisor(setup, observe) as supervisor, supervisor.client() as client:
        yield Life(supervisor, client)
    assert not ended, "\n".join(f"{one.how}: {'; '.join(one.last_lines)}" for one in ended)


def _read(key: str, pod: Document) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(key, ""))
