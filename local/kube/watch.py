"""Watches: streams of one JSON object a line, filtered and rendered, after a revision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from local.base.clock import Clock
from local.base.http import Subscription
from local.kube.errors import ApiError
from local.kube.kinds import Document
from local.kube.store import Change, Record, Store, encode

_BOOKMARK_INTERVAL_S = 60.0
_LAST_BOOKMARK_S = 2.0
"""A watch that ends by its timeout sends a last bookmark this many seconds before."""


@dataclass(frozen=True)
class WatchRequest:
    """The parameters of a watch.

    ``since`` is the revision after which changes are sent; ``None``: all objects are sent first.
    ``matches`` are the selectors. ``render`` builds the object of an event, and ``bookmark`` the object
    of a bookmark at a revision; a bookmark may end the initial events.
    """

    resource: str
    namespace: str
    since: int | None
    matches: Callable[[Record], bool]
    render: Callable[[Record], bytes]
    bookmark: Callable[[int, bool], Document]
    bookmarks: bool
    timeout_s: float


class Watch:
    """One watch: a `local.base.http.Stream` for one subscriber, and its subscription."""

    def __init__(self, request: WatchRequest, store: Store, clock: Clock, running: Watches) -> None:
        self.request = request
        self._store = store
        self._clock = clock
        self._running = running
        self._on_chunk: Callable[[bytes], None]
        self._on_end: Callable[[], None]
        self._revision = store.revision if request.since is None else request.since
        self._began_at = 0
        self._closing: list[Callable[[], None]] = []
        self._ended = False

    def subscribe(
        self, on_chunk: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> Subscription:
        """Start: past events are sent immediately, further ones when they occur."""
        self._on_chunk, self._on_end = on_chunk, on_end
        try:
            self._catch_up()
        except ApiError as error:
            self._send("ERROR", encode(error.status()))
            self.end()
            return self
        self._running[self] = None
        self._closing.append(lambda: self._running.pop(self))
        self._closing.append(self._store.listen(self._send_change, self.request.resource))
        self._start_timers()
        return self

    def _catch_up(self) -> None:
        request = self.request
        if request.since is not None:
            for change in self._store.since(request.resource, request.since):
                self._send_change(change)
            return
        for record in self._store.records(request.resource, request.namespace):
            if request.matches(record):
                self._send("ADDED", request.render(record))
        self._revision = self._store.revision
        if request.bookmarks:
            self._send("BOOKMARK", encode(request.bookmark(self._revision, True)))

    def _send_change(self, change: Change) -> None:
        """Send a change as the event that the selectors make of it."""
        if change.revision <= self._revision or self._ended:
            return
        self._revision = change.revision
        if self.request.namespace not in ("", change.record.key[0]):
            return
        matched = change.previous is not None and self.request.matches(change.previous)
        matches = change.type != "DELETED" and self.request.matches(change.record)
        event, record = _EVENTS[matched, matches], change.record
        if event == "DELETED" and change.type != "DELETED" and change.previous is not None:
            record = Record.of(change.previous.document, change.revision)
        if event:
            self._send(event, self.request.render(record))

    def _send(self, event: str, body: bytes) -> None:
        self._on_chunk(b'{"type":"%s","object":%s}\n' % (event.encode(), body))

    def _start_timers(self) -> None:
        """Schedule the timeout and, if the client requests them, bookmarks."""
        self._began_at = self._revision
        self._schedule(self.request.timeout_s, self.end)
        if self.request.bookmarks:
            self._schedule(_BOOKMARK_INTERVAL_S, self._repeat_bookmark)
            if self.request.timeout_s > _LAST_BOOKMARK_S:
                self._schedule(self.request.timeout_s - _LAST_BOOKMARK_S, self._send_bookmark)

    def _schedule(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._closing.append(self._clock.call_later(delay_s, callback).cancel)

    def _repeat_bookmark(self) -> None:
        self._send_bookmark()
        self._schedule(_BOOKMARK_INTERVAL_S, self._repeat_bookmark)

    def _send_bookmark(self) -> None:
        """Send a bookmark, if the store has changed since the watch started."""
        if self._store.revision > self._began_at:
            self._send("BOOKMARK", encode(self.request.bookmark(self._store.revision, False)))

    def end(self) -> None:
        """Close the stream: the server ends the watch."""
        if not self._ended:
            self.cancel()
            self._on_end()

    def cancel(self) -> None:
        """End the watch after the client has disconnected."""
        self._ended = True
        while self._closing:
            self._closing.pop()()


_EVENTS = {
    (False, True): "ADDED",
    (True, True): "MODIFIED",
    (True, False): "DELETED",
    (False, False): "",
}
"""The type of the event, by whether the object was selected before, and is selected now."""


Watches = dict[Watch, None]
"""The open watches, oldest first."""


def end_watches(running: Watches, resource: str = "") -> None:
    """End all watches, or all of one resource."""
    for watch in tuple(running):
        if resource in ("", watch.request.resource):
            watch.end()
