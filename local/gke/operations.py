"""Operations: the answer to every change; PENDING, then RUNNING, then DONE.

A failed operation is DONE too, with an ``error``. Finished operations remain for a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

from local.base.clock import Clock
from local.gke.refusals import OPERATION_ABSENT
from local.gke.timings import Timings
from local.gke.wire import Document

KINDS = {
    "nodePools.create": "CREATE_NODE_POOL",
    "nodePools.delete": "DELETE_NODE_POOL",
    "nodePools.update": "UPGRADE_NODES",
}
"""``operationType`` by verb, as recorded: an update of taints upgrades Nodes."""


@dataclass(frozen=True)
class Failure:
    """The failure of an operation: gRPC code, message, and the code of the pool's condition."""

    code: int
    status: str
    message: str
    condition: str = "UNKNOWN"

    def document(self) -> Document:
        """``google.rpc.Status``."""
        return {"code": self.code, "message": self.message}

    def conditions(self) -> list[Document]:
        """The condition of the pool."""
        return [{"code": self.condition, "canonicalCode": self.status, "message": self.message}]


@dataclass
class Operation:
    """An operation. ``target`` is the pool's path without its project, ``request`` the body."""

    verb: str
    name: str
    project: str
    place: str
    target: str
    email: str
    user_agent: str
    version: str
    started: datetime
    request: Document
    is_running: bool = False
    ended: datetime | None = None
    failure: Failure | None = None
    progress: list[Document] = field(default_factory=list)

    @property
    def status(self) -> str:
        """PENDING, RUNNING or DONE."""
        if self.ended is not None:
            return "DONE"
        return "RUNNING" if self.is_running else "PENDING"

    def document(self, number: str, version: str) -> Document:
        """The operation as the API answers it; links have the project's number."""
        root = f"https://container.googleapis.com/{version}/projects/{number}/{self.place}"
        document: Document = {
            "name": self.name,
            "operationType": KINDS[self.verb],
            "selfLink": f"{root}/operations/{self.name}",
            "startTime": _render(self.started),
            "status": self.status,
            "targetLink": f"{root}/{self.target}",
            "zone": self.place.rpartition("/")[2],
        }
        if self.ended is not None:
            document["endTime"] = _render(self.ended)
            if self.progress:
                document["progress"] = {"metrics": self.progress}
        if self.failure is not None:
            document["error"] = self.failure.document()
            document["statusMessage"] = self.failure.message
            document["nodepoolConditions"] = self.failure.conditions()
        return document


def _render(moment: datetime) -> str:
    """A time as the API answers it: nanoseconds and ``Z``."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "000Z")


class Operations:
    """All operations of all clusters."""

    def __init__(self, clock: Clock, random: Random, timings: Timings) -> None:
        self._clock = clock
        self._random = random
        self._timings = timings
        self._operations: dict[str, Operation] = {}

    def begin(self, verb: str, **fields: Any) -> Operation:
        """Create a PENDING operation."""
        now = self._clock.now()
        name = f"operation-{int(now.timestamp() * 1000)}-{self._random.getrandbits(32):08x}"
        operation = Operation(verb=verb, name=name, started=now, **fields)
        self._operations[name] = operation
        return operation

    def later(self, operation: Operation, delay_s: float, end: Callable[[], None]) -> None:
        """Run an operation, and end it after ``seconds``."""

        def run() -> None:
            operation.is_running = True

        pending = min(self._random.uniform(*self._timings.pending_s), delay_s)
        self._clock.call_later(pending, run)
        self._clock.call_later(delay_s, end)

    def finish(self, operation: Operation, failure: Failure | None) -> None:
        """End it."""
        operation.ended = self._clock.now()
        operation.failure = failure

    def get(self, project: str, place: str, name: str) -> Operation:
        """Raises `Refused` (404)."""
        found = self._operations.get(name)
        known = found is not None and (found.project, found.place) == (project, place)
        if found is None or not known or self._is_forgotten(found):
            path = f"projects/{project}/{place}/operations/{name}"
            raise OPERATION_ABSENT.refused(resource=path)
        return found

    def list(self, project: str, place: str) -> list[Operation]:
        """List the operations of a location; ``-`` stands for all."""
        everywhere = place.endswith("/-")
        return [
            operation
            for operation in self._operations.values()
            if operation.project == project
            and (everywhere or operation.place == place)
            and not self._is_forgotten(operation)
        ]

    def count_running(self, cluster: str) -> int:
        """The number of running operations of a cluster."""
        return sum(
            operation.ended is None and f"{operation.place}/{operation.target}".startswith(cluster)
            for operation in self._operations.values()
        )

    def forget(self) -> None:
        """Drop all operations that are DONE."""
        self._operations = {
            name: one for name, one in self._operations.items() if one.ended is None
        }

    def _is_forgotten(self, operation: Operation) -> bool:
        if operation.ended is None:
            return False
        age = self._clock.now() - operation.ended
        return age > timedelta(seconds=self._timings.operation_retention_s)
