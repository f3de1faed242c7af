"""A watch of the real server's: a thread reads it, the story's thread hands out what has come."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable

from tests.real.bridge.connections import Lines
from tests.real.bridge.mirror import Mirror


class RealStream:
    """A `local.base.http.Stream`, from version ``since`` on; ``mirror`` is the mirror of its kind."""

    def __init__(self, lines: Lines, mirror: Mirror, since: int, news: threading.Condition) -> None:
        self.mirror = mirror
        self.version = since
        self.has_ended = False
        """Whether the server has ended it and everybody has been told."""
        self._lines = lines
        self._news = news
        self._came: deque[bytes] = deque()
        self._is_cut = False
        self._is_over = False
        self._on_chunk: Callable[[bytes], None] | None = None
        self._on_end: Callable[[], None] = lambda: None

    @property
    def is_open(self) -> bool:
        """Whether more can come."""
        return self._on_chunk is not None and not self._is_over

    def subscribe(
        self, on_chunk: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> RealStream:
        """Begin to read; the callbacks run in `deliver`."""
        self._on_chunk, self._on_end = on_chunk, on_end
        threading.Thread(target=self._read, daemon=True, name=f"watch {self.mirror.path}").start()
        return self

    def cancel(self) -> None:
        """The client has gone."""
        self._is_cut = True
        self._lines.cut()

    def deliver(self, render: Callable[[bytes], bytes]) -> None:
        """Hand out all that has come."""
        while self._came and self._on_chunk is not None:
            self._on_chunk(render(self._came.popleft()))
        if self._is_over and not self.has_ended and not self._is_cut:
            self.has_ended = True
            self._on_end()

    def _read(self) -> None:
        for line in self._lines:
            event = json.loads(line)
            version = event["object"].get("metadata", {}).get("resourceVersion")
            with self._news:
                self._came.append(line)
                self.version = max(self.version, int(version or 0))
                self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()
