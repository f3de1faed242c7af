"""The steps of JobSets die at each kind of call, or are at work twice; the life ends the same.

Lives of a small JobSet whose slices are TPUNodeGroups, or node pools; what the other steps do in them
has lives of its own (`test_crash_anywhere`). The minute makes the same calls again and again: of each
read the first is tried, of each write the first two. To die after a read is to die before the next call.
Of lives with node pools every day tries what is asked of GKE; of lives in which a JobSet is deleted, the
calls after that, because until then they are the whole one. The slow tests try all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from local.jobsets import PodBehaviour
from shared.base.names import JOBSET_STEPS
from shared.frame.settings import GKE, TPU_NODE_GROUP
from shared.frame.step import ACKNOWLEDGED, TRY_AGAIN
from tests import jobset_objects as objects
from tests.faults.test_crash_anywhere import (
    Outcome,
    Point,
    anonymous,
    differences,
    first_call_of,
    is_write,
    kind,
    live,
)
from tests.harness import Harness
from tests.stories import test_at_the_same_time as twice
from tests.stories.jobsets import RUNS_ON, apply, apply_options, delete, phases, pods, until
from tests.stories.life import Say
from tests.stories.test_node_pool_slices import SETTINGS as POOL_SETTINGS

GROUPS = "/apis/tpu.google.com/v1alpha1/tpunodegroups"
SETTINGS: dict[str, dict[str, Any]] = {
    TPU_NODE_GROUP: {"jobset_provider": TPU_NODE_GROUP},
    GKE: {"jobset_provider": GKE, "gke": POOL_SETTINGS},
}

Play = Callable[[Harness], Any]


def prepare(harness: Harness) -> None:
    """What slices are made from; and Pods run for as long as nobody ends them."""
    apply_options(harness)
    harness.jobsets.behaviour = RUNS_ON


def new_harness(provider: str) -> Harness:
    harness = Harness(slices=SETTINGS[provider])
    prepare(harness)
    return harness


def doubled_world(provider: str) -> twice.Doubled:
    harness = twice.Doubled(slices=SETTINGS[provider])
    prepare(harness)
    return harness


def post(harness: Harness, topology: str = "2x2") -> None:
    """A JobSet with one Job of one host."""
    hosts = 1 if topology == "2x2" else 2
    apply(harness, objects.small_jobset(topology=topology, hosts=hosts))


def running(harness: Harness) -> int:
    return phases(harness).count("Running")


def slices(harness: Harness) -> list[tuple[str, str, bool]]:
    """Name, topology (of a pool of one host: none is said), and whether it bears a stamp."""
    groups = harness.simulation.admin("GET", GROUPS)["items"]
    return [_read_group(one) for one in groups] + [
        _read_pool(one, harness) for one in pools(harness)
    ]


def pools(harness: Harness) -> list[str]:
    return [path.rpartition("/")[2] for path in harness.gke.leftovers()]


def _read_group(group: dict[str, Any]) -> tuple[str, str, bool]:
    metadata = group["metadata"]
    is_stamped = any(key.endswith("release-after") for key in metadata["annotations"])
    return metadata["name"], group["spec"]["topology"], is_stamped


def _read_pool(name: str, harness: Harness) -> tuple[str, str, bool]:
    pool = harness.gke.find_pool(name)
    assert pool is not None
    is_stamped = any(key.endswith("release-after") for key in pool.content["config"]["labels"])
    topology = pool.content.get("placementPolicy", {}).get("tpuTopology", "")
    return name, topology, is_stamped


def seen(harness: Harness) -> Any:
    """What a person sees of a JobSet that runs, without times, ids and random ends of names."""
    return {
        "slices": slices(harness),
        "pods": sorted(pod["spec"]["hostname"] for pod in pods(harness)),
        "nodes": len({pod["spec"]["nodeName"] for pod in pods(harness)}),
        "compute": sorted(anonymous(path)[:60] for path in harness.simulation.gce.leftovers()),
    }


def whole_life(harness: Harness) -> Any:
    """Applied, running, complete, gone."""
    post(harness)
    until(harness, lambda: running(harness) == 1)
    state = seen(harness)
    harness.jobsets.behaviour = PodBehaviour(run_s=0)
    until(harness, lambda: not slices(harness))
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
    until(harness, lambda: not slices(harness))
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
    until(harness, lambda: not slices(harness))
    return state


def deleted_in_mid_creation(harness: Harness) -> Any:
    """Deleted while the slice is being made."""
    post(harness)
    until(harness, lambda: bool(slices(harness)))
    delete(harness)
    until(harness, lambda: not slices(harness))


LIVES: tuple[Any, ...] = (
    pytest.param((TPU_NODE_GROUP, whole_life)),
    pytest.param((TPU_NODE_GROUP, made_again_at_once)),
    pytest.param((TPU_NODE_GROUP, made_again_as_another), marks=pytest.mark.slow),
    pytest.param((TPU_NODE_GROUP, deleted_in_mid_creation)),
    pytest.param((GKE, whole_life)),
    pytest.param((GKE, made_again_at_once), marks=pytest.mark.slow),
    pytest.param((GKE, made_again_as_another), marks=pytest.mark.slow),
    pytest.param((GKE, deleted_in_mid_creation), marks=pytest.mark.slow),
)


def places(life: Life) -> Iterator[int]:
    """The numbers of the calls at which something is tried every day, from 1."""
    calls = life.model.calls
    begin = 0 if life.play is whole_life else first_call_of("release_slice", calls)
    times: Counter[str] = Counter()
    for number, call in enumerate(calls[begin:], begin + 1):
        if not is_of_every_day(call, life.provider):
            continue
        times[kind(call)] += 1
        if times[kind(call)] <= 1 + is_write(call):
            yield number


def is_of_every_day(call: str, provider: str) -> bool:
    return provider != GKE or ("/nodePools" in call and is_write(call))


@dataclass(frozen=True)
class Life:
    """A life with a provider's slices, and how it goes undisturbed."""

    provider: str
    play: Play
    model: Outcome

    @property
    def name(self) -> str:
        return f"{self.play.__name__} with {self.provider}"


