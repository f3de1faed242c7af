"""``python -m relay`` as the cluster runs it: as a process, with an environment and signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from local.base.web import serve
from tests.unit.relay.objects import foreign_node, group, node, settled_group
from tests.unit.relay.scripted_api import (
    CLUSTER_ID,
    GROUPS,
    NODES,
    ScriptedApi,
    write_kubeconfig,
)
from tests.unit.relay.small_pubsub import SmallPubSub

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 30.0
MOST_MEMORY_MB = 150


@dataclass
class RelayProcess:
    """A started relay."""

    process: asyncio.subprocess.Process
    port: int

    async def next_line(self) -> dict[str, Any]:
        """Return the next line of its log."""
        return await _next_line(self.process)

    async def get(self, path: str) -> tuple[int, str]:
        """Return status and text."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}{path}") as response,
        ):
            return response.status, await response.text()

    async def wait_for_log(self, message: str) -> dict[str, Any]:
        """Return the next line with this message."""
        while (line := await self.next_line())["message"] != message:
            pass
        return line


async def _start(environ: dict[str, str], root: Path = ROOT) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "relay",
        cwd=root,
        env={"PATH": os.environ["PATH"], **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def _next_line(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    raw = await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S)
    line: dict[str, Any] = json.loads(raw)
    return line


@asynccontextmanager
async def running(
    api: ScriptedApi, tmp_path: Path, pubsub_port: int
) -> AsyncIterator[RelayProcess]:
    """Run a relay in its own process, with an API server in this process."""
    runner, port = await serve(api)
    environ = {
        "PUBSUB_PROJECT": "proj-1",
        "KUBECONFIG": str(write_kubeconfig(tmp_path / "kubeconfig", port)),
        "PUBSUB_EMULATOR_HOST": f"127.0.0.1:{pubsub_port}",
        "PORT": "0",
    }
    process = await _start(environ)
    try:
        started = await _next_line(process)
        yield RelayProcess(process, started["port"])
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        api.close_watches()
        await runner.cleanup()


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "nothing set": ({}, "PUBSUB_PROJECT is not set"),
    "no such kubeconfig": (
        {"PUBSUB_PROJECT": "proj-1", "KUBECONFIG": "/nowhere"},
        "KUBECONFIG=/nowhere",
    ),
    "no kubeconfig and no pod": ({"PUBSUB_PROJECT": "proj-1"}, "KUBECONFIG is not set"),
    "no credentials": (
        {"PUBSUB_PROJECT": "proj-1", "GOOGLE_APPLICATION_CREDENTIALS": "/nowhere"},
        "File /nowhere was not found",
    ),
}


@pytest.mark.parametrize("environ, message", WRONG.values(), ids=WRONG.keys())
async def test_a_relay_that_cannot_start_logs_the_reason_and_exits_with_2(
    environ: dict[str, str], message: str
) -> None:
    credentials = {"PUBSUB_EMULATOR_HOST": "127.0.0.1:1"}
    known = "GOOGLE_APPLICATION_CREDENTIALS" in environ
    process = await _start({**({} if known else credentials), **environ})
    output, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    line = json.loads(output.splitlines()[-1])
    assert process.returncode == 2
    assert line["severity"] == "CRITICAL"
    assert line["message"].startswith("cannot start: ")
    assert message in line["message"]


async def test_a_relay_reports_a_group_and_ends_cleanly_on_sigterm(tmp_path: Path) -> None:
    pubsub, api = SmallPubSub(), ScriptedApi()
    async with pubsub.serving() as port, running(api, tmp_path, port) as relay:
        for _ in range(3):
            await relay.wait_for_log("listed")
        api.change(GROUPS, "ADDED", group(resource_name=""))
        topic, message = await asyncio.wait_for(pubsub.messages.get(), TIMEOUT_S)
        assert topic == "projects/proj-1/topics/tpu-functions-create-resources"
        assert message.attributes["cluster"] == CLUSTER_ID
        assert (await relay.get("/healthz"))[0] == 200
        assert (await relay.get("/readyz"))[0] == 200
        relay.process.send_signal(signal.SIGTERM)
        assert (await relay.wait_for_log("ended"))["severity"] == "INFO"
        await asyncio.wait_for(relay.process.communicate(), TIMEOUT_S)
        assert relay.process.returncode == 0


async def test_sigterm_ends_a_relay_that_has_no_pubsub_and_no_api_server(tmp_path: Path) -> None:
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", 1)
    process = await _start(
        {
            "PUBSUB_PROJECT": "proj-1",
            "KUBECONFIG": str(kubeconfig),
            "PUBSUB_EMULATOR_HOST": "127.0.0.1:1",
            "PORT": "0",
        }
    )
    assert (await _next_line(process))["message"] == "started"
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    assert process.returncode == 0


@pytest.mark.slow
async def test_a_thousand_foreign_nodes_use_little_memory_and_cause_no_message(
    tmp_path: Path,
) -> None:
    pubsub, api = SmallPubSub(), ScriptedApi()
    names = [f"gke-pool-{index:04}" for index in range(1000)]
    api.put(GROUPS, settled_group())
    api.put(NODES, node(), *(foreign_node(name) for name in names))
    async with pubsub.serving() as port, running(api, tmp_path, port) as relay:
        await relay.wait_for_log("listed")
        await relay.wait_for_log("listed")
        for name in names * 3:
            api.change(NODES, "MODIFIED", foreign_node(name))
        api.compact()
        api.close_watches()
        await relay.wait_for_log("listed")
        await relay.wait_for_log("listed")
        memory_mb = psutil.Process(relay.process.pid).memory_info().rss / 1e6
        print(f"resident: {memory_mb:.0f} MB")
        assert memory_mb < MOST_MEMORY_MB
        api.change(NODES, "MODIFIED", node(ready="False"))
        await asyncio.wait_for(pubsub.messages.get(), TIMEOUT_S)
        assert pubsub.messages.empty()
