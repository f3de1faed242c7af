# ruff: noqa: E501  (a table reads best with a row on a line)
"""The reads of the JobSet steps: for one slice, for a finished operation, in a sweep run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from typing import Any
from weakref import WeakSet

import pytest

from functions import provision_slice, release_slice
from functions.provision_slice.observe import (
    ObservedImpossible,
    ObservedOperation,
    ObservedPod,
    ObservedQueue,
)
from functions.release_slice.observe import (
    ObservedAll,
    ObservedDeletion,
    ObservedFailedUpdate,
    ObservedSlices,
)
from shared.base.names import JOBSET_KIND
from shared.base.reasons import Reason
from shared.base.slice_names import job_key, slice_name
from shared.base.timestamps import render_time
from shared.ports.errors import CallError
from shared.slices.candidates import ClaimCandidate, Forget, RecordRefusal
from shared.slices.classes import Place, Refusal, Shape, SliceClass
from shared.slices.kinds.jobset import JobSetKind
from shared.slices.provider import DesiredSlice, NameConflict, Slice, SliceState
from shared.slices.units import InputError, Need, Unit
from shared.slices.work import SliceWork
from shared.triggers.audit_log import LogEvent
from shared.triggers.message import SLICE_KIND, Cause, Message
from shared.triggers.trigger import LogTrigger, ObjectTrigger, TimeTrigger, Trigger
from tests.support import jobset_objects as objects
from tests.support.builders import NOW, merge
from tests.support.jobset_objects import JOB
from tests.support.reads import reading_slices
from tests.unit.functions.provision_slice import objects as provision
from tests.unit.functions.provision_slice.objects import DESIRED, OPT_OUT, leader
from tests.unit.functions.release_slice import objects as release
from tests.unit.functions.release_slice.objects import COMPLETED, REBUILDS, RUNNING, SETTINGS

DEGRADED, DUE, LOST, WITH_DEADLINE, SLICE = (
    replace(one, raw={})
    for one in (release.DEGRADED, release.DUE, release.LOST, release.WITH_DEADLINE, release.SLICE)
)
ANOTHER, PROVISIONING, READY, SELF_HEALING = (
    replace(one, raw={})
    for one in (provision.ANOTHER, provision.PROVISIONING, provision.READY, provision.SELF_HEALING)
)
FORBIDDEN = CallError("GET pods", 403, "Forbidden", "may not list")
SWEEP = TimeTrigger(NOW)
SECOND, LONG_ENDED = timedelta(seconds=1), NOW - timedelta(minutes=10)
OTHER_JOB = "Job default/other-job"


def operation(method: str, name: str = SLICE.name, **more: Any) -> Trigger:
    event = LogEvent(
        f"container.nodePools.{method}", "p", "us-central1", name, "nodePools", cluster="c", **more
    )
    return LogTrigger(at=NOW, event=event)


def message(kind: str, name: str) -> Trigger:
    return ObjectTrigger(Message("default", name, "", Cause.RESYNC, NOW, kind=kind))


def node(name: str = "node-1", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}}


def running(job: str = "other-job", **metadata: Any) -> dict[str, Any]:
    labels = {"batch.kubernetes.io/job-name": job}
    change: Any = {"metadata": {"labels": labels, **metadata}, "spec": {"nodeName": "node-1"}}
    return {**merge(objects.pod(), change), "status": {"phase": "Running"}}


FOLLOWER = {"annotations": {"batch.kubernetes.io/job-completion-index": "1"}}
IN_USE: dict[str, Any] = {"list_nodes_of_slice": [node()], "list_pods_on": [running()]}
USERS: dict[str, tuple[Slice, Any, Any, Mapping[str, Any], Any]] = {
    "the slice is needed": (SLICE, RUNNING, SETTINGS, {}, ()),
    "the deadline is set": (SLICE, None, SETTINGS, {}, ()),
    "its JobSet has ended": (SLICE, COMPLETED, SETTINGS, IN_USE, (OTHER_JOB,)),
    "a deletion waits for other Jobs": (DUE, COMPLETED, SETTINGS, IN_USE, (OTHER_JOB,)),
    "a deletion waits for its own Job": (
        DUE,
        COMPLETED,
        SETTINGS,
        {**IN_USE, "list_pods_on": [running(JOB)]},
        (f"Job default/{JOB}",),
    ),
    "a rebuild does not wait for its own Job": (
        DEGRADED,
        RUNNING,
        REBUILDS,
        {**IN_USE, "list_pods_on": [running(JOB)]},
        (),
    ),
    "a rebuild waits for Pods of its own Job that are being deleted": (
        DEGRADED,
        RUNNING,
        REBUILDS,
        {**IN_USE, "list_pods_on": [running(JOB, deletionTimestamp=render_time(NOW))]},
        (f"Job default/{JOB}",),
    ),
    "a rebuild waits for other Jobs": (DEGRADED, RUNNING, REBUILDS, IN_USE, (OTHER_JOB,)),
    "a lost slice has no users": (LOST, RUNNING, REBUILDS, {}, ()),
    "a due slice that recovered by itself has users": (
        replace(LOST, is_self_healing=True, release_after=NOW),
        COMPLETED,
        SETTINGS,
        IN_USE,
        (OTHER_JOB,),
    ),
    "the Pods cannot be listed": (
        DUE,
        COMPLETED,
        SETTINGS,
        {**IN_USE, "list_pods_on": FORBIDDEN},
        FORBIDDEN,
    ),
}


@pytest.mark.parametrize("case", USERS.values(), ids=USERS)
@pytest.mark.parametrize("kind, name", [(SLICE_KIND, SLICE.name), (JOBSET_KIND, "train")])
def test_the_observed_users_of_a_slice_are_the_jobs_that_a_deletion_waits_for(
    case: tuple[Slice, Any, Any, Mapping[str, Any], Any], kind: str, name: str
) -> None:
    existing, jobset, settings, answers, users = case
    reads = {"get": existing, "list_by_owner": [existing], "find_owner": jobset, **answers}
    work, _ = reading_slices(SliceWork, message(kind, name), reads, settings=settings)
    observed = release_slice.observe.observe(work)
    assert isinstance(observed, ObservedSlices)
    (one,) = observed.slices
    assert (one.existing, one.state.owner) == (existing, jobset)
    assert (one.users_error or one.users) == users
    assert work.subject is not None
    assert work.subject["metadata"]["name"] == "train"
    assert work.facts[kind.lower()] == f"default/{name}"


def test_a_deleted_slice_is_not_observed() -> None:
    work, reads = reading_slices(SliceWork, message(SLICE_KIND, "x"), {"get": None})
    assert release_slice.observe.observe(work) == ObservedSlices(())
    assert reads.calls == ["get"]


def test_events_about_a_deleted_jobset_name_it() -> None:
    work, _ = reading_slices(
        SliceWork, message(SLICE_KIND, SLICE.name), {"get": SLICE, "find_owner": None}
    )
    release_slice.observe.observe(work)
    assert work.subject is not None
    assert work.subject["kind"] == "JobSet"
    assert work.subject["metadata"]["name"] == "train"


@pytest.mark.parametrize(
    "slices, calls",
    [
        ([], ["list_all"]),
        ([SLICE, LOST], ["list_all", "list_owners"]),
    ],
)
def test_a_sweep_run_lists_jobsets_if_there_are_slices(
    slices: list[Slice], calls: list[str]
) -> None:
    answers = {"list_all": slices, "list_owners": [RUNNING]}
    work, reads = reading_slices(SliceWork, SWEEP, answers, limit=3)
    observed = release_slice.observe.observe(work)
    assert isinstance(observed, ObservedAll)
    assert reads.calls == calls
    assert observed.limit == 3
    assert [(one.existing, one.state.owner) for one in observed.slices] == [
        (one, RUNNING) for one in slices
    ]
    assert work.facts["slices"] == len(slices)


def test_a_slice_of_a_kind_of_a_later_version_is_released() -> None:
    later = replace(SLICE, unit=Unit("Later", "default", "serve", "3"))
    answers = {"list_all": [later, SLICE], "list_owners": [RUNNING]}
    work, _ = reading_slices(SliceWork, SWEEP, answers)
    observed = release_slice.observe.observe(work)
    assert isinstance(observed, ObservedAll)
    assert [one.find_row(NOW).outcome for one in observed.slices] == ["DeadlineSet", "Needed"]


COUNTING = merge(
    RUNNING,
    {
        "metadata": {"uid": "jobset-uid"},
        "status": {"restarts": 1, "replicatedJobsStatus": [{"name": "workers", "succeeded": 1}]},
    },
)
OTHERS = replace(SLICE, unit=Unit("JobSet", "default", "others", "others-workers-0"))
COMPLETED_JOB = release.completed_job()
JOB_READS: dict[str, tuple[list[Slice], list[Any], Any, tuple[str, ...] | None, bool]] = {
    "no Job has completed": ([SLICE], [RUNNING], [], None, False),
    "the JobSet has completed": ([SLICE], [merge(COUNTING, COMPLETED)], [], None, False),
    "a Job has completed": ([SLICE], [COUNTING], [COMPLETED_JOB], ("default", "train"), True),
    "one of several JobSets counts": ([SLICE, OTHERS], [COUNTING], [COMPLETED_JOB], (), True),
    "another Job has completed": ([SLICE], [COUNTING], [merge(COMPLETED_JOB, {"metadata": {"name": "x"}})], ("default", "train"), False),
    "the Jobs cannot be listed": ([SLICE], [COUNTING], FORBIDDEN, None, False),
}  # fmt: skip


@pytest.mark.parametrize("case", JOB_READS.values(), ids=JOB_READS)
def test_jobs_are_listed_only_if_a_jobset_that_has_not_ended_counts_completed_ones(
    case: tuple[list[Slice], list[Any], Any, tuple[str, ...] | None, bool],
) -> None:
    slices, jobsets, jobs, listed, has_job = case
    asked: list[tuple[str, ...]] = []

    def list_jobs(*of: str) -> Any:
        asked.append(of)
        return jobs

    answers = {"list_all": slices, "list_owners": jobsets}
    listing = {"list_jobs": jobs if isinstance(jobs, CallError) else list_jobs}
    work, _ = reading_slices(SliceWork, SWEEP, {**answers, **listing})
    observed = release_slice.observe.observe(work)
    assert isinstance(observed, ObservedAll)
    assert asked == ([] if listed is None else [listed])
    completed = "Job train-workers-0 of JobSet train has completed"
    assert (observed.slices[0].state.why == completed) is has_job
    undone = [str(FORBIDDEN)] if jobs is FORBIDDEN else []
    assert work.facts.get("left_undone", []) == undone


UPDATES: dict[str, tuple[list[Slice], Any, tuple[str | None, bool, Any]]] = {
    "of a pool that is no slice": ([replace(SLICE, name="x")], COMPLETED, (None, False, None)),
    "of a slice that is needed": ([SLICE], RUNNING, ("", False, ())),
    "of a slice whose JobSet has ended": ([SLICE], COMPLETED, ("", False, ())),
    "that set the deadline": ([SLICE], None, ("its words", True, (OTHER_JOB,))),
}


@pytest.mark.parametrize("case", UPDATES.values(), ids=UPDATES)
def test_a_failed_update_is_matched_to_its_slice(
    case: tuple[list[Slice], Any, tuple[str | None, bool, Any]],
) -> None:
    slices, jobset, (failure, is_due, _users) = case
    answers = {"list_all": slices, "find_owner": jobset, **IN_USE}
    trigger = operation("update", has_failed=True, words="its words")
    work, _ = reading_slices(SliceWork, trigger, answers)
    observed = release_slice.observe.observe(work)
    assert isinstance(observed, ObservedFailedUpdate)
    assert (observed.slice.refusal if observed.slice else None) == failure
    assert bool(observed.slice and observed.slice.refusal) is is_due
    assert work.facts["slice"] == SLICE.name


SECOND_DUE = replace(DUE, name="train-2", release_after=NOW - timedelta(minutes=1))
DUE_BOTH = {"list_all": [DUE, SECOND_DUE], "list_owners": [COMPLETED]}


def test_a_finished_creation_serves_the_first_release_and_triggers_the_others() -> None:
    answers = {**DUE_BOTH, "get": SECOND_DUE, **IN_USE}
    work, reads = reading_slices(SliceWork, operation("create"), answers, limit=10)
    observed = release_slice.observe.observe(work)
    assert isinstance(observed, ObservedSlices)
    assert [(one.existing, one.users) for one in observed.slices] == [(SECOND_DUE, (OTHER_JOB,))]
    assert observed.following == (DUE,)
    assert "get" in reads.calls
    assert work.facts["slice"] == SECOND_DUE.name


@pytest.mark.parametrize(
    "answers, others",
    [
        pytest.param({**DUE_BOTH, "get": None}, (DUE,), id="the first slice is gone"),
        pytest.param({"list_all": [SLICE], "list_owners": [RUNNING]}, (), id="no slice is due"),
        pytest.param({"list_all": []}, (), id="no slice exists"),
    ],
)
def test_a_finished_creation_whose_first_release_is_gone_triggers_the_others(
    answers: dict[str, Any], others: tuple[Slice, ...]
) -> None:
    work, _ = reading_slices(SliceWork, operation("create"), answers, limit=10)
    assert release_slice.observe.observe(work) == ObservedSlices((), others)


ELSEWHERE = replace(WITH_DEADLINE, unit=replace(SLICE.unit, namespace="elsewhere"))


@pytest.mark.parametrize(
    "slices, jobsets, following, existing, has_jobset",
    [
        ([], [RUNNING], (), None, True),
        ([SLICE], [RUNNING], (), SLICE, True),
        ([DUE, WITH_DEADLINE], [COMPLETED], (DUE, WITH_DEADLINE), DUE, True),
        ([ELSEWHERE], [RUNNING], (), None, True),
        ([], [], (), None, False),
    ],
)
def test_a_finished_deletion_triggers_the_slices_that_can_be_changed(
    slices: list[Slice],
    jobsets: list[Any],
    following: tuple[Slice, ...],
    existing: Slice | None,
    has_jobset: bool,
) -> None:
    answers = {"list_all": slices, "list_owners": jobsets}
    work, _ = reading_slices(SliceWork, operation("delete"), answers, limit=10)
    observed = release_slice.observe.observe(work)
    assert isinstance(observed, ObservedDeletion)
    assert observed.following == following
    assert (observed.existing, observed.has_owner) == (existing, has_jobset)
    assert (work.about is not None) is has_jobset


def test_all_slices_are_left_to_the_sweep_after_a_deletion_that_has_failed() -> None:
    trigger = operation("delete", has_failed=True, words="its words")
    work, _ = reading_slices(SliceWork, trigger, DUE_BOTH, limit=10)
    observed = release_slice.observe.observe(work)
    assert isinstance(observed, ObservedDeletion)
    assert (observed.following, observed.existing) == ((), DUE)


LEADER = leader()
LONG = {"status": objects.unschedulable("2026-11-20T08:00:00Z")}
POD_ANSWERS: dict[str, Any] = {
    "build_desired": DESIRED,
    "find": None,
    "find_owner": RUNNING,
    "get_jobset_options": {},
    "list_nodes_of_slice": [],
    "list_pods_on": [],
}
OLD_NODES = [
    node("a", creationTimestamp="2026-11-20T08:30:00Z"),
    node("b", creationTimestamp="2026-11-20T08:40:00Z"),
    node("c"),
]
YOUNGEST = NOW - timedelta(minutes=80)
POD_RESYNC, EVENT = (
    message("Pod", LEADER.demand.name),
    ObjectTrigger(Message("default", LEADER.demand.name, "", Cause.ADDED, NOW, kind="Pod")),
)
PODS: dict[str, tuple[Trigger, bool, dict[str, Any], Any, tuple[str, ...]]] = {
    "there is no slice": (POD_RESYNC, False, {}, None, ()),
    "the slice is being created": (POD_RESYNC, True, {"find": PROVISIONING}, PROVISIONING, ()),
    "the slice is ready, the Pod has waited briefly": (POD_RESYNC, False, {"find": READY}, READY, ()),
    "the slice is ready, the Pod has waited long": (POD_RESYNC, True, {"find": READY, "list_nodes_of_slice": OLD_NODES}, replace(READY, since=YOUNGEST), ()),
    "the slice is ready without Nodes, the Pod has waited long": (POD_RESYNC, True, {"find": READY, "list_nodes_of_slice": []}, replace(READY, since=NOW - timedelta(hours=2)), ()),
    "the slice is ready since a known time, the Pod has waited long": (POD_RESYNC, True, {"find": replace(READY, since=NOW)}, replace(READY, since=NOW), ()),
    "the slice is ready, the Pod has waited long, on an event": (EVENT, True, {"find": READY}, READY, ()),
    "the slice has another hash, and another Job uses it": (POD_RESYNC, False, {"find": ANOTHER, **IN_USE}, ANOTHER, (OTHER_JOB,)),
    "the slice has another hash, and its own Job uses it": (
        POD_RESYNC,
        False,
        {"find": ANOTHER, **IN_USE, "list_pods_on": [running(JOB, **FOLLOWER)]},
        ANOTHER,
        (),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PODS.values(), ids=PODS)
def test_the_observation_of_a_waiting_pod_has_its_slice_and_the_slices_users(
    case: tuple[Trigger, bool, dict[str, Any], Any, tuple[str, ...]],
) -> None:
    trigger, has_waited, answers, existing, users = case
    waiting = leader(**LONG) if has_waited else LEADER
    work, _ = reading_slices(SliceWork, trigger, POD_ANSWERS | answers, leader=waiting)
    observed = provision_slice.observe.observe(work)
    assert isinstance(observed, ObservedPod)
    assert (observed.leader, observed.desired, observed.need) == (waiting, DESIRED, Need.NEEDED)
    assert observed.existing == existing
    assert observed.users == users
    assert not observed.is_paused
    assert observed.is_resync is trigger.is_resync
    assert work.facts["slice"] == DESIRED.name


@pytest.mark.parametrize(
    "waited, since", [(59, 0), (60, 60), (61, 61)], ids=["59 minutes", "60 minutes", "61 minutes"]
)
def test_a_pool_without_nodes_has_lost_them_if_the_pod_has_waited_for_an_hour(
    waited: int, since: int
) -> None:
    """It may have been resized to 0; the Nodes of a new one may still register."""
    status = objects.unschedulable(render_time(NOW - timedelta(minutes=waited)))
    answers = POD_ANSWERS | {"find": READY}
    work, _ = reading_slices(SliceWork, POD_RESYNC, answers, leader=leader(status=status))
    observed = provision_slice.observe.observe(work)
    assert isinstance(observed, ObservedPod)
    assert observed.existing == replace(READY, since=NOW - timedelta(minutes=since))


WORKERS = [f"train-workers-{number}" for number in range(4)]
FOUR_JOBS = deepcopy(RUNNING)
FOUR_JOBS["spec"]["replicatedJobs"][0]["replicas"] = 4


def guest(job: str, jobset: str = "train", **change: Any) -> dict[str, Any]:
    """The first Pod of a Job, which runs."""
    names = {"jobset.sigs.k8s.io/jobset-name": jobset}
    keys = {**names, "jobset.sigs.k8s.io/job-key": job_key("default", job)}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "controller": True}
    given = {"labels": keys, "annotations": keys, "ownerReferences": [owner]}
    given |= {"creationTimestamp": "2026-11-20T09:00:00Z"}
    made: dict[str, Any] = merge(running(job), {"metadata": given})
    changed: dict[str, Any] = merge(made, change)
    return changed


WORKER = guest(WORKERS[1])
GUESTS: dict[str, tuple[list[Any], dict[int, SliceState], int]] = {
    "none": ([[]], {}, 0),
    "one without a slice": ([[WORKER]], {}, 1),
    "one whose slice is being created": ([[WORKER]], {1: SliceState.PROVISIONING}, 1),
    "one whose slice is free": ([[WORKER], []], {1: SliceState.READY}, 0),
    "one on whose slice another one runs": ([[WORKER], [guest(WORKERS[2])]], {1: SliceState.READY}, 2),
    "one of those that swap theirs": ([[WORKER], [guest(WORKERS[2])], [WORKER]], {1: SliceState.READY, 2: SliceState.READY}, 0),
    "its own Pod": ([[guest(WORKERS[0])]], {}, 0),
    "one that does not lead": ([[merge(WORKER, {"metadata": FOLLOWER})]], {}, 0),
    "one that is ending": ([[merge(WORKER, {"metadata": {"deletionTimestamp": render_time(NOW)}})]], {}, 0),
    "one that has ended": ([[merge(WORKER, {"status": {"phase": "Failed"}})]], {}, 0),
    "one that has opted out": ([[merge(WORKER, {"metadata": {"labels": {OPT_OUT: "true"}}})]], {}, 0),
    "one that selects other Nodes": ([[merge(WORKER, {"spec": {"nodeSelector": {"x": "y"}}})]], {}, 0),
    "one of fewer chips": ([[guest(WORKERS[1], spec=objects.pod(chips=1)["spec"])]], {}, 0),
    "one that its JobSet has no more": ([[guest("train-workers-4")]], {}, 0),
    "one that may have no slice": ([[merge(WORKER, {"metadata": {"labels": {"jobset.sigs.k8s.io/job-key": "x"}}})]], {}, 0),
}  # fmt: skip


@pytest.mark.parametrize("case", GUESTS.values(), ids=GUESTS)
@pytest.mark.parametrize("trigger", [POD_RESYNC, EVENT], ids=["at a resync", "at an event"])
def test_a_pod_on_whose_slice_another_unit_runs_gets_at_a_resync_what_that_one_lacks(
    case: tuple[list[Any], dict[int, SliceState], int], trigger: Trigger
) -> None:
    pods, states, expected = case
    names = [Unit("JobSet", "default", "train", job).slice_name for job in WORKERS]
    slices = {
        WORKERS[number]: replace(READY, state=state)
        for number, state in {0: SliceState.READY, **states}.items()
    }
    answers = {
        **POD_ANSWERS,
        "find_owner": FOUR_JOBS,
        "build_desired": lambda _, unit, *__: replace(DESIRED, name=unit.slice_name, unit=unit),
        "find": lambda desired: (
            slices.get(desired.unit.member)
            and replace(slices[desired.unit.member], name=desired.name, unit=desired.unit)
        ),
        "list_nodes_of_slice": lambda name: [node(name)],
        "list_pods_on": lambda name: pods[names.index(name)],
    }
    work, _ = reading_slices(SliceWork, trigger, answers, leader=LEADER)
    observed = provision_slice.observe.observe(work)
    assert isinstance(observed, ObservedPod)
    assert observed.desired.unit.member == WORKERS[expected if trigger is POD_RESYNC else 0]
    assert observed.leader.demand.raw["status"] == LEADER.demand.raw["status"]
    assert work.facts["slice"] == observed.desired.name


def test_a_pod_whose_jobset_is_suspended_gets_no_slice_of_another_one() -> None:
    owners = {"train": merge(RUNNING, {"spec": {"suspend": True}}), "others": RUNNING}
    answers = {
        **POD_ANSWERS,
        "find_owner": lambda _kind, _namespace, name: merge(
            owners[name], {"metadata": {"name": name}}
        ),
        "build_desired": lambda _, unit, *__: replace(DESIRED, name=unit.slice_name, unit=unit),
        "find": lambda desired: READY if desired.name == READY.name else None,
        "list_nodes_of_slice": [node()],
        "list_pods_on": [guest("others-workers-0", "others")],
    }
    work, _ = reading_slices(SliceWork, POD_RESYNC, answers, leader=LEADER)
    observed = provision_slice.observe.observe(work)
    assert isinstance(observed, ObservedPod)
    assert (observed.desired.name, observed.need) == (READY.name, Need.SUSPENDED)


GUEST = guest("others-workers-0", "others")
OWN = replace(SLICE, name=OTHERS.unit.slice_name, unit=OTHERS.unit)
SPARES: dict[str, tuple[Slice, Any, str, dict[str, Any], dict[str, str]]] = {
    "an unused one": (DUE, COMPLETED, SLICE_KIND, {}, {SLICE.name: "InUse", OWN.name: "Releasing"}),
    "one that is being created": (DUE, COMPLETED, SLICE_KIND, {OWN.name: replace(OWN, state=SliceState.PROVISIONING)}, {SLICE.name: "InUse", OWN.name: "Releasing"}),
    "one that is in use": (DUE, COMPLETED, SLICE_KIND, {"pods": [running("x")]}, {SLICE.name: "InUse"}),
    "one whose Pods cannot be listed": (DUE, COMPLETED, SLICE_KIND, {"pods": FORBIDDEN}, {SLICE.name: "InUse"}),
    "one that is being deleted": (DUE, COMPLETED, SLICE_KIND, {OWN.name: replace(OWN, state=SliceState.DELETING)}, {SLICE.name: "InUse", OWN.name: "Deleting"}),
    "none": (DUE, COMPLETED, SLICE_KIND, {OWN.name: None}, {SLICE.name: "InUse"}),
    "none, and a third unit has its name": (DUE, COMPLETED, SLICE_KIND, {OWN.name: replace(OWN, unit=SLICE.unit)}, {SLICE.name: "InUse"}),
    "one of Pods that are ending": (DUE, COMPLETED, SLICE_KIND, {"guest": merge(GUEST, {"metadata": {"deletionTimestamp": render_time(NOW)}})}, {SLICE.name: "InUse"}),
    "one while its own unit needs the slice": (DEGRADED, RUNNING, SLICE_KIND, {}, {SLICE.name: "InUse"}),
    "one at an event": (DUE, COMPLETED, JOBSET_KIND, {}, {SLICE.name: "InUse"}),
}  # fmt: skip


@pytest.mark.parametrize("case", SPARES.values(), ids=SPARES)
def test_the_own_slice_of_a_unit_that_runs_on_an_unneeded_one_is_released_instead(
    case: tuple[Slice, Any, str, dict[str, Any], dict[str, str]],
) -> None:
    existing, jobset, kind, found, expected = case
    slices = {SLICE.name: existing, OWN.name: OWN, **found}
    pods = {SLICE.name: [found.get("guest", GUEST)], OWN.name: found.get("pods", [])}

    def list_pods(name: str) -> list[Any]:
        if isinstance(pods[name], CallError):
            raise pods[name]
        found: list[Any] = pods[name]
        return found

    answers = {
        "get": lambda _, name: slices[name],
        "list_by_owner": [existing],
        "find_owner": jobset,
        "list_nodes_of_slice": lambda name: [node(name)],
        "list_pods_on": list_pods,
    }
    name = SLICE.name if kind == SLICE_KIND else "train"
    work, _ = reading_slices(SliceWork, message(kind, name), answers, settings=REBUILDS)
    plan = release_slice.decide.decide(release_slice.observe.observe(work), NOW)
    assert {one.name: one.outcome for one in plan.each} == expected
    lines = [action.describe() for one in plan.each for action in one.actions]
    assert [one for one in lines if one.startswith("delete")] == [
        f"delete the slice {OWN.name}, event TPUNodeGroupDeletionStarted: Deleting TPUNodeGroup {OWN.name}: "
        f"Job others-workers-0 of JobSet others runs on {SLICE.name}"
    ] * ("Releasing" in expected.values())


@pytest.mark.parametrize("labels, has_opted_out", [({}, False), ({OPT_OUT: "true"}, True)])
def test_an_impossible_slice_is_not_read(labels: dict[str, str], has_opted_out: bool) -> None:
    jobset = merge(RUNNING, {"metadata": {"labels": labels}})
    answers = {"build_desired": InputError("what would be valid"), "find_owner": jobset}
    work, reads = reading_slices(SliceWork, POD_RESYNC, answers, leader=LEADER)
    observed = provision_slice.observe.observe(work)
    assert isinstance(observed, ObservedImpossible)
    assert observed.message == "what would be valid"
    assert observed.has_opted_out is has_opted_out
    assert reads.calls == ["find_owner", "build_desired"]


PLACES = (Place("us-b"), Place("us-a"))
SHAPE, ASKER = Shape("ct6e-standard-4t", "4x4"), f"default/{DESIRED.name}"
OF = SliceClass("v6e", PLACES)
CLAIMS = [ClaimCandidate(place, SHAPE, ASKER, OF.give_up_after) for place in PLACES]
RECORD = RecordRefusal(PLACES[0], SHAPE, ASKER, Reason.RESERVATION_FULL, "full")
FORGET = Forget(PLACES[0], SHAPE, ASKER)
WAITED = RecordRefusal(PLACES[0], SHAPE, ASKER, "Waited", "no VM within 120 s")
MINUTE = timedelta(minutes=1)
ASKING = replace(
    PROVISIONING, place=PLACES[0], class_name="v6e", has_vms=False, created=NOW - MINUTE
)
OVERDUE = replace(ASKING, created=NOW - 2 * MINUTE, can_be_given_up=True)
REFUSED = replace(ASKING, created=NOW, refusal=(Reason.RESERVATION_FULL, "full"))
CANDIDATES: dict[str, tuple[tuple[int, ...], dict[str, Any], Any]] = {
    "none has refused": ((), {}, ("us-b", None, (CLAIMS[0],))),
    "the first one has refused": ((0,), {}, ("us-a", None, (CLAIMS[1],))),
    "all have refused": ((0, 1), {}, "exhausted"),
    "all have refused, and the namespace has a limit": ((0, 1), {"get_jobset_options": {"namespaces": "default: {kinds: [JobSet], slices: 2}"}}, "exhausted"),
    "the slice is being asked for": ((), {"find": ASKING}, ("us-b", None, ())),
    "it has waited, and has no VM": ((), {"find": OVERDUE, "has_vm": False}, ("us-b", (WAITED, CLAIMS[1]), ())),
    "it has waited, and has a VM now": ((), {"find": OVERDUE, "has_vm": True}, ("us-b", None, ())),
    "it has waited, paused": ((), {"find": OVERDUE, "get_jobset_options": {"paused": "true"}}, ("us-b", (WAITED, CLAIMS[1]), ())),
    "it has waited, no other may be asked": ((1,), {"find": OVERDUE}, ("us-b", None, ())),
    "it was refused": ((), {"find": REFUSED}, ("us-b", (RECORD, CLAIMS[1]), (RECORD,))),
    "it was refused some time ago": ((), {"find": replace(REFUSED, since=NOW - MINUTE), "has_vm": True}, ("us-b", None, (RECORD,))),
    "it was refused, no other may be asked": ((1,), {"find": REFUSED}, ("us-b", None, (RECORD,))),
    "it has VMs": ((), {"find": replace(READY, place=PLACES[0], class_name="v6e")}, ("us-b", None, (FORGET,))),
    "it is of another class": ((), {"find": replace(OVERDUE, class_name="")}, ("us-b", None, ())),
    "it is being deleted": ((), {"find": replace(OVERDUE, state=SliceState.DELETING)}, ("us-b", None, ())),
    "it has another hash": ((), {"find": replace(OVERDUE, hash="x"), "list_nodes_of_slice": [], "list_pods_on": []}, ("us-b", None, ())),
    "another object has its name": ((), {"find": NameConflict("x", "a pool")}, ("us-b", None, ())),
}  # fmt: skip


@pytest.mark.parametrize("case", CANDIDATES.values(), ids=CANDIDATES)
def test_the_candidate_is_chosen_and_given_up_by_what_is_remembered(
    case: tuple[tuple[int, ...], dict[str, Any], Any],
) -> None:
    closed, answers, expected = case
    until = NOW + timedelta(minutes=3)
    refusals = tuple(
        Refusal(PLACES[one].key, SHAPE, "QuotaExceeded", "", NOW, until) for one in closed
    )

    def build(_demand: Any, _unit: Any, _of: Any, place: Place) -> DesiredSlice:
        return replace(DESIRED, place=place, shape=SHAPE)

    known = replace(OF, refusals=refusals, is_default=True, template={})
    work, _ = reading_slices(
        SliceWork, POD_RESYNC, {**POD_ANSWERS, "build_desired": build, **answers}, leader=LEADER
    )
    work._classes = (known,)
    found = provision_slice.observe.observe(work)
    assert isinstance(found, ObservedPod)
    chosen = (found.desired.place.zone, found.move and found.move.changes, found.changes)
    assert ("exhausted" if found.is_exhausted else chosen) == expected


LISTED = {"namespaces": "default: {kinds: [JobSet], slices: 2, chips: 32}"}
LEDGER = {"data": {"default": '{"x": [4, "2026-11-20T10:00:00Z"]}'}}
QUOTAS: dict[str, tuple[dict[str, Any], str | None, list[str]]] = {
    "listed": ({}, "has 3 slices with 24 chips", ["find_slice_ledger", "list_all"]),
    "not listed": ({"get_jobset_options": {"namespaces": "x: {kinds: [JobSet], slices: 0}"}}, None, []),
    "the slice exists": ({"find": READY, "get_jobset_options": {"namespaces": "{"}}, None, []),
    "paused": ({"get_jobset_options": {**LISTED, "paused": "true"}}, None, []),
    "the JobSet is suspended": ({"find_owner": merge(RUNNING, {"spec": {"suspend": True}})}, None, []),
}  # fmt: skip


@pytest.mark.parametrize("case", QUOTAS.values(), ids=QUOTAS)
def test_the_quota_of_a_namespace_with_a_limit_is_read_before_a_creation(
    case: tuple[dict[str, Any], str | None, list[str]],
) -> None:
    answers, used, calls = case
    own = [
        replace(READY, name="a", chips=16),
        replace(READY, name="x", chips=4),
        replace(READY, name="y", chips=4),
    ]
    other = replace(READY, name="b", chips=64, unit=replace(READY.unit, namespace="other"))
    defaults = {
        **POD_ANSWERS,
        "get_jobset_options": LISTED,
        "list_all": [*own, other],
        "find_slice_ledger": LEDGER,
    }
    work, reads = reading_slices(SliceWork, POD_RESYNC, defaults | answers, leader=LEADER)
    observed = provision_slice.observe.observe(work)
    assert isinstance(observed, ObservedPod)
    assert (observed.quota and observed.quota.show_used(NOW)) == used
    assert [one for one in reads.calls if one in ("find_slice_ledger", "list_all")] == calls


NO_QUOTA = {
    "the limit cannot be read": ({"get_jobset_options": {"namespaces": "default: 4"}}, "the key namespaces of the ConfigMap tpu-functions/jobsets must give default kinds"),
    "the slice never fits": ({"get_jobset_options": {"namespaces": "default: {kinds: [JobSet], slices: 2, chips: 8}"}}, "the Pod asks for a slice of 16 chips, but namespace default may have 2 slices and 8 chips"),
    "there is no ledger": ({"find_slice_ledger": None}, "namespace default may have 2 slices and 32 chips (the key namespaces of the ConfigMap tpu-functions/jobsets), but ConfigMap tpu-functions/slice-ledger is missing: upgrade the chart"),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_QUOTA.values(), ids=NO_QUOTA)
def test_a_pod_whose_quota_cannot_be_found_gets_no_slice(case: tuple[dict[str, Any], str]) -> None:
    answers, message = case
    defaults = {**POD_ANSWERS, "get_jobset_options": LISTED, "list_all": []}
    work, _ = reading_slices(SliceWork, POD_RESYNC, defaults | answers, leader=LEADER)
    observed = provision_slice.observe.observe(work)
    assert isinstance(observed, ObservedImpossible)
    assert observed.message.startswith(message)
    assert not observed.has_opted_out


def test_a_pod_of_a_kind_that_is_off_gets_no_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobSetKind, "is_always_on", False)
    work, _ = reading_slices(SliceWork, POD_RESYNC, POD_ANSWERS, leader=LEADER)
    observed = provision_slice.observe.observe(work)
    assert isinstance(observed, ObservedImpossible)
    assert (
        observed.message
        == "the key namespaces of the ConfigMap tpu-functions/jobsets does not list JobSet for default"
    )
    for trigger, count in (
        (replace(SWEEP, at=NOW + timedelta(minutes=1)), 0),
        (operation("delete", POOL), 0),
    ):
        work, _ = reading_slices(
            SliceWork,
            trigger,
            {**POD_ANSWERS, "list_pending_pods": [OWN_POD], "list_all": []},
            limit=5,
        )
        seen = provision_slice.observe.observe(work)
        if isinstance(seen, ObservedQueue):
            assert seen.waiting == count
        else:
            assert isinstance(seen, ObservedOperation)
            assert (seen.waiting_pod, seen.others) == (None, None)


def test_the_end_of_an_operation_keeps_no_pods_without_chips() -> None:
    class Tracked(dict[str, Any]):
        """A Pod that a weak reference can name."""

    kept: WeakSet[Tracked] = WeakSet()

    def list_pods() -> Iterator[Tracked]:
        for _ in range(100):
            kept.add(pod := Tracked(objects.waiting_pod(chips=0)))
            yield pod
            del pod
            assert len(kept) < 10

    Tracked.__hash__ = object.__hash__  # type: ignore[assignment]
    answers = {**POD_ANSWERS, "list_pending_pods": list_pods(), "list_all": []}
    work, _ = reading_slices(SliceWork, operation("delete", POOL), answers, limit=5)
    provision_slice.observe.observe(work)


DUE_PODS = [
    objects.waiting_pod(metadata={"uid": f"u{number}", "name": f"pod-{number}"})
    for number in range(12)
]


@pytest.mark.parametrize(
    "pods, limit, slices, waiting, slots",
    [
        pytest.param([], None, [], 0, None, id="no Pod waits"),
        pytest.param(DUE_PODS, None, [], 12, None, id="no limit"),
        pytest.param(
            [*DUE_PODS, {"metadata": {}}][:12], 20, [PROVISIONING] * 3, 12, 17, id="a limit"
        ),
    ],
)
def test_a_sweep_run_counts_the_waiting_pods_and_the_free_slots(
    pods: list[Any], limit: int | None, slices: list[Slice], waiting: int, slots: int | None
) -> None:
    long_ago = [merge(pod, LONG) for pod in pods] if limit is None else pods
    answers = {"list_pending_pods": long_ago, "list_all": slices, "get_jobset_options": {}}
    work, reads = reading_slices(SliceWork, SWEEP, answers, limit=limit)
    observed = provision_slice.observe.observe(work)
    assert isinstance(observed, ObservedQueue)
    assert observed.waiting == waiting
    assert observed.slots == (slots if len(observed.due) > 5 else None)
    assert ("list_all" in reads.calls) is (observed.slots is not None)


def test_a_late_sweep_run_finds_the_pods_of_the_minute_of_the_sweep() -> None:
    answers = {"list_pending_pods": DUE_PODS, "get_jobset_options": {}}
    work, _ = reading_slices(SliceWork, SWEEP, answers)
    for at, count in ((NOW + timedelta(minutes=1), 12), (NOW, 0)):
        work.trigger = replace(SWEEP, at=at)
        observed = provision_slice.observe.observe(work)
        assert isinstance(observed, ObservedQueue)
        assert len(observed.due) == count


ROOM: dict[str, tuple[dict[str, str], list[str], int]] = {
    "room for one": (LISTED, ["a"], 1),
    "room for two, of chips for one": ({"namespaces": "default: {kinds: [JobSet], slices: 3, chips: 32}"}, ["a"], 2),
    "no room": (LISTED, ["a", "b"], 0),
    "no limit": ({}, [], 0),
    "a limit that cannot be read": ({"namespaces": "default: 4"}, [], 0),
}  # fmt: skip


@pytest.mark.parametrize("case", ROOM.values(), ids=ROOM)
def test_a_sweep_run_also_triggers_pods_for_which_their_namespace_has_room(
    case: tuple[dict[str, str], list[str], int],
) -> None:
    options, existing, count = case
    names = iter(range(100))
    answers = {
        "list_pending_pods": [merge(pod, LONG) for pod in DUE_PODS],
        "list_all": [
            replace(READY, name=name, chips=16, unit=replace(READY.unit, member=name))
            for name in existing
        ],
        "get_jobset_options": options,
        "find_slice_ledger": {},
        "build_desired": lambda *_: replace(DESIRED, name=f"n{next(names)}"),
    }
    work, _ = reading_slices(SliceWork, replace(SWEEP, at=NOW + timedelta(minutes=1)), answers)
    observed = provision_slice.observe.observe(work)
    assert isinstance(observed, ObservedQueue)
    assert len(observed.due) == count
    assert provision_slice.decide.decide(observed, NOW).facts == {"waiting": 12, "triggered": count}


OWN_POD = objects.waiting_pod()
POOL = slice_name("train", job_key("default", JOB))
STARTED = running(JOB)
OPERATIONS: dict[str, tuple[str, list[Any], dict[str, Any], tuple[bool, bool]]] = {
    "a deletion for which a Pod waits": ("delete", [OWN_POD], {}, (True, True)),
    "a deletion for which no Pod waits": ("delete", [], {}, (False, False)),
    "a creation for which a Pod waits": ("create", [OWN_POD], {"list_all": []}, (True, False)),
    "a creation whose Pod has started": ("create", [], {"list_all": [READY], "list_selected_pods": [node("x"), STARTED]}, (True, False)),
    "a creation whose Pods are gone": ("create", [], {"list_all": [READY], "list_selected_pods": []}, (False, False)),
    "a creation of a pool that is no slice": ("create", [], {"list_all": [replace(READY, name="x")]}, (False, False)),
}  # fmt: skip


@pytest.mark.parametrize("case", OPERATIONS.values(), ids=OPERATIONS)
def test_a_finished_operation_is_matched_to_the_pod_of_its_slice(
    case: tuple[str, list[Any], dict[str, Any], tuple[bool, bool]],
) -> None:
    method, pods, answers, (has_pod, is_pod_read) = case
    reads = {**POD_ANSWERS, "list_pending_pods": pods, **answers}
    work, _ = reading_slices(SliceWork, operation(method, POOL), reads)
    observed = provision_slice.observe.observe(work)
    assert isinstance(observed, ObservedOperation)
    assert (observed.has_pod, observed.waiting_pod is not None) == (has_pod, is_pod_read)
    assert work.about in ((OWN_POD, STARTED) if has_pod else (None,))
    assert observed.others is None
    assert work.facts["slice"] == POOL


def test_a_pod_whose_slice_could_not_be_deleted_is_left_to_the_sweep() -> None:
    reads = {**POD_ANSWERS, "list_pending_pods": [OWN_POD]}
    trigger = operation("delete", POOL, has_failed=True, words="its words")
    observed = provision_slice.observe.observe(reading_slices(SliceWork, trigger, reads)[0])
    plan = provision_slice.decide.decide(observed, NOW)
    assert (plan.outcome, plan.first, plan.note) == ("DeletionFailed", (), "its words")


def test_a_finished_operation_finds_the_other_waiting_pods_if_slices_are_limited() -> None:
    second = objects.waiting_pod(metadata={"name": "second", "uid": "second"})
    third = objects.waiting_pod(metadata={"name": "third", "uid": "third"})
    desired_slices = iter(
        [
            DESIRED,
            replace(DESIRED, name="x", unit=Unit("JobSet", "default", "train", "x")),
            InputError("no"),
        ]
    )

    def build(*_: Any) -> Any:
        one = next(desired_slices)
        if isinstance(one, Exception):
            raise one
        return one

    answers = {
        **POD_ANSWERS,
        "list_pending_pods": [OWN_POD, second, third],
        "build_desired": build,
        "list_all": [replace(SELF_HEALING, unit=replace(SELF_HEALING.unit, member="y"))],
    }
    work, _ = reading_slices(SliceWork, operation("create", "other"), answers, limit=7)
    observed = provision_slice.observe.observe(work)
    assert isinstance(observed, ObservedOperation)
    assert observed.others is not None
    assert observed.others.limit == 7
    assert [desired.name for _, desired in observed.others.desired] == ["x"]


@pytest.mark.parametrize(
    "pods, nodes, calls, jobs",
    [
        ([running()], 3, 1, (OTHER_JOB,)),
        ([], 3, 3, ()),
        ([running(deletionTimestamp=render_time(LONG_ENDED))], 1, 1, ()),
        ([running(deletionTimestamp=render_time(LONG_ENDED + SECOND))], 1, 1, (OTHER_JOB,)),
    ],
)
def test_pods_are_listed_node_by_node_until_one_is_found(
    pods: list[Any], nodes: int, calls: int, jobs: tuple[str, ...]
) -> None:
    answers = {
        "get": DUE,
        "find_owner": COMPLETED,
        "list_nodes_of_slice": [node(f"node-{number}") for number in range(nodes)],
        "list_pods_on": pods,
    }
    work, reads = reading_slices(SliceWork, message(SLICE_KIND, DUE.name), answers)
    observed = release_slice.observe.observe(work)
    assert isinstance(observed, ObservedSlices)
    assert observed.slices[0].users == jobs
    assert reads.calls.count("list_pods_on") == calls


def test_the_pods_of_many_nodes_are_listed_by_one_call() -> None:
    elsewhere = merge(running("elsewhere"), {"spec": {"nodeName": "other"}})
    answers = {
        "get": DUE,
        "find_owner": COMPLETED,
        "list_nodes_of_slice": [node(f"node-{number}") for number in range(100)],
        "list_bound_pods": [elsewhere, running()],
    }
    work, reads = reading_slices(SliceWork, message(SLICE_KIND, DUE.name), answers)
    observed = release_slice.observe.observe(work)
    assert isinstance(observed, ObservedSlices)
    assert observed.slices[0].users == (OTHER_JOB,)
    assert reads.calls.count("list_bound_pods") == 1


ENDING = {"deletionTimestamp": render_time(NOW + timedelta(minutes=10))}
OWNED = {"ownerReferences": [{"kind": "Job", "name": JOB, "uid": "older-uid", "controller": True}]}
OWN_JOB = f"Job default/{JOB}"
OWN_PODS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "is running": (running(JOB, **FOLLOWER), ()),
    "is ending": (running(JOB, **FOLLOWER, **ENDING), (OWN_JOB,)),
    "is past its deletion time by less than ten minutes": (
        running(JOB, deletionTimestamp=render_time(LONG_ENDED + SECOND)),
        (OWN_JOB,),
    ),
    "is past its deletion time by ten minutes": (
        running(JOB, deletionTimestamp=render_time(LONG_ENDED)),
        (),
    ),
    "is of an older Job of that name": (running(JOB, **FOLLOWER, **OWNED), (OWN_JOB,)),
    "is the first Pod of the Job, and the waiting Pod is forged": (running(JOB), (OWN_JOB,)),
}


@pytest.mark.parametrize("pod, users", OWN_PODS.values(), ids=OWN_PODS)
def test_a_replacement_waits_for_pods_of_the_same_job_that_are_ending(
    pod: dict[str, Any], users: tuple[str, ...]
) -> None:
    answers = {**POD_ANSWERS, "find": ANOTHER, **IN_USE, "list_pods_on": [pod]}
    work, _ = reading_slices(SliceWork, POD_RESYNC, answers, leader=LEADER)
    observed = provision_slice.observe.observe(work)
    assert isinstance(observed, ObservedPod)
    assert observed.users == users
