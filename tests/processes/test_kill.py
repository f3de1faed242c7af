"""The real ``kill -9``: of the relay, and of a function between an insert and its answer.

Everything is in processes of its own here; times are short. The life ends as if nothing had been:
Ready, then gone, each resource inserted once.
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

from local import gce
from local.base.cluster_client import ClusterClient
from local.base.events import AuditEntry, Event, SubprocessEnded
from local.base.http import Application, Request, Response, Stream, Subscription
from local.run.supervisor import Setup, Supervisor, open_supervisor
from local.vm import agents
from tests.manifests import manifest

pytestmark = [pytest.mark.processes, pytest.mark.real]

GROUPS = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"
LIFE_WITHIN = timedelta(seconds=90)
SHORT = (0.1, 0.3)
INSERTS = (
    "instanceTemplates.insert",
    "resourcePolicies.insert",
    "instanceGroupManagers.insert",
)
QUICK_GCE = gce.Timings(
    operation_s=dict.fromkeys(gce.timings.OPERATION_S, SHORT),
    list_lag_s=(0.0, 0.1),
    template_visibility_lag_s=(0.0, 0.0),
    in_use_lag_s=(0.0, 0.0),
    metadata_propagation_s=SHORT,
    log_delay_s=SHORT,
    bulk_check_s=SHORT,
    ici_activation_s=SHORT,
)
QUICK_GUESTS = agents.Timings(
    boot_s=SHORT, prepare_s=SHORT, join_s=SHORT, ready_s=SHORT, plugin_s=SHORT
)


class NeverAnswered:
    """A body that never comes."""

    def subscribe(
        self, on_chunk: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> Subscription:
        del on_chunk, on_end
        return self

    def cancel(self) -> None:
        """Whoever waited is gone."""


class HeldAnswer:
    """A Compute Engine that does the first insert of one collection and never answers it."""

    def __init__(self, engine: Application, collection: str) -> None:
        self._engine = engine
        self._collection = collection
        self.has_arrived = asyncio.Event()

    def handle(self, request: Request) -> Response:
        response = self._engine.handle(request)
        is_meant = request.method == "POST" and request.path.endswith(f"/{self._collection}")
        if not is_meant or self.has_arrived.is_set():
            return response
        self.has_arrived.set()
        stream: Stream = NeverAnswered()
        return Response(response.status, response.headers, stream=stream)


class Life:
    """One slice under a supervisor, from apply to gone, and what was seen of it."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()
        self.ended: list[str] = []

    def observe(self, event: Event) -> None:
        """Count the operations begun, and note the children that ended."""
        if isinstance(event, SubprocessEnded):
            self.ended.append(event.process)
        if isinstance(event, AuditEntry) and event.entry.get("operation", {}).get("first"):
            method = event.entry["protoPayload"]["methodName"]
            self.made[method.rpartition("compute.")[2]] += 1

    async def run(
        self, supervisor: Supervisor, fault: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Apply, let the fault happen, wait for Ready, delete, wait until nothing is left."""
        async with asyncio.timeout(LIFE_WITHIN.total_seconds()), supervisor.client() as client:
            code, answer = await client.request("POST", GROUPS, _standard())
            assert code == 201, answer
            await fault()
            await self._until(client, _is_ready)
            await client.request("DELETE", f"{GROUPS}/my-slice")
            await self._until(client, lambda groups: not groups)
        assert supervisor.gce.leftovers() == []
        assert {method: self.made[method] for method in INSERTS} == dict.fromkeys(INSERTS, 1)

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
    return Setup(folder, gce=QUICK_GCE, agents=QUICK_GUESTS, scripts=0, in_front=in_front)


def test_a_relay_that_is_killed_is_started_again_and_misses_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        life = Life()
        async with open_supervisor(_setup(tmp_path), life.observe) as supervisor:

            async def fault() -> None:
                supervisor.subprocesses["relay"].kill()

            await life.run(supervisor, fault)
        assert life.ended == ["relay"]

    asyncio.run(story())


def _kill_worker(supervisor: Supervisor, step: str) -> None:
    (worker,) = psutil.Process(supervisor.subprocesses[step].pid).children()
    worker.send_signal(signal.SIGKILL)


def _kill_server(supervisor: Supervisor, step: str) -> None:
    supervisor.subprocesses[step].kill()


@pytest.mark.parametrize(
    "collection, kill, ended",
    [
        pytest.param(
            "resourcePolicies", _kill_worker, [], id="worker, policy", marks=pytest.mark.slow
        ),
        pytest.param(
            "instanceTemplates",
            _kill_server,
            ["create_resources"],
            id="server, template",
            marks=pytest.mark.slow,
        ),
        pytest.param("instanceGroupManagers", _kill_worker, [], id="worker, MIG"),
    ],
)
def test_a_function_killed_between_an_insert_and_its_answer_inserts_once(
    tmp_path: Path, collection: str, kill: Callable[[Supervisor, str], None], ended: list[str]
) -> None:
    async def story() -> None:
        life = Life()
        held: list[HeldAnswer] = []

        def in_front(engine: Application) -> Application:
            held.append(HeldAnswer(engine, collection))
            return held[0]

        async with open_supervisor(_setup(tmp_path, in_front), life.observe) as supervisor:

            async def fault() -> None:
                await held[0].has_arrived.wait()
                kill(supervisor, "create_resources")

            await life.run(supervisor, fault)
        assert life.ended == ended

    asyncio.run(story())
