"""Requests to a control plane as its administrator, which are not recorded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from local.base.http import Request, Response
from local.cluster.manifests import collection_path
from local.control_plane.plane import ControlPlane
from tests.real.bridge.connections import Caller, Connections

Document = dict[str, Any]
MERGE_PATCH = "application/merge-patch+json"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def administrator(plane: ControlPlane) -> Caller:
    """Return the administrator's credentials, with TLS for one thread."""
    token = plane.headers().get("Authorization", "").removeprefix("Bearer ")
    return Caller("admin", plane.administrator(), token)


class Administrator:
    """Sends requests as administrator."""

    def __init__(self, connections: Connections, caller: Caller) -> None:
        self.caller = caller
        self._connections = connections

    def ask(self, method: str, path: str, body: Any = None, content_type: str = "") -> Response:
        """Send a request, and return the answer or error."""
        headers = {"accept": "application/json", "content-type": content_type or "application/json"}
        raw = None if body is None else json.dumps(body)
        request = Request.of(method, path, headers=headers, body=raw)
        return self._connections.send(self.caller, request)

    def demand(self, method: str, path: str, body: Any = None, content_type: str = "") -> Document:
        """Send a request that must succeed."""
        answer = self.ask(method, path, body, content_type)
        assert answer.status < 300, f"{method} {path}: {answer.status} {answer.body[:500]!r}"
        document: Document = answer.json()
        return document

    def items(self, path: str) -> list[Document]:
        """Return the objects of a collection."""
        items: list[Document] = self.demand("GET", path)["items"]
        return items

    def apply(self, manifests: Iterable[Mapping[str, Any]]) -> None:
        """Apply server-side, so that it can be repeated."""
        for manifest in manifests:
            path = f"{collection_path(dict(manifest))}/{manifest['metadata']['name']}"
            query = "fieldManager=installation&force=true"
            self.demand("PATCH", f"{path}?{query}", manifest, "application/apply-patch+yaml")

    def request_token(self, namespace: str, account: str) -> str:
        """Return a ServiceAccount's token that is valid for six hours."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 6 * 3600},
        }
        token: str = self.demand("POST", path, request)["status"]["token"]
        return token


@contextmanager
def open_administrator(plane: ControlPlane) -> Iterator[Administrator]:
    """Send requests as administrator until the block ends."""
    connections = Connections(plane.server)
    try:
        yield Administrator(connections, administrator(plane))
    finally:
        connections.close()
