"""The port to GKE: requests about node pools, in the API's JSON form.

Each call is a single HTTP request, and none is retried. No call waits for an operation: its
end is an entry of the audit log. GKE's list of node pools has no pages.
"""

import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

from shared.base.documents import Document, read_mappings, read_text
from shared.base.names import NODE_POOLS
from shared.ports.errors import About
from shared.ports.google_credentials import Call, RestApi

GkeMethod = Literal[
    "create_node_pool", "get_node_pool", "list_node_pools", "update_node_pool", "delete_node_pool"
]
"""All calls that are made."""
_HTTP = {"create": "POST", "get": "GET", "list": "GET", "update": "PUT", "delete": "DELETE"}


class GkeClient(RestApi):
    """GKE for all invocations of a process, and its one kind of call.

    ``kept``: when the node pools were last listed, and the pools by name, with the changes that this
    process has begun since. ``slots`` is held while such a change takes a slot, and during no call.
    """

    URL = "https://container.googleapis.com/v1"
    kept: tuple[datetime, dict[str, dict[str, Any]]] | None = None
    slots = threading.Lock()

    def read_error(self, said: Document, reason: str) -> tuple[str, str]:
        """GKE's code and message."""
        first: Document = next(read_mappings(said, "errors"), {})
        code = reason or read_text(first, "reason") or read_text(said, "status")
        return code, read_text(said, "message")

    def call(
        self, method: GkeMethod, request: Mapping[str, Any], remaining_s: Callable[[], float]
    ) -> dict[str, Any]:
        """Make one request, in the API's JSON form; the answer in the same. Raises `CallError`.

        ``remaining_s`` says how many seconds are left for calls; it raises `OutOfTimeError` at the end.
        """
        body, verb = dict(request), method.partition("_")[0]
        named = body.pop("name", "")
        path = named or f"{body.pop('parent')}/{NODE_POOLS}"
        name = request.get("nodePool", {}).get("name") or named.rpartition("/")[2]
        about = About(NODE_POOLS, name)
        made = Call(f"{NODE_POOLS}.{verb}", about, _HTTP[verb], path, body=body or None)
        return self.request(made, _check_pools, remaining_s)


def _check_pools(found: Document) -> dict[str, Any]:
    """An answer whose node pools are mappings. Raises `TypeError`."""
    if not all(isinstance(pool, dict) for pool in found.get("nodePools", ())):
        raise TypeError("a node pool is of another type")
    return dict(found)
