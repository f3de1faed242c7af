"""A conversation with an API server, without a socket.

A conversation is a generator. It yields what to `Send` or how long to `Wait`, and receives the server's
reply. `local.vm.transport` sends the requests, in one process or over TLS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from local.base.http import JSON, Request, Response

T = TypeVar("T")

RETRY_S = 5.0
"""The pause before a failed call is retried."""
_STRATEGIC_MERGE = "application/strategic-merge-patch+json"


@dataclass(frozen=True)
class Anonymous:
    """No credential."""


@dataclass(frozen=True)
class Bearer:
    """A token in the Authorization header."""

    token: str = field(repr=False)


@dataclass(frozen=True)
class Certificate:
    """A client certificate and its key, in PEM."""

    cert_pem: str
    key_pem: str = field(repr=False)


Credential = Anonymous | Bearer | Certificate


@dataclass(frozen=True)
class Send:
    """A request to ``server`` (``https://host:port``).

    ``verify_ca`` is the CA in PEM that must have signed the server's certificate; `None` accepts any.
    """

    server: str
    request: Request
    credential: Credential
    verify_ca: str | None


@dataclass(frozen=True)
class Wait:
    """A pause."""

    seconds: float


@dataclass(frozen=True)
class ConnectionRefused:
    """There is no response: no server, a TLS error, or a broken connection."""

    reason: str


Reply = Response | ConnectionRefused
Conversation = Generator[Send | Wait, Reply | None, T]
Now = Callable[[], datetime]


def run_conversation(
    conversation: Conversation[T], send: Callable[[Send], Reply], wait: Callable[[float], None]
) -> T:
    """Run a conversation to its end and return its result; ``wait`` gets seconds."""
    reply: Reply | None = None
    while True:
        try:
            step = conversation.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
        if isinstance(step, Send):
            reply = send(step)
        else:
            wait(step.seconds)
            reply = None


@dataclass(frozen=True)
class Identity:
    """What a kubelet.conf holds: the API server, its CA, a credential.

    ``impersonates``: the credential is an administrator's, who impersonates the kubelet.
    """

    server: str
    ca_pem: str
    credential: Credential
    impersonates: bool = False


class Api:
    """Calls to one server as one user, who may impersonate the kubelet of ``node``."""

    def __init__(
        self, server: str, ca_pem: str | None, credential: Credential, node: str = ""
    ) -> None:
        self._node = node
        self._server = server
        self._ca_pem = ca_pem
        self._credential = credential

    def get(self, path: str) -> Conversation[Reply]:
        return self._call("GET", path, None, JSON)

    def post(self, path: str, body: Mapping[str, Any]) -> Conversation[Reply]:
        return self._call("POST", path, body, JSON)

    def put(self, path: str, body: Mapping[str, Any]) -> Conversation[Reply]:
        return self._call("PUT", path, body, JSON)

    def patch(self, path: str, body: Mapping[str, Any]) -> Conversation[Reply]:
        return self._call("PATCH", path, body, _STRATEGIC_MERGE)

    def delete(self, path: str) -> Conversation[Reply]:
        return self._call("DELETE", path, {}, JSON)

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None, content_type: str
    ) -> Conversation[Reply]:
        headers = {"Accept": JSON, "User-Agent": "kubelet/v1.31.4 (linux/amd64)"}
        if body is not None:
            headers["Content-Type"] = content_type
        if isinstance(self._credential, Bearer):
            headers["Authorization"] = f"Bearer {self._credential.token}"
        if self._node:
            headers["Impersonate-User"] = f"system:node:{self._node}"
            headers["Impersonate-Group"] = "system:nodes"
        raw = None if body is None else json.dumps(body)
        request = Request.of(method, path, headers=headers, body=raw)
        reply = yield Send(self._server, request, self._credential, self._ca_pem)
        assert reply is not None, "a Send is answered with a reply"
        return reply


def status_of(reply: Reply) -> int:
    return reply.status if isinstance(reply, Response) else 0


def message_of(reply: Reply) -> str:
    """The error message of a reply, as client-go prints it."""
    if isinstance(reply, ConnectionRefused):
        return reply.reason
    try:
        return str(reply.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {reply.status}"
