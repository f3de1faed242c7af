"""The relay's metrics of slices: states, durations, losses and repairs."""

from __future__ import annotations

import copy
import json
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from prometheus_client import REGISTRY

from local.cloud.simulation import Options
from local.vm import agents
from relay.group_metrics import GroupMetrics, GroupRecord, read_phases, read_record
from relay.kinds import Change
from relay.metrics import CreationPhase, GroupState
from relay.watching.projection import parse
from shared.base.timestamps import parse_time, render_time
from tests.support.harness import Harness
from tests.support.manifests import manifest
from tests.unit.relay.malformed import make_object, mutate
from tests.unit.relay.objects import Raw, group

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FULL = {"topology": "2x2x2", "targetSizePolicyMode": "BULK", "nodeCount": 2}
OF_THE_RELAY = {"unusable_since", "reason_since"}
"""The fields of a record that the relay observes itself."""


def at(seconds: float) -> str:
    """Return a time this long after the creation, as text."""
    return render_time(NOON + timedelta(seconds=seconds))


def slice_at(seconds: float = 0, status: str = "", reason: str = "", **changes: Any) -> Raw:
    """A group of eight chips whose Ready changed this long after its creation."""
    raw = group(**changes)
    raw["metadata"]["creationTimestamp"] = at(0)
    raw["spec"] = dict(FULL)
    if status:
        condition = {"type": "Ready", "status": status, "reason": reason}
        raw["status"]["conditions"] = [condition | {"lastTransitionTime": at(seconds)}]
    return raw


def completed(
    vms: float, tokens: float, nodes: float, ready: float, mig: float = 5, model: str = "SPOT"
) -> Raw:
    """A slice that has become Ready: MIG and conditions changed this long after its creation."""
    raw = slice_at(ready, "True", "Ready")
    raw["status"]["resources"] = {"managedInstanceGroup": {"state": "Ready", "since": at(mig)}}
    kinds = {"ManagedInstanceGroupReady": vms, "TokensInjected": tokens, "NodesJoined": nodes}
    raw["status"]["conditions"] += [
        {"type": kind, "status": "True", "reason": "Ready", "lastTransitionTime": at(seconds)}
        for kind, seconds in kinds.items()
    ]
    raw["status"] |= {"completedAt": at(ready), "provisioningModel": model}
    return raw


def lost(seconds: float, reason: str = "Preempted") -> Raw:
    """The completed slice after the loss of a VM."""
    raw = completed(60, 70, 100, 120)
    raw["status"]["conditions"][0] |= {
        "status": "False",
        "reason": reason,
        "lastTransitionTime": at(seconds),
    }
    return raw


def repaired(seconds: float) -> Raw:
    """The completed slice after the VM has joined again."""
    raw = completed(60, 70, 100, 120)
    raw["status"]["conditions"][0]["lastTransitionTime"] = at(seconds)
    return raw


def being_repaired(seconds: float) -> Raw:
    """The completed slice that was lost then and is being created again."""
    raw = lost(seconds)
    del raw["status"]["completedAt"]
    raw["status"]["conditions"] = raw["status"]["conditions"][:1]
    raw["status"]["repairs"] = {"count": 1, "lastAt": at(seconds + 10)}
    return raw


def idle_with_maintenance() -> Raw:
    """The completed slice, which no Pod uses and whose VMs have announced maintenance."""
    raw = completed(60, 70, 100, 120)
    maintenance = {"type": "MaintenanceScheduled", "status": "True", "reason": "Pending"}
    raw["status"]["conditions"].append(maintenance | {"lastTransitionTime": at(700)})
    raw["status"]["idleSince"] = at(600)
    return raw


