"""A relay that runs against an API that records its requests."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from local.base.http import Request
from local.base.web import serve
from relay.changes.pending import OutgoingMessage
from relay.daemon import Relay
from relay.watching.api import KubernetesApi
from relay.watching.watch import Timing
from tests.unit.relay.scripted_api import (
    GROUPS,
    NODES,
    REQUESTS,
    ScriptedApi,
    write_kubeconfig,
)

FAST = Timing(first_backoff_s=0.01, longest_backoff_s=0.02, short_s=0)
TIMEOUT_S = 10.0


@dataclass
class Recorder:
    """A publisher that records messages and can be unavailable."""

    published: asyncio.Queue[tuple[str, str, str]] = field(default_factory=asyncio.Queue)
    attempts: asyncio.Queue[Sequence[OutgoingMessage]] = field(default_factory=asyncio.Queue)
    cluster_ids: set[str] = field(default_factory=set)
    unavailable: bool = False
    before_publish: Callable[[], Awaitable[object]] | None = None
    """Awaited before the messages are recorded."""

    async def publish(
        self, publications: Sequence[OutgoingMessage], cluster_id: str
    ) -> list[OutgoingMessage]:
        self.attempts.put_nowait(publications)
        if self.before_publish is not None:
            await self.before_publish()
        if self.unavailable:
            return list(publications)
        self.cluster_ids.add(cluster_id)
        for one in publications:
            message = one.message
            self.published.put_nowait((one.step, message.name, ",".join(message.nodes)))
        return []

    async def next(self) -> tuple[str, str, str]:
        """Return step, group and Node names of the next message."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self.published.get()


@dataclass
class RunningRelay:
    """One relay, one API server, one Pub/Sub."""

    api: ScriptedApi
    recorder: Recorder
    relay: Relay
    stop: asyncio.Event
    ended: asyncio.Task[None]

    async def request(self, matches: Callable[[Request], bool]) -> Request:
        """Return the next request that matches."""
        async with asyncio.timeout(TIMEOUT_S):
            while not matches(request := await self.api.requests.get()):
                pass
            return request


def is_watch(path: str) -> Callable[[Request], bool]:
    return lambda request: request.path == path and request.argument("watch") == "true"


@asynccontextmanager
async def running_relay(
    tmp_path: Path,
    api: ScriptedApi,
    *,
    recorder: Recorder | None = None,
    cluster_id: str = "c",
    timing: Timing = FAST,
    token: str = "token",
    watched: bool = True,
    with_jobsets: bool = False,
    with_workloads: bool = False,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> AsyncIterator[RunningRelay]:
    """Run a relay; ``watched``: wait until groups and Nodes are being watched."""
    runner, port = await serve(api)
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", port, token)
    recorder = recorder or Recorder()
    try:
        async with relaying(
            kubeconfig,
            recorder,
            timing,
            cluster_id,
            with_jobsets=with_jobsets,
            with_workloads=with_workloads,
            now=now,
        ) as (relay, stop, ended):
            running = RunningRelay(api, recorder, relay, stop, ended)
            if watched:
                await until_watched(api)
            yield running
    finally:
        api.close_watches()
        await runner.cleanup()


async def until_watched(api: ScriptedApi, *more: str) -> None:
    """Wait until groups, Nodes, requests and the objects of more paths are watched."""
    missing = {GROUPS, NODES, REQUESTS, *more}
    while missing:
        request = await asyncio.wait_for(api.requests.get(), TIMEOUT_S)
        missing -= {request.path} if request.argument("watch") else set()


@asynccontextmanager
async def relaying(
    kubeconfig: Path,
    recorder: Recorder,
    timing: Timing = FAST,
    cluster_id: str = "c",
    rng: random.Random | None = None,
    *,
    with_jobsets: bool = False,
    with_workloads: bool = False,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> AsyncIterator[tuple[Relay, asyncio.Event, asyncio.Task[None]]]:
    """Run a relay; stop it cleanly if it is still running at the end."""
    api = await KubernetesApi.connect(str(kubeconfig))
    relay = Relay(
        api,
        recorder,
        cluster_id=cluster_id,
        now=now,
        monotonic=time.monotonic,
        rng=rng or random.Random(1),
        timing=timing,
        with_jobsets=with_jobsets,
        with_workloads=with_workloads,
    )
    stop = asyncio.Event()
    ended = asyncio.create_task(relay.run(stop))
    try:
        yield relay, stop, ended
        stop.set()
        await asyncio.wait_for(ended, TIMEOUT_S)
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
        await api.close()
