"""A flight: each request of a run to Compute Engine and Cloud Logging, and its answer.

An entry has the form of the published recordings (``request`` and ``response``, without headers). Names,
numbers, addresses, values of metadata and tokens are replaced, as in the answers. `tests.flights`
repeats a flight with the product's port and with the simulated Compute Engine.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from replay.cloud_logging import Logs, Page
from shared.ports.errors import CallError
from tools.cloud.answers import redact
from tools.cloud.project import Document
from version import VERSION

FORMAT = 1
LOG_PATH = "/v2/entries:list"


class UnusableFlightError(Exception):
    """The file is not a flight, or is not clean; the message names the place and quotes nothing."""


@dataclass
class Flight:
    """The entries of one run. ``question`` is the id of the question that is being asked; it is
    empty during the cleanup."""

    project: str
    zone: str
    run: str
    began: datetime
    recorded_against: str
    question: str = ""
    entries: list[Document] = field(default_factory=list)
    _reads: dict[str, Document] = field(default_factory=dict)
    """The last answers to reads since the last change, by request."""

    def watch(self, session: Any) -> None:
        """Record all answers that an HTTP session gets."""
        session.hooks["response"].append(self._add_response)

    def add(self, request: Document, status: int, body: Any) -> None:
        """Record a request and its answer; a read with the same answer as the one before is omitted."""
        response = {"status": status, "body": body}
        if not is_read(request):
            self._reads.clear()
        elif (key := json.dumps(request)) in self._reads and self._reads[key] == response:
            return
        else:
            self._reads[key] = response
        self.entries.append({"question": self.question, "request": request, "response": response})

    def write(self, path: Path) -> None:
        """Replace the whole file; each entry is one line. Raises `OSError`."""
        head = {
            "format": FORMAT,
            "suite": f"tpu-functions {VERSION}, test-cloud",
            "recorded_against": self.recorded_against,
            "began": self.began.isoformat(),
            "run": self.run,
            "zone": self.zone,
        }
        cleaned = redact({**head, "entries": self.entries}, self.project)
        lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in cleaned.pop("entries"))
        start = json.dumps(cleaned, indent=1, ensure_ascii=False).removesuffix("\n}")
        scratch = path.with_name(f"{path.name}.part")
        scratch.write_text(f'{start},\n "entries": [\n{lines}\n]}}\n')
        os.replace(scratch, path)

    def _add_response(self, response: Any, **_: Any) -> None:
        url = urlsplit(response.request.url)
        request: Document = {"method": response.request.method, "path": url.path}
        if url.query:
            request["query"] = dict(parse_qsl(url.query, keep_blank_values=True))
        if response.request.body:
            request["body"] = json.loads(response.request.body)
        try:
            body = response.json()
        except ValueError:
            body = response.text
        self.add(request, response.status_code, body)


@dataclass(frozen=True)
class RecordedLogs:
    """Cloud Logging whose pages are recorded as its REST API would answer."""

    logs: Logs
    flight: Flight

    def list_page(self, projects: Sequence[str], query: str, token: str, newest: int = 0) -> Page:
        """A page of entries. Raises `CallError`."""
        names = [f"projects/{project}" for project in projects]
        body = {"resourceNames": names, "filter": query, **({"pageToken": token} if token else {})}
        request = {"method": "POST", "path": LOG_PATH, "body": body}
        try:
            page = self.logs.list_page(projects, query, token, newest)
        except CallError as error:
            said = {"code": error.http, "status": error.code, "message": error.message}
            self.flight.add(request, error.http, {"error": said})
            raise
        self.flight.add(request, 200, {"entries": list(page.entries)})
        return page


def is_read(request: Document) -> bool:
    """Whether a request changes nothing."""
    reads = request["path"].endswith(("/listManagedInstances", LOG_PATH))
    return bool(request["method"] == "GET" or reads)


def read_flight(path: Path) -> Document:
    """Return the flight in a file. Raises `UnusableFlightError` and `OSError`."""
    try:
        flight = json.loads(path.read_text())
        if flight["format"] != FORMAT:
            raise UnusableFlightError(f"{path.name} has format {flight['format']}, not {FORMAT}")
        datetime.fromisoformat(flight["began"])
        if not all(re.fullmatch("[a-z0-9-]+", flight[name]) for name in ("run", "zone")):
            raise UnusableFlightError(f"the run or the zone in {path.name} is not a name")
        for entry in flight["entries"]:
            request, response = entry["request"], entry["response"]
            entry["question"], request["method"], request["path"].split("/"), response["body"]
            response["status"] + 0
        cleaned = redact(flight, "PROJECT")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableFlightError(
            f"{path.name} is not a flight of make test-cloud ({type(error).__name__})"
        ) from error
    if place := next(_find_changes(flight, cleaned, ""), ""):
        raise UnusableFlightError(
            f"{path.name} is not clean: {place.removeprefix('.')} has a name, number, address, value of"
            " metadata or token. Replace it as the other entries do, and look for others like it"
        )
    assert isinstance(flight, dict)
    return flight


def _find_changes(found: Any, cleaned: Any, place: str) -> Iterator[str]:
    """Yield the places that cleaning changes."""
    if isinstance(found, dict):
        for key, one in found.items():
            # A key that cleaning replaces is not quoted.
            yield from (
                _find_changes(one, cleaned[key], f"{place}.{key}")
                if key in cleaned
                else (f"{place}: one of its keys",)
            )
    elif isinstance(found, list):
        for index, one in enumerate(found):
            shown = f"{place}.{index}" if place != ".entries" else f".entry {index + 1}"
            yield from _find_changes(one, cleaned[index], shown)
    elif found != cleaned:
        yield place
