"""The frame runs a step of any domain: a step that boils kettles, with its own routes and settings."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from shared.base.logs import make_logger
from shared.frame.plan import NothingToDo, Plan, StepRefused, Work
from shared.frame.step import Invocation, Runtime, Step, handle, work_fields
from shared.ports.errors import CallError
from shared.ports.gce.clients import Clients
from shared.ports.kubernetes.access_settings import Kubeconfig
from shared.ports.kubernetes.connection import Connection
from shared.triggers.message import SWEEP_KIND, Cause
from shared.triggers.route import Route
from shared.triggers.trigger import ObjectTrigger
from tests.support.pushes import push

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROUTES = {
    "boil": Route("boil", {"Kettle": (Cause.ADDED,), SWEEP_KIND: (Cause.SWEEP,)}),
    "wash": Route("wash", {"Cup": (Cause.ADDED,)}),
}


@dataclass
class Kitchen:
    """The temperatures of the kettles, those without power, and what the steps report."""

    degrees: dict[str, int]
    unpowered: frozenset[str] = frozenset()
    told: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class KettleWork(Work):
    settings: Kitchen
    name: str


@dataclass(frozen=True)
class Heat:
    name: str

    def apply(self, work: KettleWork) -> None:
        if self.name in work.settings.unpowered:
            raise CallError(f"heat {self.name}", 403, "Forbidden", "no power")
        work.settings.degrees[self.name] = 100

    def describe(self) -> str:
        return f"heat {self.name}"


@dataclass(frozen=True)
class Tell:
    text: str

    def apply(self, work: KettleWork) -> None:
        work.settings.told.append(self.text)

    def describe(self) -> str:
        return f"tell {self.text}"


def open_kettle(invocation: Invocation, is_first_observation: bool) -> KettleWork:
    trigger = invocation.trigger
    if not isinstance(trigger, ObjectTrigger):
        raise NothingToDo("NoKettle")
    fields = work_fields(invocation, is_first_observation=is_first_observation)
    return KettleWork(**fields, name=trigger.message.name)


def observe(work: KettleWork) -> tuple[str, int]:
    return work.name, work.settings.degrees[work.name]


def decide(observed: tuple[str, int], _now: datetime) -> Plan:
    name, degrees = observed
    return Plan("Boils") if degrees >= 100 else Plan("Heating", (Heat(name),))


def recover(_work: KettleWork, error: CallError) -> Plan:
    return Plan("Reported", (Tell(error.message),))


def boil(
    kitchen: Kitchen,
    document: dict[str, Any],
    refusal: StepRefused | None = None,
    *,
    only_triggers: bool = False,
) -> tuple[int, str]:
    """Send a message to the step; return the HTTP status and the outcome."""
    access = Kubeconfig("/nowhere")
    runtime = Runtime(
        routes=ROUTES,
        project="p",
        settings=kitchen,
        connection=Connection(access),
        clients=Clients(""),
        publish=lambda _topic, _messages: None,
        find_refusal=lambda _cluster: refusal,
        now=lambda: NOW,
        monotonic=lambda: 0.0,
        random_bytes=bytes,
        log=make_logger(),
    )
    step = Step("boil", open_kettle, observe, decide, recover, only_triggers=only_triggers)
    answer = handle("boil", step.run, push({"version": 1, **document}), runtime)
    return answer.http, answer.outcome


def about(kind: str, name: str) -> dict[str, Any]:
    time = {"cause": "Added", "at": NOW.isoformat()}
    return {"kind": kind, "namespace": "kitchen", "name": name, **time}


MESSAGES = {
    "a cold kettle": (about("Kettle", "cold"), (204, "Heating")),
    "a hot kettle": (about("Kettle", "hot"), (204, "Boils")),
    "a kettle without power": (about("Kettle", "unpowered"), (204, "Reported")),
    "no object": ({"kind": "Sweep"}, (204, "NoKettle")),
    "a kind of another step": (about("Cup", "blue"), (204, "NotForThisStep")),
    "a kind of no step": (about("TPUNodeGroup", "train"), (400, "Poison")),
}


@pytest.mark.parametrize("case", MESSAGES.values(), ids=MESSAGES)
def test_a_step_of_another_domain_gets_the_messages_of_its_route(
    case: tuple[dict[str, Any], tuple[int, str]],
) -> None:
    document, answer = case
    kitchen = Kitchen({"cold": 20, "hot": 100, "unpowered": 20}, frozenset({"unpowered"}))
    assert boil(kitchen, document) == answer


def test_its_actions_change_what_its_decision_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    kitchen = Kitchen({"cold": 20, "unpowered": 20}, frozenset({"unpowered"}))
    for name in kitchen.degrees:
        boil(kitchen, about("Kettle", name))
    assert kitchen.degrees == {"cold": 100, "unpowered": 20}
    assert kitchen.told == ["no power"]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["step"], line["decision"]) for line in lines] == [
        ("boil", "Heating"),
        ("boil", "Reported"),
    ]


@pytest.mark.parametrize(
    "only_triggers, degrees", [(False, 20), (True, 100)], ids=["acts", "only triggers other steps"]
)
def test_a_step_that_is_refused_does_nothing_unless_it_only_triggers_other_steps(
    capsys: pytest.CaptureFixture[str], *, only_triggers: bool, degrees: int
) -> None:
    kitchen, refusal = Kitchen({"cold": 20}), StepRefused("NotOurs", "It is a neighbour's kitchen.")
    answer = boil(kitchen, about("Kettle", "cold"), refusal, only_triggers=only_triggers)
    assert (answer, kitchen.degrees) == ((204, "NotOurs"), {"cold": degrees})
    line = json.loads(capsys.readouterr().out)
    assert (line["decision"], line["severity"]) == ("NotOurs", "INFO")
    assert line["note"] == "It is a neighbour's kitchen."
