"""Operations, the response to every mutation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from local.gce import links
from local.gce.callers import Caller
from local.gce.refusals import OperationError, phrase
from local.gce.schema import Document

ChangedKeys = Mapping[str, list[str]]
"""The metadata keys that an operation adds, modifies and deletes."""

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
    """An operation. ``request`` is the request in the audit log."""

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
        """The operation in responses."""
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
