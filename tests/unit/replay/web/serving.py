"""A page that is served in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from replay import timeline_html
from replay.errors import ReplayError
from replay.listing import Table
from replay.timeline import Moment, Timeline
from replay.web.hub import Hub, PageSubject
from replay.web.server import PageServer
from replay.web.state import Lines, Sections, build_overview
from replay.web.subjects import DEAD_LETTERS, LEAKS, OVERVIEW

NOW = datetime(2026, 1, 1, 10, tzinfo=UTC)
ERRORS = {OVERVIEW: "clusterError", DEAD_LETTERS: "deadLettersError", LEAKS: "leaksError"}
"""The sections with the errors of what each tab shows."""


class _ClosableHub(Hub):
    """Ends the connections of a server that is closed, as the end of its process would."""

    def __init__(
        self, open_subject: Callable[[str], PageSubject | None], is_closed: threading.Event
    ) -> None:
        super().__init__(open_subject, lambda: NOW)
        self._is_closed = is_closed

    def watch(self, *names: str) -> Generator[Sections]:
        for sections in super().watch(*names):
            if self._is_closed.is_set():
                return
            yield sections


@contextmanager
def serve(
    open_subject: Callable[[str], PageSubject | None], port: int = 0, secret: str = ""
) -> Iterator[PageServer]:
    """A server of these subjects, on a free port or this one."""
    is_closed = threading.Event()
    with PageServer(port, _ClosableHub(open_subject, is_closed)) as server:
        server.secret = secret or server.secret
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            is_closed.set()
            server.shutdown()
            thread.join()


class Scripted:
    """Subjects whose sections a test sets. `read_from` are the names that were read, in order."""

    def __init__(self) -> None:
        self.sections: dict[str, dict[str, Any]] = {}
        self.error: ReplayError | None = None
        self.read_from: list[str] = []

    def open(self, name: str) -> PageSubject:
        return PageSubject(lambda: self._read(name), 0.05, ERRORS.get(name, "viewError"))

    def _read(self, name: str) -> Iterator[Sections]:
        self.read_from.append(name)
        if self.error is not None:
            raise self.error
        yield dict(self.sections.get(name, {}))

    def set_slices(self, *rows: tuple[str, ...], words: str = "", error: str = "") -> None:
        """The slices of the overview, by name, Ready and reason."""
        head = ("NAMESPACE", "SLICE", "READY", "REASON", "NODES", "CHIPS", "WORKLOAD", "AGE")
        cells = [(("default", *row, "0/2", "0/8", "-", "1m"), words) for row in rows]
        pods = Table("waiting", ("NAMESPACE", "POD", "WORKLOAD", "WAITS"), [])
        tables = [Table("slices", head, cells, error), pods, Table("classes", ("CLASS",), [])]
        self.sections[OVERVIEW] = build_overview(tables, None, NOW)

    def set_life(self, name: str, lines: int, words: str = "said") -> None:
        """The life of a slice, with so many lines."""
        moments = [
            Moment(NOW + timedelta(seconds=at), f"step{at % 3}", f"{words} {at}")
            for at in range(lines)
        ]
        timeline = Timeline(f"default/{name}", "tng", 4, NOW, moments[-1].at, (), tuple(moments))
        self.sections[f"slice/default/{name}"] = {
            "life": {
                "summary": [f"{name} {words}"],
                "conditions": [["Ready", "False", "Preempted", "1m", words]],
            },
            "timeline": {"head": f"from {words}", "paragraphs": []},
            "legend": timeline_html.render_legend(),
            "chart": timeline_html.render_chart(timeline),
            "lines": Lines(timeline_html.render_rows(timeline)),
        }
