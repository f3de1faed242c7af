"""A step is killed before and after each of its calls; the result does not change.

Each scenario (the complete lifecycle of two hosts, and deletions during the creation) runs in one
process on a virtual clock. Each run is the same as the undisturbed one up to its point. There the step's
process ends (no handler catches it), Pub/Sub delivers the message again, and the sweep runs. The final
state and the number of operations are the same, the run takes at most 15 seconds longer, and nothing is
left an hour later. Tokens and Kubernetes Events are not compared: a process that is killed after it has
generated a token and before it has stored the token generates another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.faults.crashes import (
    SCENARIOS,
    Outcome,
    Point,
    complete_lifecycle,
    differences,
    first_call_of,
    is_write,
    kind,
    run_scenario,
)
from tests.stories.helpers import PrintFigure
from tests.support.harness import Harness

MAX_DELAY = timedelta(seconds=15)
"""How much longer a scenario may take if a step is killed."""
SHARDS = 8
"""The points of a scenario are divided among this number of tests, which run in parallel."""


@pytest.mark.parametrize("shard", range(2))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_step_may_be_killed_at_each_kind_of_call(
    scenario: Callable[[Harness], Any], shard: int, print_figure: PrintFigure
) -> None:
    """Before the first read of a kind, after the first write of a kind, and before the second one.

    A scenario that deletes the group early is the same as the complete lifecycle up to its deletion, so
    its points begin there.
    """
    baseline = run_scenario(scenario)
    begin = 0 if scenario is complete_lifecycle else first_call_of("tear_down", baseline.calls)
    moments = {True: ("after", "before"), False: ("before",)}
    points: list[Point] = []
    times: Counter[str] = Counter()
    for index, call in enumerate(baseline.calls[begin:], begin + 1):
        at = moments[is_write(call)][times[kind(call)] :][:1]
        points += [Point(index, moment) for moment in at]
        times[kind(call)] += 1
    assert {kind(baseline.calls[point.index - 1]) for point in points} == set(times)
    check_kills(scenario, baseline, points[shard::2], print_figure)


@pytest.mark.conformance(cases={"deleted_during_creation-0": "del-during-create"})
@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_step_may_be_killed_at_any_call(
    scenario: Callable[[Harness], Any], shard: int, print_figure: PrintFigure
) -> None:
    baseline = run_scenario(scenario)
    points = [
        Point(index, moment)
        for index in range(1, len(baseline.calls) + 1)
        for moment in ("before", "after")
    ]
    check_kills(scenario, baseline, points[shard::SHARDS], print_figure)


def check_kills(
    scenario: Callable[[Harness], Any],
    baseline: Outcome,
    points: list[Point],
    print_figure: PrintFigure,
) -> None:
    """Run the scenario once for each point; each run has the result of the undisturbed one."""
    assert baseline.leftovers == []
    failures = []
    for point in points:
        outcome = run_scenario(scenario, point)
        assert point.is_reached
        failures += [
            f"{point.index} {point.moment} {point.call}: {x}"
            for x in differences(baseline, outcome)
        ]
        if outcome.took > baseline.took + MAX_DELAY:
            failures.append(f"{point.index} {point.moment} {point.call}: took {outcome.took}")
    print_figure(
        f"kill a step: {scenario.__name__}: {len(points)} points, {len(failures)} failures"
    )
    assert failures == []
