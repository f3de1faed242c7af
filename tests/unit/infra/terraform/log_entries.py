"""Entries of the audit log, and the steps that the sinks' filters select for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from local.cloud.sinks import Sinks

ROOT = Path(__file__).parents[4]
FILTERS = {
    path.stem: path.read_text()
    for path in sorted((ROOT / "infra" / "terraform" / "filters").glob("*.txt"))
}


def rows(file: str) -> dict[str, Any]:
    lines = (ROOT / "tests" / "data" / file).read_text().splitlines()
    return {row["name"]: row for row in map(json.loads, lines)}


ENTRIES = rows("audit-log-entries.jsonl")
POOLS = rows("node-pool-log-entries.jsonl")
# Entries that pass a filter although they concern no group; the step finds no group then.
EXCESS = {
    "other-project-mig": ("create_resources", "a sink gets the entries of its own project only"),
    "other-zone-same-name": ("inject_token", "a filter has no list of the groups and their zones"),
    "same-prefix-hand-made-vm": (
        "inject_token",
        "the name matches; only the MIG's list of members shows that the VM is not one",
    ),
}


def find_steps(entry: Mapping[str, Any]) -> list[str]:
    return Sinks(FILTERS, lambda *_: None).find_steps(entry)
