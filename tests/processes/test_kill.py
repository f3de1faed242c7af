# ruff: noqa: E501  (a table reads best with a row on a line)
"""A real ``kill -9`` of the relay, and of a function between an insert and its answer.

Each component runs in its own process, with short delays. The result is the same as without the kill:
the slice becomes Ready and is deleted, and each resource is inserted once.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from local.base.cluster_client import ClusterClient
from local.base.events import AuditEntry, Event, SubprocessEnded
from local.base.http import Application, Request, Response, Stream, Subscription
from local.run.supervisor import Setup, Supervisor, open_supervisor
from tests.processes.quick import QUICK_AGENTS, QUICK_GCE
from tests.support.manifests import manifest

pytestmark = [pytest.mark.processes, pytest.mark.real]

GROUPS = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"
TIMEOUT = timedelta(seconds=90)
INSERTS = (
    "instanceTemplates.insert",
    "resourcePolicies.insert",
    "instanceGroupManagers.insert",
)


class NeverAnswered:
    """A response body that is never sent."""

    def subscribe(
        self, on_chunk: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> Subscription:
        del on_chunk, on_end
        return self

    def cancel(self) -> None:
        """The client has disconnected."""


class UnansweredInsert:
    """A Compute Engine that executes the first insert of one collection and never answers it."""

    def __init__(self, engine: Application, collection: str) -> None:
        self._engine = engine
        self._collection = collection
        self.has_arrived = asyncio.Event()

    def handle(self, request: Request) -> Response:
        response = self._engine.handle(request)
        is_insert = request.method == "POST" and request.path.endswith(f"/{self._collection}")
        if not is_insert or self.has_arrived.is_set():
            return response
        self.has_arrived.set()
        stream: Stream = NeverAnswered()
        return Response(response.status, response.headers, stream=stream)


class Lifecycle:
    """One slice under a supervisor, from apply to gone, with its operations and the ended
    subprocesses."""

    def __init__(self) -> None:
        self.operations: Counter[str] = Counter()
        self.ended: list[str] = []

    def observe(self, event: Event) -> None:
        """Count the started operations, and record the subprocesses that ended."""
        if isinstance(event, SubprocessEnded):
            self.ended.append(event.process)
        if isinstance(event, AuditEntry) and event.entry.get("operation", {}).get("first"):
            method = event.entry["protoPayload"]["methodName"]
            self.operations[method.rpartition("compute.")[2]] += 1

    async def run(
        self, supervisor: Supervisor, fault: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Apply, kill, wait for Ready, delete, and wait until nothing is left."""
        async with asyncio.timeout(TIMEOUT.total_seconds()), supervisor.client() as client:
            code, answer = await client.request("POST", GROUPS, _standard())
            assert code == 201, answer
            await fault()
            await self._until(client, _is_ready)
            await client.request("DELETE", f"{GROUPS}/my-slice")
            await self._until(client, lambda groups: not groups)
        assert supervisor.gce.leftovers() == []
        assert {method: self.operations[method] for method in INSERTS} == dict.fromkeys(INSERTS, 1)

    async def _until(
        self, client: ClusterClient, condition: Callable[[list[dict[str, Any]]], bool]
    ) -> None:
        while not condition((await client.request("GET", GROUPS))[1]["items"]):
            await asyncio.sleep(0.1)


def _standard() -> dict[str, Any]:
    return manifest(instanceConfig={"provisioningModel": "STANDARD", "reservation": None})


def _is_ready(groups: list[dict[str, Any]]) -> bool:
    conditions = groups[0].get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _setup(folder: Path, in_front: Callable[[Application], Application] = lambda it: it) -> Setup:
    return Setup(folder, gce=QUICK_GCE, agents=QUICK_AGENTS, scripts=0, in_front=in_front)


async def test_a_killed_relay_is_restarted_and_misses_no_event(tmp_path: Path) -> None:
    lifecycle = Lifecycle()
    async with open_supervisor(_setup(tmp_path), lifecycle.observe) as supervisor:

        async def fault() -> None:
            supervisor.subprocesses["relay"].kill()

        await lifecycle.run(supervisor, fault)
    assert lifecycle.ended == ["relay"]


def _kill_worker(supervisor: Supervisor, step: str) -> None:
    (worker,) = psutil.Process(supervisor.subprocesses[step].pid).children()
    worker.send_signal(signal.SIGKILL)


def _kill_server(supervisor: Supervisor, step: str) -> None:
    supervisor.subprocesses[step].kill()


@pytest.mark.parametrize(
    "collection, kill, ended",
    [
        pytest.param("resourcePolicies", _kill_worker, [], id="worker, policy", marks=pytest.mark.slow),
        pytest.param("instanceTemplates", _kill_server, ["create_resources"], id="server, template", marks=pytest.mark.slow),
        pytest.param("instanceGroupManagers", _kill_worker, [], id="worker, MIG"),
    ],
)  # fmt: skip
def test_a_function_killed_between_an_insert_and_its_answer_inserts_once(
    tmp_path: Path, collection: str, kill: Callable[[Supervisor, str], None], ended: list[str]
) -> None:
    async def run() -> None:
        lifecycle = Lifecycle()
        engines: list[UnansweredInsert] = []

        def in_front(engine: Application) -> Application:
            engines.append(UnansweredInsert(engine, collection))
            return engines[0]

        async with open_supervisor(_setup(tmp_path, in_front), lifecycle.observe) as supervisor:

            async def fault() -> None:
                await engines[0].has_arrived.wait()
                kill(supervisor, "create_resources")

            await lifecycle.run(supervisor, fault)
        assert lifecycle.ended == ended

    asyncio.run(run())
