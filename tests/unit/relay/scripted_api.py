"""A Kubernetes API that lists and watches a few kinds, and fails as the test scripts it."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from local.base.http import Request, Response
from shared.base.names import GROUP, PLURAL, VERSION
from tests.unit.relay.objects import Raw, versioned

GROUPS = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
CLUSTER_ID = "cluster-uid"


@dataclass
class OpenWatch:
    """An open watch of a client: stream, subscription and cancellation in one object."""

    path: str
    backlog: list[bytes]
    ends: bool = False
    """Whether the watch ends after the backlog."""
    send: Callable[[bytes], None] = lambda _chunk: None
    end: Callable[[], None] = lambda: None

    def subscribe(self, on_chunk: Callable[[bytes], None], on_end: Callable[[], None]) -> OpenWatch:
        self.send, self.end = on_chunk, on_end
        for chunk in self.backlog:
            on_chunk(chunk)
        if self.ends:
            on_end()
        return self

    def cancel(self) -> None:
        self.send = lambda _chunk: None


@dataclass
class ScriptedApi:
    """The API; see `change`, `compact` and `watch_errors`. Every request is recorded on arrival."""

    version: int = 100
    compacted: int = 0
    objects: dict[str, dict[str, Raw]] = field(
        default_factory=lambda: {GROUPS: {}, NODES: {}, REQUESTS: {}, PODS: {}, JOBSETS: {}}
    )
    """By path; other paths are not served."""
    history: list[tuple[int, str, bytes]] = field(default_factory=list)
    watches: list[OpenWatch] = field(default_factory=list)
    requests: asyncio.Queue[Request] = field(default_factory=asyncio.Queue)
    watch_errors: list[Response] = field(default_factory=list)
    """Answers to the next watches, before any is served."""
    list_errors: list[Response] = field(default_factory=list)
    """Answers to the next lists, before any is served."""
    token: str = ""
    """The bearer token that each request must have; empty to accept any."""
    page_tokens: itertools.count[int] = field(default_factory=itertools.count)

    def handle(self, request: Request) -> Response:
        """An `Application`."""
        self.requests.put_nowait(request)
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return error_response(401, "Unauthorized")
        if request.path == "/api/v1/namespaces/kube-system":
            return Response.of_json({"kind": "Namespace", "metadata": {"uid": CLUSTER_ID}})
        if request.path not in self.objects:
            return Response(404, body=b"404 page not found\n")
        if request.argument("watch"):
            return self.watch_errors.pop(0) if self.watch_errors else self._watch(request)
        return self.list_errors.pop(0) if self.list_errors else self._list(request)

    def put(self, path: str, *objects: Raw) -> None:
        """Add objects without an event."""
        for raw in objects:
            self.objects[path][raw["metadata"]["name"]] = versioned(raw, self.version)

    def change(self, path: str, event: str, raw: Raw) -> None:
        """Create, change or delete an object, and send the event to the watches."""
        self.version += 1
        raw, name = versioned(raw, self.version), raw["metadata"]["name"]
        if event == "DELETED":
            self.objects[path].pop(name, None)
        elif event != "BOOKMARK":
            self.objects[path][name] = raw
        self.send(path, {"type": event, "object": raw})

    def send(self, path: str, event: Raw) -> None:
        """Send any line to the watches."""
        line = json.dumps(event).encode() + b"\n"
        self.history.append((self.version, path, line))
        for watch in self.watches:
            if watch.path == path:
                watch.send(line)

    def compact(self) -> None:
        """Delete all history: a watch from an earlier version gets 410."""
        self.compacted = self.version = self.version + 1

    def close_watches(self) -> None:
        """End all watches cleanly, as their timeout does."""
        watches, self.watches = self.watches, []
        for watch in watches:
            watch.end()

    def _list(self, request: Request) -> Response:
        names = sorted(self.objects[request.path])
        start, limit = int(request.argument("continue", "0")), int(request.argument("limit"))
        chosen = [self.objects[request.path][name] for name in names[start : start + limit]]
        metadata = {"resourceVersion": str(self.version)}
        if start + limit < len(names):
            metadata["continue"] = str(start + limit)
        return Response.of_json({"kind": "List", "metadata": metadata, "items": chosen})

    def _watch(self, request: Request) -> Response:
        since = int(request.argument("resourceVersion"))
        if since < self.compacted:
            return Response(200, stream=OpenWatch(request.path, [EXPIRED], ends=True))
        backlog = [
            line for version, path, line in self.history if version > since and path == request.path
        ]
        watch = OpenWatch(request.path, backlog)
        self.watches.append(watch)
        return Response(200, {"Content-Type": "application/json"}, stream=watch)


def status(code: int, message: str) -> Raw:
    """Return an error as the API server renders it."""
    return {"kind": "Status", "metadata": {}, "status": "Failure", "message": message, "code": code}


def error_response(code: int, message: str) -> Response:
    """An error as an HTTP answer."""
    return Response.of_json(status(code, message), code)


EXPIRED = (
    json.dumps({"type": "ERROR", "object": status(410, "too old resource version: 5 (100)")}) + "\n"
).encode()


def write_kubeconfig(path: Path, port: int, token: str = "token") -> Path:
    """Write a kubeconfig for a port of this machine."""
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    user = {"name": "u", "user": {"token": token}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [user],
        "contexts": [context],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(document))
    return path
