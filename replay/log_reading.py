"""Read Cloud Logging for a command, with progress on a terminal."""

import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from replay.cloud_logging import read_pages
from replay.dependencies import Dependencies
from replay.output import say
from replay.text import count
from shared.base.timestamps import guess_time


def read_entries(
    deps: Dependencies,
    projects: Iterable[str],
    query: str,
    since: datetime,
    until: datetime,
    *,
    is_reported: bool = False,
) -> Iterator[dict[str, Any]]:
    """The entries that a query finds, the oldest first. Raises `CallError`.

    ``is_reported``: how many there were is printed at the end.
    """
    from rich.console import Console
    from rich.progress import Progress

    entries = calls = unreadable = 0
    with Progress(
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as progress:
        task = progress.add_task("Reading Cloud Logging", total=(until - since).total_seconds())
        for page in read_pages(deps.logs, projects, query, deps.sleep, deps.monotonic):
            calls += 1
            entries += len(page.entries)
            unreadable += page.unreadable
            yield from page.entries
            last = guess_time(page.entries[-1].get("timestamp")) if page.entries else None
            if last is not None:
                progress.update(task, completed=(last - since).total_seconds())
    if is_reported:
        noun = "entry" if entries == 1 else "entries"
        say(f"Read {entries} {noun} in {count(calls, 'call')}.")
    if unreadable:
        say(f"{unreadable} of the entries could not be read and were left out.")
