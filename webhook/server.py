"""HTTPS around mutations: a path for each, ``/healthz``, ``/readyz`` and ``/metrics``.

A review is decided without any call. An ordinary one takes about a millisecond, on the event loop; a
large one is decided in a thread, one at a time. What is too large, too slow or no review gets a 4xx, and
the next one is served.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, Counter, Histogram, generate_latest

from webhook.tpu_env import admission
from webhook.tpu_env.admission import MAX_BYTES, Mutation

BODY_WITHIN_S = 10.0
"""The API server waits at most 30 seconds for a complete answer."""
LAST_ANSWERS_S = 5.0
"""The time for answers in progress at the end."""
LARGE_BYTES = 128 * 1024
MAX_LARGE_BYTES = 2 * MAX_BYTES
"""The limit of all large bodies that are read at the same time, so that they cannot fill the memory. An
ordinary review has ten to twenty kilobytes and does not wait for a large one."""

_REVIEWS = Counter(
    "tpu_functions_webhook_reviews_total",
    "Admission reviews, by path and outcome.",
    ["path", "outcome"],
)
_SECONDS = Histogram(
    "tpu_functions_webhook_review_duration_seconds",
    "From a review's last byte to its answer.",
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5),
)
_LOG = structlog.get_logger()


class Webhook:
    """The handlers: ``mutations`` by their paths."""

    def __init__(self, mutations: Mapping[str, Mutation], *, is_verbose: bool = False) -> None:
        self._mutations = mutations
        self._is_verbose = is_verbose
        self._large_bytes = 0
        self._large = ThreadPoolExecutor(1)  # a review takes many times its body's memory
        self._is_ending = False
        for path in mutations:
            for outcome in (*admission.OUTCOMES, "invalid"):
                _REVIEWS.labels(path, outcome)

    def stop_keep_alive(self) -> None:
        """Close each connection after its next answer, so that later reviews go to another Pod."""
        self._is_ending = True

    def application(self) -> web.Application:
        """The application that aiohttp serves."""

        @web.middleware
        async def close(request: web.Request, handler: Handler) -> web.StreamResponse:
            response = await handler(request)
            if self._is_ending:
                response.force_close()
            return response

        app = web.Application(client_max_size=MAX_BYTES, middlewares=[close])
        for path, mutation in self._mutations.items():
            app.router.add_post(path, partial(self._answer, mutation))
        app.router.add_get("/healthz", _ok)
        app.router.add_get("/readyz", _ok)
        app.router.add_get("/metrics", _metrics)
        return app

    async def _answer(self, mutate: Mutation, request: web.Request) -> web.Response:
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            # No API server compresses a review, and the size that counts here is the one on the wire.
            why = f"a review must not have a Content-Encoding; this one has {encoding!r}"
            return _refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, why)
        size = MAX_BYTES if request.content_length is None else request.content_length
        if size > MAX_BYTES:
            why = f"a review must have at most {MAX_BYTES} bytes"
            return _refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)
        large = size if size > LARGE_BYTES else 0
        if self._large_bytes + large > MAX_LARGE_BYTES:
            return _refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many large reviews at once")
        self._large_bytes += large
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                body = await request.read()
            if not large:
                return self._decide(mutate, request.path, body)
            decide = partial(self._decide, mutate, request.path, body)
            return await asyncio.get_running_loop().run_in_executor(self._large, decide)
        except TimeoutError:
            why = f"the body did not arrive within {BODY_WITHIN_S:g} seconds"
            return _refuse(HTTPStatus.REQUEST_TIMEOUT, why)
        except ConnectionError:
            return _refuse(HTTPStatus.BAD_REQUEST, "the body ended early")
        finally:
            self._large_bytes -= large

    def _decide(self, mutate: Mutation, path: str, body: bytes) -> web.Response:
        began = time.perf_counter()
        try:
            reviewed = admission.review(body, mutate)
        except admission.NoReviewError as error:
            _REVIEWS.labels(path, "invalid").inc()
            _LOG.warning("invalid", path=path, reason=str(error), exc_info=error.__cause__)
            return _refuse(HTTPStatus.BAD_REQUEST, str(error))
        _SECONDS.observe(time.perf_counter() - began)
        request, answer = reviewed.request, reviewed.answer
        _REVIEWS.labels(path, answer.outcome).inc()
        if self._is_verbose or answer.outcome != "unchanged":
            metadata = request.target.get("metadata") or {}
            fields = {  # of the object only its name
                "uid": request.uid,
                "operation": request.operation,
                "kind": request.target.get("kind"),
                "namespace": request.namespace,
                "name": metadata.get("name") or f"{metadata.get('generateName', '')}*",
                "warnings": answer.warnings,
                "refusal": answer.refusal,
            }
            given = {name: value for name, value in fields.items() if value}
            _LOG.info(answer.outcome, path=path, **given)
        return web.json_response(reviewed.document)


async def serve(
    webhook: Webhook, host: str, port: int, tls: ssl.SSLContext
) -> tuple[web.AppRunner, int]:
    """Listen. Returns the runner (to clean up) and the port. Raises `OSError`."""
    if not host and socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        listener = socket.create_server((host, port))
    runner = web.AppRunner(webhook.application(), access_log=None, shutdown_timeout=LAST_ANSWERS_S)
    await runner.setup()
    await web.SockSite(runner, listener, ssl_context=tls).start()
    return runner, listener.getsockname()[1]


def _refuse(status: HTTPStatus, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")


async def _ok(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _metrics(_request: web.Request) -> web.Response:
    body = generate_latest(REGISTRY)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