class Scrape:
    """The values of a scrape, and the increases of counters since the test began."""

    def __init__(self) -> None:
        self.now = NOON
        self.slices = GroupMetrics(lambda: self.now)
        self._before = self._samples()

    def _samples(self) -> dict[tuple[str, tuple[str, ...]], float]:
        return {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in REGISTRY.collect()
            for sample in family.samples
            if sample.name.startswith("tpu_functions_") and "relay" not in sample.name
        }

    def gauge(self, name: str, *labels: str) -> float:
        self.slices.update_metrics()
        return self._samples()[f"tpu_functions_{name}", labels]

    def find_increases(self) -> dict[str, float]:
        """Return the increases of counters, and of sums and counts of histograms."""
        return {
            " ".join([name.removeprefix("tpu_functions_slice_"), *labels]): value - before
            for (name, labels), value in self._samples().items()
            if name.endswith(("_total", "_sum", "_count"))
            and (before := self._before.get((name, labels), 0.0)) != value
        }


@pytest.fixture
def scrape() -> Scrape:
    return Scrape()


STATES = {
    "no status": (slice_at(), GroupState.NOT_READY, "NotReported", 0),
    "waits": (slice_at(5, "False", "QuotaExceeded"), GroupState.NOT_READY, "QuotaExceeded", 5),
    "an unknown reason": (slice_at(5, "False", "Haunted"), GroupState.NOT_READY, "Other", 5),
    "unknown": (slice_at(5, "Unknown", "Provisioning"), GroupState.NOT_READY, "Provisioning", 5),
    "ready": (slice_at(90, "True", "Ready"), GroupState.READY, "Ready", 90),
    "ready with an unknown reason": (
        slice_at(90, "True", "Splendid"),
        GroupState.READY,
        "Ready",
        90,
    ),
}


@pytest.mark.parametrize("raw, state, reason, since", STATES.values(), ids=STATES.keys())
def test_a_slice_has_one_state_and_one_reason(
    raw: Raw, state: GroupState, reason: str, since: float
) -> None:
    read = read_record(raw)
    assert (read.state, read.reason) == (state, reason)
    assert read.since == NOON + timedelta(seconds=since)


def test_a_group_with_a_deletion_timestamp_is_deleting_since_then() -> None:
    raw = slice_at(90, "True", "Ready", deleting=True)
    read = read_record(raw)
    assert (read.state, read.reason) == (GroupState.DELETING, "Ready")
    assert read.since == datetime(2026, 1, 1, tzinfo=UTC)


CHIPS = {
    "one slice of two hosts": (FULL, 1, 8, 4),
    "a VM is a slice": (
        {**FULL, "topology": "2x2x1", "targetSizePolicyMode": "INDIVIDUAL"},
        1,
        8,
        4,
    ),
    "more VMs than hosts": (FULL, 3, 8, 8),
    "no spec": ({}, 2, 0, 0),
    "no hosts": ({**FULL, "nodeCount": 0}, 2, 0, 0),
    "no topology": ({**FULL, "topology": "cube"}, 2, 0, 0),
    "too many chips": ({**FULL, "topology": "9999x9999x9999"}, 2, 0, 0),
    "more hosts than a 64-bit integer": ({**FULL, "nodeCount": 2**2000}, 2, 0, 0),
    "a negative number of running VMs": (FULL, -3, 8, 0),
}


@pytest.mark.parametrize("spec, running, chips, running_chips", CHIPS.values(), ids=CHIPS.keys())
def test_chips_follow_from_topology_and_hosts(
    spec: Raw, running: int, chips: int, running_chips: int
) -> None:
    raw = slice_at()
    raw["spec"], raw["status"]["nodeSummary"] = spec, {"running": running}
    read = read_record(raw)
    assert (read.chips, read.running_chips) == (chips, running_chips)


