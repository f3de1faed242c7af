"""Events alone or the sweep alone are enough; outages, duplicates and replays change no result."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from local import pubsub
from local.cloud.simulation import Options
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE, ONE_HOST, SPOT
from tests.support.harness import Harness
from tests.support.manifests import manifest

EVENTS_ONLY = Options(sweeps=False)
SWEEP_ONLY = Options(relays=False, sinks=False)

either = pytest.mark.parametrize(
    "options", [EVENTS_ONLY, SWEEP_ONLY], ids=["events only", "sweep only"]
)


@either
@pytest.mark.parametrize(
    "change",
    [{}, {**ONE_HOST, "nodeCount": 3}, {"instanceConfig": SPOT}],
    ids=["BULK", "INDIVIDUAL", "SPOT"],
)
def test_the_lifecycle_of_a_slice_completes(options: Options, change: dict[str, Any]) -> None:
    harness = Harness(options)
    harness.apply(manifest(**change))
    helpers.until_ready(harness)
    helpers.assert_deleted_completely(harness)


@either
def test_vms_that_join_by_other_means(options: Options) -> None:
    joined = helpers.JOIN_BY_OTHER_MEANS
    harness = Harness(replace(options, agents=joined.agents))
    harness.apply(manifest(bootstrapKubernetes=None))
    helpers.until_ready(harness)
    helpers.assert_deleted_completely(harness)


@either
def test_a_vm_preempted_after_completion(options: Options) -> None:
    """Without events, the sweep finds within an hour that a VM is down, but not why."""
    words = {"Preempted"} if options is EVENTS_ONLY else {"NodeLost", "NodeNotReady"}
    harness = helpers.ready(manifest(instanceConfig=SPOT), options)
    lost = helpers.vms(harness)[0]
    harness.simulation.gce.faults.preempt(lost)
    helpers.until(harness, lambda: not harness.is_ready(helpers.NAME), 2 * HOUR)
    assert list(helpers.pending(harness)) == [helpers.vm_name(lost)]
    assert set(helpers.pending(harness).values()) <= words
    helpers.assert_deleted_completely(harness)


@either
def test_a_vm_deleted_manually_from_a_group_with_repair(options: Options) -> None:
    harness = helpers.ready(manifest(**{**ONE_HOST, "nodeCount": 2}), options)
    lost = helpers.vms(harness)[0]
    old = helpers.get(harness, lost)["id"]
    harness.simulation.gce.faults.act_as_user("DELETE", lost)

    def is_back() -> bool:
        label = "node-restriction.kubernetes.io/tpu-functions-vm-id"
        proved = {node["metadata"]["labels"].get(label) for node in helpers.nodes(harness).values()}
        return len(proved) == 2 and old not in proved and harness.is_ready(helpers.NAME)

    helpers.until(harness, is_back, 2 * HOUR)
    helpers.assert_deleted_completely(harness)


@either
@pytest.mark.parametrize("after_s", [0.5, 2, 4, 8, 20, 45, 70, 100])
def test_deletion_during_creation(options: Options, after_s: float) -> None:
    start = MINUTE if options is SWEEP_ONLY else timedelta(0)
    harness = Harness(options)
    harness.apply(manifest())
    harness.run_for(start + timedelta(seconds=after_s))
    helpers.assert_deleted_completely(harness)


@pytest.mark.parametrize("after_s", [0.5, 3, 30, 80, 400])
def test_pub_sub_is_unavailable_for_twenty_minutes(after_s: float) -> None:
    harness = Harness()
    harness.apply(manifest())
    harness.run_for(timedelta(seconds=after_s))
    harness.simulation.pubsub.begin_outage()
    harness.run_for(20 * MINUTE)
    harness.simulation.pubsub.end_outage()
    helpers.until_ready(harness, timeout=10 * MINUTE)
    assert harness.operations == _INSERTED
    helpers.assert_deleted_completely(harness)


@pytest.mark.parametrize("after_s", [0.5, 5, 40, 60])
def test_pub_sub_is_unavailable_while_a_group_is_deleted(after_s: float) -> None:
    harness = helpers.ready()
    harness.delete(helpers.NAME)
    harness.run_for(timedelta(seconds=after_s))
    harness.simulation.pubsub.begin_outage()
    harness.run_for(20 * MINUTE)
    harness.simulation.pubsub.end_outage()
    helpers.until_gone(harness, timeout=10 * MINUTE)
    assert harness.leftovers() == []


@pytest.mark.parametrize("seed", range(3))
def test_duplicate_and_reordered_messages_create_nothing_twice(seed: int) -> None:
    options = Options(pubsub=pubsub.Timings(duplicates=1.0, delay_s=5.0))
    harness = Harness(options, seed=seed)
    helpers.ready_slice(harness, manifest())
    assert harness.operations == _INSERTED
    assert helpers.condition_of(harness) == ("True", "Ready", "All nodes are ready")
    helpers.assert_deleted_completely(harness)
    assert harness.operations == {**_INSERTED, **_DELETED}


_INSERTED = {
    "resourcePolicies.insert": 1,
    "instanceTemplates.insert": 1,
    "instanceGroupManagers.insert": 1,
    "instances.insert": 2,
}


_DELETED = {method.replace("insert", "delete"): count for method, count in _INSERTED.items()}


class Recorder:
    """Records all messages, to deliver them again."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.messages: list[tuple[str, bytes, dict[str, str]]] = []
        publish = harness.simulation.publish

        def record(step: str, data: bytes, attributes: Any) -> None:
            self.messages.append((step, data, dict(attributes)))
            publish(step, data, attributes)

        harness.simulation.publish = record  # type: ignore[method-assign]
        self._publish: Callable[[str, bytes, dict[str, str]], None] = publish

    def replay(self, *, backwards: bool) -> None:
        """Deliver all messages except resyncs, which steps drop if they are old, and let the steps
        run."""
        messages = [it for it in self.messages if b'"Resync"' not in it[1] and it[0] != "sweep"]
        for message in reversed(messages) if backwards else messages:
            self._publish(*message)
            self._harness.run_for(timedelta(seconds=1))


