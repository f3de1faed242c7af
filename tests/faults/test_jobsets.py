"""The steps of JobSets die at each kind of call, or are at work twice; the life ends the same.

Lives of a small JobSet whose slices are TPUNodeGroups; what the other steps do in them has lives of its
own (`test_crash_anywhere`). The minute makes the same calls again and again: of each read the first is
tried, of each write the first two. To die after a read is to die before the next call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from local.jobsets import Habits
from shared.names import JOBSET_STEPS
from shared.settings import TPU_NODE_GROUP
from shared.step import ACKNOWLEDGED, TRY_AGAIN
from tests import jobset_objects as objects
from tests.faults.test_crash_anywhere import Outcome, Point, anonymous, differences, live
from tests.harness import Harness
from tests.stories import test_at_the_same_time as twice
from tests.stories.life import Say
from tests.stories.test_jobset_slices import JOBSETS, OPTIONS, RUNS_ON, delete, pods, until

GROUPS = "/apis/tpu.google.com/v1alpha1/tpunodegroups"
SETTINGS = {"jobset_provider": TPU_NODE_GROUP}

Play = Callable[[Harness], Any]


def prepare(harness: Harness) -> None:
    """What slices are made from; and Pods run for as long as nobody ends them."""
    harness.world.admin("POST", OPTIONS, objects.config_map())
    harness.jobsets.habits = RUNS_ON


def world() -> Harness:
    harness = Harness(slices=SETTINGS)
    prepare(harness)
    return harness


def doubled_world() -> twice.Doubled:
    harness = twice.Doubled(slices=SETTINGS)
    prepare(harness)
    return harness


def post(harness: Harness, topology: str = "2x2") -> None:
    """A JobSet with one Job of one host."""
    selector = objects.selector(topology=topology)
    job = objects.jobset()["spec"]["replicatedJobs"][0]
    spec = job["template"]["spec"]
    spec["template"]["spec"]["nodeSelector"] = selector
    hosts = 1 if topology == "2x2" else 2
    spec |= {"parallelism": hosts, "completions": hosts}
    answer = harness.world.admin("POST", JOBSETS, objects.jobset(spec={"replicatedJobs": [job]}))
    assert answer["kind"] == "JobSet", answer


def running(harness: Harness) -> int:
    return sum(pod["status"]["phase"] == "Running" for pod in pods(harness))


def groups(harness: Harness) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = harness.world.admin("GET", GROUPS)["items"]
    return found


def seen(harness: Harness) -> Any:
    """What a person sees of a JobSet that runs, without times, ids and random ends of names."""
    return {
        "groups": [(one["metadata"]["name"], one["spec"]["topology"]) for one in groups(harness)],
        "stamps": [
            key
            for one in groups(harness)
            for key in one["metadata"]["annotations"]
            if key.endswith("release-after")
        ],
        "pods": sorted(pod["spec"]["hostname"] for pod in pods(harness)),
        "nodes": len({pod["spec"]["nodeName"] for pod in pods(harness)}),
        "compute": sorted(anonymous(path)[:60] for path in harness.world.gce.leftovers()),
    }


def whole_life(harness: Harness) -> Any:
    """Applied, running, complete, gone."""
    post(harness)
    until(harness, lambda: running(harness) == 1)
    state = seen(harness)
    harness.jobsets.habits = Habits(run_s=0)
    until(harness, lambda: not groups(harness))
    return state


def made_again_at_once(harness: Harness) -> Any:
    """Deleted, and made again under its name before its slice has gone: it is kept."""
    post(harness)
    until(harness, lambda: running(harness) == 1)
    delete(harness)
    harness.run_for(timedelta(seconds=10))
    post(harness)
    until(harness, lambda: running(harness) == 1)
    harness.run_for(timedelta(minutes=3))
    state = seen(harness)
    delete(harness)
    until(harness, lambda: not groups(harness))
    return state


def made_again_as_another(harness: Harness) -> Any:
    """Deleted, and made again under its name with another topology: the slice is made anew."""
    post(harness)
    until(harness, lambda: running(harness) == 1)
    delete(harness)
    harness.run_for(timedelta(seconds=10))
    post(harness, topology="2x4")
    until(harness, lambda: running(harness) == 2)
    harness.run_for(timedelta(minutes=3))
    state = seen(harness)
    delete(harness)
    until(harness, lambda: not groups(harness))
    return state


def deleted_in_mid_creation(harness: Harness) -> Any:
    """Deleted while the slice is being made."""
    post(harness)
    until(harness, lambda: bool(groups(harness)))
    delete(harness)
    until(harness, lambda: not groups(harness))


LIVES: tuple[Any, ...] = (
    whole_life,
    made_again_at_once,
    pytest.param(made_again_as_another, marks=pytest.mark.slow),
    deleted_in_mid_creation,
)


def places(calls: list[str]) -> Iterator[int]:
    """The numbers of the calls at which something is tried, from 1."""
    times: Counter[str] = Counter()
    for number, call in enumerate(calls, 1):
        times[kind(call)] += 1
        if times[kind(call)] <= 1 + is_write(call):
            yield number


def is_write(call: str) -> bool:
    """Whether it changes something at the API server. A message that comes once more is no change."""
    return call.partition(": ")[2].partition(" ")[0] in ("POST", "PATCH", "DELETE")


def kind(call: str) -> str:
    """A call without what differs from one Pod, Event or page to another."""
    path = call.partition("?")[0]
    for part, instead in (("/pods/", "/pods/POD"), ("/events/", "/events/EVENT")):
        before, found, _ = path.partition(part)
        path = f"{before}{instead}" if found else path
    return path


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Outcome]:
    return {}


@pytest.fixture(params=LIVES, ids=lambda play: str(play.__name__))
def life_and_model(
    request: pytest.FixtureRequest, undisturbed: dict[str, Outcome]
) -> tuple[Play, Outcome]:
    """A life, and how it goes undisturbed."""
    play: Play = request.param
    if play.__name__ not in undisturbed:
        undisturbed[play.__name__] = live(play, make=world, steps=JOBSET_STEPS)
    model = undisturbed[play.__name__]
    assert model.leftovers == []
    return play, model


def try_deaths(play: Play, model: Outcome, points: list[Point]) -> list[str]:
    """What has gone otherwise than undisturbed, by point."""
    failures = []
    for point in points:
        outcome = live(play, point, world, JOBSET_STEPS)
        assert point.is_reached
        failures += [
            f"{point.index} {point.moment} {point.call}: {x}" for x in differences(model, outcome)
        ]
    return failures


def test_a_step_of_jobsets_may_die_at_each_kind_of_call(
    life_and_model: tuple[Play, Outcome], say: Say
) -> None:
    play, model = life_and_model
    points = [
        Point(number, moment)
        for number in places(model.calls)
        for moment in ("before", *(["after"] if is_write(model.calls[number - 1]) else []))
    ]
    assert try_deaths(play, model, points) == []
    say(f"JobSets, {play.__name__}: a step died at {len(points)} points")


@pytest.mark.slow
def test_a_step_of_jobsets_may_die_at_any_call(
    life_and_model: tuple[Play, Outcome], say: Say
) -> None:
    play, model = life_and_model
    points = [
        Point(number, moment)
        for number in range(1, len(model.calls) + 1)
        for moment in ("before", "after")
    ]
    assert try_deaths(play, model, points) == []
    say(f"JobSets, {play.__name__}: a step died at all {len(points)} points")


def try_twice(play: Play, model: Outcome, numbers: list[int]) -> list[str]:
    """What has gone otherwise than undisturbed, by point."""
    failures = []
    for point in map(twice.Point, numbers):
        outcome = twice.live_doubled(play, point, doubled_world, JOBSET_STEPS)
        failures += [f"{point.index} {point.call}: {x}" for x in differences(model, outcome)]
        if point.answer not in (ACKNOWLEDGED, TRY_AGAIN):
            failures.append(f"{point.index} {point.call}: answered with {point.answer}")
    return failures


def test_a_message_of_jobsets_may_be_at_work_twice_when_something_is_changed(
    life_and_model: tuple[Play, Outcome], say: Say
) -> None:
    play, model = life_and_model
    numbers = [number for number in places(model.calls) if is_write(model.calls[number - 1])]
    assert try_twice(play, model, numbers) == []
    say(f"JobSets, {play.__name__}: a message was at work twice at {len(numbers)} points")


@pytest.mark.slow
def test_a_message_of_jobsets_may_be_at_work_twice_at_any_call(
    life_and_model: tuple[Play, Outcome], say: Say
) -> None:
    play, model = life_and_model
    numbers = list(range(1, len(model.calls) + 1))
    assert try_twice(play, model, numbers) == []
    say(f"JobSets, {play.__name__}: a message was at work twice at all {len(numbers)} points")
