"""Calls and the call log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from local.base.http import Request
from local.gce.callers import Caller
from local.gce.operation import Operation
from local.gce.refusals import BAD_VALUE
from local.gce.schema import Document


@dataclass(frozen=True)
class Call:
    """One request, for the handlers of a collection.

    ``location`` is ``zones/Z``, ``regions/R``, ``global`` or ``aggregated``; ``name`` is empty for
    calls about a whole collection.
    """

    route: Route
    request: Request
    caller: Caller
    project: str
    location: str
    name: str
    body: Document

    @property
    def place(self) -> str:
        """The bare name of the zone or region."""
        return self.location.rpartition("/")[2]

    @property
    def collection(self) -> str:
        """The path of the collection: ``projects/P/zones/Z/instances``."""
        return f"projects/{self.project}/{self.location}/{self.route.collection}"

    @property
    def path(self) -> str:
        """The path of the call's resource; for an insert, of the new one."""
        return f"{self.collection}/{self.name or self.body.get('name') or ''}"

    @property
    def request_id(self) -> str:
        """The client's ``requestId``; empty if there is none."""
        return self.request.argument("requestId")

    def integer(self, argument: str, default: int) -> int:
        """Parse an integer query argument. Raises `Refused`."""
        text = self.request.argument(argument, str(default))
        if not text.removeprefix("-").isdecimal():
            raise BAD_VALUE.refused(field=argument, value=text, why="It is not an integer.")
        return int(text)


_PERMISSIONS = {
    "aggregatedList": "list",
    "insert": "create",
    "listErrors": "get",
    "listManagedInstances": "get",
    "resize": "update",
    "wait": "get",
}
"""Methods whose permission has another name, as documented."""
_READS = frozenset(
    {
        "aggregatedList", "get", "getGuestAttributes", "getSerialPortOutput", "list", "listErrors",
        "listManagedInstances", "wait",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Route:
    """A method of the API.

    ``pattern`` is HTTP method, scope, collection, then ``NAME`` and a verb if the URL has them.
    ``verb`` is the method's name, as in ``instances.insert``. ``body`` names the message that the
    request's body holds, if it holds one.
    """

    pattern: str
    verb: str
    answer: Callable[[Call], Document | Operation]
    body: str = ""

    @cached_property
    def collection(self) -> str:
        """The collection's name in URLs."""
        return self.pattern.split()[2]

    @cached_property
    def permission(self) -> str:
        """The IAM permission that the method needs."""
        noun, _, method = self.verb.partition(".")
        owner = noun if noun.endswith("Operations") else self.collection
        return f"compute.{owner}.{_PERMISSIONS.get(method, method)}"

    @cached_property
    def writes(self) -> bool:
        """Whether the method changes something."""
        return self.verb.partition(".")[2] not in _READS


@dataclass(frozen=True)
class CallRecord:
    """An HTTP call and its status."""

    principal: str
    verb: str
    is_write: bool
    status: int


@dataclass
class CallLog:
    """All HTTP calls in order, without those of the controls."""

    records: list[CallRecord] = field(default_factory=list)

    def counts(self) -> Counter[str]:
        """The number of calls by verb."""
        return Counter(record.verb for record in self.records)

    def writes(self) -> int:
        """The number of mutating calls, refused ones included."""
        return sum(record.is_write for record in self.records)

    def reads(self) -> int:
        """The number of reads."""
        return len(self.records) - self.writes()

    def clear(self) -> None:
        """Clear the log."""
        self.records.clear()
