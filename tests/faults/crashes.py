"""Scenarios in which a step is disturbed at a call: its process is killed, or it handles its message
twice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from shared.frame.execution import ACKNOWLEDGED, TRY_AGAIN
from shared.triggers.routes import STEPS
from tests.support.forks import Branches
from tests.support.harness import Harness, ProcessKilled

HOUR = timedelta(hours=1)
BEFORE, AFTER, AGAIN = "killed before", "killed after", "twice at"
Choose = Callable[[str], Iterable[str]]
"""Chooses the disturbances of a call: a text such as ``sweep: GET /path``."""


@dataclass
class Outcome:
    """The result of a scenario: its final state, its operations, and the calls of the steps until the
    group is gone."""

    ready: Any
    operations: Counter[str]
    node_deletes: int
    leftovers: list[str]
    calls: list[str]
    took: timedelta = timedelta()
    """Until the group is gone."""


def run_disturbed(
    scenario: Callable[[Harness], Any],
    choose: Choose,
    make: Callable[[], Any] = Harness,
    steps: Collection[str] = STEPS,
) -> tuple[Outcome, list[str], int]:
    """Run a scenario, and branch off a run for each disturbance that is chosen, of calls of ``steps``.

    Returns the undisturbed outcome, how the others differ from it, and how many there are.
    """
    harness, branches, calls = make(), Branches(), list[str]()
    harness.begin = lambda push: push()
    is_over, dies_after = False, False

    def before(step: str, call: str) -> None:
        nonlocal dies_after
        if step not in steps or branches.path or is_over:
            return
        calls.append(f"{step}: {call}")
        for kind_ in choose(calls[-1]):
            if branches.take(f"{len(calls)} {kind_} {calls[-1]}"):
                dies_after = kind_ == AFTER
                if kind_ == BEFORE:
                    raise ProcessKilled
                if kind_ == AGAIN:
                    harness.begin_again()
                    harness.run_for(timedelta())
                return

    def after(_step: str, _call: str) -> None:
        nonlocal dies_after
        if dies_after:
            dies_after = False
            raise ProcessKilled

    def live() -> Outcome | str:
        nonlocal is_over
        try:
            ready = scenario(harness)
            is_over = True
            harness.run_for(HOUR)
        except BaseException as error:  # noqa: BLE001 - also in a branch, which ends then
            return f"{type(error).__name__}: {error}"
        answers = {answer.http for _, answer in harness.answers} - {ACKNOWLEDGED, TRY_AGAIN}
        left = harness.leftovers() + [f"answer {http}" for http in answers]
        return Outcome(ready, harness.operations, harness.node_deletes(), left, calls)

    harness.hooks.before, harness.hooks.after = before, after
    ends: dict[tuple[str, ...], Outcome | str] = branches.end(live())
    usual = ends.pop(())
    assert isinstance(usual, Outcome), usual
    failures = []
    for (name,), end in ends.items():
        found = [end] if isinstance(end, str) else differences(usual, end)
        failures += [f"{name}: {one}" for one in found]
    return usual, failures, len(ends)


def end_state(harness: Harness) -> Any:
    """The observable state of a Ready slice, without times, ids and random suffixes of names."""
    group = harness.group("my-slice")
    assert group is not None
    status = group["status"]
    nodes = harness.simulation.admin("GET", "/api/v1/nodes")["items"]
    return {
        "conditions": {
            entry["type"]: (entry["status"], entry["reason"], entry["message"])
            for entry in status["conditions"]
        },
        "resources": {
            kind: (entry["state"], anonymous(entry["uri"]), "error" in entry)
            for kind, entry in status["resources"].items()
        },
        "nodeSummary": status["nodeSummary"],
        "pending": status.get("pending"),
        "finalizers": group["metadata"]["finalizers"],
        "nodes": sorted(anonymous(sorted(node["metadata"]["labels"].items())) for node in nodes),
        "compute": sorted(anonymous(path) for path in harness.simulation.gce.leftovers()),
    }


def anonymous(thing: Any) -> str:
    text = re.sub(r"tng-my-slice-[0-9a-f]{8}(-[a-z0-9]{4})?", "NAME", str(thing))
    return re.sub(r"'[0-9]{6,}'", "ID", text)


def is_write(call: str) -> bool:
    """True if the call changes an object or a resource; a published message does not count."""
    return call.partition(": ")[2].partition(" ")[0] in ("POST", "PUT", "PATCH", "DELETE")


def kind(call: str) -> str:
    """Return the call without its query and without random names."""
    return re.sub(_RANDOM_NAME, r"/\1/NAME", anonymous(call.partition("?")[0]))


_RANDOM_NAME = r"/(pods|events|secrets|certificatesigningrequests|tpunodegroups|nodePools)/[^/]+"


def differences(baseline: Outcome, outcome: Outcome) -> list[str]:
    """List the differences between a disturbed run and the undisturbed one."""
    pairs = {
        "state": (baseline.ready, outcome.ready),
        "operations": (baseline.operations, outcome.operations),
        "Nodes deleted": (baseline.node_deletes, outcome.node_deletes),
        "left": (baseline.leftovers, outcome.leftovers),
    }
    return [f"{what}: {one} became {other}" for what, (one, other) in pairs.items() if one != other]
