"""The embedded server, in process and on a virtual clock, as the tests here use it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

from local.clock import VirtualClock
from local.http import Request
from local.kube import Dials, KubeApi, User
from tests.unit.kube.dialogue import JSON, USERS, Answer, fill


class Embedded:
    """A `Server` for cases, and what single tests need of one besides."""

    def __init__(self, namespace: str = "default", **dials: Any) -> None:
        self.clock = VirtualClock()
        self.known: Mapping[str, str] = {"ns": namespace}
        users = {fill(name, self.known): groups for name, groups in USERS.items()}
        tokens = {name: User(name, groups) for name, groups in users.items()}
        self.api = KubeApi(self.clock, random=Random(1), tokens=tokens, dials=Dials(**dials))
        self.settle()

    def settle(self) -> None:
        self.clock.run_for(1)

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = JSON,
        user: str = "admin",
        accept: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        sent = {"content-type": content_type, "accept": accept, **(headers or {})}
        if user != "anonymous":
            sent["authorization"] = f"Bearer {user.removeprefix('token:')}"
        raw = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
        if isinstance(raw, str):
            raw = raw.encode()
        response = self.api.handle(Request(method, *_split(path), sent, raw or b""))
        lowered = {name.lower(): value for name, value in response.headers.items()}
        if response.stream is None:
            return Answer(response.status, lowered, response.body)
        chunks: list[bytes] = []
        ended: list[bool] = []
        response.stream.subscribe(chunks.append, lambda: ended.append(True))
        self.clock.run_until(lambda: bool(ended), timeout_s=3600)
        assert ended, "the watch should have ended by itself"
        return Answer(response.status, lowered, b"".join(chunks))

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """The document that comes back; the request must succeed."""
        answer = self.send(method, path, body, **more)
        assert answer.status < 300, answer.body.decode()
        return answer.document


def _split(url: str) -> tuple[str, dict[str, list[str]]]:
    request = Request.of("GET", url)
    return request.path, dict(request.query)
