"""The daemon: watches fill the outbox, one loop publishes from it to Pub/Sub, all in one thread."""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

import aiohttp
import structlog

from relay import metrics
from relay.changes.coalescing import WIDEST_RETRY_GAP
from relay.changes.messages import Outbox
from relay.changes.pending import OutgoingMessage
from relay.group_metrics import GroupMetrics
from relay.health import Health
from relay.kinds import Change, WatchedKind
from relay.watching.api import API_FAILURES, KubernetesApi
from relay.watching.backoff import Backoff
from relay.watching.projection import parse
from relay.watching.watch import Timing, Watch, WatchedResource
from relay.watching.watch_health import Monotonic, WatchHealth
from shared.base import names

RESOURCES = (
    WatchedResource("TPUNodeGroup", f"/apis/{names.GROUP}/{names.VERSION}/{names.PLURAL}"),
    WatchedResource("Node", "/api/v1/nodes"),
    # This includes renewals by all kubelets: no selector knows the requester's group.
    WatchedResource(
        "CertificateSigningRequest",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests",
        {"fieldSelector": f"spec.signerName={names.KUBELET_SIGNER}"},
    ),
)
_REQUESTS = WatchedResource(
    "ProvisioningRequest", "/apis/autoscaling.x-k8s.io/v1/provisioningrequests", is_optional=True
)
JOBSET_RESOURCES = (
    # Thousands of Pods may run: only Pods without a Node matter.
    WatchedResource(
        "Pod",
        "/api/v1/pods",
        {"labelSelector": names.JOB_KEY, "fieldSelector": "status.phase=Pending"},
    ),
    WatchedResource(
        "JobSet", f"/apis/{names.JOBSET_GROUP}/{names.JOBSET_VERSION}/{names.JOBSET_PLURAL}"
    ),
    _REQUESTS,
)
WORKLOAD_RESOURCES = (
    # The API server sends a Pod when it is created, changes and gets its Node: what runs costs nothing.
    WatchedResource(
        "Pod", "/api/v1/pods", {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
    ),
    replace(JOBSET_RESOURCES[1], is_optional=True),
    _REQUESTS,
)
MAX_BATCH = 100
"""Objects and steps in one round of publishing; the next round follows immediately."""
SHUTDOWN_S = 5.0
"""How long publishing what is pending may take after a SIGTERM."""

_CLUSTER_PATH = "/api/v1/namespaces/kube-system"
_LOG = structlog.get_logger()


class Publisher(Protocol):
    """Where messages go."""

    async def publish(
        self, publications: Sequence[OutgoingMessage], cluster_id: str
    ) -> list[OutgoingMessage]:
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
        with_jobsets: bool,
        with_workloads: bool,
    ) -> None:
        """``cluster_id`` may be empty: it is read from the cluster then. ``with_workloads`` includes
        JobSets."""
        self._api = api
        self._publisher = publisher
        self._cluster_id = cluster_id
        self._now = now
        self._timing = timing
        self._outbox = Outbox(_count_skipped, with_workloads=with_workloads)
        self._group_metrics = GroupMetrics(now)
        self._changed = asyncio.Event()
        self._backoff = Backoff(timing.first_backoff_s, timing.longest_backoff_s, rng)
        of_pods = JOBSET_RESOURCES if with_jobsets else ()
        resources = (*RESOURCES, *(WORKLOAD_RESOURCES if with_workloads else of_pods))
        health_by_kind = {resource.kind: WatchHealth(monotonic) for resource in resources}
        self._watches = [
            Watch(api, one, self, health_by_kind[one.kind], timing=timing, backoff=self._backoff)
            for one in resources
        ]
        self.health = Health(
            health_by_kind, self._outbox, self._group_metrics, timing, lambda: self._cluster_id
        )

    def changed(self, kind: WatchedKind, event: Change, raw: Mapping[str, Any]) -> None:
        """Called by a watch."""
        self._outbox.changed(kind, event, raw, self._now())
        if kind == names.KIND:
            self._group_metrics.changed(event, raw)
        self._changed.set()

    def relisted(self, kind: WatchedKind, objects: Iterable[Mapping[str, Any]]) -> None:
        """Called by a watch."""
        found = list(objects)
        self._outbox.relisted(kind, found, self._now())
        if kind == names.KIND:
            self._group_metrics.relisted(found)
        self._changed.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until ``stop`` is set, then publish what is pending, for at most `SHUTDOWN_S`.

        An unexpected exception of any task ends the relay and is raised here.
        """
        watches = [asyncio.create_task(watch.run()) for watch in self._watches]
        publishing = asyncio.create_task(self._publish_until(stop))
        stopping = asyncio.create_task(stop.wait())
        everything = [*watches, publishing, stopping]
        try:
            await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
            for ended in (*watches, publishing):
                if ended.done():
                    ended.result()  # raises the exception that ended it
            for watch in watches:
                watch.cancel()
            self._changed.set()
            try:
                async with asyncio.timeout(SHUTDOWN_S):
                    await publishing
                    # Once more, what is pending and not due.
                    horizon = self._now() + WIDEST_RETRY_GAP
                    while self._cluster_id and (rest := self._outbox.take_due(horizon, MAX_BATCH)):
                        self._outbox.returned(await self._publish(rest), horizon)
            except TimeoutError:
                _LOG.warning(
                    "ended before everything was published; the next start reports it from the state"
                )
        finally:
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)

    async def _publish_until(self, stop: asyncio.Event) -> None:
        await self._find_cluster_id(stop)
        while not stop.is_set():
            self._changed.clear()
            due, now = self._outbox.next_due(), self._now()
            wait = WIDEST_RETRY_GAP if due is None else min(due - now, WIDEST_RETRY_GAP)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait.total_seconds())
            failed = await self._publish(self._outbox.take_due(self._now(), MAX_BATCH))
            self._outbox.returned(failed, self._now())

    async def _publish(self, publications: list[OutgoingMessage]) -> list[OutgoingMessage]:
        if not publications:
            return []
        return await self._publisher.publish(publications, self._cluster_id)

    async def _find_cluster_id(self, stop: asyncio.Event) -> None:
        timeout = aiohttp.ClientTimeout(total=self._timing.list_s)
        failures = 0
        while not (self._cluster_id or stop.is_set()):
            try:
                async with self._api.get(_CLUSTER_PATH, {}, timeout) as response:
                    namespace = parse(await response.read())
                self._cluster_id = str(namespace["metadata"]["uid"])
            except API_FAILURES as error:
                failures += 1
                _LOG.warning(
                    "could not read the uid of namespace kube-system, which is the cluster's id;"
                    " nothing is published until then",
                    detail=f"{type(error).__name__}: {error}",
                )
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), self._backoff.delay_s(failures))


def _count_skipped(kind: WatchedKind) -> None:
    metrics.SKIPPED.labels(kind).inc()
    _LOG.warning("skipped an object without a valid name, namespace or uid", kind=kind)
