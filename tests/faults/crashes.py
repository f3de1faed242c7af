"""Lifecycles in which the process of a step is killed at a call."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from shared.triggers.routes import STEPS
from tests.support.harness import Harness, ProcessKilled
from tests.support.manifests import manifest

HOUR = timedelta(hours=1)


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


@dataclass
class Point:
    """Where a step is killed: before or after the ``index``-th call of the scenario."""

    index: int
    moment: str
    call: str = ""
    is_reached: bool = False


def run_scenario(
    scenario: Callable[[Harness], Any],
    point: Point | None = None,
    make: Callable[[], Harness] = Harness,
    steps: Collection[str] = STEPS,
) -> Outcome:
    """Run a scenario. If a point is given, kill a step there; only calls of ``steps`` are counted."""
    harness = make()
    begun = harness.clock.now()
    calls: list[str] = []

    def before(step: str, call: str) -> None:
        if step in steps:
            calls.append(f"{step}: {call}")
            kill_at("before")

    def after(step: str, _call: str) -> None:
        if step in steps:
            kill_at("after")

    def kill_at(moment: str) -> None:
        if point and not point.is_reached and (len(calls), moment) == (point.index, point.moment):
            point.is_reached, point.call = True, calls[-1]
            raise ProcessKilled

    harness.hooks.before, harness.hooks.after = before, after
    ready = scenario(harness)
    until_gone, took = list(calls), harness.clock.now() - begun
    harness.run_for(HOUR)
    return Outcome(
        ready, harness.operations, harness.node_deletes(), harness.leftovers(), until_gone, took
    )


def complete_lifecycle(harness: Harness) -> Any:
    """A group is applied, becomes Ready, is deleted and is gone."""
    harness.apply(manifest())
    assert harness.run_until(lambda: harness.is_ready("my-slice"), HOUR), describe_state(harness)
    harness.run_for(timedelta(minutes=3))
    state = end_state(harness)
    harness.delete("my-slice")
    assert harness.run_until(lambda: harness.group("my-slice") is None, HOUR), describe_state(
        harness
    )
    return state


def deleted_during_creation(harness: Harness) -> Any:
    """A group is deleted while Compute Engine creates the policy and the template."""
    harness.apply(manifest())
    both = {"resourcePolicies.insert", "instanceTemplates.insert"}
    assert harness.run_until(lambda: both <= harness.operations.keys(), HOUR), describe_state(
        harness
    )
    harness.delete("my-slice")
    assert harness.run_until(lambda: harness.group("my-slice") is None, HOUR), describe_state(
        harness
    )


def deleted_while_vms_are_created(harness: Harness) -> Any:
    """A group is deleted immediately after its MIG was inserted."""
    harness.apply(manifest())
    mig = "projects/my-gcp-project/zones/us-central1-c/instanceGroupManagers/"
    harness.run_until(lambda: any(mig in path for path in harness.leftovers()), HOUR)
    harness.delete("my-slice")
    assert harness.run_until(lambda: harness.group("my-slice") is None, HOUR), describe_state(
        harness
    )


def describe_state(harness: Harness) -> str:
    """The status and the last log lines, for the message of a failed assertion."""
    group = harness.group("my-slice") or {}
    return f"{group.get('status')}\n" + "\n".join(map(str, harness.log.lines[-12:]))


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


SCENARIOS = (complete_lifecycle, deleted_during_creation, deleted_while_vms_are_created)


def first_call_of(step: str, calls: list[str]) -> int:
    """Return the index of a step's first call."""
    return next(at for at, call in enumerate(calls) if call.startswith(f"{step}: "))


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
