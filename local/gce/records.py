"""Resources without behaviour: workload policies and templates.

The operation of an insert ends when the resource is readable. A delete is rejected while a group uses
the resource.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from typing import ClassVar

from local.gce import links
from local.gce.calls import Call
from local.gce.context import Context
from local.gce.listing import answer_aggregated, answer_list
from local.gce.operation import Operation
from local.gce.refusals import (
    ALREADY_EXISTS,
    BAD_NAME,
    REQUIRED,
    OperationError,
    Refusal,
)
from local.gce.schema import Document
from local.gce.store import R, Store


class Record:
    """A resource. ``created`` is the time at which it became readable."""

    def __init__(self, path: str, record_id: str, content: Document) -> None:
        self.path = path
        self.id = record_id
        self.content = content
        self.readable = False
        self.created = datetime.min
        self.busy: Operation | None = None

    def document(self) -> Document:
        """The resource in responses."""
        return self.content


class Records(ABC):
    """All resources of one kind.

    ``find_user`` returns the path of a group that uses the resource at a path, or an empty text.
    """

    kind: ClassVar[str]
    in_use: ClassVar[Refusal]

    def __init__(self, context: Context, find_user: Callable[[str], str]) -> None:
        self._context = context
        self._find_user = find_user
        self.store: Store[Record] = Store(context)

    @abstractmethod
    def complete(self, call: Call) -> Document:
        """Validate and complete a new resource. Raises `Refused`."""

    def get(self, call: Call) -> Document:
        """Answer get."""
        return self.store.get(call.path).document()

    def list_all(self, call: Call) -> Document:
        """Answer the aggregated list."""
        documents = self.store.listed(f"projects/{call.project}/")
        unreachable = self._context.fault_plan.unreachable
        return answer_aggregated(call, f"{self.kind}AggregatedList", documents, unreachable)

    def list(self, call: Call) -> Document:
        """Answer list."""
        return answer_list(call, f"{self.kind}List", self.store.listed(call.collection + "/"))

    def insert(self, call: Call) -> Operation:
        """Begin an insert."""
        check_name(call)
        own = self.complete(call)
        check_free(self.store, call)
        self._context.supply.check_count(call.route.collection, call.project, len(self.store))
        record = Record(call.path, links.numeric_id(self._context.random), {})
        record.content = {
            "kind": self.kind,
            "id": record.id,
            "creationTimestamp": links.pacific(self._context.clock.now()),
            "name": call.body["name"],
            "selfLink": links.url(call.path),
            **own,
        }
        record.busy = self._context.operations.begin_for(call, record.id)
        self.store.put(record)

        def settle(error: OperationError | None) -> None:
            record.busy = None
            record.readable = error is None
            record.created = self._context.clock.now()
            if error is not None:
                self.store.drop(record)

        self._context.operations.settle_later(record.busy, settle)
        return record.busy

    def delete(self, call: Call) -> Operation:
        """Begin a delete. While a group uses the resource, the call or the operation fails."""
        record = self.store.get_idle(call.path)
        if self._context.timings.in_use_refused_by == "call" and (
            user := self._find_user(record.path)
        ):
            raise self.in_use.refused(resource=record.path, user=user)
        operation = record.busy = self._context.operations.begin_for(call, record.id)

        def settle(error: OperationError | None) -> None:
            record.busy = None
            if error is None:
                self.store.drop(record)

        user = self._find_user(record.path)
        error = self.in_use.error(resource=record.path, user=user) if user else None
        self._context.operations.settle_later(operation, settle, error)
        return operation


def check_name(call: Call) -> None:
    """Raise `Refused` when the new resource's name is missing or breaks RFC 1035."""
    name = call.body.get("name")
    if not name:
        raise REQUIRED.refused(field="resource.name")
    if not links.is_name(name):
        raise BAD_NAME.refused(field="resource.name", value=name)


def check_free(store: Store[R], call: Call) -> None:
    """Raise `Refused` (409) when the new resource's name is taken."""
    if store.find(call.path) is not None:
        raise ALREADY_EXISTS.refused(resource=call.path)
