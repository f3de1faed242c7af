"""Operations: what every mutation answers, what runs for a while and is DONE later.

A failed operation is DONE too, with an ``error`` inside. Finished ones are kept for a time and then
answer 404.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from local.gce import links
from local.gce.calls import Call, Caller, Route
from local.gce.listing import answer_list
from local.gce.refusals import (
    BAD_REQUEST_ID,
    NOT_FOUND,
    REQUEST_ID_REUSED,
    OperationError,
    phrase,
)
from local.gce.schema import Document

if TYPE_CHECKING:
    from local.gce.world import World

Settle = Callable[[OperationError | None], None]
"""Called at an operation's end: apply what it was for, or, given an error, take it back."""

ChangedKeys = Mapping[str, list[str]]
"""Which metadata keys an operation adds, modifies and deletes."""

_KINDS = {
    "instanceTemplates.insert": "compute.instanceTemplates.insert",
    "regionInstanceTemplates.insert": "compute.instanceTemplates.insert",
}
"""``operationType`` is not uniform: these, as recorded, and the group's own verbs are long."""
_SHORT = frozenset({"insert", "delete"})


def kind_of(verb: str) -> str:
    """An operation's ``operationType``."""
    collection, _, method = verb.partition(".")
    if collection == "instanceGroupManagers" and method not in _SHORT:
        return f"compute.{verb}"
    return _KINDS.get(verb, method)


class Operation:
    """One operation. ``request`` is what the audit log shows of the request's body."""

    __slots__ = (
        "caller", "changed_keys", "ended", "error", "id", "kind", "logged", "name", "path",
        "request", "request_id", "started", "target", "target_id", "verb",
    )  # fmt: skip

    def __init__(
        self, caller: Caller, verb: str, target: str, target_id: str, request: Document | None
    ) -> None:
        self.caller = caller
        self.verb = verb
        self.kind = kind_of(verb)
        self.target = target
        self.target_id = target_id
        self.request = request
        self.request_id = ""
        self.changed_keys: ChangedKeys = {}
        self.name = ""
        self.id = ""
        self.path = ""
        self.started = datetime.min
        self.ended: datetime | None = None
        self.error: OperationError | None = None
        self.logged = True

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.ended is not None

    def document(self) -> Document:
        """The operation as the API answers it."""
        scope = self.path.rpartition("/operations/")[0]
        started = links.pacific(self.started)
        document: Document = {
            "kind": "compute#operation",
            "id": self.id,
            "name": self.name,
            "operationType": self.kind,
            "targetLink": links.url(self.target),
            "targetId": self.target_id,
            "status": "DONE" if self.done else "RUNNING",
            "user": self.caller.email,
            "progress": 100 if self.done else 0,
            "insertTime": started,
            "startTime": started,
            "selfLink": links.url(self.path),
        }
        place = scope.split("/")[2]
        if place != "global":
            document[place.removesuffix("s")] = links.url(scope)
        if self.request_id:
            document["clientOperationId"] = self.request_id
        if self.ended is not None:
            document["endTime"] = links.pacific(self.ended)
        if self.error is not None:
            document["error"] = {"errors": [self.error.document()]}
            document["httpErrorStatusCode"] = self.error.http
            document["httpErrorMessage"] = phrase(self.error.http)
        return document


