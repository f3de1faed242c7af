"""Pods that wait for candidates of a class: who asks again, and when."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from shared.settings import GKE, TPU_NODE_GROUP
from tests.faults.jobsets import (
    CANDIDATES,
    FULL,
    SETTINGS,
    limit_reservation,
    limit_zone,
    make_class,
    prepare,
)
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE, PrintFigure
from tests.stories.jobsets import apply, phases, until
from tests.support import jobset_objects as objects
from tests.support.harness import Harness


def start(provider: str, candidates: list[dict[str, str]], count: int, **options: Any) -> Harness:
    """Single-host JobSets that ask a class for slices."""
    kept = replace(helpers.with_heartbeats(), **options)
    harness = Harness(kept, slices=SETTINGS[provider])
    prepare(harness)
    make_class(harness, candidates)
    for number in range(count):
        apply(harness, objects.small_jobset(f"train-{number}"))
    return harness


def measure(harness: Harness, count: int) -> timedelta:
    """The time until so many Pods run."""
    began = harness.clock.now()
    until(harness, lambda: phases(harness) == ["Running"] * count)
    return harness.clock.now() - began


@pytest.mark.parametrize("provider, minutes", [(TPU_NODE_GROUP, 10), (GKE, 30)])
def test_when_capacity_returns_all_who_have_waited_for_hours_have_slices_within_minutes(
    provider: str, minutes: int, print_figure: PrintFigure
) -> None:
    """The intervals at which their Pods are observed have grown to half an hour by then."""
    harness = start(provider, CANDIDATES[:2], 8)
    harness.run_for(3 * HOUR)
    limit_zone(harness, FULL)
    limit_reservation(harness, 64)
    took = measure(harness, 8)
    print_figure(f"capacity returns, 8 wait: {provider:<15} all run after {took}")
    assert took <= minutes * MINUTE


@pytest.mark.parametrize("without, minutes", [("sweeps", 3), ("relays", 12)])
def test_events_or_the_sweep_alone_bring_a_refused_slice_to_its_next_candidate(
    without: str, minutes: int, print_figure: PrintFigure
) -> None:
    took = measure(start(TPU_NODE_GROUP, CANDIDATES[1:], 1, **{without: False}), 1)
    print_figure(f"one refusal, without {without}: runs after {took}")
    assert took <= minutes * MINUTE
