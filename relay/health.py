"""``/healthz``, ``/readyz`` and ``/metrics`` over HTTP.

``/healthz`` is for the liveness probe: 503 if a watch is stuck, no answer if the relay hangs; a restart
may help then. It is 200 while the API server or Pub/Sub is unavailable: a restart would not help.
``/readyz`` is 200 when the cluster's id is known and every kind has been listed and is being watched.
"""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from relay import metrics
from relay.changes.messages import Outbox
from relay.group_metrics import GroupMetrics
from relay.kinds import TRIGGERED_STEPS, WatchedKind
from relay.watching.watch import Timing
from relay.watching.watch_health import WatchHealth


@dataclass(frozen=True)
class Health:
    """The answers of the probes, from the health of each watch."""

    watches: Mapping[WatchedKind, WatchHealth]
    outbox: Outbox
    group_metrics: GroupMetrics
    timing: Timing
    get_cluster_id: Callable[[], str]
    """Empty until it is known; nothing is published before."""

    def list_stuck(self) -> list[str]:
        """One line for each watch that has received nothing at all for too long."""
        return [
            f"{kind}: stuck: nothing received for {watch.silence_s():.0f} s"
            for kind, watch in self.watches.items()
            if watch.silence_s() > self.timing.stuck_s
        ]

    def list_not_ready(self) -> list[str]:
        """One line for each kind that is not listed yet, or not being watched, and one for the cluster's
        id."""
        unread = (
            "Namespace kube-system: its uid, the cluster's id, not read yet: nothing is published"
        )
        lines = [] if self.get_cluster_id() else [unread]
        for kind, watch in self.watches.items():
            if not watch.listed:
                lines.append(f"{kind}: not listed yet" + (watch.missing and f": {watch.missing}"))
            elif watch.missing:
                lines.append(f"{kind}: {watch.missing}")
            elif (silence_s := watch.without_contact_s()) > self.timing.silent_s:
                lines.append(f"{kind}: no contact with the API server for {silence_s:.0f} s")
        return lines

    def update_metrics(self) -> None:
        """Set the gauges to the current values."""
        for kind, watch in self.watches.items():
            metrics.SILENCE.labels(kind).set(watch.silence_s())
            metrics.WITHOUT_CONTACT.labels(kind).set(watch.without_contact_s())
        for step in TRIGGERED_STEPS:
            metrics.PENDING.labels(step).set(self.outbox.triggers.count_pending(step))
        metrics.GROUPS.set(len(self.outbox.cache.groups))
        metrics.NODES.set(len(self.outbox.cache.nodes))
        waiting = self.outbox.pods.count_by_kind()
        for unit_kind in metrics.LABELS["unit_kind"]:
            metrics.WAITING_PODS.labels(unit_kind).set(waiting.get(unit_kind, 0))
        metrics.JOBSETS.set(len(self.outbox.jobsets.known))
        self.group_metrics.update_metrics()


async def serve(health: Health, port: int) -> tuple[web.AppRunner, int]:
    """Listen on all addresses; the runner (to clean up) and the port. Raises `OSError`."""
    if socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        listener = socket.create_server(("", port))

    async def scrape(_request: web.Request) -> web.Response:
        health.update_metrics()
        body = generate_latest(REGISTRY)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", _probe(health.list_stuck))
    app.router.add_get("/readyz", _probe(health.list_not_ready))
    app.router.add_get("/metrics", scrape)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    return runner, listener.getsockname()[1]


def _probe(list_problems: Callable[[], list[str]]) -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        problems = list_problems()
        status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
        return web.Response(status=status, text="\n".join(problems or ["ok"]) + "\n")

    return answer
