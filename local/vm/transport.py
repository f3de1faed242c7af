"""How a conversation (`local.vm.conversation`) reaches an API server: by a call, or over TLS."""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol
from urllib.parse import urlencode

import urllib3

from local.base.http import Application, Request, Response
from local.vm.conversation import Certificate, ConnectionRefused, Reply, Send

OnReply = Callable[[Reply], None]
Resolve = Callable[[str], str]
"""Maps the server of a conversation to the one to connect to, both ``https://host:port``."""

_TIMEOUT_S = 10.0

# The first request for cluster-info trusts any server, until the token's signature proves the CA.
urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)


class Network(Protocol):
    """The network between the VMs and the API server."""

    def send(self, step: Send, on_reply: OnReply) -> None:
        """Send a request and call ``on_reply`` once, on the caller's thread."""


class InProcess:
    """Calls this API server directly, whatever server a conversation names."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def send(self, step: Send, on_reply: OnReply) -> None:
        on_reply(self._application.handle(_with_certificate(step)))


def _with_certificate(step: Send) -> Request:
    if not isinstance(step.credential, Certificate):
        return step.request
    der = ssl.PEM_cert_to_DER_cert(step.credential.cert_pem)
    return replace(step.request, peer_certificate=der)


class Https:
    """Sends requests over TLS in a few threads."""

    def __init__(self, resolve: Resolve, *, threads: int = 4) -> None:
        self._resolve = resolve
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kubelet")

    def send(self, step: Send, on_reply: OnReply) -> None:
        loop = asyncio.get_running_loop()

        def carry() -> None:
            reply = send_https(step, self._resolve)
            loop.call_soon_threadsafe(on_reply, reply)

        self._pool.submit(carry)

    def close(self) -> None:
        """Accept no more requests; those in progress end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def closed(self) -> None:
        """Close it, and wait until no request is in progress."""
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)


def send_https(step: Send, resolve: Resolve) -> Reply:
    """Send one request and wait for its response, ten seconds at most."""
    request = step.request
    query = f"?{urlencode(request.query, doseq=True)}" if request.query else ""
    try:
        with urllib3.PoolManager(
            ssl_context=_tls(step), retries=False, timeout=_TIMEOUT_S
        ) as connections:
            answer = connections.request(
                request.method,
                resolve(step.server) + request.path + query,
                body=request.body or None,
                headers=dict(request.headers),
            )
    except (urllib3.exceptions.HTTPError, ssl.SSLError) as error:
        return ConnectionRefused(str(error))
    return Response(answer.status, dict(answer.headers), answer.data)


def _tls(step: Send) -> ssl.SSLContext:
    if step.verify_ca is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = ssl.create_default_context(cadata=step.verify_ca)
    if isinstance(step.credential, Certificate):
        _load_certificate(context, step.credential)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: Certificate) -> None:
    # The ssl module reads client certificates from files only; a temporary one is 0600.
    with tempfile.NamedTemporaryFile("w", suffix=".pem", delete=False) as file:
        file.write(f"{certificate.cert_pem}\n{certificate.key_pem}")
    try:
        context.load_cert_chain(file.name)
    finally:
        os.unlink(file.name)