@pytest.mark.parametrize("mode, running_chips", [("BULK", 8), ("INDIVIDUAL", 4)])
def test_the_vms_that_are_usable_without_the_others_are_not_counted_as_unusable(
    mode: str, running_chips: int
) -> None:
    raw = slice_at()
    raw["spec"] = {**FULL, "topology": "2x2x1", "targetSizePolicyMode": mode, "nodeCount": 3}
    raw["spec"] |= {"topology": "2x2x3"} if mode == "BULK" else {}
    raw["status"]["nodeSummary"] = {"running": 2, "ready": 1}
    assert read_record(raw).running_chips == running_chips


def test_gauges_show_slices_and_chips_by_state_and_the_longest_time_in_a_state(
    scrape: Scrape,
) -> None:
    objects = [
        slice_at(30, "False", "InsufficientCapacity", name="a"),
        slice_at(10, "False", "InsufficientCapacity", name="b"),
        slice_at(50, "True", "Ready", name="c"),
    ]
    objects[1]["status"]["nodeSummary"]["running"] = 1
    scrape.slices.relisted(objects)
    scrape.now = NOON + timedelta(seconds=100)
    assert scrape.gauge("slices", "NotReady", "InsufficientCapacity") == 2
    assert scrape.gauge("slices", "Ready", "Ready") == 1
    assert scrape.gauge("slices", "NotReady", "QuotaExceeded") == 0
    longest = "slice_longest_in_state_seconds"
    assert scrape.gauge(longest, "NotReady", "InsufficientCapacity") == 90
    assert scrape.gauge(longest, "Ready", "Ready") == 50
    assert [scrape.gauge("chips", state) for state in GroupState] == [8, 16, 0]
    assert [scrape.gauge("running_chips", state) for state in GroupState] == [0, 4, 0]


def test_the_longest_time_for_which_vms_run_in_a_slice_that_is_not_ready(scrape: Scrape) -> None:
    """Slices that start one after the other add up to nothing."""
    longest, first, second = (
        "slice_longest_unusable_seconds",
        slice_at(name="a"),
        slice_at(name="b"),
    )
    waiting = slice_at(name="c")
    for one in (first, second):
        one["status"]["nodeSummary"]["running"] = 1

    def after(seconds: int, event: Change, raw: Raw) -> float:
        scrape.slices.changed(event, raw)
        scrape.now = NOON + timedelta(seconds=seconds)
        return scrape.gauge(longest)

    scrape.slices.relisted([first, waiting])
    assert after(3000, "MODIFIED", waiting) == 3000
    assert after(3500, "ADDED", second) == 3500
    ready = slice_at(50, "True", "Ready", name="a")
    ready["status"]["nodeSummary"]["running"] = 2
    assert after(4000, "MODIFIED", ready) == 1000
    assert after(4100, "MODIFIED", second) == 1100
    recreated = {**second, "metadata": {**second["metadata"], "uid": "another"}}
    assert after(4200, "MODIFIED", recreated) == 100
    assert after(4300, "DELETED", recreated) == 0


def test_a_reason_that_follows_another_counts_from_when_the_relay_has_seen_it(
    scrape: Scrape,
) -> None:
    longest, hours = "slice_longest_in_state_seconds", 8 * 3600
    scrape.slices.relisted([slice_at(0, "False", "InsufficientCapacity")])
    scrape.now = NOON + timedelta(seconds=hours)
    assert scrape.gauge(longest, "NotReady", "InsufficientCapacity") == hours
    for _ in range(2):
        scrape.slices.changed("MODIFIED", slice_at(0, "False", "AwaitingNodeJoin"))
        assert scrape.gauge(longest, "NotReady", "AwaitingNodeJoin") == 0
        scrape.slices.changed("MODIFIED", slice_at(0, "False", "InsufficientCapacity"))
    scrape.slices.changed("MODIFIED", slice_at(0, "False", "AwaitingNodeJoin"))
    scrape.now += timedelta(seconds=60)
    scrape.slices.relisted([slice_at(0, "False", "AwaitingNodeJoin")])
    assert scrape.gauge(longest, "NotReady", "AwaitingNodeJoin") == 60
    scrape.slices.relisted([slice_at(hours + 50, "False", "AwaitingNodeJoin")])
    assert scrape.gauge(longest, "NotReady", "AwaitingNodeJoin") == 10


