"""Lost messages of the audit log, rebuilt from Cloud Logging as the log sinks would publish them."""

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from replay.cloud_logging import read_pages
from replay.dependencies import Dependencies
from replay.errors import ReplayError
from replay.output import say, show_progress
from replay.publications import Publication
from shared.base.fields import count
from shared.base.timestamps import LONG_AGO, render_time
from shared.settings import GKE, Settings
from shared.triggers import routes
from shared.triggers.audit_log import parse_entry
from shared.triggers.message import PoisonError
from shared.triggers.route import find_steps
from shared.triggers.trigger import LogTrigger

FILTERS = Path(__file__).parent.parent / "infra" / "terraform" / "filters"
"""The filters of the log sinks, a file a step."""
OF_COMPUTE = """(
log_id("cloudaudit.googleapis.com/activity") OR log_id("cloudaudit.googleapis.com/system_event")
)
protoPayload.serviceName="compute.googleapis.com\""""
"""The query for Compute Engine's entries of the audit log, which only Google's services write."""
TIMESTAMP_ATTRIBUTE = "logging.googleapis.com/timestamp"
"""The sole attribute of a message that a sink publishes."""


def read_filters(settings: Settings) -> dict[str, str]:
    """The filters of the sinks that this installation has, by step."""
    filters = {path.stem: path.read_text() for path in sorted(FILTERS.glob("*.txt"))}
    if settings.slice_provider != GKE:
        for step in routes.SLICE_STEPS:
            filters.pop(step, None)
    return filters


def make_query(
    filters: Iterable[str], since: datetime, until: datetime, resource_name: str = ""
) -> str:
    """All that any of the sinks would have taken in that time, of one slice if it is named.

    Raises `ReplayError`.
    """
    if since >= until:
        raise ReplayError("--since must be before --until")
    wanted = "\nOR\n".join(f"(\n{text.strip()}\n)" for text in filters)
    times = f'timestamp>="{render_time(since)}"\ntimestamp<"{render_time(until)}"'
    about = f"\n{about_slice(resource_name)}" if resource_name else ""
    return f"{times}{about}\n(\n{wanted}\n)"


def about_slice(resource_name: str) -> str:
    """The query for a slice's resources and their VMs; the name may be an expression."""
    return f'protoPayload.resourceName=~"/{resource_name}(-[a-z0-9]{{4}})?$"'


def find_projects(settings: Settings) -> frozenset[str]:
    """The projects whose audit logs have sinks."""
    gke = settings.gke
    return settings.projects | (frozenset({gke.project}) if gke is not None else frozenset())


def make_publications(
    entry: Mapping[str, Any], steps: Container[str]
) -> tuple[Publication, ...] | str:
    """The messages that the sinks of these steps would make of an entry, or why there are none."""
    name = f"of entry {entry.get('insertId', '?')}"
    try:
        event, note = parse_entry(entry)
    except PoisonError as error:
        return f"message {name}: {error}"
    if event is None:
        return f"the message {name} triggers no step: {note}"
    data = json.dumps(entry, separators=(",", ":")).encode()
    attributes = {TIMESTAMP_ATTRIBUTE: str(entry.get("timestamp", ""))}
    return tuple(
        Publication(step, data, attributes, event.name, event.method)
        for step in find_steps(LogTrigger(event, LONG_AGO), routes.ROUTES)
        if step in steps
    )


def read_entries(
    deps: Dependencies,
    projects: Iterable[str],
    query: str,
    *,
    is_reported: bool = False,
) -> Iterator[dict[str, Any]]:
    """The entries that a query finds, the oldest first. Raises `CallError`.

    ``is_reported``: how many there were is printed at the end.
    """
    entries = calls = unreadable = 0
    for page in read_pages(deps.logs, projects, query, deps.sleep, deps.monotonic):
        calls += 1
        entries += len(page.entries)
        unreadable += page.unreadable
        show_progress(f"{entries} log entries")
        yield from page.entries
    show_progress("")
    if is_reported:
        noun = "entry" if entries == 1 else "entries"
        say(f"Read {entries} {noun} in {count(calls, 'call')}.")
    if unreadable:
        say(f"{unreadable} of the entries could not be read and were left out.")
