"""Invariants of a subscription: no message is lost, and none is invented."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local.pubsub.model import RetryPolicy
from local.pubsub.subscription import Subscription, Timings
from local.tests.pubsub.service import DEAD_SUBSCRIPTION, SUBSCRIPTION, Service

DAY_S = 86_400
STATUSES: list[int | None] = [200, 204, 500, 503, 429, None]

Act = Callable[[Service], object]


def publish(service: Service) -> None:
    if not service.pubsub.has_outage:
        service.publish(b"x")


def run_for(seconds: float) -> Act:
    return lambda service: service.clock.run_for(seconds)


def answer_with(status: int | None) -> Act:
    return lambda service: service.endpoint.statuses.__setitem__(0, status)


def hang(service: Service) -> None:
    service.endpoint.hangs = not service.endpoint.hangs


ACTS: st.SearchStrategy[Act] = st.one_of(
    st.just(publish),
    st.floats(0, 120).map(run_for),
    st.sampled_from(STATUSES).map(answer_with),
    st.just(hang),
    st.sampled_from([lambda s: s.pubsub.begin_outage(), lambda s: s.pubsub.end_outage()]),
)


def settle(service: Service) -> None:
    service.pubsub.end_outage()
    service.endpoint.hangs = False
    service.endpoint.statuses = [200]
    service.clock.run_for(DAY_S)


def delivered_ids(service: Service) -> set[str]:
    return {envelope["message"]["messageId"] for _, envelope in service.endpoint.pushes}


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTS, max_size=40))
def test_every_message_ends_acknowledged_or_as_a_dead_letter(acts: list[Act]) -> None:
    service = Service()
    subscription = service.subscribe(retry=RetryPolicy(1, 60), max_attempts=5)
    for act in acts:
        act(service)
    settle(service)
    counts = subscription.counts
    assert counts.acknowledged + counts.dead_lettered == counts.received
    assert counts.delivered == counts.acknowledged + counts.refused
    assert service.pubsub.backlog(DEAD_SUBSCRIPTION) == counts.dead_lettered
    assert (subscription.backlog, subscription.outstanding) == (0, 0)
    assert len(delivered_ids(service)) == counts.received


@settings(max_examples=100, deadline=None)
@given(st.lists(ACTS, max_size=40), st.integers(0, 5))
def test_without_a_dead_letter_policy_every_message_ends_acknowledged(
    acts: list[Act], seed: int
) -> None:
    service = Service(Timings(duplicates=0.3, delay_s=5.0), seed=seed)
    subscription = service.subscribe()
    for act in acts:
        act(service)
    settle(service)
    assert len(delivered_ids(service)) == subscription.counts.received
    assert subscription.counts.acknowledged >= subscription.counts.received
    assert subscription.backlog == 0


def noisy_run(seed: int) -> tuple[list[tuple[float, dict[str, Any]]], Subscription]:
    service = Service(Timings(duplicates=0.2, delay_s=3.0), seed=seed)
    subscription = service.subscribe(retry=RetryPolicy(1, 10), max_attempts=5)
    dice = Random(seed)
    service.endpoint.status_of = lambda _: dice.choice(STATUSES)
    for number in range(50):
        service.publish(b"%d" % number)
        service.clock.run_for(0.5)
    service.clock.run_for(600)
    return service.endpoint.pushes, subscription


def test_the_same_seed_gives_the_same_run() -> None:
    (first, _), (second, _) = noisy_run(7), noisy_run(7)
    assert first == second


def test_another_seed_gives_another_run() -> None:
    (first, _), (second, _) = noisy_run(7), noisy_run(8)
    assert [moment for moment, _ in first] != [moment for moment, _ in second]


@pytest.mark.parametrize("window", [1, 3_000])
def test_the_window_limits_concurrent_pushes(window: int) -> None:
    service = Service()
    subscription = service.subscribe()
    subscription.flow.window = window
    service.endpoint.hangs = True
    service.publish(*[b"x"] * 3_100)
    service.clock.run_for(1)
    assert service.endpoint.in_flight == window
    assert service.pubsub.backlog(SUBSCRIPTION) == 3_100
