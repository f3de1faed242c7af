# ruff: noqa: E501  (a table reads best with a row on a line)
"""Waiting Pods and ended JobSets are reported once. Other Pods and JobSets are not cached."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterable
from datetime import timedelta

import pytest

from relay.changes.ends import RECENT
from relay.changes.messages import Outbox
from relay.kinds import Change
from shared.base.names import TPU_RESOURCE
from shared.base.timestamps import render_time
from shared.slices.kinds.jobset import JOBSET, JobSetKind
from shared.slices.kinds.kind import Claim
from shared.slices.units import OPT_OUT, Demand
from tests.unit.relay.objects import (
    START,
    Raw,
    cpu_pod,
    held_pod,
    jobset,
    pod,
    projected,
    seconds,
    slice_group,
)

Report = tuple[str, str, str, str, str]
"""Step, cause, kind, name and uid of a message."""

LEADER = "train-workers-0-0-abcde"
WAITING: Report = ("provision_slice", "Unschedulable", "Pod", LEADER, "pod-uid-1")
ENDED: Report = ("release_slice", "Completed", "JobSet", "train", "jobset-uid-1")
DELETED: Report = ("release_slice", "Gone", "JobSet", "train", "jobset-uid-1")


def take_reports(outbox: Outbox, at_s: float = 0) -> list[Report]:
    """Return the messages that are due at that time."""
    return [
        (one.step, str(one.message.cause), one.message.kind, one.message.name, one.message.uid)
        for one in outbox.take_due(seconds(at_s))
    ]


def settled_outbox(pods: Iterable[Raw] = (), jobsets: Iterable[Raw] = ()) -> Outbox:
    """An outbox that listed these an hour ago and has nothing pending."""
    outbox = Outbox()
    outbox.relisted("Pod", pods, START - timedelta(hours=1))
    outbox.relisted("JobSet", jobsets, START - timedelta(hours=1))
    outbox.take_due(START - timedelta(hours=1))
    return outbox


# Pods

OTHER_PODS: dict[str, Raw] = {
    "not scheduled yet": pod(scheduled="", reason=""),
    "blocked by a scheduling gate": pod(reason="SchedulingGated"),
    "scheduled": pod(scheduled="True", reason=""),
    "running": pod(phase="Running"),
    "not a leader": pod(index="1"),
    "without chips": pod(chips=""),
    "without a topology": pod(topology=""),
    "without its volume claim": pod(
        message='0/4 nodes are available: persistentvolumeclaim "data" not found.'
    ),
    "opted out by a label": pod(labels={OPT_OUT: "true"}),
    "opted out by an annotation": pod(annotations={OPT_OUT: "Yes"}),
    "being deleted": pod(deleting=True),
    "malformed": {"metadata": {"name": "x", "labels": []}, "spec": None, "status": []},
}


def test_a_waiting_leader_is_reported_with_its_uid() -> None:
    outbox = settled_outbox()
    outbox.changed("Pod", "ADDED", pod(), START)
    assert take_reports(outbox) == [WAITING]


@pytest.mark.parametrize("raw", OTHER_PODS.values(), ids=OTHER_PODS.keys())
def test_other_pods_are_neither_reported_nor_cached(raw: Raw) -> None:
    outbox = settled_outbox()
    outbox.changed("Pod", "ADDED", raw, START)
    outbox.changed("Pod", "MODIFIED", raw, START)
    outbox.relisted("Pod", [raw], START)
    assert (take_reports(outbox), outbox.pods.count_by_kind()) == ([], {})


@pytest.mark.parametrize("raw", OTHER_PODS.values(), ids=OTHER_PODS.keys())
def test_a_pod_is_reported_when_it_becomes_a_waiting_leader(raw: Raw) -> None:
    outbox = settled_outbox([raw])
    outbox.changed("Pod", "MODIFIED", pod(), START)
    assert take_reports(outbox) == [WAITING]


UNCHANGED: dict[str, Raw] = {
    "the same": pod(),
    "a new message of the scheduler": pod(message="0/4 nodes are available."),
    "an unrelated annotation": pod(annotations={"example.com/note": "1"}),
}
NEW_REQUESTS: dict[str, Raw] = {
    "a label": pod(labels={"team": "a"}),
    "a template": pod(annotations={"tpu-functions.dev/slice-template": "spot"}),
    "a topology": pod(topology="2x2x4"),
    "chips": pod(chips="1"),
    "a toleration": pod(tolerations=({"key": "google.com/tpu", "operator": "Exists"},)),
}


@pytest.mark.parametrize("raw", UNCHANGED.values(), ids=UNCHANGED.keys())
def test_a_leader_that_still_waits_is_not_reported_again(raw: Raw) -> None:
    outbox = settled_outbox([projected(pod())])
    outbox.changed("Pod", "MODIFIED", projected(raw), START)
    outbox.relisted("Pod", [projected(raw)], START)
    assert take_reports(outbox) == []


@pytest.mark.parametrize("raw", NEW_REQUESTS.values(), ids=NEW_REQUESTS.keys())
def test_a_leader_with_other_requirements_is_reported_again(raw: Raw) -> None:
    outbox = settled_outbox([projected(pod())])
    outbox.changed("Pod", "MODIFIED", projected(raw), START)
    assert take_reports(outbox) == [WAITING]


def test_a_leader_that_opts_in_again_is_reported_again() -> None:
    outbox = settled_outbox([pod()])
    outbox.changed("Pod", "MODIFIED", pod(labels={OPT_OUT: "true"}), START)
    assert take_reports(outbox) == []
    outbox.changed("Pod", "MODIFIED", pod(), seconds(1))
    assert take_reports(outbox, 1) == [WAITING]


def test_a_pod_with_the_same_name_and_another_uid_is_reported() -> None:
    outbox = settled_outbox([pod()])
    outbox.relisted("Pod", [pod(uid="pod-uid-2")], START)
    assert take_reports(outbox) == [(*WAITING[:-1], "pod-uid-2")]
    assert outbox.pods.count_by_kind() == {"JobSet": 1}


def test_waiting_leaders_are_reported_after_a_start_and_new_ones_after_each_list() -> None:
    outbox = Outbox()
    outbox.relisted("Pod", [pod()], START)
    assert take_reports(outbox) == [WAITING]
    outbox.relisted("Pod", [pod(), pod("new", uid="pod-uid-2")], seconds(60))
    assert take_reports(outbox, 60) == [(*WAITING[:-2], "new", "pod-uid-2")]


def with_counts(**counts: int) -> Raw:
    """A slice whose MIG does not report yet that all VMs exist."""
    raw = slice_group()
    raw["status"]["nodeSummary"] = counts
    return raw


WOKEN: Report = ("provision_slice", "Resync", "Pod", LEADER, "pod-uid-1")
SLICE_CHANGES: dict[str, tuple[Raw, Raw, list[Report]]] = {
    "refused": (slice_group(), slice_group("QuotaExceeded"), [WOKEN]),
    "refused for another reason": (slice_group("QuotaExceeded"), slice_group("ReservationFull"), [WOKEN]),
    "granted": (slice_group(), slice_group(has_vms=True), [WOKEN]),
    "its first VM runs": (slice_group(), with_counts(running=1), [WOKEN]),
    "its first Node has joined": (slice_group(), with_counts(joined=1), [WOKEN]),
    "all its VMs run after the first": (with_counts(running=1), slice_group(has_vms=True), []),
    "still refused": (slice_group("QuotaExceeded"), slice_group("QuotaExceeded"), []),
    "joining": (slice_group(has_vms=True), slice_group("AwaitingNodeJoin", has_vms=True), []),
    "refused, without a class": (slice_group(of=""), slice_group("QuotaExceeded", of=""), []),
    "another slice is refused": (slice_group(name="a"), slice_group("QuotaExceeded", name="a"), []),
}  # fmt: skip


@pytest.mark.parametrize("case", SLICE_CHANGES.values(), ids=SLICE_CHANGES)
def test_a_leader_is_woken_when_its_slice_is_refused_or_granted(
    case: tuple[Raw, Raw, list[Report]],
) -> None:
    before, after, woken = case
    outbox = settled_outbox([projected(pod())])
    outbox.relisted("TPUNodeGroup", [projected(before)], START - timedelta(hours=1))
    outbox.take_due(START - timedelta(hours=1))
    outbox.changed("TPUNodeGroup", "MODIFIED", projected(after), START)
    assert take_reports(outbox) == woken


@pytest.mark.parametrize("is_listed", [False, True], ids=["watched", "listed"])
def test_a_leader_is_woken_when_its_slice_is_gone(is_listed: bool) -> None:
    outbox = settled_outbox([projected(pod())])
    outbox.relisted("TPUNodeGroup", [slice_group(), slice_group(name="a")], START)
    outbox.take_due(START)
    if is_listed:
        outbox.relisted("TPUNodeGroup", [slice_group(name="a")], seconds(60))
    else:
        outbox.changed("TPUNodeGroup", "DELETED", slice_group(), seconds(60))
    assert take_reports(outbox, 60) == [WOKEN]


ENDS_OF_WAITING: dict[str, Callable[[Outbox], None]] = {
    "deleted, or no longer Pending": lambda outbox: outbox.changed("Pod", "DELETED", pod(), START),
    "scheduled": lambda outbox: outbox.changed("Pod", "MODIFIED", pod(scheduled="True"), START),
    "not in the list": lambda outbox: outbox.relisted("Pod", [], START),
}


@pytest.mark.parametrize("end", ENDS_OF_WAITING.values(), ids=ENDS_OF_WAITING.keys())
def test_a_leader_that_no_longer_waits_is_no_longer_reported(end: Callable[[Outbox], None]) -> None:
    outbox = settled_outbox()
    outbox.changed("Pod", "ADDED", pod(), START)
    end(outbox)
    assert (take_reports(outbox), outbox.pods.count_by_kind()) == ([], {})


@pytest.mark.parametrize("end", ENDS_OF_WAITING.values(), ids=ENDS_OF_WAITING.keys())
def test_an_unpublished_message_is_dropped_when_its_leader_no_longer_waits(
    end: Callable[[Outbox], None],
) -> None:
    outbox = settled_outbox()
    outbox.changed("Pod", "ADDED", pod(), START)
    taken = outbox.take_due(START)
    end(outbox)
    outbox.returned(taken, seconds(1))
    assert outbox.next_due() is None


def test_messages_that_could_not_be_published_are_published_again() -> None:
    outbox = settled_outbox()
    outbox.changed("Pod", "ADDED", pod(), START)
    outbox.returned(outbox.take_due(START), START)
    assert (take_reports(outbox, 5), take_reports(outbox, 6)) == ([], [WAITING])


# JobSets


@pytest.mark.parametrize("end", ["Completed", "Failed"])
def test_a_jobset_that_has_ended_is_reported_once(end: str) -> None:
    outbox = settled_outbox(jobsets=[jobset()])
    outbox.changed("JobSet", "MODIFIED", jobset(end=end), START)
    assert take_reports(outbox) == [("release_slice", end, "JobSet", "train", "jobset-uid-1")]
    outbox.changed("JobSet", "MODIFIED", jobset(end=end, restarts=1), seconds(60))
    outbox.changed("JobSet", "DELETED", jobset(end=end), seconds(61))
    assert take_reports(outbox, 61) == []


def test_a_jobset_that_is_deleted_before_its_end_is_reported() -> None:
    outbox = settled_outbox(jobsets=[jobset()])
    outbox.changed("JobSet", "DELETED", jobset(), START)
    assert (take_reports(outbox), len(outbox.jobsets.known)) == ([DELETED], 0)


CHANGES: dict[str, tuple[list[Raw], list[str]]] = {
    "deleted in the foreground": ([jobset(deleting=True)] * 2, ["Deleting"]),
    "deleted after its end": ([jobset(end="Completed"), jobset(end="Completed", deleting=True)], ["Completed"]),
    "one Job after the other completes": ([jobset(completed=1), jobset(completed=1), jobset(completed=3)], ["Completed"] * 2),
    "its last Job completes": ([jobset(completed=1, end="Completed")], ["Completed"]),
    "its Jobs are restarted": ([jobset(completed=1), jobset(restarts=1), jobset(completed=1)], ["Completed"] * 2),
}  # fmt: skip


@pytest.mark.parametrize("raws, causes", CHANGES.values(), ids=CHANGES.keys())
def test_the_deletion_of_a_jobset_and_each_completed_job_is_reported_once(
    raws: list[Raw], causes: list[str]
) -> None:
    outbox, reported = settled_outbox(jobsets=[jobset()]), []
    for number, raw in enumerate([*raws, raws[-1]]):
        outbox.changed("JobSet", "MODIFIED", projected(raw), seconds(60 * number))
        reported += [cause for _, cause, *_ in take_reports(outbox, 60 * number)]
    assert reported == causes


def test_after_a_start_a_jobset_that_is_being_deleted_is_reported_and_completed_jobs_are_not() -> (
    None
):
    outbox = Outbox()
    jobsets = [jobset(deleting=True), jobset("eval", uid="jobset-uid-2", completed=1)]
    outbox.relisted("JobSet", jobsets, START)
    assert take_reports(outbox) == [
        ("release_slice", "Deleting", "JobSet", "train", "jobset-uid-1")
    ]


def test_ends_and_deletions_that_appear_only_in_a_list_are_reported() -> None:
    outbox = settled_outbox(jobsets=[jobset(), jobset("eval", uid="jobset-uid-2")])
    outbox.relisted("JobSet", [jobset(end="Completed")], START)
    deleted = (*DELETED[:-2], "eval", "jobset-uid-2")
    assert (take_reports(outbox), len(outbox.jobsets.known)) == ([ENDED, deleted], 1)


def test_the_deletion_of_a_jobset_that_was_recreated_between_two_lists_is_reported() -> None:
    outbox = settled_outbox(jobsets=[jobset()])
    outbox.relisted("JobSet", [jobset(uid="jobset-uid-2")], START)
    assert take_reports(outbox) == [DELETED]


AGES = {"recently": (RECENT, [ENDED]), "long ago": (RECENT + timedelta(seconds=1), [])}


@pytest.mark.parametrize("age, expected", AGES.values(), ids=AGES.keys())
def test_only_recent_ends_are_reported_after_a_start(
    age: timedelta, expected: list[Report]
) -> None:
    outbox = Outbox()
    outbox.relisted("JobSet", [jobset(end="Completed", ended_at=render_time(START - age))], START)
    assert (take_reports(outbox), len(outbox.jobsets.known)) == (expected, 1)


@pytest.mark.parametrize("ended_at", ["", "yesterday"])
def test_a_jobset_without_an_end_time_is_reported(ended_at: str) -> None:
    outbox = Outbox()
    outbox.relisted("JobSet", [jobset(end="Completed", ended_at=ended_at)], START)
    assert take_reports(outbox) == [ENDED]


def test_a_jobset_without_chips_is_neither_reported_nor_cached() -> None:
    outbox = settled_outbox()
    outbox.changed("JobSet", "ADDED", jobset(chips=""), START)
    outbox.changed("JobSet", "MODIFIED", jobset(chips="", end="Completed"), START)
    assert (take_reports(outbox), len(outbox.jobsets.known)) == ([], 0)
    outbox.changed("JobSet", "DELETED", jobset(chips=""), START)
    assert take_reports(outbox) == []


def test_a_deleted_jobset_is_reported_when_publishing_works_again() -> None:
    outbox = settled_outbox(jobsets=[jobset()])
    outbox.changed("JobSet", "DELETED", jobset(), START)
    outbox.returned(outbox.take_due(START), START)
    assert take_reports(outbox, 6) == [DELETED]


# Thousands of objects

THOUSANDS = 5_000
EVENTS: tuple[Change, ...] = ("ADDED", "MODIFIED", "DELETED")


def _create_and_delete_other_pods(outbox: Outbox) -> None:
    for index in range(THOUSANDS):
        raw = pod(f"other-{index}", uid=f"u-{index}", index=str(1 + index % 8))
        for event in EVENTS:
            outbox.changed("Pod", event, raw, START)
            assert take_reports(outbox) == []


def _create_and_delete_jobsets(outbox: Outbox) -> None:
    for index in range(THOUSANDS):
        raw = jobset(f"short-{index}", uid=f"u-{index}")
        now = seconds(index)
        outbox.changed("JobSet", "ADDED", raw, now)
        outbox.changed("JobSet", "DELETED", raw, now)
        assert len(outbox.take_due(now)) == 1


def _create_and_delete_leaders(outbox: Outbox) -> None:
    for index in range(THOUSANDS):
        raw, now = pod(f"leader-{index}", uid=f"u-{index}"), seconds(index)
        outbox.changed("Pod", "ADDED", raw, now)
        assert len(outbox.take_due(now)) == 1
        outbox.changed("Pod", "DELETED", raw, now)


@pytest.mark.parametrize(
    "change_objects",
    [_create_and_delete_other_pods, _create_and_delete_jobsets, _create_and_delete_leaders],
)
def test_thousands_of_created_and_deleted_objects_use_no_memory_afterwards(
    change_objects: Callable[[Outbox], None],
) -> None:
    outbox = settled_outbox()
    tracemalloc.start()
    try:
        change_objects(outbox)
        gc.collect()
        used_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used_bytes < 100_000


POD_OF_REPLICA_SET = pod()
POD_OF_REPLICA_SET["metadata"] |= {
    "annotations": {},
    "labels": {"app": "serve"},
    "ownerReferences": [{"kind": "ReplicaSet", "name": "serve", "uid": "u", "controller": True}],
}


class AnyPod(JobSetKind):
    """A kind that needs a switch, and claims each Pod."""

    name = "Any"
    is_always_on = False

    def claim(self, demand: Demand) -> Claim | None:
        return Claim(self, is_leader=demand.chips > 0)


@pytest.mark.parametrize("with_workloads", [False, True], ids=["off", "on"])
def test_pods_of_kinds_that_need_a_switch_are_reported_only_with_slice_workloads(
    with_workloads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.slices.kinds.KINDS", (JOBSET, AnyPod()))
    outbox = Outbox(with_workloads=with_workloads)
    outbox.relisted("Pod", [projected(pod("a", uid="1")), projected(POD_OF_REPLICA_SET)], START)
    expected = {"JobSet": 1, "Any": 1} if with_workloads else {"JobSet": 1}
    assert (len(take_reports(outbox)), outbox.pods.count_by_kind()) == (len(expected), expected)


def test_a_pod_that_its_gang_holds_is_reported_once() -> None:
    outbox = settled_outbox()
    outbox.changed("Pod", "ADDED", projected(held_pod()), START)
    assert take_reports(outbox) == [WAITING]
    tried = held_pod() | {"status": pod()["status"]}
    outbox.changed("Pod", "MODIFIED", projected(tried), seconds(60))
    assert take_reports(outbox, 60) == []


def test_thousands_of_unscheduled_pods_without_chips_are_not_kept_in_a_list_or_cache() -> None:
    """The selector of the watch leaves out running Pods: tests/real/relay/test_jobsets.py."""
    outbox = Outbox(with_workloads=True)
    tracemalloc.start()
    try:
        found = [
            projected(cpu_pod(f"{name}-{index}")) for name in "ab" for index in range(THOUSANDS)
        ]
        outbox.relisted("Pod", found[:THOUSANDS], START)
        for raw in found:
            outbox.changed("Pod", "MODIFIED", raw, START)
        assert (take_reports(outbox), outbox.pods.count_by_kind()) == ([], {})
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 20_000_000


def test_a_jobset_with_requests_and_no_limits_for_chips_is_cached() -> None:
    raw = jobset()
    [job] = raw["spec"]["replicatedJobs"]
    [container] = job["template"]["spec"]["template"]["spec"]["containers"]
    container["resources"] = {"requests": {TPU_RESOURCE: "4"}}
    outbox = settled_outbox()
    outbox.changed("JobSet", "ADDED", raw, START)
    assert len(outbox.jobsets.known) == 1
