"""Log entries of the functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ENTRIES = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "audit-log-entries.jsonl")
    .read_text()
    .splitlines()
]


def message(**fields: Any) -> dict[str, Any]:
    """A message of this system."""
    return {
        "version": 1,
        "kind": "TPUNodeGroup",
        "namespace": "default",
        "name": "my-slice",
        "uid": "u-1",
        "cause": "NodesChanged",
        "at": "2026-11-20T10:00:00Z",
        "nodes": ["n-1"],
        **fields,
    }


def entry(name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row["entry"] for row in ENTRIES if row["name"] == name)
    return found
