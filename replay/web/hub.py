"""Reads what open tabs look at, a thread a source, and keeps the last answer for all of them."""

import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from threading import Condition, Thread
from typing import Any

from replay.errors import FORESEEN, in_plain_words
from replay.web.state import Sections, find_changes
from shared.base.timestamps import render_time

SHARE = 4
"""A pause is at least so many times as long as the read before it: slow APIs are read less often."""
HEARTBEAT_S = 5.0
"""Something is sent this often: a tab that has gone is noticed, and a tab notices a tool that has."""
MAX_KEPT = 16
"""Sources that nobody looks at and whose answers are kept."""
_BUG = "This is a bug of the tool; its terminal shows more."


@dataclass(frozen=True)
class PageSubject:
    """What is read. ``read`` yields sections as they come, and raises `FORESEEN`; after its end, and
    ``every_s``, it is read again. ``error``: the section with the error of a read."""

    read: Callable[[], Iterator[Sections]]
    every_s: float
    error: str


class _Source:
    """A subject, its sections so far, and how many tabs look at it."""

    def __init__(self, name: str, subject: PageSubject) -> None:
        self.name = name
        self.subject = subject
        self.sections: dict[str, Any] = {}
        self.watchers = 0
        self.next_at = 0.0
        self.is_running = False


class Hub:
    """The sources by name. ``open_subject`` returns the subject of a name, or ``None``."""

    def __init__(
        self, open_subject: Callable[[str], PageSubject | None], now: Callable[[], datetime]
    ) -> None:
        self._open_subject = open_subject
        self._now = now
        self._sources: dict[str, _Source] = {}
        self._changed = Condition()
        self._version = 0

    def watch(self, *names: str) -> Generator[Sections]:
        """What these sources have, and then their changes; empty: there are none. Unknown names are
        left out. Reads end when the last iterator is closed."""
        with self._looking(names) as sources:
            sent: dict[str, Any] = {}
            version = -1
            while True:
                with self._changed:
                    seen = version
                    self._changed.wait_for(lambda: self._version != seen, HEARTBEAT_S)  # noqa: B023
                    version = self._version
                    now = {key: value for one in sources for key, value in one.sections.items()}
                yield find_changes(sent, now)
                sent = now

    @contextmanager
    def _looking(self, names: tuple[str, ...]) -> Iterator[list[_Source]]:
        sources: list[_Source] = []
        with self._changed:
            for one in filter(None, map(self._find, names)):  # each runs before the next is found
                sources.append(one)
                one.watchers += 1
                if not one.is_running:
                    one.is_running = True
                    Thread(
                        target=self._run, args=(one,), name=f"read {one.name}", daemon=True
                    ).start()
        try:
            yield sources
        finally:
            with self._changed:
                for one in sources:
                    one.watchers -= 1
                self._changed.notify_all()

    def _find(self, name: str) -> _Source | None:
        if name not in self._sources:
            subject = self._open_subject(name)
            if subject is None:
                return None
            left = [key for key, one in self._sources.items() if not one.is_running]
            for key in left[:-MAX_KEPT]:
                del self._sources[key]
            self._sources[name] = _Source(name, subject)
        return self._sources[name]

    def _run(self, source: _Source) -> None:
        """Read while somebody looks."""
        subject = source.subject
        while self._wait(source):
            began = time.monotonic()
            try:
                for sections in subject.read():
                    self._publish(source, sections)
                self._publish(source, {subject.error: None})
            except FORESEEN as error:
                self._publish_error(source, in_plain_words(error))
            except Exception:  # noqa: BLE001 - a bug of one read, which the next may not have
                if (source.sections.get(subject.error) or {}).get("words") != _BUG:
                    traceback.print_exc()
                self._publish_error(source, _BUG)
            ended = time.monotonic()
            source.next_at = ended + max(subject.every_s, SHARE * (ended - began))

    def _wait(self, source: _Source) -> bool:
        """Wait until the next read; false if nobody looks any more."""
        with self._changed:
            pause = source.next_at - time.monotonic()
            self._changed.wait_for(lambda: not source.watchers, max(0.0, pause))
            source.is_running = bool(source.watchers)
            return source.is_running

    def _publish_error(self, source: _Source, words: str) -> None:
        known = source.sections.get(source.subject.error)
        since = known["since"] if known else render_time(self._now())
        self._publish(source, {source.subject.error: {"since": since, "words": words}})

    def _publish(self, source: _Source, sections: Mapping[str, Any]) -> None:
        with self._changed:
            changed = {**source.sections, **sections}
            if changed != source.sections:
                source.sections = changed
                self._version += 1
                self._changed.notify_all()
