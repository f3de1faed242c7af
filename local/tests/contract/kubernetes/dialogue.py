"""Requests and expected answers, which can be run against any API server.

A `Case` is a list of steps in its own empty namespace. It needs a `Server`, which sends a request as one
of `USERS` and lets time pass. There are two: the embedded one
(`local.tests.contract.kubernetes.embedded`) and a real one (`local.tests.contract.kubernetes.real`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
AGENT = "contract"
"""The User-Agent of all requests."""


class _Marker:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


ABSENT = _Marker("ABSENT")
"""Expected of a path: no value."""
ANYTHING = _Marker("ANYTHING")
"""Expected of a path: a value that is neither null nor empty."""

USERS: Mapping[str, tuple[str, ...]] = {
    "admin": ("system:masters",),
    "nobody": (),
    "reader": ("case-readers",),
    "system:node:node-{ns}": ("system:nodes",),
}
"""Names and groups of the users of cases. ``anonymous`` and ``token:<bearer>`` are others."""


def variables(identity: str, now: datetime) -> dict[str, str]:
    """The variables that steps can use as ``{name}``: the case's namespace and id, and times."""
    return {
        "ns": f"case-{identity}" if identity else "default",
        "id": identity,
        "hour_ahead": render_time(now + timedelta(hours=1)),
        "hour_ago": render_time(now - timedelta(hours=1)),
    }


def render_time(moment: datetime) -> str:
    """Render a time in RFC 3339, in UTC and whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Answer:
    """A response. ``lines`` are the events of a watch."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


class Server(Protocol):
    """An API server that a case can run against."""

    def send(
        self, method: str, path: str, body: Any, content_type: str, user: str, accept: str
    ) -> Answer:
        """Send one request, and wait for the complete answer."""

    def await_answer(
        self, ask: Callable[[], Answer], is_expected: Callable[[Answer], bool]
    ) -> Answer:
        """Repeat a request until its answer is as expected, or the time for controllers is over."""

    def compact(self) -> None:
        """Drop the history, so that watches from older versions expire."""


@dataclass(frozen=True)
class Step:
    """One request and its expected answer.

    ``expect`` maps paths (``spec.size``, ``items.0.metadata.name``) to values. ``save`` maps names
    to paths; later steps can use their values as ``{name}`` in paths, bodies and expectations.
    ``events`` are the types and names that a watch shows.
    """

    method: str
    path: str
    body: Any = None
    content_type: str = JSON
    user: str = "admin"
    accept: str = JSON
    status: int = 200
    expect: Mapping[str, Any] = field(default_factory=dict)
    save: Mapping[str, str] = field(default_factory=dict)
    warning: str | None = None
    events: list[tuple[str, str]] | None = None
    retries: bool = False
    compacts: bool = False

    def by(self, user: str) -> Step:
        """Send the request as another user."""
        return replace(self, user=user)

    def gives(self, status: int = 200, /, **expect: Any) -> Step:
        """Expect a status, and values of top-level fields (``reason``, ``message``...)."""
        return replace(self, status=status, expect={**self.expect, **expect})

    def has(self, expect: Mapping[str, Any]) -> Step:
        """Expect values at paths."""
        return replace(self, expect={**self.expect, **expect})

    def saves(self, **names: str) -> Step:
        """Save values for later steps."""
        return replace(self, save={**self.save, **names})

    def warns(self, text: str) -> Step:
        """Expect a Warning header with this text, or none for the empty text."""
        return replace(self, warning=text)

    def shows(self, *events: tuple[str, str]) -> Step:
        """Expect exactly these events of a watch."""
        return replace(self, events=list(events))

    def eventually(self) -> Step:
        """Repeat the request until controllers have finished."""
        return replace(self, retries=True)

    def after_compaction(self) -> Step:
        """Drop the server's history before the request."""
        return replace(self, compacts=True)


@dataclass(frozen=True)
class Case:
    """A behaviour of an API server: its name, and the steps that show it."""

    name: str
    steps: tuple[Step, ...]


def case(name: str, *steps: Step) -> Case:
    """Build a case."""
    return Case(name, steps)


