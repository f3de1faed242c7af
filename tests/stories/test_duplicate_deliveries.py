"""Two processes handle the same message concurrently; the result is the same as with one.

Pub/Sub may deliver a message again before the first delivery is answered. Here a complete second
invocation for the same message runs at one call of the first one. Each run is the same as the
undisturbed one up to its point. The final state and the number of operations are the same, and nothing
is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shared.frame.execution import ACKNOWLEDGED, TRY_AGAIN
from tests.faults.crashes import (
    SCENARIOS,
    Outcome,
    complete_lifecycle,
    differences,
    first_call_of,
    run_scenario,
)
from tests.stories.duplicates import Point, run_duplicated
from tests.stories.helpers import PrintFigure
from tests.support.harness import Harness

SHARDS = 2
"""The points of a scenario are divided among this number of tests, which run in parallel."""
EVERY = 3
"""The fast test disturbs every third call."""


def check_duplicates(
    scenario: Callable[[Harness], Any], baseline: Outcome, points: list[Point]
) -> list[str]:
    """List the differences from the undisturbed run, by point.

    The second invocation may be asked to retry, because the first one is changing the same object. On a
    real API server, the call at a point may differ from that of the undisturbed run: the uid of a group,
    which is random there, determines the minute of its hourly resync.
    """
    failures = []
    for point in points:
        outcome = run_duplicated(scenario, point)
        assert point.call
        failures += [f"{point.index} {point.call}: {x}" for x in differences(baseline, outcome)]
        if point.answer not in (ACKNOWLEDGED, TRY_AGAIN):
            failures.append(f"{point.index} {point.call}: answered with {point.answer}")
    return failures


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_message_may_be_processed_twice_concurrently(
    scenario: Callable[[Harness], Any], shard: int, print_figure: PrintFigure
) -> None:
    """In scenarios that delete the group early, the points begin at the deletion: the calls before it
    are those of the complete lifecycle."""
    baseline = run_scenario(scenario)
    begin = 0 if scenario is complete_lifecycle else first_call_of("tear_down", baseline.calls)
    points = [Point(index + 1) for index in range(begin, len(baseline.calls), EVERY)][shard::SHARDS]
    assert check_duplicates(scenario, baseline, points) == []
    print_figure(
        f"handle a message twice: {scenario.__name__}: {len(points)} of {len(baseline.calls)} points"
    )


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_every_message_may_be_processed_twice_concurrently_at_every_call(
    scenario: Callable[[Harness], Any], shard: int, print_figure: PrintFigure
) -> None:
    baseline = run_scenario(scenario)
    points = [Point(index) for index in range(1, len(baseline.calls) + 1)][shard::SHARDS]
    assert check_duplicates(scenario, baseline, points) == []
    print_figure(f"handle a message twice: {scenario.__name__}: {len(points)} points of a shard")