replayed = pytest.mark.parametrize("backwards", [False, True], ids=["in order", "backwards"])


@replayed
def test_messages_replayed_to_a_ready_slice_change_nothing(backwards: bool) -> None:
    harness = Harness(EVENTS_ONLY)
    recorder = Recorder(harness)
    helpers.ready_slice(harness, manifest())
    before, writes = _snapshot(harness), harness.simulation.gce.calls.writes()
    recorder.replay(backwards=backwards)
    assert len(recorder.messages) > 8
    assert _snapshot(harness) == before
    assert harness.simulation.gce.calls.writes() == writes


@replayed
def test_messages_replayed_after_a_loss_change_nothing(backwards: bool) -> None:
    harness = Harness(replace(helpers.with_heartbeats(), sweeps=False))
    recorder = Recorder(harness)
    helpers.ready_slice(harness, manifest(instanceConfig=SPOT))
    harness.simulation.gce.faults.preempt(helpers.vms(harness)[0])
    harness.run_for(10 * MINUTE)
    before, writes = _snapshot(harness), harness.simulation.gce.calls.writes()
    assert helpers.condition_of(harness)[1] == "Preempted"
    recorder.replay(backwards=backwards)
    assert _snapshot(harness) == before
    assert harness.simulation.gce.calls.writes() == writes


@replayed
def test_messages_of_a_group_that_is_gone_change_nothing(backwards: bool) -> None:
    harness = Harness(EVENTS_ONLY)
    recorder = Recorder(harness)
    helpers.ready_slice(harness, manifest())
    harness.delete(helpers.NAME)
    helpers.until_gone(harness)
    writes = harness.simulation.gce.calls.writes()
    recorder.replay(backwards=backwards)
    assert harness.leftovers() == []
    assert harness.simulation.gce.calls.writes() == writes


@replayed
def test_messages_of_a_predecessor_do_not_touch_its_successor(backwards: bool) -> None:
    harness = Harness(EVENTS_ONLY)
    recorder = Recorder(harness)
    helpers.ready_slice(harness, manifest())
    harness.delete(helpers.NAME)
    helpers.until_gone(harness)
    old = list(recorder.messages)
    helpers.ready_slice(harness, manifest())
    before, writes = _snapshot(harness), harness.simulation.gce.calls.writes()
    recorder.messages = old
    recorder.replay(backwards=backwards)
    assert _snapshot(harness) == before
    assert harness.simulation.gce.calls.writes() == writes


def _snapshot(harness: Harness) -> str:
    """The group with its resourceVersion, which any write changes."""
    return json.dumps(harness.group(helpers.NAME), sort_keys=True)
