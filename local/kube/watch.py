"""Watches: streams of one JSON object a line, from a revision on, filtered and rendered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from local.base.clock import Clock, Timer
from local.base.http import Subscription
from local.kube.errors import ApiError
from local.kube.kinds import Document
from local.kube.store import Change, Record, Store, encode

INITIAL_EVENTS_END = "k8s.io/initial-events-end"

_BOOKMARK_INTERVAL_S = 60.0
_LAST_BOOKMARK_S = 2.0
"""A watch that ends by its time-out gives a last bookmark so many seconds before."""

Render = Callable[[Record], bytes]


@dataclass(frozen=True)
class WatchRequest:
    """What a watch shall show.

    ``since`` is the revision after which changes are shown; ``None`` stands for "begin with all
    that is there". ``matches`` is the selectors', ``render`` makes the body of an event,
    ``bookmark`` that of a bookmark, which may be the one that ends the initial events, and
    ``revision`` says how far the store is. Times are in seconds.
    """

    resource: str
    namespace: str
    since: int | None
    matches: Callable[[Record], bool]
    render: Callable[[Record], bytes]
    bookmark: Callable[[bool], Document]
    revision: Callable[[], int]
    bookmarks: bool
    mark_initial_end: bool
    timeout_s: float


class WatchStream:
    """One watch, not yet begun; see `local.base.http.Stream`."""

    def __init__(self, store: Store, clock: Clock, request: WatchRequest, hub: WatchHub) -> None:
        self._store = store
        self._clock = clock
        self._request = request
        self._hub = hub

    def subscribe(
        self, on_chunk: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> Subscription:
        """Begin: what is there already comes at once, the rest as it happens."""
        watch = Watch(self._request, self._clock, on_chunk, on_end)
        try:
            self._begin(watch)
        except ApiError as error:
            watch.send("ERROR", encode(error.status()))
            watch.end()
            return watch
        self._hub.add(watch)
        watch.closing.append(self._store.listen(watch.show, self._request.resource))
        watch.start_timers()
        return watch

    def _begin(self, watch: Watch) -> None:
        request = self._request
        if request.since is None:
            for record in self._store.records(request.resource, request.namespace):
                if request.matches(record):
                    watch.send("ADDED", request.render(record))
            watch.revision = self._store.revision
            if request.mark_initial_end:
                watch.send_bookmark(ends_initial=True)
            return
        watch.revision = request.since
        for change in self._store.since(request.resource, request.since):
            watch.show(change)


@dataclass
class Watch:
    """A watch that is going on."""

    request: WatchRequest
    clock: Clock
    on_chunk: Callable[[bytes], None]
    on_end: Callable[[], None]
    revision: int = 0
    closing: list[Callable[[], None]] = field(default_factory=list)
    ended: bool = False
    _began_at: int = 0

    def show(self, change: Change) -> None:
        """Tell of a change, if it concerns this watch: as what it is to somebody who selects."""
        if change.revision <= self.revision or self.ended:
            return
        self.revision = change.revision
        if self.request.namespace not in ("", change.record.key[0]):
            return
        matched = change.previous is not None and self.request.matches(change.previous)
        matches = change.type != "DELETED" and self.request.matches(change.record)
        event = _EVENTS[matched, matches]
        if event == "DELETED" and change.type != "DELETED" and change.previous is not None:
            last = Record.of(change.previous.document, change.revision)
            self.send(event, self.request.render(last))
        elif event:
            self.send(event, self.request.render(change.record))

    def send(self, event: str, body: bytes) -> None:
        """One line."""
        self.on_chunk(b'{"type":"%s","object":%s}\n' % (event.encode(), body))

    def send_bookmark(self, *, ends_initial: bool = False) -> None:
        """Say up to where this watch has seen everything."""
        self.send("BOOKMARK", encode(self.request.bookmark(ends_initial)))

    def start_timers(self) -> None:
        """See to the time-out and, when asked for, to bookmarks."""
        self._began_at = self.revision
        self._later(self.request.timeout_s, self.end)
        if self.request.bookmarks:
            self._later(_BOOKMARK_INTERVAL_S, self._mark_again)
            if self.request.timeout_s > _LAST_BOOKMARK_S:
                self._later(self.request.timeout_s - _LAST_BOOKMARK_S, self._mark)

    def _later(self, delay_s: float, callback: Callable[[], None]) -> None:
        timer: Timer = self.clock.call_later(delay_s, callback)
        self.closing.append(timer.cancel)

    def _mark_again(self) -> None:
        self._mark()
        self._later(_BOOKMARK_INTERVAL_S, self._mark_again)

    def _mark(self) -> None:
        """A bookmark, if it would say more than where the watch began."""
        if self.request.revision() > self._began_at:
            self.send_bookmark()

    def end(self) -> None:
        """The server closes the stream."""
        if not self.ended:
            self.cancel()
            self.on_end()

    def cancel(self) -> None:
        """The client has gone."""
        self.ended = True
        while self.closing:
            self.closing.pop()()


_EVENTS = {
    (False, True): "ADDED",
    (True, True): "MODIFIED",
    (True, False): "DELETED",
    (False, False): "",
}
"""Event by whether the object was selected before and is now."""


class WatchHub:
    """All watches that are going on, so that a restart can cut them."""

    def __init__(self) -> None:
        self._watches: dict[int, Watch] = {}

    def add(self, watch: Watch) -> None:
        """Keep a watch until it ends."""
        self._watches[id(watch)] = watch
        watch.closing.append(lambda: self._forget(watch))

    def _forget(self, watch: Watch) -> None:
        self._watches.pop(id(watch), None)

    def cut(self, resource: str = "") -> None:
        """End them all, or all of one resource."""
        for watch in tuple(self._watches.values()):
            if resource in ("", watch.request.resource):
                watch.end()

    def __len__(self) -> int:
        return len(self._watches)
