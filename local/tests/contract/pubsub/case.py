"""A case: what a client does, its outcome on the service, and the outcomes that are known to differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.api_core.exceptions import GoogleAPICallError

from local.tests.contract.pubsub.bench import Bench

Act = Callable[[Bench], Any]


@dataclass(frozen=True)
class Differs:
    """A known outcome of the embedded Pub/Sub or the emulator that differs from the service's.

    ``how`` describes it, ``why`` is the reason why it is not changed.
    """

    outcome: Any
    how: str
    why: str = ""


@dataclass(frozen=True)
class Case:
    """One case. It runs in its own project.

    ``outcome`` is the service's, as documented or observed: what ``act`` returns, or its error
    (`Bench.describe_error`). If ``embedded`` or ``emulator`` is `None`, its outcome is the same.
    """

    name: str
    act: Act
    outcome: Any
    embedded: Differs | None = None
    emulator: Differs | None = None

    def run(self, bench: Bench) -> Any:
        """Run the case, and return its outcome."""
        try:
            return self.act(bench)
        except GoogleAPICallError as error:
            return bench.describe_error(error)


CASES: list[Case] = []


def case(
    outcome: Any,
    *,
    embedded: Differs | None = None,
    emulator: Differs | None = None,
    cases: list[Case] = CASES,
) -> Callable[[Act], Act]:
    """Turn a function into a case with the function's name, and add it to ``cases``."""

    def add(act: Act) -> Act:
        cases.append(Case(act.__name__.replace("_", " "), act, outcome, embedded, emulator))
        return act

    return add


def error_case(
    name: str,
    act: Act,
    status: str,
    message: str,
    emulator: str | Differs | None = None,
) -> None:
    """Add a case of an error, in a project that has a topic and a subscription named ``main``.

    The emulator's error has the same status. If its message differs, ``emulator`` is its message.
    """

    def prepared(bench: Bench) -> Any:
        bench.topic()
        bench.subscribe()
        act(bench)
        return ACCEPTED

    if isinstance(emulator, str):
        emulator = Differs(f"{status} {emulator}", OTHER_MESSAGE)
    CASES.append(Case(name, prepared, f"{status} {message}", None, emulator))


def unsupported(field: str, why: str = "") -> Differs:
    """Return the outcome of a request with a field that the embedded Pub/Sub does not support."""
    error = f"UNIMPLEMENTED The embedded Pub/Sub has no {field}."
    return Differs(error, UNIMPLEMENTED, why or UNUSED)


ACCEPTED = "accepted"
"""The outcome of a request that was not answered with an error."""
OTHER_MESSAGE = "has another error message"
UNIMPLEMENTED = "answers UNIMPLEMENTED"
UNUSED = "the product does not use it"