def get(path: str, accept: str = JSON) -> Step:
    """GET an object or a list, or watch with ``watch=true``."""
    return Step("GET", path, accept=accept)


def post(path: str, body: Any, content_type: str = JSON) -> Step:
    """POST with the expected status 201."""
    return Step("POST", path, body, content_type, status=201)


def put(path: str, body: Any) -> Step:
    """PUT."""
    return Step("PUT", path, body)


def patch(path: str, body: Any, content_type: str = MERGE) -> Step:
    """PATCH."""
    return Step("PATCH", path, body, content_type)


def delete(path: str, body: Any = None) -> Step:
    """DELETE."""
    return Step("DELETE", path, body)


# -- running ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exchange:
    """A step that has run: a description of the request (``where``), and its answer."""

    where: str
    answer: Answer


def run(case_: Case, server: Server, variables: Mapping[str, str]) -> list[Exchange]:
    """Run a case. A failure raises an `AssertionError` that names the step."""
    values = dict(variables)
    exchanges = []
    for number, step in enumerate(case_.steps, 1):
        where = f"step {number}: {step.method} {fill(step.path, values)}"
        if step.compacts:
            server.compact()
        answer = _send(step, server, values)
        mismatch = find_mismatch(step, answer, values)
        assert mismatch is None, f"{where}: {mismatch}\n{answer.body.decode()}"
        for name, path in step.save.items():
            values[name] = str(find(answer.document, path))
        exchanges.append(Exchange(where, answer))
    return exchanges


def _send(step: Step, server: Server, values: Mapping[str, str]) -> Answer:
    def ask() -> Answer:
        return server.send(
            step.method,
            fill(step.path, values),
            fill(step.body, values),
            step.content_type,
            fill(step.user, values),
            step.accept,
        )

    if not step.retries:
        return ask()
    return server.await_answer(ask, lambda answer: find_mismatch(step, answer, values) is None)


def find_mismatch(step: Step, answer: Answer, values: Mapping[str, str]) -> str | None:
    """Describe how an answer differs from what the step expects, or return ``None``."""
    if answer.status != step.status:
        return f"the status is {answer.status}, not {step.status}"
    warned = answer.headers.get("warning", "")
    if step.warning is not None and (
        step.warning not in warned or bool(step.warning) is not bool(warned)
    ):
        return f"the warning is {warned!r}"
    if step.events is not None:
        seen = [(line["type"], _name(line["object"])) for line in answer.lines]
        expected = [(type_, fill(name, values)) for type_, name in step.events]
        if seen != expected:
            return f"the events are {seen}"
    for path, value in fill(dict(step.expect), values).items():
        found = find(answer.document, path)
        if not _meets(found, value):
            return f"{path} is {found!r}, not {value!r}"
    return None


def _meets(found: Any, expected: Any) -> bool:
    if expected is ANYTHING:
        return found is not ABSENT and found not in (None, "", [], {})
    if callable(expected):
        return bool(expected(found))
    return bool(found == expected)


def containing(*parts: str) -> Callable[[Any], bool]:
    """An expectation: a string that contains all parts."""
    return lambda found: isinstance(found, str) and all(part in found for part in parts)


def _name(document: Mapping[str, Any]) -> str:
    if document["kind"] == "Status":
        return str(document["reason"])
    return str(document.get("metadata", {}).get("name", ""))


def find(document: Any, path: str) -> Any:
    """Return the value at a path, or `ABSENT`. A dot within a name is written ``~``."""
    value = document
    for part in path.split("."):
        name = part.replace("~", ".")
        if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict) and name in value:
            value = value[name]
        else:
            return ABSENT
    return value


def fill(value: Any, values: Mapping[str, str]) -> Any:
    """Replace ``{name}`` by the values of variables, at any depth."""
    if isinstance(value, str):
        for name, text in values.items():
            value = value.replace("{" + name + "}", text)
        return value
    if isinstance(value, dict):
        return {fill(name, values): fill(item, values) for name, item in value.items()}
    if isinstance(value, list):
        return [fill(item, values) for item in value]
    return value
