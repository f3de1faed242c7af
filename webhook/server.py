"""HTTPS around `functions.inject_env`: ``/mutate``, ``/healthz``, ``/readyz`` and ``/metrics``.

A review is decided without any call, in about a millisecond, on the one event loop. What is too
large, too slow or no review gets a 4xx, and the next one is served.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from http import HTTPStatus

import structlog
from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    Counter,
    Histogram,
    generate_latest,
)

from functions.inject_env import MAX_BYTES, Injection, NoReviewError, review

BODY_WITHIN_S = 10.0
"""The API server waits 30 seconds at most for all of an answer."""
OUTCOMES = ("patched", "unchanged", "warned", "refused", "invalid")

_REVIEWS = Counter(
    "tpu_functions_webhook_reviews_total", "Admission reviews, by what came of them.", ["outcome"]
)
_SECONDS = Histogram(
    "tpu_functions_webhook_review_duration_seconds",
    "From a review's last byte to its answer.",
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5),
)
_LOG = structlog.get_logger()


class Webhook:
    """The handlers."""

    def __init__(self, injection: Injection, *, is_verbose: bool = False) -> None:
        self._injection = injection
        self._is_verbose = is_verbose
        for outcome in OUTCOMES:
            _REVIEWS.labels(outcome)

    def application(self) -> web.Application:
        """What aiohttp serves."""
        app = web.Application(client_max_size=MAX_BYTES)
        app.add_routes(
            [
                web.post("/mutate", self._mutate),
                web.get("/healthz", _ok),
                web.get("/readyz", _ok),
                web.get("/metrics", _metrics),
            ]
        )
        return app

    async def _mutate(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                body = await request.read()
        except TimeoutError:
            return _refuse(
                HTTPStatus.REQUEST_TIMEOUT, f"no whole body in {BODY_WITHIN_S:g} seconds"
            )
        began = time.perf_counter()
        try:
            answer = review(body, self._injection)
        except NoReviewError as error:
            _REVIEWS.labels("invalid").inc()
            return _refuse(HTTPStatus.BAD_REQUEST, str(error))
        _SECONDS.observe(time.perf_counter() - began)
        outcome = _outcome_of(answer["response"])
        _REVIEWS.labels(outcome).inc()
        if self._is_verbose or outcome != "unchanged":
            _LOG.info(outcome, **_say(body, answer["response"]))
        return web.json_response(answer)


async def serve(
    webhook: Webhook, host: str, port: int, tls: ssl.SSLContext
) -> tuple[web.AppRunner, int]:
    """Listen; the runner (to clean up) and the port. Raises `OSError`."""
    listener = _listen(host, port)
    runner = web.AppRunner(webhook.application(), access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    await web.SockSite(runner, listener, ssl_context=tls).start()
    return runner, listener.getsockname()[1]


def _listen(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server((host, port))


def _outcome_of(response: dict[str, object]) -> str:
    if not response["allowed"]:
        return "refused"
    if "warnings" in response:
        return "warned"
    return "patched" if "patch" in response else "unchanged"


def _say(body: bytes, response: dict[str, object]) -> dict[str, object]:
    """Whose review it was and what came of it; of the object nothing but its name."""
    request = json.loads(body)["request"]
    metadata = (request.get("object") or {}).get("metadata") or {}
    said = {
        "uid": request["uid"],
        "operation": request.get("operation"),
        "kind": (request.get("object") or {}).get("kind"),
        "namespace": request.get("namespace"),
        "name": metadata.get("name") or f"{metadata.get('generateName', '')}*",
        "warnings": response.get("warnings"),
        "refusal": (response.get("status") or {}).get("message"),  # type: ignore[attr-defined]
    }
    return {name: value for name, value in said.items() if value}


def _refuse(status: HTTPStatus, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")


async def _ok(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _metrics(_request: web.Request) -> web.Response:
    body = generate_latest(REGISTRY)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
