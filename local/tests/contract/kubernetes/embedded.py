"""The embedded server in this process, on a virtual clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

from local.base.clock import VirtualClock
from local.base.http import Request, Stream
from local.kube import ClusterOptions, KubeApi, User
from local.tests.contract.kubernetes.definitions import ALL
from local.tests.contract.kubernetes.dialogue import AGENT, JSON, USERS, Answer, fill, variables


class Listener:
    """A client of a watch."""

    def __init__(self, stream: Stream, on_chunk: Callable[[bytes], None] | None = None) -> None:
        self.chunks: list[bytes] = []
        self.ended = False
        self._subscription = stream.subscribe(on_chunk or self.chunks.append, self._end)

    def _end(self) -> None:
        self.ended = True

    def cancel(self) -> None:
        self._subscription.cancel()

    def events(self) -> list[Any]:
        """All events so far."""
        return [json.loads(line) for line in b"".join(self.chunks).splitlines()]

    def event_names(self) -> list[tuple[str, str]]:
        """Types and object names of the events so far."""
        return [
            (event["type"], event["object"].get("metadata", {}).get("name", ""))
            for event in self.events()
        ]


class Embedded:
    """A `Server` for cases, with further methods for single tests."""

    def __init__(
        self, identity: str = "", definitions: Iterable[Any] = ALL, **options: Any
    ) -> None:
        """With an ``identity``, the server has the CRDs and the namespace of a case; see `variables`."""
        self.clock = VirtualClock()
        self.known = variables(identity, self.clock.now())
        users = {fill(name, self.known): groups for name, groups in USERS.items()}
        tokens = {name: User(name, groups) for name, groups in users.items()}
        self.api = KubeApi(
            self.clock, random=Random(1), tokens=tokens, options=ClusterOptions(**options)
        )
        self.run_controllers()
        if identity:
            self._open_namespace(definitions)

    def _open_namespace(self, definitions: Iterable[Any]) -> None:
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for crd in definitions:
            self.ask("POST", crds, crd)
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": self.known["ns"]}})
        self.run_controllers()
        self.compact()

    def run_controllers(self) -> None:
        """Let the controllers finish."""
        self.clock.run_for(1)

    def await_answer(
        self, ask: Callable[[], Answer], is_expected: Callable[[Answer], bool]
    ) -> Answer:
        """See `Server`. Controllers need at most a second of virtual time."""
        del is_expected
        self.run_controllers()
        return ask()

    def compact(self) -> None:
        """See `Server`."""
        self.api.compact()

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
        sent = {"content-type": content_type, "accept": accept, "user-agent": AGENT}
        sent.update(headers or {})
        if user != "anonymous":
            sent["authorization"] = f"Bearer {user.removeprefix('token:')}"
        raw = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
        if isinstance(raw, str):
            raw = raw.encode()
        response = self.api.handle(Request(method, *_split(path), sent, raw or b""))
        lowered = {name.lower(): value for name, value in response.headers.items()}
        if response.stream is None:
            return Answer(response.status, lowered, response.body)
        listener = Listener(response.stream)
        self.clock.run_until(lambda: listener.ended, timeout_s=3600)
        assert listener.ended, "the watch must end by itself"
        return Answer(response.status, lowered, b"".join(listener.chunks))

    def watch(
        self,
        path: str,
        query: str = "",
        user: str = "admin",
        accept: str = JSON,
        on_chunk: Callable[[bytes], None] | None = None,
    ) -> Listener:
        """Watch a collection, until the watch ends."""
        headers = {"authorization": f"Bearer {user}", "accept": accept}
        request = Request.of("GET", f"{path}?watch=true&{query}", headers=headers)
        stream = self.api.handle(request).stream
        assert stream is not None
        return Listener(stream, on_chunk)

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """Send a request that must succeed, and return the document of its answer."""
        answer = self.send(method, path, body, **more)
        assert answer.status < 300, answer.body.decode()
        return answer.document


def _split(url: str) -> tuple[str, dict[str, list[str]]]:
    request = Request.of("GET", url)
    return request.path, dict(request.query)
