"""List and watch one kind of object until cancelled, across lost connections.

The kubernetes client's own ``Watch`` is not used: it builds validated models (one malformed Node breaks
a whole list), retries with an expired version, and waits forever on a half-open connection.

How a watch ends (`End`) decides how it continues: from the last version seen, or, if the API server does
not accept that any more, with a new list, which the sink compares with its cache.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NoReturn, Protocol

import aiohttp
import structlog
from aiohttp.http_exceptions import LineTooLong

from relay import metrics
from relay.kinds import Change, End, WatchedKind
from relay.watching.api import API_FAILURES, CannotConnect, KubernetesApi, Refused
from relay.watching.backoff import Backoff
from relay.watching.projection import parse
from relay.watching.watch_health import WatchHealth

PAGE_SIZE = 500
MAX_EVENT_BYTES = 16 * 2**20
"""A longer event ends the watch, and the objects are listed again. An API server stores at most 1.5 MB
of an object, which JSON escapes may multiply by six."""
REFUSALS_BEFORE_RELIST = 3

_LOG = structlog.get_logger()
_CHANGES: Mapping[str, Change] = {"ADDED": "ADDED", "MODIFIED": "MODIFIED", "DELETED": "DELETED"}


class Sink(Protocol):
    """Receives lists and changes."""

    def changed(self, kind: WatchedKind, event: Change, raw: Mapping[str, Any]) -> None:
        """One object has appeared, changed or gone."""

    def relisted(self, kind: WatchedKind, objects: Iterable[Mapping[str, Any]]) -> None:
        """These are all objects of the kind."""


_ENDS: tuple[tuple[type[Exception], End], ...] = (
    (CannotConnect, End.REFUSED),
    (aiohttp.ClientConnectorError, End.UNREACHABLE),
    (aiohttp.ConnectionTimeoutError, End.UNREACHABLE),
    (TimeoutError, End.SILENT),
    (aiohttp.ClientError, End.BROKEN),
    (OSError, End.BROKEN),
    (ValueError, End.BROKEN),
)
"""The first match counts: aiohttp's errors have several of these base classes."""


@dataclass(frozen=True)
class Timing:
    """The timeouts and delays of a watch, in seconds."""

    watch_s: int = 240
    """The server is asked to close a watch after this; bookmarks come about once a minute."""
    grace_s: float = 15
    """A watch that receives nothing for this much longer is closed as half-open."""
    connect_s: float = 10
    list_s: float = 60
    """A list that receives nothing for this long is aborted."""
    first_backoff_s: float = 0.5
    longest_backoff_s: float = 30
    short_s: float = 1
    """A watch that ends sooner without an event counts as failed, even if the server closed it."""

    @property
    def silent_s(self) -> float:
        """How long a watch may receive nothing."""
        return self.watch_s + self.grace_s

    @property
    def stuck_s(self) -> float:
        """A silence longer than two half-open connections in a row can cause."""
        return 2 * (self.silent_s + self.longest_backoff_s)


@dataclass(frozen=True)
class WatchedResource:
    """A kind, the path of its collection, and the selectors of the watch (none: all objects).

    An object that no selector matches any more counts as deleted. ``is_optional``: the API server may
    not know the kind; then there are no objects of it."""

    kind: WatchedKind
    path: str
    selection: Mapping[str, str] = field(default_factory=dict)
    is_optional: bool = False


