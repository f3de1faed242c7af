"""TLS to the real API server, with one kept-alive connection for each caller."""

from __future__ import annotations

import http.client
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

import urllib3

from local.base.http import Request, Response
from local.vm.conversation import Certificate

_TIMEOUT_S = 60.0

_FORWARDED = ("accept", "content-type", "user-agent", "impersonate-user", "impersonate-group")


@dataclass(frozen=True, eq=False)
class Caller:
    """A client: the name under which calls are recorded, and its credentials."""

    user: str
    tls: ssl.SSLContext = field(repr=False)
    token: str = field(default="", repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """The header with the token."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


class Connections:
    """Connections of many callers to one server. Not thread-safe, except `watch`."""

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        assert parts.hostname is not None
        self._host = parts.hostname
        self._port = parts.port or 443
        self._pools: dict[Caller, urllib3.HTTPSConnectionPool] = {}

    def send(self, caller: Caller, request: Request) -> Response:
        """Send a request, and return the answer. Raises `urllib3.exceptions.HTTPError`."""
        pool = self._pools.get(caller)
        if pool is None:
            pool = self._pools[caller] = urllib3.HTTPSConnectionPool(
                self._host, self._port, ssl_context=caller.tls, retries=False, timeout=_TIMEOUT_S
            )
        answer = pool.request(
            request.method,
            _target(request),
            body=request.body or None,
            headers=_headers(caller, request.headers),
        )
        return Response(answer.status, dict(answer.headers), answer.data)

    def watch(self, caller: Caller, request: Request) -> tuple[Lines, Response]:
        """Start a watch, and return its lines and the answer without a body (an error has one)."""
        connection = http.client.HTTPSConnection(self._host, self._port, context=caller.tls)
        connection.request(
            request.method, _target(request), headers=_headers(caller, request.headers)
        )
        answer = connection.getresponse()
        body = b"" if answer.status == 200 else answer.read()
        return Lines(connection, answer), Response(answer.status, dict(answer.headers), body)

    def forget(self, caller: Caller) -> None:
        """Close a caller's connections."""
        pool = self._pools.pop(caller, None)
        if pool is not None:
            pool.close()

    def close(self) -> None:
        """Close all connections except watches."""
        for caller in list(self._pools):
            self.forget(caller)


class Lines:
    """The lines of a watch, until the server ends it or `close` is called."""

    def __init__(
        self, connection: http.client.HTTPSConnection, answer: http.client.HTTPResponse
    ) -> None:
        self._connection = connection
        self._answer = answer

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> bytes:
        try:
            line = self._answer.readline()
        except (OSError, http.client.HTTPException, ValueError):
            line = b""
        if not line:
            raise StopIteration
        return line

    def close(self) -> None:
        """Close the watch, from any thread."""
        socket = self._connection.sock
        if socket is not None:
            try:
                socket.shutdown(2)
            except OSError:
                return


def _target(request: Request) -> str:
    return request.path + (f"?{urlencode(request.query, doseq=True)}" if request.query else "")


def _headers(caller: Caller, headers: Mapping[str, str]) -> dict[str, str]:
    sent = {name: value for name, value in headers.items() if name in _FORWARDED}
    return {**sent, **caller.headers}


def trusting(ca_pem: str) -> ssl.SSLContext:
    """Return a TLS context that trusts only this CA."""
    return ssl.create_default_context(cadata=ca_pem)


def without_verification() -> ssl.SSLContext:
    """Return the TLS context of kubeadm's first request for cluster-info."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def with_certificate(context: ssl.SSLContext, certificate: Certificate) -> ssl.SSLContext:
    """Add a client certificate to the context; the ssl module reads them only from files."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(f"{certificate.cert_pem}\n{certificate.key_pem}")
        file.flush()
        context.load_cert_chain(file.name)
    return context