class Operations:
    """All operations, and the memory of request ids."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._operations: dict[str, Operation] = {}
        self._requests: dict[str, tuple[str, Operation]] = {}

    def routes(self) -> tuple[Route, ...]:
        """The methods about operations, in their three scopes."""
        return tuple(
            route
            for scope, verb in (
                ("zones", "zoneOperations"),
                ("regions", "regionOperations"),
                ("global", "globalOperations"),
            )
            for route in (
                Route(f"GET {scope} operations", f"{verb}.list", self.list),
                Route(f"GET {scope} operations NAME", f"{verb}.get", self.get),
                Route(f"POST {scope} operations NAME wait", f"{verb}.wait", self.get),
            )
        )

    def get(self, call: Call) -> Document:
        """Answer get and wait; wait does not wait, which its contract allows."""
        operation = self._operations.get(call.path)
        if operation is None or self._is_forgotten(operation):
            raise NOT_FOUND.refused(resource=call.path)
        return operation.document()

    def list(self, call: Call) -> Document:
        """Answer list."""
        prefix = call.collection + "/"
        found = [
            operation.document()
            for path, operation in self._operations.items()
            if path.startswith(prefix) and not self._is_forgotten(operation)
        ]
        return answer_list(call, "compute#operationList", found)

    def forget(self) -> None:
        """Forget every operation that is DONE, as if long ago."""
        self._operations = {
            path: operation for path, operation in self._operations.items() if not operation.done
        }

    def begin(
        self,
        caller: Caller,
        verb: str,
        target: str,
        target_id: str,
        *,
        request: Document | None = None,
        changed_keys: ChangedKeys | None = None,
        logged: bool = True,
    ) -> Operation:
        """Start an operation that somebody will `finish` or `settle_later`."""
        operation = Operation(caller, verb, target, target_id, request)
        random, now = self._world.random, self._world.clock.now()
        operation.changed_keys = changed_keys or {}
        operation.id = links.numeric_id(random)
        operation.name = links.operation_name(random, now)
        operation.started = now
        operation.logged = logged
        scope = target.rsplit("/", 2)[0]
        operation.path = f"{scope}/operations/{operation.name}"
        self._operations[operation.path] = operation
        if logged:
            self._world.audit.write_first(operation)
        return operation

    def begin_for(
        self, call: Call, target_id: str, *, changed_keys: ChangedKeys | None = None
    ) -> Operation:
        """Start the operation that a call asks for and answers with."""
        operation = self.begin(
            call.caller,
            call.route.verb,
            call.path,
            target_id,
            request=_loggable(call),
            changed_keys=changed_keys,
        )
        if call.request_id:
            operation.request_id = call.request_id
            self._requests[call.request_id] = (_digest(call), operation)
        return operation

    def settle_later(
        self, operation: Operation, settle: Settle, error: OperationError | None = None
    ) -> None:
        """End an operation after the time that its verb takes, with ``error`` if it is given.

        ``settle`` is called just before, with the error if the operation fails.
        """

        def end() -> None:
            failure = error or self._world.faults.take_operation_error(operation.verb)
            settle(failure)
            self.finish(operation, failure)

        delay = self._world.draw(self._world.dials.operation(operation.verb))
        self._world.clock.call_later(delay + self._world.faults.slowness(operation.verb), end)

    def finish(self, operation: Operation, error: OperationError | None = None) -> None:
        """End an operation now."""
        operation.ended = self._world.clock.now()
        operation.error = error
        if operation.logged:
            self._world.audit.write_last(operation)

    def find_repeated(self, call: Call) -> Operation | None:
        """The operation that a request with the same ``requestId`` began.

        Raises `Refused` for an id that is no UUID, and for one that was used for another request.
        """
        if not call.request_id:
            return None
        _check_uuid(call.request_id)
        digest, operation = self._requests.get(call.request_id, ("", None))
        if (
            operation is None
            or self._age_s(operation.started) > self._world.dials.request_id_retention_s
        ):
            return None
        if digest != _digest(call):
            raise REQUEST_ID_REUSED.refused(value=call.request_id)
        return operation

    def _is_forgotten(self, operation: Operation) -> bool:
        if operation.ended is None:
            return False
        return self._age_s(operation.ended) > self._world.dials.operation_retention_s

    def _age_s(self, moment: datetime) -> float:
        return (self._world.clock.now() - moment) / timedelta(seconds=1)


def _check_uuid(text: str) -> None:
    try:
        valid = uuid.UUID(text).int != 0
    except ValueError:
        valid = False
    if not valid:
        raise BAD_REQUEST_ID.refused(value=text)


def _digest(call: Call) -> str:
    return f"{call.route.verb} {call.path} {json.dumps(call.body, sort_keys=True)}"


def _loggable(call: Call) -> Document | None:
    if call.route.verb == "instances.setMetadata":
        return None
    size = call.request.argument("size")
    return {"size": size} if size else call.body