def test_a_deletion_counts_from_its_request_whatever_its_reason_becomes(scrape: Scrape) -> None:
    scrape.slices.relisted([slice_at(0, "False", "Provisioning")])
    for reason in ("Provisioning", "DeletingMIG"):
        deleting = slice_at(0, "False", reason)
        deleting["metadata"]["deletionTimestamp"] = at(0)
        scrape.now += timedelta(seconds=60)
        scrape.slices.changed("MODIFIED", deleting)
    assert scrape.gauge("slice_longest_in_state_seconds", "Deleting", "DeletingMIG") == 120


def test_a_deleted_or_recovered_slice_is_no_longer_shown(scrape: Scrape) -> None:
    failed = slice_at(5, "False", "QuotaExceeded")
    scrape.slices.relisted([failed, slice_at(name="b"), slice_at(name="c")])
    scrape.slices.changed("MODIFIED", slice_at(50, "True", "Ready"))
    scrape.slices.changed("DELETED", slice_at(name="b"))
    assert scrape.gauge("slices", "NotReady", "QuotaExceeded") == 0
    assert scrape.gauge("slice_longest_in_state_seconds", "NotReady", "QuotaExceeded") == 0
    assert scrape.gauge("slices", "Ready", "Ready") == 1
    assert scrape.gauge("slices", "NotReady", "NotReported") == 1
    scrape.slices.relisted([])
    assert scrape.gauge("slices", "NotReady", "NotReported") == 0
    assert scrape.gauge("chips", "Ready") == 0


@pytest.mark.parametrize("time", [at(500), "0000-01-01T00:00:00Z"], ids=["future", "invalid"])
def test_a_time_in_the_future_or_an_invalid_time_counts_as_now(scrape: Scrape, time: str) -> None:
    raw = slice_at(0, "False", "Paused")
    raw["status"]["conditions"][0]["lastTransitionTime"] = time
    scrape.slices.relisted([raw])
    assert scrape.gauge("slice_longest_in_state_seconds", "NotReady", "Paused") == 0


PHASES: dict[str, tuple[Raw, tuple[float, ...]]] = {
    "in sequence": (completed(60, 70, 100, 120), (5, 55, 10, 30, 20)),
    "in the same second": (completed(60, 60, 60, 60, 60), (60, 0, 0, 0, 0)),
    "tokens before the last VM": (completed(60, 40, 100, 120), (5, 55, 0, 40, 20)),
    "a clock that is slow": (completed(-5, 10, 20, 30, -7), (0, 0, 10, 10, 10)),
    "a clock that is fast": (completed(60, 70, 500, 120), (5, 55, 10, 50, 0)),
    "a clock that is slow for all": (completed(-9, -8, -7, -6, -10), (0, 0, 0, 0, 0)),
    "a MIG that was found again later": (completed(60, 70, 100, 120, 90), (90, 0, 0, 10, 20)),
}


@pytest.mark.parametrize("raw, spans", PHASES.values(), ids=PHASES.keys())
def test_the_phases_of_a_creation_have_these_durations(raw: Raw, spans: tuple[float, ...]) -> None:
    assert tuple(read_phases(raw).values()) == spans
    assert list(read_phases(raw)) == list(CreationPhase)


def test_a_phase_without_a_time_in_the_status_is_added_to_the_next_one() -> None:
    raw = completed(60, 70, 100, 120)
    raw["status"]["conditions"][2]["lastTransitionTime"] = "yesterday"
    raw["status"]["conditions"][3]["status"] = "False"
    raw["status"]["resources"]["managedInstanceGroup"]["state"] = "Creating"
    assert tuple(read_phases(raw).values()) == (0, 60, 0, 0, 60)


