"""Serves an `Application` on a port: aiohttp does HTTP and TLS.

One event loop serves all local servers of a process, so an application needs no locks. aiohttp
is a dependency of the kubernetes client; it exposes the peer's certificate, streams, and detects when a
client disconnects.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

from local.base.http import Application, Request, Response, Stream

_END = b""


async def serve(
    application: Application,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    admit: Callable[[Request], Awaitable[Request | Response]] | None = None,
) -> tuple[web.AppRunner, int]:
    """Listen, and return the runner (``await runner.cleanup()`` stops it) and the port.

    ``admit`` may change a request before the application gets it, or answer it.

    Raises `OSError` when the port is taken.
    """

    async def dispatch(incoming: web.Request) -> web.StreamResponse:
        request: Request | Response = await _request(incoming)
        if admit is not None and isinstance(request, Request):
            request = await admit(request)
        response = request if isinstance(request, Response) else application.handle(request)
        if response.stream is not None:
            return await _send_stream(incoming, response, response.stream)
        return web.Response(
            status=response.status, headers=response.headers, body=response.body or None
        )

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", dispatch)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, host, port, ssl_context=tls)
    try:
        await site.start()
    except OSError:
        await runner.cleanup()
        raise
    bound: int = runner.addresses[0][1]
    return runner, bound


async def _request(incoming: web.Request) -> Request:
    query = {name: list(incoming.query.getall(name)) for name in incoming.query}
    headers = {name.lower(): value for name, value in incoming.headers.items()}
    certificate: bytes | None = None
    channel = incoming.transport.get_extra_info("ssl_object") if incoming.transport else None
    if channel is not None:
        certificate = channel.getpeercert(binary_form=True)
    body = await incoming.read()
    return Request(incoming.method, incoming.path, query, headers, body, certificate)


async def _send_stream(
    incoming: web.Request, response: Response, stream: Stream
) -> web.StreamResponse:
    outgoing = web.StreamResponse(status=response.status, headers=response.headers)
    outgoing.enable_chunked_encoding()
    await outgoing.prepare(incoming)
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    subscription = stream.subscribe(chunks.put_nowait, lambda: chunks.put_nowait(_END))
    try:
        while (chunk := await chunks.get()) != _END:
            await outgoing.write(chunk)
        with suppress(ConnectionError):
            await outgoing.write_eof()
    except ConnectionError:
        pass  # the client has disconnected, as watches end
    finally:
        subscription.cancel()
    return outgoing
