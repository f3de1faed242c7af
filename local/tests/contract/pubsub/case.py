"""A case: what a client does, what comes of it on the service, and where that is known to differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.api_core.exceptions import GoogleAPICallError

from local.tests.contract.pubsub.bench import Bench

Act = Callable[[Bench], Any]


@dataclass(frozen=True)
class Differs:
    """Another outcome than the service's, which one of the two is known to have.

    ``how`` tells it in words, ``why`` is the reason for leaving it so.
    """

    outcome: Any
    how: str
    why: str = ""


@dataclass(frozen=True)
class Case:
    """Runs on a project of its own.

    ``outcome`` is the service's, as documented or seen: what ``act`` returns, or the refusal that
    it meets (`Bench.refusal`). Where ``embedded`` or ``emulator`` is `None`, it is theirs too.
    """

    name: str
    act: Act
    outcome: Any
    embedded: Differs | None = None
    emulator: Differs | None = None

    def run(self, bench: Bench) -> Any:
        """What comes of it here."""
        try:
            return self.act(bench)
        except GoogleAPICallError as error:
            return bench.refusal(error)


CASES: list[Case] = []


def case(
    outcome: Any, *, embedded: Differs | None = None, emulator: Differs | None = None
) -> Callable[[Act], Act]:
    """Make a case of a function, whose name says what it shows."""

    def add(act: Act) -> Act:
        CASES.append(Case(act.__name__.replace("_", " "), act, outcome, embedded, emulator))
        return act

    return add


def refused(
    name: str,
    act: Act,
    status: str,
    words: str,
    *,
    emulator: str | Differs | None = None,
    embedded: Differs | None = None,
) -> None:
    """A case of a refusal, on a project that has a topic and a subscription named ``inbox``.

    The emulator refuses with the same status; if it does so in other words, ``emulator`` is these.
    """

    def prepared(bench: Bench) -> Any:
        bench.topic()
        bench.subscribe()
        act(bench)
        return TAKEN

    if isinstance(emulator, str):
        emulator = Differs(f"{status} {emulator}", WORDS)
    CASES.append(Case(name, prepared, f"{status} {words}", embedded, emulator))


def lacks(what: str, why: str = "") -> Differs:
    """What comes of asking the embedded one for a field that it has not."""
    refusal = f"UNIMPLEMENTED The embedded Pub/Sub has no {what}."
    return Differs(refusal, REFUSES, why or UNUSED)


TAKEN = "taken"
"""The outcome of a request that was not refused."""
WORDS = "has another error message"
REFUSES = "answers UNIMPLEMENTED"
UNUSED = "the product does not use it"
