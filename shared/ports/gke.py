"""The port to GKE: requests about node pools, in the API's JSON form.

Each call is a single HTTP request. The client's own retries are off. No call waits for an operation: its
end is an entry of the audit log. GKE's list of node pools has no pages.
"""

import json
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Literal

from shared.base.documents import Document, read_mappings, read_text
from shared.base.names import NODE_POOLS
from shared.ports.errors import About
from shared.ports.google_credentials import Headers, LazyClients

GkeMethod = Literal[
    "create_node_pool", "get_node_pool", "list_node_pools", "update_node_pool", "delete_node_pool"
]
"""All calls that are made."""


class GkeClient(LazyClients):
    """The client of google-cloud-container, and its one kind of call.

    ``kept``: when the node pools were last listed, and the pools by name, with the changes that this
    process has begun since. ``slots`` is held while such a change takes a slot, and during no call.
    """

    kept: tuple[datetime, dict[str, dict[str, Any]]] | None = None
    slots = threading.Lock()

    def load_class(self, service: str) -> Callable[..., Any]:  # noqa: ARG002 - there is one
        """Import the client's class."""
        from google.cloud.container_v1.services.cluster_manager import ClusterManagerClient

        return partial(ClusterManagerClient, transport="rest")

    def read_error(self, error: Any, said: Document) -> tuple[str, str]:
        """GKE's code, and its message without the client's prefix."""
        first: Document = next(read_mappings(said, "errors"), {})
        code = error.reason or read_text(first, "reason") or read_text(said, "status")
        return str(code), read_text(said, "message") or str(error.message)

    def call(
        self, method: GkeMethod, request: Mapping[str, Any], remaining_s: Callable[[], float]
    ) -> dict[str, Any]:
        """Make one request, in the API's JSON form; the answer in the same. Raises `CallError`.

        ``remaining_s`` says how many seconds are left for calls; it raises `OutOfTimeError` at the end.
        """
        from google.cloud.container_v1 import types

        name = f"nodePools.{method.partition('_')[0]}"
        created, path = request.get("nodePool", {}), request.get("name", "")
        about = About(NODE_POOLS, created.get("name") or path.rpartition("/")[2])
        words = "".join(word.capitalize() for word in method.split("_"))
        message = getattr(types, f"{words}Request").from_json(json.dumps(request))
        call = getattr(self.get("cluster_manager"), method)

        def send(headers: Headers, timeout_s: float) -> Any:
            return call(request=message, timeout=timeout_s, retry=None, metadata=headers)

        answer = self.send(name, about, send, remaining_s)
        options = {"use_integers_for_enums": False, "always_print_fields_with_no_presence": False}
        document: dict[str, Any] = json.loads(type(answer).to_json(answer, **options))
        return document
