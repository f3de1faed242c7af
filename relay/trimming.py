"""JSON from the API server, with everything dropped that the outbox does not read.

A Node is 10 to 20 KB of JSON, most of it container images; a page of 500 as Python objects would be
the largest thing in the process. Objects are cut down one by one while the page is being parsed.
"""

from __future__ import annotations

import json
from typing import Any

from shared.names import PAUSED_ANNOTATION

_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "deletionTimestamp",
    "finalizers",
    "labels",
)
_SPEC = ("providerID", "nodeCount")
_STATUS = ("observedGeneration", "nodeSummary", "capacity", "allocatable")


def parse(text: bytes) -> Any:
    """A list or a watch event, its objects trimmed. Raises `ValueError` for what is no JSON."""
    return json.loads(text, object_hook=_trim)


def _trim(value: dict[str, Any]) -> dict[str, Any]:
    if not _is_kubernetes_object(value):
        return value
    metadata, status = _part(value, "metadata"), _part(value, "status")
    return {
        "metadata": {
            **_only(metadata, _METADATA),
            "annotations": _only(_part(metadata, "annotations"), (PAUSED_ANNOTATION,)),
        },
        "spec": _only(_part(value, "spec"), _SPEC),
        "status": {**_only(status, _STATUS), "conditions": _ready_conditions(status)},
    }


def _is_kubernetes_object(value: dict[str, Any]) -> bool:
    """A Node or TPUNodeGroup; not a list of them, nor an error, whose status is a word."""
    parts = (value.get("spec"), value.get("status"))
    return "metadata" in value and any(isinstance(part, dict) for part in parts)


def _ready_conditions(status: dict[str, Any]) -> list[dict[str, Any]]:
    conditions = status.get("conditions")
    items = conditions if isinstance(conditions, list) else []
    return [item for item in items if isinstance(item, dict) and item.get("type") == "Ready"]


def _part(holder: dict[str, Any], key: str) -> dict[str, Any]:
    part = holder.get(key)
    return part if isinstance(part, dict) else {}


def _only(part: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: part[key] for key in keys if key in part}
