"""A step dies before and after each of its calls; the life ends as if nothing had been.

The two-host life, and a deletion in mid-creation, run in one process on a virtual clock. Each run is
the undisturbed one up to its point; there the step's process ends (no handler catches it), Pub/Sub
delivers the message again, and the sweep runs. In the end: the same state, the same number of things
made and deleted, at most 15 seconds more, and nothing left an hour later. Tokens and Kubernetes Events
are exempt: a process that died between a token and its writing-down draws another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from shared.base.names import STEPS
from tests.harness import Death, Harness
from tests.manifests import manifest
from tests.stories.life import Say

HOUR = timedelta(hours=1)
A_DEATH_COSTS = timedelta(seconds=15)
"""At most."""
SHARDS = 8
"""All points of a life are spread over so many tests, for as many processes."""


@dataclass
class Outcome:
    """How a life went: its end state, what was made, and every call of a step until all was gone."""

    ready: Any
    made: Counter[str]
    node_deletes: int
    leftovers: list[str]
    calls: list[str]
    took: timedelta = timedelta()
    """Until all was gone."""


@dataclass
class Point:
    """Where a step dies: at its ``index``-th call of the whole life, before or after it."""

    index: int
    moment: str
    call: str = ""
    is_reached: bool = False


def live(
    play: Callable[[Harness], Any],
    point: Point | None = None,
    make: Callable[[], Harness] = Harness,
    steps: Collection[str] = STEPS,
) -> Outcome:
    """One life, with a death in it if a point is given: of one of ``steps``, whose calls count."""
    harness = make()
    begun = harness.clock.now()
    calls: list[str] = []

    def before(step: str, call: str) -> None:
        if step in steps:
            calls.append(f"{step}: {call}")
            die_at("before")

    def after(step: str, _call: str) -> None:
        if step in steps:
            die_at("after")

    def die_at(moment: str) -> None:
        if point and not point.is_reached and (len(calls), moment) == (point.index, point.moment):
            point.is_reached, point.call = True, calls[-1]
            raise Death

    harness.hooks.before, harness.hooks.after = before, after
    ready = play(harness)
    until_gone, took = list(calls), harness.clock.now() - begun
    harness.run_for(HOUR)
    return Outcome(
        ready, harness.made, harness.node_deletes(), harness.leftovers(), until_gone, took
    )


def whole_life(harness: Harness) -> Any:
    """Applied, Ready, deleted, gone."""
    harness.apply(manifest())
    assert harness.run_until(lambda: harness.is_ready("my-slice"), HOUR), describe_state(harness)
    harness.run_for(timedelta(minutes=3))
    state = end_state(harness)
    harness.delete("my-slice")
    assert harness.run_until(lambda: harness.group("my-slice") is None, HOUR), describe_state(
        harness
    )
    return state


def deleted_in_mid_creation(harness: Harness) -> Any:
    """Deleted while Compute Engine is still at the policy and the template."""
    harness.apply(manifest())
    both = {"resourcePolicies.insert", "instanceTemplates.insert"}
    assert harness.run_until(lambda: both <= harness.made.keys(), HOUR), describe_state(harness)
    harness.delete("my-slice")
    assert harness.run_until(lambda: harness.group("my-slice") is None, HOUR), describe_state(
        harness
    )


def deleted_while_vms_are_made(harness: Harness) -> Any:
    """Deleted when the managed instance group has just been asked for."""
    harness.apply(manifest())
    stands = "projects/my-gcp-project/zones/us-central1-c/instanceGroupManagers/"
    harness.run_until(lambda: any(stands in path for path in harness.leftovers()), HOUR)
    harness.delete("my-slice")
    assert harness.run_until(lambda: harness.group("my-slice") is None, HOUR), describe_state(
        harness
    )


def describe_state(harness: Harness) -> str:
    """What a person would look at."""
    group = harness.group("my-slice") or {}
    return f"{group.get('status')}\n" + "\n".join(map(str, harness.log.lines[-12:]))


def end_state(harness: Harness) -> Any:
    """What a person sees of a Ready slice, without times, ids and random ends of names."""
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


LIVES = (whole_life, deleted_in_mid_creation, deleted_while_vms_are_made)


@pytest.mark.parametrize("shard", range(2))
@pytest.mark.parametrize("play", LIVES, ids=lambda play: play.__name__)
def test_a_step_may_die_at_each_kind_of_call(
    play: Callable[[Harness], Any], shard: int, say: Say
) -> None:
    """Before the first read of a kind; after the first write of a kind, and before the second.

    Lives that end early are the whole one up to their deletion, and are tried from there on.
    """
    model = live(play)
    begin = 0 if play is whole_life else first_call_of("tear_down", model.calls)
    moments = {True: ("after", "before"), False: ("before",)}
    points: list[Point] = []
    times: Counter[str] = Counter()
    for index, call in enumerate(model.calls[begin:], begin + 1):
        at = moments[is_write(call)][times[kind(call)] :][:1]
        points += [Point(index, moment) for moment in at]
        times[kind(call)] += 1
    assert {kind(model.calls[point.index - 1]) for point in points} == set(times)
    try_deaths(play, model, points[shard::2], say)


def first_call_of(step: str, calls: list[str]) -> int:
    """The index of a step's first call."""
    return next(at for at, call in enumerate(calls) if call.startswith(f"{step}: "))


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("play", LIVES, ids=lambda play: play.__name__)
def test_a_step_may_die_at_any_call(play: Callable[[Harness], Any], shard: int, say: Say) -> None:
    model = live(play)
    points = [
        Point(index, moment)
        for index in range(1, len(model.calls) + 1)
        for moment in ("before", "after")
    ]
    try_deaths(play, model, points[shard::SHARDS], say)


def try_deaths(
    play: Callable[[Harness], Any], model: Outcome, points: list[Point], say: Say
) -> None:
    """Live once for each point; every life ends like the undisturbed one, hardly later."""
    assert model.leftovers == []
    failures = []
    for point in points:
        outcome = live(play, point)
        assert point.is_reached
        failures += [
            f"{point.index} {point.moment} {point.call}: {x}" for x in differences(model, outcome)
        ]
        if outcome.took > model.took + A_DEATH_COSTS:
            failures.append(f"{point.index} {point.moment} {point.call}: took {outcome.took}")
    say(f"{play.__name__}: {len(points)} points tried, {len(points) - len(failures)} held")
    assert failures == []


def is_write(call: str) -> bool:
    """True if it changes something, other than by a message that is published again."""
    return call.partition(": ")[2].partition(" ")[0] in ("POST", "PUT", "PATCH", "DELETE")


def kind(call: str) -> str:
    """A call without its query and without random names."""
    return re.sub(_RANDOM_NAME, r"/\1/NAME", anonymous(call.partition("?")[0]))


_RANDOM_NAME = r"/(pods|events|secrets|certificatesigningrequests)/[^/]+"


def differences(model: Outcome, outcome: Outcome) -> list[str]:
    """In what a disturbed life differs from the undisturbed one."""
    pairs = {
        "state": (model.ready, outcome.ready),
        "made": (model.made, outcome.made),
        "Nodes deleted": (model.node_deletes, outcome.node_deletes),
        "left": (model.leftovers, outcome.leftovers),
    }
    return [f"{what}: {one} became {other}" for what, (one, other) in pairs.items() if one != other]
