"""The wiring: watches fill the outbox, one loop empties it into Pub/Sub, all in one thread."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Protocol

import aiohttp
import structlog

from relay import metrics
from relay.changes.coalescing import WIDEST_RETRY_GAP
from relay.changes.outbox import Outbox
from relay.changes.pending import Publication
from relay.health import Health
from relay.kinds import Change, Kind
from relay.watching.api import API_FAILURES, KubernetesApi
from relay.watching.backoff import Backoff
from relay.watching.projection import parse
from relay.watching.watch import Resource, Timing, Watch
from relay.watching.watch_health import Monotonic, Pulse
from shared.base.names import (
    GROUP,
    JOB_KEY,
    JOBSET_GROUP,
    JOBSET_PLURAL,
    JOBSET_VERSION,
    PLURAL,
    VERSION,
)

RESOURCES = (
    Resource("TPUNodeGroup", f"/apis/{GROUP}/{VERSION}/{PLURAL}"),
    Resource("Node", "/api/v1/nodes"),
)
OF_JOBSETS = (
    # Thousands of Pods may run: only those that have no Node yet are of use.
    Resource(
        "Pod",
        "/api/v1/pods",
        {"labelSelector": JOB_KEY, "fieldSelector": "status.phase=Pending"},
    ),
    Resource("JobSet", f"/apis/{JOBSET_GROUP}/{JOBSET_VERSION}/{JOBSET_PLURAL}"),
)
MOST_AT_ONCE = 100
"""Objects and steps in one round of publishing; the next round follows at once."""
LAST_WORDS_S = 5.0
"""How long the end may take that a SIGTERM asks for."""

_CLUSTER_PATH = "/api/v1/namespaces/kube-system"
_LOG = structlog.get_logger()


class Publisher(Protocol):
    """Where messages go."""

    async def publish(
        self, publications: Sequence[Publication], cluster_id: str
    ) -> list[Publication]:
        """Publish all, and return those that could not be."""


class Relay:
    """The daemon, without its process: no signals, no environment, no port."""

    def __init__(
        self,
        api: KubernetesApi,
        publisher: Publisher,
        *,
        cluster_id: str,
        now: Callable[[], datetime],
        monotonic: Monotonic,
        rng: random.Random,
        timing: Timing,
        with_jobsets: bool = False,
    ) -> None:
        """``cluster_id`` may be empty: it is read from the cluster then."""
        self._api = api
        self._publisher = publisher
        self._cluster_id = cluster_id
        self._now = now
        self._timing = timing
        self._outbox = Outbox(_count_skipped)
        self._news = asyncio.Event()
        self._backoff = Backoff(timing.first_backoff_s, timing.longest_backoff_s, rng)
        resources = (*RESOURCES, *OF_JOBSETS) if with_jobsets else RESOURCES
        pulses = {resource.kind: Pulse(monotonic) for resource in resources}
        self._watches = [
            Watch(api, resource, self, pulses[resource.kind], timing=timing, backoff=self._backoff)
            for resource in resources
        ]
        self.health = Health(pulses, self._outbox, timing)

    def changed(self, kind: Kind, event: Change, raw: Mapping[str, Any]) -> None:
        """Called by a watch."""
        self._outbox.changed(kind, event, raw, self._now())
        self._news.set()

    def relisted(self, kind: Kind, objects: Iterable[Mapping[str, Any]]) -> None:
        """Called by a watch."""
        self._outbox.relisted(kind, objects, self._now())
        self._news.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until ``stop`` is set, then publish what is left, and end in `LAST_WORDS_S`.

        What a part of the relay raises, which none should, ends it and is raised here.
        """
        watches = [asyncio.create_task(watch.run()) for watch in self._watches]
        publishing = asyncio.create_task(self._publish_until(stop))
        stopping = asyncio.create_task(stop.wait())
        everything = [*watches, publishing, stopping]
        try:
            await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
            _raise_failure([*watches, publishing])
            for watch in watches:
                watch.cancel()
            self._news.set()
            await self._speak_last_words(publishing)
        finally:
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)

    async def _speak_last_words(self, publishing: asyncio.Task[None]) -> None:
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await publishing
                await self._publish_the_rest()
        except TimeoutError:
            _LOG.warning("ended before everything was published; the next start goes by the state")

    async def _publish_until(self, stop: asyncio.Event) -> None:
        await self._find_cluster_id(stop)
        while not stop.is_set():
            await self._wait_until_due()
            failed = await self._publish(self._outbox.take_due(self._now(), MOST_AT_ONCE))
            self._outbox.returned(failed, self._now())

    async def _wait_until_due(self) -> None:
        self._news.clear()
        due, now = self._outbox.next_due(), self._now()
        wait = WIDEST_RETRY_GAP if due is None else min(due - now, WIDEST_RETRY_GAP)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), wait.total_seconds())

    async def _publish_the_rest(self) -> None:
        """All that is untold, due or not, once."""
        horizon = self._now() + WIDEST_RETRY_GAP
        while self._cluster_id and (rest := self._outbox.take_due(horizon, MOST_AT_ONCE)):
            self._outbox.returned(await self._publish(rest), horizon)

    async def _publish(self, publications: list[Publication]) -> list[Publication]:
        if not publications:
            return []
        return await self._publisher.publish(publications, self._cluster_id)

    async def _find_cluster_id(self, stop: asyncio.Event) -> None:
        failures = 0
        while not (self._cluster_id or stop.is_set()):
            try:
                self._cluster_id = await self._read_cluster_id()
            except API_FAILURES as error:
                failures += 1
                _LOG.warning(
                    "could not read the uid of namespace kube-system, which is the cluster's id;"
                    " nothing is published before",
                    detail=f"{type(error).__name__}: {error}",
                )
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), self._backoff.delay_s(failures))

    async def _read_cluster_id(self) -> str:
        timeout = aiohttp.ClientTimeout(total=self._timing.list_s)
        async with self._api.get(_CLUSTER_PATH, {}, timeout) as response:
            namespace = parse(await response.read())
        return str(namespace["metadata"]["uid"])


def _count_skipped(kind: Kind) -> None:
    metrics.SKIPPED.labels(kind).inc()
    _LOG.warning("skipped an object without a valid name, namespace or uid", kind=kind)


def _raise_failure(parts: Iterable[asyncio.Task[Any]]) -> None:
    for part in parts:
        if part.done():
            part.result()
