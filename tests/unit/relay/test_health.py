"""The answers of the probes while a watch is quiet, disconnected or stuck."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from relay.changes.messages import Outbox
from relay.group_metrics import GroupMetrics
from relay.health import Health, serve
from relay.kinds import WatchedKind
from relay.metrics import DESCRIPTIONS, LABELS
from relay.watching.watch import Timing
from relay.watching.watch_health import WatchHealth

TIMING = Timing()
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class SettableClock:
    """A clock that a test sets."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def make_health(kind: WatchedKind, watch_health: WatchHealth, cluster_id: str = "c") -> Health:
    """The health of a relay with one watch."""
    metrics = GroupMetrics(lambda: NOON)
    return Health({kind: watch_health}, Outbox(), metrics, TIMING, lambda: cluster_id)


def listed_watch() -> tuple[SettableClock, WatchHealth, Health]:
    """Return a watch of Nodes that was listed just now."""
    clock = SettableClock()
    watch_health = WatchHealth(clock, listed=True)
    return (
        clock,
        watch_health,
        make_health("Node", watch_health),
    )


def test_a_watch_with_a_recent_event_is_quiet() -> None:
    clock, _, health = listed_watch()
    clock.now += 250
    assert (health.list_stuck(), health.list_not_ready()) == ([], [])


def test_a_watch_that_is_rejected_repeatedly_is_not_ready_but_not_stuck() -> None:
    clock, watch_health, health = listed_watch()
    clock.now += 3600
    watch_health.refusal()
    assert health.list_stuck() == []
    assert health.list_not_ready() == ["Node: no contact with the API server for 3600 s"]


def test_a_silent_watch_is_first_unready_and_then_stuck() -> None:
    clock, _, health = listed_watch()
    clock.now += 300
    assert health.list_stuck() == []
    assert health.list_not_ready() == ["Node: no contact with the API server for 300 s"]
    clock.now += 300
    assert health.list_stuck() == ["Node: stuck: nothing received for 600 s"]


def test_a_contact_makes_a_silent_watch_ready_again() -> None:
    clock, watch_health, health = listed_watch()
    clock.now += 3600
    watch_health.contact()
    assert (health.list_stuck(), health.list_not_ready()) == ([], [])


def test_readyz_names_a_kind_that_the_api_server_does_not_serve() -> None:
    watch_health = WatchHealth(SettableClock())
    health = make_health("JobSet", watch_health)
    watch_health.refusal("404: the API server does not know jobsets")
    assert health.list_not_ready() == [
        "JobSet: not listed yet: 404: the API server does not know jobsets"
    ]
    watch_health.refusal()
    assert health.list_not_ready() == ["JobSet: not listed yet"]


def test_readyz_names_a_kind_that_the_api_server_no_longer_serves() -> None:
    _, watch_health, health = listed_watch()
    watch_health.refusal("404: the API server does not know nodes")
    assert health.list_not_ready() == ["Node: 404: the API server does not know nodes"]
    watch_health.contact()
    assert health.list_not_ready() == []


def test_readyz_says_that_the_clusters_id_is_unread_and_the_relay_is_alive() -> None:
    health = make_health("Node", WatchHealth(SettableClock(), listed=True), "")
    assert health.list_not_ready() == [
        "Namespace kube-system: its uid, the cluster's id, not read yet: nothing is published"
    ]
    assert health.list_stuck() == []


ANSWERS: dict[str, tuple[str, int, str]] = {
    "alive": ("/healthz", 200, "ok\n"),
    "not listed": ("/readyz", 503, "Node: not listed yet\n"),
}


async def get(health: Health, path: str) -> tuple[int, str]:
    """Return status and text of a request over a real port."""
    runner, port = await serve(health, 0)
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}{path}") as response,
        ):
            return response.status, await response.text()
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("path, status, text", ANSWERS.values(), ids=ANSWERS.keys())
def test_the_probes_answer_with_a_status_and_a_reason(path: str, status: int, text: str) -> None:
    health = make_health("Node", WatchHealth(SettableClock()))
    assert asyncio.run(get(health, path)) == (status, text)


def test_metrics_show_every_series_from_the_start_and_only_documented_labels() -> None:
    clock, _, health = listed_watch()
    clock.now += 12
    _, text = asyncio.run(get(health, "/metrics"))
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for one in DESCRIPTIONS:
        samples = families[one.name.removesuffix("_total")].samples
        assert samples, one.name
        for sample in samples:
            labels = {key: value for key, value in sample.labels.items() if key != "le"}
            assert set(labels) == set(one.labels), one.name
            assert all(value in LABELS[key] for key, value in labels.items()), one.name
    silences = families["tpu_functions_relay_watch_silence_seconds"].samples
    assert [one.value for one in silences if one.labels["kind"] == "Node"] == [12]
