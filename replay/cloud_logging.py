"""The tool's port to Cloud Logging: entries in the JSON that a log sink publishes."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from replay.errors import as_call_errors
from shared.base.names import topic_id
from shared.ports.error_reasons import ErrorKind
from shared.ports.errors import About, CallError
from shared.ports.pubsub import open_client
from shared.ports.unloaded import leave_unloaded
from shared.settings import Settings
from shared.triggers import routes

MAX_PAGE = 1_000
SECONDS_A_CALL = 1.0
"""``entries.list`` may be called 60 times a minute in a project."""
WAIT_WHEN_EXHAUSTED_S = 20.0
MAX_EXHAUSTED = 4
"""Waits for the quota, one after the other: other clients read, too."""
_CALL = "entries.list"
_CALL_S = 60.0


@dataclass(frozen=True)
class Page:
    """Some entries, the oldest first; ``unreadable`` counts those that JSON cannot hold."""

    entries: tuple[dict[str, Any], ...]
    next_token: str = ""
    unreadable: int = 0


class Logs(Protocol):
    """Cloud Logging, as the commands need it."""

    def list_page(self, projects: Sequence[str], query: str, token: str, newest: int = 0) -> Page:
        """A page of the entries of these projects, or the newest, the last one first. Raises
        `CallError`."""


class CloudLogging:
    """Cloud Logging by google-cloud-logging; ``LOGGING_EMULATOR_HOST`` names a stand-in."""

    def list_page(self, projects: Sequence[str], query: str, token: str, newest: int = 0) -> Page:
        """A page of the entries of these projects, or the newest, the last one first. Raises
        `CallError`."""
        request = {
            "resource_names": [f"projects/{project}" for project in projects],
            "filter": query,
            "order_by": "timestamp desc" if newest else "timestamp asc",
            "page_size": newest or MAX_PAGE,
            "page_token": token,
        }
        with as_call_errors(_CALL, About("entries")):
            pager = self._client.list_log_entries(request=request, retry=None, timeout=_CALL_S)
            page = next(iter(pager.pages))
        entries = [read_entry(entry) for entry in page.entries]
        readable = tuple(entry for entry in entries if entry is not None)
        return Page(readable, page.next_page_token, len(entries) - len(readable))

    @cached_property
    def _client(self) -> Any:
        leave_unloaded("google.cloud.logging_v2")
        from google.cloud.logging_v2.services import logging_service_v2 as service

        transport = service.transports.LoggingServiceV2GrpcTransport
        return open_client(service.LoggingServiceV2Client, transport, "LOGGING_EMULATOR_HOST")


def from_functions(settings: Settings, steps: Iterable[str] = routes.ROUTES) -> str:
    """The query for what functions log, in their own project. A function has its topic's name."""
    names = (json.dumps(topic_id(settings.topic_prefix, step)) for step in steps)
    return (
        f'logName="projects/{settings.pubsub_project}/logs/run.googleapis.com%2Fstdout"\n'
        f'resource.type="cloud_run_revision"\n'
        f"resource.labels.service_name=({' OR '.join(names)})"
    )


def read_pages(
    logs: Logs,
    projects: Iterable[str],
    query: str,
    sleep: Callable[[float], None],
    monotonic: Callable[[], float],
) -> Iterator[Page]:
    """All pages that a query finds, one call a second at most. After the first page, it waits for the
    end of transient errors, too. Raises `CallError`."""
    asked, token, exhausted = sorted(projects), "", 0
    while True:
        began = monotonic()
        try:
            page = logs.list_page(asked, query, token)
        except CallError as error:
            exhausted += 1
            is_interrupted = bool(token) and error.kind is ErrorKind.TRANSIENT
            may_wait = error.kind is ErrorKind.RATE_LIMIT or is_interrupted
            if not may_wait or exhausted > MAX_EXHAUSTED:
                raise
            sleep(WAIT_WHEN_EXHAUSTED_S)
            continue
        exhausted = 0
        yield page
        token = page.next_token
        if not token:
            return
        sleep(max(0.0, SECONDS_A_CALL - (monotonic() - began)))


def read_entry(entry: Any) -> dict[str, Any] | None:
    """An entry in JSON; ``None`` if a part of it has an unknown type."""
    # Makes the payload of audit log entries readable.
    from google.cloud.audit import audit_log_pb2  # noqa: F401
    from google.protobuf.json_format import MessageToDict

    try:
        document: dict[str, Any] = MessageToDict(type(entry).pb(entry))
    except TypeError:
        return None
    return document
