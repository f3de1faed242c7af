"""The audit log: two entries for an operation, at its begin and its end; one for a refused call.

Documented: the methods' names, which methods are long-running and have two entries, the labels of
``gke_nodepool``. Assumed: the ``status`` with GKE's message in the last entry of a failed
operation, as in Compute Engine's entries, and the path in ``resourceName``.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from local.base.clock import Clock
from local.gce.links import zulu
from local.gce.refusals import Refused
from local.gke.operations import Operation
from local.gke.timings import Timings
from local.gke.wire import Document

SERVICE = "container.googleapis.com"
METHODS = {
    "nodePools.create": "CreateNodePool",
    "nodePools.delete": "DeleteNodePool",
    "nodePools.update": "UpdateNodePool",
}


class AuditLog:
    """Writes entries and passes each to ``on_log_entry`` after a delay."""

    def __init__(
        self,
        clock: Clock,
        random: Random,
        timings: Timings,
        on_log_entry: Callable[[Document], None],
    ) -> None:
        self._clock = clock
        self._random = random
        self._timings = timings
        self._on_log_entry = on_log_entry

    def write_first(self, operation: Operation, number: str) -> None:
        """Write the entry of an operation's begin."""
        kind = f"type.googleapis.com/google.container.{operation.version}"
        method = METHODS[operation.verb]
        payload = _payload(operation)
        payload["request"] = {**operation.request, "@type": f"{kind}.{method}Request"}
        answer = operation.document(number, operation.version)
        payload["response"] = {**answer, "@type": f"{kind}.Operation"}
        self._write(operation, payload, first=True)

    def write_last(self, operation: Operation) -> None:
        """Write the entry of an operation's end."""
        payload = _payload(operation)
        if operation.failure is not None:
            payload["status"] = operation.failure.document()
        self._write(operation, payload, last=True)

    def write_refusal(self, asked: Operation, refused: Refused) -> None:
        """Write the entry of a refused call; ``asked`` is the operation that it requested."""
        payload = _payload(asked)
        payload["status"] = {"code": refused.log[0], "message": refused.message}
        self._deliver(_entry(asked, payload))

    def _write(self, operation: Operation, payload: Document, **position: bool) -> None:
        entry = _entry(operation, payload)
        entry["operation"] = {"id": operation.name, "producer": SERVICE, **position}
        self._deliver(entry)

    def _deliver(self, entry: Document) -> None:
        entry["insertId"] = f"{self._random.getrandbits(44):011x}"
        entry["timestamp"] = zulu(self._clock.now())

        def arrive() -> None:
            entry["receiveTimestamp"] = zulu(self._clock.now())
            self._on_log_entry(entry)

        self._clock.call_later(self._random.uniform(*self._timings.log_delay_s), arrive)


def _payload(operation: Operation) -> Document:
    method = f"google.container.{operation.version}.ClusterManager.{METHODS[operation.verb]}"
    payload: Document = {
        "@type": "type.googleapis.com/google.cloud.audit.AuditLog",
        "authenticationInfo": {"principalEmail": operation.email},
        "serviceName": SERVICE,
        "methodName": method,
        "resourceName": f"projects/{operation.project}/{operation.place}/{operation.target}",
    }
    if operation.user_agent:
        payload["requestMetadata"] = {"callerSuppliedUserAgent": operation.user_agent}
    return payload


def _entry(operation: Operation, payload: Document) -> Document:
    _, cluster, _, pool = operation.target.split("/")
    return {
        "logName": f"projects/{operation.project}/logs/cloudaudit.googleapis.com%2Factivity",
        "severity": "ERROR" if "status" in payload else "NOTICE",
        "resource": {
            "type": "gke_nodepool",
            "labels": {
                "project_id": operation.project,
                "location": operation.place.rpartition("/")[2],
                "cluster_name": cluster,
                "nodepool_name": pool,
            },
        },
        "protoPayload": payload,
    }
