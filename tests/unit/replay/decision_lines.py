"""Log lines of decisions, with their snapshots."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from functions import label_node
from shared.frame.snapshot import FIELD, encode
from tests.support.builders import NOW
from tests.unit.functions.label_node import objects as labels
from tests.unit.shared.frame.cases import rules_of


def line(**change: Any) -> dict[str, Any]:
    """A line of label_node about two Nodes of which one is ready, and its snapshot."""
    nodes = (labels.node(labels.A), labels.node(labels.B, ready=False))
    given = labels.on_resync(
        *nodes, instances={name: labels.vm(name) for name in (labels.A, labels.B)}
    )
    plan = label_node.decide.decide(given, NOW)
    found = encode(given, NOW, plan, rules_of(label_node.STEP))
    written = {"reason": "NodeNotReady", "message": "m"}
    return {
        "step": "label_node",
        "decision": plan.outcome,
        "ready": written,
        FIELD: found,
        **change,
    }


def changed(**fields: Any) -> dict[str, Any]:
    """Return a snapshot with other fields."""
    document = json.loads(zlib.decompress(base64.b64decode(line()[FIELD]["data"])))
    data = base64.b64encode(zlib.compress(json.dumps(document | fields).encode())).decode()
    return {"version": 1, "bytes": len(data), "data": data}