@pytest.mark.parametrize("key", ["creationTimestamp", "completedAt"])
def test_a_creation_without_start_or_end_has_no_phases(key: str) -> None:
    raw = completed(60, 70, 100, 120)
    raw["metadata"].pop(key, None)
    raw["status"].pop(key, None)
    assert read_phases(raw) == {}


def test_a_slice_that_becomes_ready_is_counted_once_by_its_model(scrape: Scrape) -> None:
    scrape.slices.relisted([])
    scrape.slices.changed("ADDED", slice_at())
    for _ in range(3):
        scrape.slices.changed("MODIFIED", completed(60, 70, 100, 120))
    assert scrape.find_increases() == {
        "time_to_ready_seconds_count SPOT": 1,
        "time_to_ready_seconds_sum SPOT": 120,
        **{f"phase_duration_seconds_count {phase}": 1 for phase in CreationPhase},
        "phase_duration_seconds_sum resources": 5,
        "phase_duration_seconds_sum vms": 55,
        "phase_duration_seconds_sum tokens": 10,
        "phase_duration_seconds_sum nodes": 30,
        "phase_duration_seconds_sum ready": 20,
    }


def test_an_unknown_model_is_counted_as_other(scrape: Scrape) -> None:
    scrape.slices.relisted([])
    scrape.slices.changed("ADDED", completed(60, 70, 100, 120, model="BARTER"))
    assert scrape.find_increases()["time_to_ready_seconds_count Other"] == 1


def test_a_restart_counts_nothing_twice(scrape: Scrape) -> None:
    scrape.slices.relisted([completed(60, 70, 100, 120)])
    scrape.slices.changed("MODIFIED", completed(60, 70, 100, 120))
    assert scrape.find_increases() == {}


def test_changes_in_a_later_list_are_counted_as_if_they_had_been_watched(scrape: Scrape) -> None:
    scrape.slices.relisted([slice_at()])
    scrape.slices.relisted([completed(60, 70, 100, 120)])
    assert scrape.find_increases()["time_to_ready_seconds_count SPOT"] == 1
    scrape.slices.relisted([lost(600)])
    assert scrape.find_increases()["losses_total Preempted"] == 1


def test_a_status_that_was_lost_and_written_again_is_not_counted_again(scrape: Scrape) -> None:
    scrape.slices.relisted([completed(60, 70, 100, 120)])
    scrape.slices.changed("MODIFIED", slice_at())
    scrape.slices.changed("MODIFIED", completed(60, 70, 100, 9000))
    assert "time_to_ready_seconds_count SPOT" not in scrape.find_increases()


def test_a_group_that_was_created_again_is_counted_again(scrape: Scrape) -> None:
    scrape.slices.relisted([completed(60, 70, 100, 120)])
    again = completed(60, 70, 100, 120)
    again["metadata"]["uid"] = "uid-2"
    scrape.slices.changed("MODIFIED", again)
    assert scrape.find_increases()["time_to_ready_seconds_count SPOT"] == 1


def test_a_loss_is_counted_by_its_reason_and_a_repair_by_its_duration(scrape: Scrape) -> None:
    scrape.slices.relisted([completed(60, 70, 100, 120)])
    scrape.slices.changed("MODIFIED", lost(600, "NodeNotReady"))
    scrape.slices.changed("MODIFIED", lost(600, "Preempted"))
    scrape.slices.changed("MODIFIED", repaired(900))
    assert scrape.find_increases() == {
        "losses_total NodeNotReady": 1,
        "repairs_total": 1,
        "time_to_repair_seconds_count": 1,
        "time_to_repair_seconds_sum": 300,
    }


