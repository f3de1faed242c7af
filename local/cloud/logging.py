"""An embedded Cloud Logging, whose entries are listed over gRPC.

As documented: a page has at most 1,000 entries; a query has at most 20,000 characters; the orders are
``timestamp asc`` and ``timestamp desc``; a page token is valid for the request that it came from;
``entries.list`` has a quota of 60 calls a minute (RESOURCE_EXHAUSTED). Only ListLogEntries is supported.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import grpc
from google.cloud.audit import audit_log_pb2  # noqa: F401 - makes `protoPayload` readable
from google.cloud.logging_v2 import types
from google.protobuf.json_format import ParseDict
from grpc import aio

from local.base.clock import Clock
from local.cloud import logging_query

MAX_KEPT = 20_000
MAX_PAGE = 1_000
_PAGE = 50
"""The default page size."""
CALLS_A_MINUTE = 60
_AUDIT_LOG = "type.googleapis.com/google.cloud.audit.AuditLog"
_ORDERS = {"": False, "timestamp asc": False, "timestamp desc": True}
_SPECIAL = ("severity", "logging.googleapis.com/trace")
"""Fields of a JSON line on stdout that become fields of the entry itself."""


class LoggingError(Exception):
    """The error of a call; ``status`` is the name of its gRPC status."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class _Rest:
    """The state of a page token: the request that it continues, and the remaining entries."""

    request: bytes
    entries: tuple[Mapping[str, Any], ...]


class CloudLogging:
    """All entries of all projects, in their JSON form. Entries are immutable."""

    def __init__(self, clock: Clock, project: str, kept: int | None = MAX_KEPT) -> None:
        """``kept``: the number of the newest entries that are kept; ``None``: all."""
        self._clock = clock
        self._project = project
        self._entries: deque[Mapping[str, Any]] = deque(maxlen=kept)
        self._calls: deque[Any] = deque()
        self._rests: dict[str, _Rest] = {}
        self._ids = itertools.count(1)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Write an entry."""
        self._entries.append(entry)

    def write_line(self, service: str, document: Mapping[str, Any]) -> None:
        """Write a JSON object that a service on Cloud Run has printed to stdout."""
        now = self._clock.now().isoformat().replace("+00:00", "Z")
        trace = str(document.get("logging.googleapis.com/trace") or "")
        self.write(
            {
                "insertId": f"line{next(self._ids)}",
                "logName": f"projects/{self._project}/logs/run.googleapis.com%2Fstdout",
                "timestamp": now,
                "receiveTimestamp": now,
                "severity": document.get("severity", "DEFAULT"),
                "resource": {
                    "type": "cloud_run_revision",
                    "labels": {"project_id": self._project, "service_name": service},
                },
                "jsonPayload": {
                    name: value for name, value in document.items() if name not in _SPECIAL
                },
                **({"trace": trace} if trace else {}),
            }
        )

    def find(self, query: str) -> tuple[Mapping[str, Any], ...]:
        """What a query finds, the oldest first, without pages and quota. Raises `LoggingError`."""
        try:
            matches = logging_query.parse(query) if query else lambda _: True
        except logging_query.QueryError as error:
            raise LoggingError("INVALID_ARGUMENT", f"Unparseable filter: {error}") from error
        return tuple(sorted(filter(matches, self._entries), key=_moment))

    def list(self, request: types.ListLogEntriesRequest) -> types.ListLogEntriesResponse:
        """List one page. Raises `LoggingError`."""
        self._count_call()
        size = min(request.page_size or _PAGE, MAX_PAGE)
        key = _without_token(request)
        if request.page_token:
            rest = self._rests.get(request.page_token)
            if rest is None or rest.request != key:
                raise LoggingError("INVALID_ARGUMENT", "page_token doesn't match arguments.")
            found = rest.entries
        else:
            found = self._find(request)
        page, left = found[:size], found[size:]
        token = f"page{next(self._ids)}" if left else ""
        if token:
            self._rests[token] = _Rest(key, left)
        return types.ListLogEntriesResponse(
            entries=[_render(entry) for entry in page], next_page_token=token
        )

    def _find(self, request: types.ListLogEntriesRequest) -> tuple[Mapping[str, Any], ...]:
        if not request.resource_names:
            raise LoggingError("INVALID_ARGUMENT", "resource_names must name at least one project.")
        if request.order_by not in _ORDERS:
            raise LoggingError("INVALID_ARGUMENT", f"order_by {request.order_by!r} is not known.")
        logs = tuple(f"{name}/logs/" for name in request.resource_names)
        found = [one for one in self.find(request.filter) if one["logName"].startswith(logs)]
        is_descending = _ORDERS[request.order_by]
        return tuple(sorted(found, key=_moment, reverse=is_descending))

    def _count_call(self) -> None:
        now = self._clock.now()
        while self._calls and now - self._calls[0] >= timedelta(minutes=1):
            self._calls.popleft()
        if len(self._calls) >= CALLS_A_MINUTE:
            raise LoggingError(
                "RESOURCE_EXHAUSTED",
                "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute'"
                " of service 'logging.googleapis.com'.",
            )
        self._calls.append(now)


async def serve(logging: CloudLogging, host: str, port: int = 0) -> tuple[aio.Server, str]:
    """Serve on the running loop; returns the server and its address."""

    async def answer(request: types.ListLogEntriesRequest, context: Any) -> Any:
        try:
            return logging.list(request)
        except LoggingError as refusal:
            return await context.abort(grpc.StatusCode[refusal.status], str(refusal))

    handler = grpc.unary_unary_rpc_method_handler(
        answer,
        types.ListLogEntriesRequest.deserialize,
        types.ListLogEntriesResponse.serialize,
    )
    server = aio.server()
    service = "google.logging.v2.LoggingServiceV2"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"ListLogEntries": handler}),)
    )
    bound = server.add_insecure_port(f"{host}:{port}")
    await server.start()
    return server, f"{host}:{bound}"


def _moment(entry: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(entry["timestamp"])


def _without_token(request: types.ListLogEntriesRequest) -> bytes:
    asked = types.ListLogEntriesRequest(request)
    asked.page_token = ""
    serialized: bytes = types.ListLogEntriesRequest.serialize(asked)
    return serialized


def _render(entry: Mapping[str, Any]) -> types.LogEntry:
    """Raises `google.protobuf.json_format.ParseError` if the entry is not a valid LogEntry."""
    found = types.LogEntry()
    document = dict(entry)
    if "protoPayload" in document:
        document["protoPayload"] = {**document["protoPayload"], "@type": _AUDIT_LOG}
    ParseDict(document, types.LogEntry.pb(found))
    return found
