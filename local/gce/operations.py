"""All operations: the calls about them, their begin and their end.

A failed operation is DONE too, with an ``error``. Finished operations remain for a time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta

from local.gce import links
from local.gce.audit import AuditLog
from local.gce.callers import Caller
from local.gce.calls import Call, Route
from local.gce.environment import Environment
from local.gce.listing import answer_list
from local.gce.operation import ChangedKeys, Operation
from local.gce.refusals import BAD_REQUEST_ID, NOT_FOUND, REQUEST_ID_REUSED, OperationError
from local.gce.schema import Document

Settle = Callable[[OperationError | None], None]
"""Called at an operation's end: applies the change, or reverts it if there is an error."""


class Operations:
    """All operations and request ids."""

    def __init__(self, environment: Environment, audit: AuditLog) -> None:
        self._environment = environment
        self._audit = audit
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
        """Answer get and wait; wait returns immediately, which its contract allows."""
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
        """Drop all operations that are DONE."""
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
        """Start an operation, to be ended by `finish` or `settle_later`."""
        operation = Operation(caller, verb, target, target_id, request)
        random, now = self._environment.random, self._environment.clock.now()
        operation.changed_keys = changed_keys or {}
        operation.id = links.numeric_id(random)
        operation.name = links.operation_name(random, now)
        operation.started = now
        operation.logged = logged
        scope = target.rsplit("/", 2)[0]
        operation.path = f"{scope}/operations/{operation.name}"
        self._operations[operation.path] = operation
        if logged:
            self._audit.write_first(operation)
        return operation

    def begin_for(
        self, call: Call, target_id: str, *, changed_keys: ChangedKeys | None = None
    ) -> Operation:
        """Start the operation of a call."""
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
            failure = error or self._environment.fault_plan.take_failure(operation.verb)
            settle(failure)
            self.finish(operation, failure)

        environment = self._environment
        delay = environment.draw(environment.timings.operation(operation.verb))
        slower = environment.fault_plan.slowness(operation.verb)
        environment.clock.call_later(delay + slower, end)

    def finish(self, operation: Operation, error: OperationError | None = None) -> None:
        """End an operation now."""
        operation.ended = self._environment.clock.now()
        operation.error = error
        if operation.logged:
            self._audit.write_last(operation)

    def find_repeated(self, call: Call) -> Operation | None:
        """Find the operation of an earlier request with the same ``requestId``.

        Raises `Refused` for an id that is not a UUID, or that was used for another request.
        """
        if not call.request_id:
            return None
        _check_uuid(call.request_id)
        digest, operation = self._requests.get(call.request_id, ("", None))
        if (
            operation is None
            or self._age_s(operation.started) > self._environment.timings.request_id_retention_s
        ):
            return None
        if digest != _digest(call):
            raise REQUEST_ID_REUSED.refused(value=call.request_id)
        return operation

    def _is_forgotten(self, operation: Operation) -> bool:
        if operation.ended is None:
            return False
        return self._age_s(operation.ended) > self._environment.timings.operation_retention_s

    def _age_s(self, moment: datetime) -> float:
        return (self._environment.clock.now() - moment) / timedelta(seconds=1)


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
