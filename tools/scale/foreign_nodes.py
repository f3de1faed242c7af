"""Nodes and Pods of a large cluster that belong to no group, and kubelets that send their heartbeats."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import aiohttp

from local.control_plane.plane import ControlPlane
from shared.base.names import JOB_KEY
from tests.unit.relay.objects import foreign_node

MAX_CONCURRENCY = 32
LEASE_EVERY_S = 20.0
"""A kubelet renews its Lease every 10 seconds; twice as long is still within the grace period of 50,
so that no Node is tainted. The relay does not watch Leases."""
STATUS_EVERY_S = 60.0
"""A kubelet sends an unchanged status every five minutes; these send it five times as often."""
_READY_WITHIN_S = 600.0
_POLL_S = 10.0
_NODES = "/api/v1/nodes"
_PODS = "/api/v1/namespaces/default/pods"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_STRATEGIC = "application/strategic-merge-patch+json"
_MERGE = "application/merge-patch+json"


class ForeignNodes:
    """A number of Nodes and Pods; created by `open_foreign_nodes`."""

    def __init__(self, session: aiohttp.ClientSession, server: str, nodes: int, pods: int) -> None:
        self.heartbeats = 0
        """The number of status patches that the API server accepted."""
        self._session = session
        self._server = server
        self._names = [f"node-{number:05}" for number in range(nodes)]
        self._pods = pods

    async def register(self) -> None:
        """Create all Nodes and their Leases. Afterwards `send_heartbeats` must run."""
        await _in_parallel(self._register(name) for name in self._names)

    async def fill(self) -> None:
        """Create the Pods, bound to the Nodes round-robin."""
        hosts = itertools.cycle(self._names)
        await _in_parallel(self._bind(number, next(hosts)) for number in range(self._pods))

    async def until_ready(self) -> None:
        """Wait until all Nodes are Ready; the next status of a Node that was late makes it Ready
        again."""
        async with asyncio.timeout(_READY_WITHIN_S):
            while await self.count_ready() < len(self._names):
                await asyncio.sleep(_POLL_S)

    async def send_heartbeats(self) -> None:
        """Renew Leases and send statuses, evenly spread over time, until cancelled."""
        await asyncio.gather(
            self._spread(self._renew, LEASE_EVERY_S),
            self._spread(self._send_status, STATUS_EVERY_S),
        )

    async def count_ready(self) -> int:
        """Count the Nodes that are Ready."""
        listed = await self._request("GET", f"{_NODES}?resourceVersion=0")
        return sum(_is_ready(node) for node in listed["items"])

    async def _register(self, name: str) -> None:
        node = foreign_node(name)
        for condition in node["status"]["conditions"]:
            condition |= {"lastHeartbeatTime": _now(), "lastTransitionTime": _now()}
        del node["metadata"]["managedFields"]
        await self._request("POST", _NODES, node)
        await self._request("POST", _LEASES, {"metadata": {"name": name}, "spec": _lease(name)})

    async def _bind(self, number: int, host: str) -> None:
        """Create a pending Pod of a JobSet that requests no chips; no kubelet starts it."""
        container = {"name": "c", "image": "registry.example/image:v1"}
        pod = {
            "metadata": {"name": f"pod-{number:05}", "labels": {JOB_KEY: f"{number:040}"}},
            "spec": {"nodeName": host, "containers": [container]},
        }
        await self._request("POST", _PODS, pod)

    async def _renew(self, name: str) -> None:
        await self._request("PATCH", f"{_LEASES}/{name}", {"spec": _lease(name)}, _MERGE)

    async def _send_status(self, name: str) -> None:
        statuses = {"MemoryPressure": "False", "Ready": "True"}
        conditions = [
            {"type": kind, "status": status, "lastHeartbeatTime": _now()}
            for kind, status in statuses.items()
        ]
        status = {"status": {"conditions": conditions}}
        await self._request("PATCH", f"{_NODES}/{name}/status", status, _STRATEGIC)
        self.heartbeats += 1

    async def _spread(self, act: Callable[[str], Awaitable[None]], every_s: float) -> None:
        """Call ``act`` for each Node once in ``every_s``; a slow call does not delay the others."""
        gap_s = every_s / len(self._names)
        loop = asyncio.get_running_loop()
        due, slots = loop.time(), asyncio.Semaphore(MAX_CONCURRENCY)

        async def once(name: str) -> None:
            try:
                await act(name)
            finally:
                slots.release()

        async with asyncio.TaskGroup() as tasks:
            for name in itertools.cycle(self._names):
                due = max(due + gap_s, loop.time())
                await asyncio.sleep(due - loop.time())
                await slots.acquire()
                tasks.create_task(once(name))

    async def _request(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> dict[str, Any]:
        """Send a request; retry it while the server answers 429, as all clients do."""
        while True:
            async with self._session.request(
                method, self._server + path, json=body, headers={"Content-Type": kind}
            ) as answer:
                found: dict[str, Any] = await answer.json()
                if answer.status < 300:
                    return found
                if answer.status != HTTPStatus.TOO_MANY_REQUESTS:
                    raise RuntimeError(f"{method} {path} failed with {answer.status}: {found}")
                wait_s = float(answer.headers.get("Retry-After", "1"))
            await asyncio.sleep(wait_s)


@asynccontextmanager
async def open_foreign_nodes(
    plane: ControlPlane, nodes: int, pods: int
) -> AsyncIterator[ForeignNodes]:
    """`ForeignNodes` in a cluster, created by its administrator."""
    connector = aiohttp.TCPConnector(ssl=plane.administrator(), limit=MAX_CONCURRENCY)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(
        connector=connector, headers=plane.headers(), timeout=timeout
    ) as session:
        yield ForeignNodes(session, plane.server, nodes, pods)


async def _in_parallel(acts: Iterable[Awaitable[None]]) -> None:
    slots = asyncio.Semaphore(MAX_CONCURRENCY)

    async def once(act: Awaitable[None]) -> None:
        async with slots:
            await act

    await asyncio.gather(*(once(act) for act in acts))


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = node["status"].get("conditions", [])
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def _lease(name: str) -> dict[str, Any]:
    renewed = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
    return {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": renewed}


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
