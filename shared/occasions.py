"""What wakes a step: a push envelope becomes an `Occasion`.

Two kinds of message come in (docs/how-it-works.md): our own (`Message`, from the relay, the sweep,
a step, the replay tool) and a Cloud Logging entry as a log sink publishes it. An occasion says
where to look and why; it never says what to do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from shared.names import KIND

MESSAGE_VERSION = 1
MAX_NAMES = 100
"""Names of Nodes or VMs in one message; more names make more messages."""


class Cause(StrEnum):
    """Why somebody should look: a word for the log. Only ``Sync`` is treated apart."""

    ADDED = "Added"
    SPEC_CHANGED = "SpecChanged"
    METADATA_CHANGED = "MetadataChanged"
    DELETING = "Deleting"
    NODES_CHANGED = "NodesChanged"
    SYNC = "Sync"
    VMS_NEED_TOKENS = "VMsNeedTokens"
    FORWARDED = "Forwarded"


@dataclass(frozen=True)
class Message:
    """An occasion to look at one TPUNodeGroup, as this system publishes it.

    ``nodes`` and ``vms`` are names (at most `MAX_NAMES` together), ``at`` is when the sender saw
    what it tells of.
    """

    namespace: str
    name: str
    uid: str
    cause: Cause
    at: datetime
    nodes: tuple[str, ...] = field(default=())
    vms: tuple[str, ...] = field(default=())

    def encode(self) -> bytes:
        """The message's data, in JSON."""
        document: dict[str, Any] = {
            "version": MESSAGE_VERSION,
            "kind": KIND,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "cause": str(self.cause),
            "at": self.at.isoformat().replace("+00:00", "Z"),
        }
        if self.nodes:
            document["nodes"] = list(self.nodes)
        if self.vms:
            document["vms"] = list(self.vms)
        return json.dumps(document, separators=(",", ":")).encode()

    def attributes(self, cluster: str) -> dict[str, str]:
        """The message's attributes: enough for a person to filter by."""
        return {"cluster": cluster, "cause": str(self.cause)}