class Watch:
    """One kind of object, listed and watched."""

    def __init__(
        self,
        api: KubernetesApi,
        resource: WatchedResource,
        sink: Sink,
        health: WatchHealth,
        *,
        timing: Timing,
        backoff: Backoff,
    ) -> None:
        self._api = api
        self._resource = resource
        self._sink = sink
        self._health = health
        self._timing = timing
        self._backoff = backoff
        self._version = ""
        self._moved = False
        self._failures = 0

    async def run(self) -> NoReturn:
        """List and watch until cancelled."""
        while True:
            self._moved = False
            began = self._health.clock()
            end, detail = await self._attempt()
            lasted = end is End.CLOSED and self._health.clock() - began >= self._timing.short_s
            self._failures = 0 if self._moved or lasted else self._failures + 1
            is_refused = end is End.REFUSED and self._failures >= REFUSALS_BEFORE_RELIST
            if end is End.EXPIRED or is_refused:
                self._version = ""
            delay_s = self._backoff.delay_s(self._failures)
            metrics.ENDS.labels(self._resource.kind, end).inc()
            if end is not End.CLOSED or self._failures:
                log = _LOG.info if end is End.EXPIRED else _LOG.warning
                retry_in_s = round(delay_s, 1)
                kind = self._resource.kind
                log("watch ended", kind=kind, end=end, detail=detail, retry_in_s=retry_in_s)
            await asyncio.sleep(delay_s)

    async def _attempt(self) -> tuple[End, str]:
        try:
            if not self._version:
                await self._list()
            await self._follow()
        except Refused as refusal:
            missing = ""
            if refusal.status == HTTPStatus.NOT_FOUND and self._resource.is_optional:
                self._health.contact()
                if not self._health.listed:
                    _LOG.info("not served by the cluster", kind=self._resource.kind)
                self._health.listed = True
                await asyncio.sleep(self._timing.longest_backoff_s)
                return End.CLOSED, ""
            if refusal.status == HTTPStatus.NOT_FOUND:
                missing = (
                    f"404: the API server does not know {self._resource.path}; "
                    "its CustomResourceDefinition must be applied"
                )
            self._health.refusal(missing)
            expired = refusal.status == HTTPStatus.GONE
            return End.EXPIRED if expired else End.REFUSED, missing or str(refusal)
        except LineTooLong as error:
            detail = f"{type(error).__name__}: an event has more than {MAX_EVENT_BYTES} bytes"
            return End.EXPIRED, detail
        except API_FAILURES as error:
            end = next(end for kind, end in _ENDS if isinstance(error, kind))
            # A restart reads the file of the CA again, which may have been replaced.
            if not (
                end is End.SILENT or isinstance(error, aiohttp.ClientConnectorCertificateError)
            ):
                self._health.refusal()
            return end, f"{type(error).__name__}: {error}"
        self._health.contact()
        return End.CLOSED, ""

    async def _list(self) -> None:
        objects: list[Mapping[str, Any]] = []
        query = {**self._resource.selection, "limit": str(PAGE_SIZE)}
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timing.connect_s, sock_read=self._timing.list_s
        )
        while True:
            async with self._api.get(self._resource.path, query, timeout) as response:
                page = parse(await response.read())
            self._health.contact()
            items, version, token = _parse_page(page)
            objects.extend(items)
            if not token:
                break
            query["continue"] = token
        self._sink.relisted(self._resource.kind, objects)
        self._version = version
        self._health.listed = True
        metrics.LISTS.labels(self._resource.kind).inc()
        _LOG.info("listed", kind=self._resource.kind, count=len(objects), version=version)

    async def _follow(self) -> None:
        query = {
            **self._resource.selection,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(self._timing.watch_s),
        }
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timing.connect_s, sock_read=self._timing.silent_s
        )
        async with self._api.get(self._resource.path, query, timeout) as response:
            self._health.contact()
            while line := await response.content.readline(max_line_length=MAX_EVENT_BYTES):
                self._take(parse(line))

    def _take(self, line: Any) -> None:
        match line:
            case {"type": "ERROR", "object": {"code": int(code), **status}}:
                raise Refused(code, str(status.get("message")))
            case {"type": str(word), "object": {"metadata": {"resourceVersion": str(version)}}}:
                pass
            case {"type": str(word), "object": _} if word != "ERROR":
                version = self._version  # reconnecting would bring the same event again
            case _:
                raise ValueError(f"not a watch event: {str(line)[:200]}")
        metrics.EVENTS.labels(self._resource.kind, metrics.limit_label("event", word)).inc()
        if word in _CHANGES:
            self._sink.changed(self._resource.kind, _CHANGES[word], _mapping(line["object"]))
        self._version, self._moved = version, True
        self._health.contact()


def _parse_page(page: Any) -> tuple[list[Mapping[str, Any]], str, str]:
    """The items of a list, its version, and the token of the next page, empty after the last one."""
    match page:
        case {
            "items": list() | None as items,
            "metadata": {"resourceVersion": str(version), **rest},
        }:
            objects = [_mapping(item) for item in items or ()]
            return objects, version, str(rest.get("continue") or "")
        case _:
            raise ValueError(f"not a list: {str(page)[:200]}")


def _mapping(value: Any) -> Mapping[str, Any]:
    """An object of a list or an event; any other value counts as an object without a name."""
    return value if isinstance(value, Mapping) else {}
