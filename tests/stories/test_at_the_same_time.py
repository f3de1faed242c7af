"""A message is at work in two processes at once; the life goes as if it had come once.

Pub/Sub may deliver a message again while the first delivery is still being answered. Here a second
invocation of the same message runs, whole, at one call of the first: each run is the undisturbed one
up to its point. In the end: the same state, the same number of things made and deleted, nothing left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import pytest

from shared.base.names import STEPS
from shared.frame.step import ACKNOWLEDGED, TRY_AGAIN
from tests.faults.test_crash_anywhere import (
    LIVES,
    Outcome,
    differences,
    first_call_of,
    live,
    whole_life,
)
from tests.harness import Harness
from tests.stories.life import HOUR, Say

SHARDS = 2
"""The points of a life are spread over so many tests, for as many processes."""
EVERY = 3
"""So many points apart are those that are always tried."""


@dataclass
class Point:
    """The call of a step at which the second invocation runs; counted through the whole life."""

    index: int
    call: str = ""
    answer: int = 0


class Doubled(Harness):
    """A simulation in which the message at work can be worked on a second time."""

    at_work: Callable[[], int]

    def _serve(self, step: str) -> Callable[[bytes], int]:
        serve = super()._serve(step)

        def remember(body: bytes) -> int:
            self.at_work = lambda: serve(body)
            return serve(body)

        return remember


def live_doubled(
    play: Callable[[Harness], Any],
    point: Point,
    make: Callable[[], Doubled] = Doubled,
    steps: Collection[str] = STEPS,
) -> Outcome:
    """One life, with one message of it at work twice: of one of ``steps``, whose calls count."""
    harness = make()
    calls: list[str] = []
    is_second = False

    def before(step: str, call: str) -> None:
        nonlocal is_second
        if is_second or step not in steps:
            return
        calls.append(f"{step}: {call}")
        if len(calls) == point.index:
            point.call = calls[-1]
            is_second = True
            point.answer = harness.at_work()
            is_second = False

    harness.hooks.before = before
    ready = play(harness)
    harness.run_for(HOUR)
    return Outcome(ready, harness.made, harness.node_deletes(), harness.leftovers(), calls)


def try_points(play: Callable[[Harness], Any], model: Outcome, points: list[Point]) -> list[str]:
    """What has gone otherwise than undisturbed, by point.

    The second may be told to come again: what it would change is being changed. Which call a point is
    may differ from the undisturbed life's where a real API server draws the uid: it says in which
    minute of an hour a group is looked at.
    """
    failures = []
    for point in points:
        outcome = live_doubled(play, point)
        assert point.call
        failures += [f"{point.index} {point.call}: {x}" for x in differences(model, outcome)]
        if point.answer not in (ACKNOWLEDGED, TRY_AGAIN):
            failures.append(f"{point.index} {point.call}: answered with {point.answer}")
    return failures


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("play", LIVES, ids=lambda play: play.__name__)
def test_a_message_may_be_processed_twice_concurrently(
    play: Callable[[Harness], Any], shard: int, say: Say
) -> None:
    """In lives that end early from their deletion on: until then they are the whole one."""
    model = live(play)
    begin = 0 if play is whole_life else first_call_of("tear_down", model.calls)
    points = [Point(index + 1) for index in range(begin, len(model.calls), EVERY)][shard::SHARDS]
    assert try_points(play, model, points) == []
    say(f"at the same time: {play.__name__}: {len(points)} of {len(model.calls)} points held")


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("play", LIVES, ids=lambda play: play.__name__)
def test_every_message_may_be_processed_twice_concurrently_at_every_call(
    play: Callable[[Harness], Any], shard: int, say: Say
) -> None:
    model = live(play)
    points = [Point(index) for index in range(1, len(model.calls) + 1)][shard::SHARDS]
    assert try_points(play, model, points) == []
    say(f"at the same time: {play.__name__}: all {len(points)} points of a shard held")
