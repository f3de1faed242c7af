"""HTTP without a socket: the plain request and response that every local server is written for.

A server (`local.gce`, `local.kube`) is an `Application`: a function from `Request` to `Response`
that does no I/O of its own. `local.base.web` puts it behind a real port; tests call it directly, in one
process and on a virtual clock. An application is called from one thread at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

JSON = "application/json"


@dataclass(frozen=True)
class Request:
    """One HTTP request. Header names are lower case; ``query`` keeps every value of a name."""

    method: str
    path: str
    query: Mapping[str, list[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    peer_certificate: bytes | None = None
    """The client's certificate in DER form, if TLS has verified one against the server's CA."""

    @classmethod
    def of(
        cls,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | str | None = None,
        peer_certificate: bytes | None = None,
    ) -> Request:
        """A request from a URL, or from a path with a query."""
        parts = urlsplit(url)
        raw = body.encode() if isinstance(body, str) else body or b""
        lowered = {name.lower(): value for name, value in (headers or {}).items()}
        query = parse_qs(parts.query, keep_blank_values=True)
        return cls(method.upper(), parts.path or "/", query, lowered, raw, peer_certificate)

    def argument(self, name: str, default: str = "") -> str:
        """The first value of a query parameter."""
        values = self.query.get(name)
        return values[0] if values else default


class Subscription(Protocol):
    """A subscription to an open stream."""

    def cancel(self) -> None:
        """Stop receiving; the server drops the stream."""


class Stream(Protocol):
    """A streamed body, as of a Kubernetes watch."""

    def subscribe(
        self, on_chunk: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> Subscription:
        """Call ``on_chunk`` for existing and new content, then ``on_end``."""


@dataclass
class Response:
    """One HTTP response: either ``body`` or, when it is not ``None``, ``stream``."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    stream: Stream | None = None

    @classmethod
    def of_json(
        cls, document: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        """A JSON answer."""
        raw = json.dumps(document, separators=(",", ":")).encode()
        return cls(status, {"Content-Type": JSON, **(headers or {})}, raw)

    def json(self) -> Any:
        """The body, decoded. Raises `ValueError` when it is no JSON."""
        return json.loads(self.body)


class Application(Protocol):
    """A server without a socket."""

    def handle(self, request: Request) -> Response:
        """Answer one request; never raises for what a client sent."""
