"""Pods that wait for candidates of a class: who asks again, and when."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from local.jobsets import PodBehaviour
from shared.settings import GKE, TPU_NODE_GROUP
from shared.triggers.routes import SLICE_STEPS
from tests.faults.jobsets import (
    CANDIDATES,
    FULL,
    SETTINGS,
    limit_reservation,
    limit_zone,
    make_class,
    prepare,
    slices,
)
from tests.stories import helpers
from tests.stories.calls import CallCounter
from tests.stories.helpers import HOUR, MINUTE, PrintFigure
from tests.stories.jobsets import JOBSETS, apply, phases, until
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


class Crowd:
    """JobSets of two namespaces, nine of ten in the first one and those of the other a minute later, ask
    three candidates for slices: the first is out, the second has few, and the class is limited."""

    def __init__(self, provider: str, count: int) -> None:
        self.harness = Harness(helpers.with_heartbeats(), slices=SETTINGS[provider])
        prepare(self.harness)
        self.limit = count // 4
        make_class(self.harness, limits={"slices": self.limit})
        limit_reservation(self.harness, count // 8)
        self.harness.jobsets.behaviour = PodBehaviour(run_s=600)
        self.counter, self.most = CallCounter(self.harness), 0
        self.harness.hooks.after = self.note
        self.few = count // 10
        for number in range(count - self.few):
            apply(self.harness, objects.small_jobset(f"train-{number}"))
        self.harness.run_for(MINUTE)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}
        self.harness.simulation.admin("POST", "/api/v1/namespaces", namespace)
        for number in range(self.few):
            given = objects.small_jobset(f"late-{number}")
            given["metadata"]["namespace"] = "other"
            path = JOBSETS.replace("/default/", "/other/")
            answer = self.harness.simulation.admin("POST", path, given)
            assert answer["kind"] == "JobSet", answer

    def note(self, _step: str, call: str) -> None:
        if call.startswith("POST ") and call.endswith(("/nodePools", "/tpunodegroups")):
            self.most = max(self.most, len(slices(self.harness)))

    def left(self) -> Counter[str]:
        """How many JobSets of each namespace have not ended."""
        path = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
        return Counter(
            one["metadata"]["namespace"]
            for one in self.harness.simulation.admin("GET", path)["items"]
            if "terminalState" not in one.get("status", {})
        )


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
@pytest.mark.parametrize(
    "count", [40, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_many_demands_on_three_candidates_take_their_turns(
    provider: str, count: int, print_figure: PrintFigure
) -> None:
    """Budgets for each demand, in docs/find-capacity.md: calls to the cloud, and invocations."""
    crowd = Crowd(provider, count)
    harness, began = crowd.harness, crowd.harness.clock.now()
    until(harness, lambda: crowd.left()["other"] == 0, 12 * HOUR)
    assert crowd.left()["default"] >= count // (8 if provider == GKE else 4)
    until(harness, lambda: not crowd.left(), 24 * HOUR)
    took = harness.clock.now() - began
    until(harness, lambda: not slices(harness))
    assert harness.leftovers() == []
    assert crowd.most == crowd.limit
    tries = Counter(
        (one["decision"], one["candidate"].rpartition(":")[2].partition("/")[0])
        for one in harness.log.lines
        if one["step"] in SLICE_STEPS and "candidate" in one
    )
    ready = Counter({zone: n for (said, zone), n in tries.items() if said == "BecameReady"})
    assert (ready.total(), ready[FULL]) == (count, 0)
    refused = tries["NextCandidate", FULL]
    assert refused <= crowd.limit + took / (5 * MINUTE), "after the first, one asks in five minutes"
    spent = crowd.counter.cost()
    cloud = spent.writes + spent.reads + harness.gke.calls.counts().total()
    print_figure(
        f"{count} demands, {crowd.limit} slices, one of three candidates out ({provider}): {took}; "
        f"{cloud} calls to the cloud, {len(harness.answers)} invocations, {refused} refusals there"
    )
    assert cloud <= 30 * count
    assert len(harness.answers) <= 45 * count
