"""Requests and what must come back, written so that any API server can be asked.

A `Case` is a list of steps against an empty namespace of its own. It needs a `Server`: something
that sends a request as one of `USERS` and lets time pass. There are two: the embedded one
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
"""Expected of a path: nothing is there."""
ANYTHING = _Marker("ANYTHING")
"""Expected of a path: something that is neither null nor empty."""

USERS: Mapping[str, tuple[str, ...]] = {
    "admin": ("system:masters",),
    "nobody": (),
    "reader": ("case-readers",),
    "system:node:node-{ns}": ("system:nodes",),
}
"""Names and groups of the users that cases speak as, besides ``anonymous`` and ``token:<bearer>``."""


def variables(identity: str, now: datetime) -> dict[str, str]:
    """What steps can use as ``{name}``: a namespace of the case's own, a token of its own, times."""
    return {
        "ns": f"case-{identity}" if identity else "default",
        "id": identity,
        "hour_ahead": render_time(now + timedelta(hours=1)),
        "hour_ago": render_time(now - timedelta(hours=1)),
    }


def render_time(moment: datetime) -> str:
    """RFC 3339 in UTC, in whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Answer:
    """A response: of a watch, ``lines`` holds the events."""

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
    """An API server to be asked."""

    def send(
        self, method: str, path: str, body: Any, content_type: str, user: str, accept: str
    ) -> Answer:
        """Send one request and wait for all of the answer."""

    def await_answer(
        self, ask: Callable[[], Answer], is_expected: Callable[[Answer], bool]
    ) -> Answer:
        """Ask until the answer is as expected, or the server's controllers have had their time."""

    def forget(self) -> None:
        """Forget all history."""


@dataclass(frozen=True)
class Step:
    """One request and what is expected of the answer.

    ``expect`` maps paths (``spec.size``, ``items.0.metadata.name``) to values; ``keep`` maps names
    to paths whose values later steps can use as ``{name}`` in paths, bodies and expectations.
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
    keep: Mapping[str, str] = field(default_factory=dict)
    warning: str | None = None
    events: list[tuple[str, str]] | None = None
    settles: bool = False
    forgets: bool = False

    def by(self, user: str) -> Step:
        """The same as somebody else."""
        return replace(self, user=user)

    def gives(self, status: int = 200, /, **expect: Any) -> Step:
        """Expect a status, and values of top-level fields (``reason``, ``message``...)."""
        return replace(self, status=status, expect={**self.expect, **expect})

    def has(self, expect: Mapping[str, Any]) -> Step:
        """Expect values at paths."""
        return replace(self, expect={**self.expect, **expect})

    def keeps(self, **names: str) -> Step:
        """Keep values for later steps."""
        return replace(self, keep={**self.keep, **names})

    def warns(self, text: str) -> Step:
        """Expect a Warning header with this text, or none for the empty text."""
        return replace(self, warning=text)

    def shows(self, *events: tuple[str, str]) -> Step:
        """Expect exactly these events, of a watch."""
        return replace(self, events=list(events))

    def after_a_while(self) -> Step:
        """Let controllers finish first."""
        return replace(self, settles=True)

    def after_forgetting(self) -> Step:
        """Have the server forget its history first."""
        return replace(self, forgets=True)


@dataclass(frozen=True)
class Case:
    """A behaviour, in steps. ``number`` is its line in the list of behaviours, for the reader."""

    name: str
    steps: tuple[Step, ...]


def case(name: str, *steps: Step) -> Case:
    """A case."""
    return Case(name, steps)


def get(path: str, accept: str = JSON) -> Step:
    """GET, of an object, a list or, with ``watch=true``, a watch."""
    return Step("GET", path, accept=accept)


def post(path: str, body: Any, content_type: str = JSON) -> Step:
    """POST, which is expected to create."""
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
    """One step as it was taken: what was asked (``where``, in words) and what came back."""

    where: str
    answer: Answer


def run(asked: Case, server: Server, variables: Mapping[str, str]) -> list[Exchange]:
    """Go through a case; raises `AssertionError` that names the step."""
    known = dict(variables)
    taken = []
    for number, step in enumerate(asked.steps, 1):
        where = f"step {number}: {step.method} {fill(step.path, known)}"
        if step.forgets:
            server.forget()
        answer = _take(step, server, known)
        fault = find_fault(step, answer, known)
        assert fault is None, f"{where}: {fault}\n{answer.body.decode()}"
        for name, path in step.keep.items():
            known[name] = str(find(answer.document, path))
        taken.append(Exchange(where, answer))
    return taken


def _take(step: Step, server: Server, known: Mapping[str, str]) -> Answer:
    def ask() -> Answer:
        return server.send(
            step.method,
            fill(step.path, known),
            fill(step.body, known),
            step.content_type,
            fill(step.user, known),
            step.accept,
        )

    if not step.settles:
        return ask()
    return server.await_answer(ask, lambda answer: find_fault(step, answer, known) is None)


def find_fault(step: Step, answer: Answer, known: Mapping[str, str]) -> str | None:
    """What of an answer is not as the step expects it, or ``None``."""
    if answer.status != step.status:
        return f"{answer.status} and not {step.status}"
    warned = answer.headers.get("warning", "")
    if step.warning is not None and (
        step.warning not in warned or bool(step.warning) is not bool(warned)
    ):
        return f"the warning is {warned!r}"
    if step.events is not None:
        seen = [(line["type"], _name(line["object"])) for line in answer.lines]
        wanted = [(type_, fill(name, known)) for type_, name in step.events]
        if seen != wanted:
            return f"the events are {seen}"
    for path, value in fill(dict(step.expect), known).items():
        found = find(answer.document, path)
        if not _meets(found, value):
            return f"{path} is {found!r}, not {value!r}"
    return None


def _meets(found: Any, wanted: Any) -> bool:
    if wanted is ANYTHING:
        return found is not ABSENT and found not in (None, "", [], {})
    if callable(wanted):
        return bool(wanted(found))
    return bool(found == wanted)


def containing(*parts: str) -> Callable[[Any], bool]:
    """An expectation: a text that contains all of these."""
    return lambda found: isinstance(found, str) and all(part in found for part in parts)


def _name(document: Mapping[str, Any]) -> str:
    if document["kind"] == "Status":
        return str(document["reason"])
    return str(document.get("metadata", {}).get("name", ""))


def find(document: Any, path: str) -> Any:
    """The value at a path, or `ABSENT`. A dot within a name is written ``~``."""
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


def fill(value: Any, known: Mapping[str, str]) -> Any:
    """Put kept values in place of their names, however deep."""
    if isinstance(value, str):
        for name, text in known.items():
            value = value.replace("{" + name + "}", text)
        return value
    if isinstance(value, dict):
        return {fill(name, known): fill(item, known) for name, item in value.items()}
    if isinstance(value, list):
        return [fill(item, known) for item in value]
    return value