def test_a_relay_that_starts_during_a_repair_counts_a_repair_and_no_creation(
    scrape: Scrape,
) -> None:
    scrape.slices.relisted([being_repaired(600)])
    again = completed(60, 70, 100, 120)
    again["status"]["conditions"][0]["lastTransitionTime"] = at(900)
    again["status"] |= {"completedAt": at(900), "repairs": {"count": 1, "lastAt": at(610)}}
    scrape.slices.changed("MODIFIED", again)
    assert scrape.find_increases() == {
        "repairs_total": 1,
        "time_to_repair_seconds_count": 1,
        "time_to_repair_seconds_sum": 300,
    }


def test_a_deletion_is_not_counted_as_a_loss(scrape: Scrape) -> None:
    scrape.slices.relisted([completed(60, 70, 100, 120)])
    deleting = lost(600, "DeletingMIG")
    deleting["metadata"]["deletionTimestamp"] = at(599)
    scrape.slices.changed("MODIFIED", deleting)
    scrape.slices.changed("DELETED", deleting)
    assert scrape.find_increases() == {}


def test_a_slice_that_becomes_ready_without_a_completion_is_not_counted_as_a_repair(
    scrape: Scrape,
) -> None:
    scrape.slices.relisted([slice_at(5, "False", "Provisioning")])
    scrape.slices.changed("MODIFIED", slice_at(50, "True", "Ready"))
    assert scrape.find_increases() == {}


def test_every_field_of_a_slice_that_is_read_is_kept_by_the_projection() -> None:
    running = lost(600)
    running["status"]["nodeSummary"] = {"running": 1}
    slices = [running, idle_with_maintenance(), being_repaired(600)]
    filled = set()
    for raw in slices:
        record, parsed = read_record(raw), parse(json.dumps(raw).encode())
        assert read_record(parsed) == record
        assert read_phases(parsed) == read_phases(raw)
        filled |= {one.name for one in fields(record) if getattr(record, one.name)}
    assert filled == {one.name for one in fields(GroupRecord)} - OF_THE_RELAY


@pytest.mark.parametrize("seed", range(20))
def test_a_status_of_any_form_does_not_stop_the_metrics(seed: int) -> None:
    random, slices = Random(seed), GroupMetrics(lambda: NOON)
    slices.relisted([make_object(random, "TPUNodeGroup") for _ in range(20)])
    for number in range(200):
        raw = copy.deepcopy(random.choice([completed(60, 70, 100, 120), lost(600), slice_at()]))
        raw["metadata"]["name"] = f"g-{number % 7}"
        for _ in range(random.randint(0, 3)):
            mutate(random, raw)
        slices.changed(random.choice(["ADDED", "MODIFIED", "DELETED"]), raw)
        slices.update_metrics()


@pytest.mark.parametrize("key", ["namespace", "name", "uid"])
@pytest.mark.parametrize("event", ["ADDED", "MODIFIED", "DELETED"])
def test_an_object_without_identity_is_not_counted(scrape: Scrape, key: str, event: Any) -> None:
    raw = slice_at(5, "False", "Provisioning")
    del raw["metadata"][key]
    scrape.slices.changed(event, raw)
    assert [scrape.gauge("chips", state) for state in GroupState] == [0, 0, 0]
    scrape.slices.relisted([raw])
    assert [scrape.gauge("chips", state) for state in GroupState] == [0, 0, 0]


def test_a_simulated_creation_has_every_phase() -> None:
    harness = Harness(Options(agents=agents.Timings(boot_s=(150.0, 200.0))))
    harness.apply(manifest("bench"))
    assert harness.run_until(lambda: harness.is_ready("bench"), timedelta(hours=1))
    raw = harness.group("bench")
    assert raw is not None
    read, phases = read_record(raw), read_phases(raw)
    assert (read.state, read.chips, read.running_chips, read.is_complete) == ("Ready", 8, 8, True)
    created, completed_at = (
        parse_time(text)
        for text in (raw["metadata"]["creationTimestamp"], raw["status"]["completedAt"])
    )
    assert sum(phases.values()) == (completed_at - created).total_seconds()
    assert [phase for phase, seconds in phases.items() if not seconds] == []
