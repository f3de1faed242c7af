"""A watch of the real server: a thread reads it, and the story's thread delivers its events."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable

from tests.real.bridge.connections import Lines
from tests.real.bridge.mirror import Mirror


class RealStream:
    """A `local.base.http.Stream` from version ``since``; ``mirror`` is the mirror of its kind."""

    def __init__(
        self, lines: Lines, mirror: Mirror, since: int, changed: threading.Condition
    ) -> None:
        self.mirror = mirror
        self.version = since
        self.has_ended = False
        """Whether the server has ended it and the end was delivered."""
        self._lines = lines
        self._changed = changed
        self._received: deque[bytes] = deque()
        self._is_cancelled = False
        self._is_ended = False
        self._on_chunk: Callable[[bytes], None] | None = None
        self._on_end: Callable[[], None] = lambda: None

    @property
    def is_open(self) -> bool:
        """Whether more events can arrive."""
        return self._on_chunk is not None and not self._is_ended

    def subscribe(
        self, on_chunk: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> RealStream:
        """Start to read; the callbacks run in `deliver`."""
        self._on_chunk, self._on_end = on_chunk, on_end
        threading.Thread(target=self._read, daemon=True, name=f"watch {self.mirror.path}").start()
        return self

    def cancel(self) -> None:
        """Close the watch, because the client has disconnected."""
        self._is_cancelled = True
        self._lines.close()

    def deliver(self, render: Callable[[bytes], bytes]) -> None:
        """Deliver all received lines, and the end of the watch."""
        while self._received and self._on_chunk is not None:
            self._on_chunk(render(self._received.popleft()))
        if self._is_ended and not self.has_ended and not self._is_cancelled:
            self.has_ended = True
            self._on_end()

    def _read(self) -> None:
        for line in self._lines:
            event = json.loads(line)
            version = event["object"].get("metadata", {}).get("resourceVersion")
            with self._changed:
                self._received.append(line)
                self.version = max(self.version, int(version or 0))
                self._changed.notify_all()
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