@pytest.fixture(scope="module")
def undisturbed() -> dict[Any, Outcome]:
    return {}


@pytest.fixture(params=LIVES, ids=lambda life: f"{life[1].__name__}-{life[0]}")
def life(request: pytest.FixtureRequest, undisturbed: dict[Any, Outcome]) -> Life:
    provider, play = request.param
    if request.param not in undisturbed:
        undisturbed[request.param] = live(
            play, make=partial(new_harness, provider), steps=JOBSET_STEPS
        )
    model = undisturbed[request.param]
    assert model.leftovers == []
    return Life(provider, play, model)


def try_deaths(life: Life, points: list[Point]) -> list[str]:
    """What has gone otherwise than undisturbed, by point."""
    failures = []
    for point in points:
        outcome = live(life.play, point, partial(new_harness, life.provider), JOBSET_STEPS)
        assert point.is_reached
        failures += [
            f"{point.index} {point.moment} {point.call}: {x}"
            for x in differences(life.model, outcome)
        ]
    return failures


def deaths(model: Outcome, numbers: Iterable[int]) -> list[Point]:
    return [
        Point(number, moment)
        for number in numbers
        for moment in ("before", *(["after"] if is_write(model.calls[number - 1]) else []))
    ]


def test_a_step_of_jobsets_may_die_at_each_kind_of_call(life: Life, say: Say) -> None:
    points = deaths(life.model, places(life))
    assert points
    assert try_deaths(life, points) == []
    say(f"JobSets, {life.name}: a step died at {len(points)} points")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_step_of_jobsets_may_die_at_any_call(life: Life, say: Say) -> None:
    points = [
        Point(number, moment)
        for number in range(1, len(life.model.calls) + 1)
        for moment in ("before", "after")
    ]
    assert try_deaths(life, points) == []
    say(f"JobSets, {life.name}: a step died at all {len(points)} points")


def try_twice(life: Life, numbers: list[int]) -> list[str]:
    """What has gone otherwise than undisturbed, by point."""
    failures = []
    for point in map(twice.Point, numbers):
        make = partial(doubled_world, life.provider)
        outcome = twice.live_doubled(life.play, point, make, JOBSET_STEPS)
        failures += [f"{point.index} {point.call}: {x}" for x in differences(life.model, outcome)]
        if point.answer not in (ACKNOWLEDGED, TRY_AGAIN):
            failures.append(f"{point.index} {point.call}: answered with {point.answer}")
    return failures


def test_a_message_of_jobsets_may_be_processed_twice_at_each_change(life: Life, say: Say) -> None:
    calls = life.model.calls
    numbers = [number for number in places(life) if is_write(calls[number - 1])]
    assert numbers
    assert try_twice(life, numbers) == []
    say(f"JobSets, {life.name}: a message was at work twice at {len(numbers)} points")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_message_of_jobsets_may_be_processed_twice_at_any_call(life: Life, say: Say) -> None:
    numbers = list(range(1, len(life.model.calls) + 1))
    assert try_twice(life, numbers) == []
    say(f"JobSets, {life.name}: a message was at work twice at all {len(numbers)} points")
