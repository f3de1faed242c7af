"""What is done for a Pod that waits: a table of what is seen."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import process_time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from functions.provision_slice import (
    ObservedOperation,
    ObservedPod,
    PodWork,
    WaitingPods,
    build_message,
    decide,
    find_wait_start,
    is_first_pod_of,
    recover,
)
from shared.base import backoff
from shared.base.errors import CallError
from shared.base.timestamps import render_time
from shared.frame.audit_log import LogEvent
from shared.frame.plan import Action, Emit, Plan, Require, Send
from shared.ports.kubernetes.events import Event
from shared.slices.actions import (
    AnySliceAction,
    CreateSlice,
    DeleteSlice,
    SetReleaseDeadline,
    SliceActionError,
)
from shared.slices.by_node_group.provider import GroupSlices
from shared.slices.jobsets import Leader, find_leader
from shared.slices.provider import DesiredSlice, NameConflict, Owner, Slice, SliceState
from shared.slices.work import find_jobs
from tests import jobset_objects as objects
from tests.jobset_objects import JOB, with_condition
from tests.unit.builders import NOW, merge

OPT_OUT = "tpu-provisioner.cloud.google.com/disable-autoprovisioning"
OWNER = Owner("default", "train", JOB)
WANTED = DesiredSlice(
    "train-bfcf5ebea76efcf5", OWNER, "hash", "4 hosts of ct6e-standard-4t (4x4)", {}
)
GOOD = Slice(WANTED.name, OWNER, "hash", SliceState.READY)
COMING = replace(GOOD, state=SliceState.PROVISIONING)
TROUBLED = replace(
    GOOD, state=SliceState.FAILED, message="InsufficientCapacity: no v6e", is_self_healing=True
)
LOST = replace(TROUBLED, message="Preempted: 4 of 4 nodes are not ready", is_self_healing=False)
ANOTHER = replace(GOOD, hash="other")
JOBSET = objects.jobset()


def leader(**change: Any) -> Leader:
    found = find_leader(objects.waiting_pod(**change))
    assert found is not None
    return found


World = tuple[ObservedPod, datetime]


def seen(existing: Slice | NameConflict | None = None, now: datetime = NOW, **more: Any) -> World:
    return replace(ObservedPod(leader(), WANTED, existing, JOBSET, GroupSlices), **more), now


def started(reason: str, message: str) -> Emit:
    return Emit(Event(f"TPUNodeGroup{reason}", message))


def told(reason: str, message: str) -> Emit:
    return Emit(Event(f"TPUNodeGroup{reason}", message, is_warning=True), once=True)


def kept(existing: Slice) -> SetReleaseDeadline:
    """Its release deadline is removed."""
    return SetReleaseDeadline(existing, None)


def changed(**change: Any) -> dict[str, Any]:
    """The JobSet, otherwise."""
    made: dict[str, Any] = merge(JOBSET, change)
    return made


def opted_out(holder: str, value: str) -> dict[str, Any]:
    return {"metadata": {holder: {OPT_OUT: value}}}


CREATE = Plan(
    "Creating",
    (
        CreateSlice(WANTED),
        started(
            "CreationStarted",
            "Creating TPUNodeGroup train-bfcf5ebea76efcf5, 4 hosts of ct6e-standard-4t (4x4), for Job "
            "train-workers-0 of JobSet train",
        ),
    ),
)
PAUSED = Event(
    "SlicePaused",
    'No slice is created: the ConfigMap tpu-functions/jobsets has paused: "true". Remove this key to '
    "continue",
)
PAUSE = Plan("SlicePaused", (Emit(PAUSED, once=True),))
NAME = "TPUNodeGroup train-bfcf5ebea76efcf5"
TROUBLE = told("CreationFailed", f"{NAME}: {TROUBLED.message}")
LOSS = told("CreationFailed", f"{NAME}: {LOST.message}")
JOB_TEMPLATE = {"spec": objects.jobset()["spec"]["replicatedJobs"][0]["template"]["spec"]}


def jobs(**template: Any) -> dict[str, Any]:
    job = {"name": "workers", "replicas": 1, "template": {**JOB_TEMPLATE, **template}}
    return {"spec": {"replicatedJobs": [{**job, "name": "others", "template": {}}, job]}}


UNFIT = told(
    "Unfit",
    f"{NAME} exists, but the scheduler finds no Node of it for the Pod: compare the scheduler's "
    "message with kubectl get nodes --show-labels -l "
    "cloud.google.com/gke-nodepool=train-bfcf5ebea76efcf5",
)
MARKED = replace(GOOD, release_after=NOW)
MARKED_TROUBLED = replace(TROUBLED, release_after=NOW)
LATER = datetime(2026, 11, 20, 10, 15, tzinfo=UTC)
"""A quarter of an hour after the Pod began to wait."""

TABLE: dict[str, tuple[World, Plan]] = {
    "nothing there": (seen(), CREATE),
    "nothing there, and time to look again": (seen(is_resync=True), CREATE),
    "nothing there, and paused": (seen(is_paused=True), PAUSE),
    "the JobSet is gone": (seen(jobset=None), Plan("JobSetGone")),
    "the JobSet is being deleted": (
        seen(jobset=changed(metadata={"deletionTimestamp": "2026-11-20T10:00:00Z"})),
        Plan("JobSetGone"),
    ),
    "the JobSet has other Jobs": (
        seen(jobset=changed(spec={"replicatedJobs": [{"name": "others", "template": {}}]})),
        Plan("NoSuchJob"),
    ),
    "the JobSet has completed": (
        seen(jobset=changed(**with_condition("Completed"))),
        Plan("JobSetEnded"),
    ),
    "the JobSet has failed": (
        seen(jobset=changed(**with_condition("Failed"))),
        Plan("JobSetEnded"),
    ),
    "the JobSet has opted out": (
        seen(jobset=changed(**opted_out("annotations", "True"))),
        Plan("OptedOut"),
    ),
    "the JobSet has opted out by a label": (
        seen(jobset=changed(**opted_out("labels", "yes"))),
        Plan("OptedOut"),
    ),
    "the JobSet is suspended": (
        seen(jobset=changed(spec={"suspend": True})),
        Plan("Suspended"),
    ),
    "the JobSet is suspended, and its slice is there": (
        seen(MARKED, jobset=changed(spec={"suspend": True})),
        Plan("Suspended"),
    ),
    "the JobSet has been resumed": (seen(jobset=changed(spec={"suspend": False})), CREATE),
    "the Job has opted out": (
        seen(jobset=changed(**jobs(**opted_out("labels", "true")))),
        Plan("OptedOut"),
    ),
    "the Job has not opted out": (
        seen(jobset=changed(**jobs(**opted_out("labels", "false")))),
        CREATE,
    ),
    "somebody else's of that name": (
        seen(NameConflict(WANTED.name, "a TPUNodeGroup that was not created for a JobSet")),
        Plan(
            "NameConflict",
            (
                told(
                    "CreationFailed",
                    "The Pod's slice needs the name train-bfcf5ebea76efcf5, but a TPUNodeGroup that "
                    "was not created for a JobSet has this name. Delete that one, or give the JobSet "
                    "another name",
                ),
            ),
        ),
    ),
    "it is being made": (seen(COMING), Plan("Provisioning")),
    "it is there": (seen(GOOD), Plan("Ready")),
    "it is there and was to go": (
        seen(MARKED),
        Plan("Ready", (kept(MARKED),)),
    ),
    "it is there, and paused": (seen(GOOD, is_paused=True), Plan("Ready")),
    "it says nothing of what it was made of": (
        seen(replace(GOOD, hash="")),
        Plan("Ready"),
    ),
    "it is being deleted": (
        seen(replace(GOOD, state=SliceState.DELETING)),
        Plan("Deleting"),
    ),
    "it is being deleted and is another": (
        seen(replace(ANOTHER, state=SliceState.DELETING), is_resync=True),
        Plan("Deleting"),
    ),
    "it is there, and the Pod waits for long": (
        seen(GOOD, is_resync=True, now=LATER),
        Plan("Unfit", (UNFIT,)),
    ),
    "it is there, was to go, and the Pod waits for long": (
        seen(MARKED, is_resync=True, now=LATER),
        Plan("Unfit", (kept(MARKED), UNFIT)),
    ),
    "it is there, and the Pod waits for nearly as long": (
        seen(GOOD, is_resync=True, now=LATER - timedelta(seconds=1)),
        Plan("Ready"),
    ),
    "it is there at last, and the Pod has waited for long": (
        seen(replace(GOOD, since=LATER - timedelta(minutes=14)), is_resync=True, now=LATER),
        Plan("Ready"),
    ),
    "it is there for long, and the Pod waits for less": (
        seen(
            replace(GOOD, since=LATER - timedelta(hours=9)),
            is_resync=True,
            now=LATER - timedelta(seconds=1),
        ),
        Plan("Ready"),
    ),
    "it is there, the Pod waits for long, and something has happened": (
        seen(GOOD, now=LATER),
        Plan("Ready"),
    ),
    "it is another than the Pod asks for": (
        seen(ANOTHER),
        Plan(
            "Replacing",
            (
                DeleteSlice(ANOTHER),
                started(
                    "DeletionStarted",
                    f"Deleting {NAME} to create it again: the Pod asks for 4 hosts of "
                    "ct6e-standard-4t (4x4) with other properties or Node labels than it has",
                ),
            ),
        ),
    ),
    "it is another, and in use": (
        seen(ANOTHER, users=("default/serve-workers-0",)),
        Plan(
            "InUse",
            (
                told(
                    "CreationFailed",
                    f"{NAME} is not what the Pod asks for (4 hosts of ct6e-standard-4t (4x4)), and "
                    "Job default/serve-workers-0 uses it: it is replaced when that Job has ended",
                ),
            ),
        ),
    ),
    "it is another, and paused": (seen(ANOTHER, is_paused=True), PAUSE),
    "it waits for capacity": (seen(TROUBLED), Plan("SliceFailed", (TROUBLE,))),
    "it waits for capacity still": (
        seen(TROUBLED, is_resync=True),
        Plan("SliceFailed", (TROUBLE,)),
    ),
    "it waits for capacity and was to go": (
        seen(MARKED_TROUBLED),
        Plan("SliceFailed", (kept(MARKED_TROUBLED), TROUBLE)),
    ),
    "it was lost": (seen(LOST), Plan("SliceFailed", (LOSS,))),
    "it was lost, and time has passed": (
        seen(LOST, is_resync=True),
        Plan(
            "Replacing",
            (
                DeleteSlice(LOST),
                started("DeletionStarted", f"Deleting {NAME} to create it again: {LOST.message}"),
            ),
        ),
    ),
    "it was lost, and some of its Nodes are ready": (
        seen(replace(LOST, has_ready_nodes=True), is_resync=True),
        Plan("SliceFailed", (LOSS,)),
    ),
    "it was lost, and paused": (seen(LOST, is_resync=True, is_paused=True), PAUSE),
}


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
def test_what_is_done(case: tuple[World, Plan]) -> None:
    (observed, now), plan = case
    assert decide(observed, now) == plan


POOLS = cast("Any", SimpleNamespace(noun="node pool", event_prefix="NodePool", concurrency_limit=5))
POD = ObservedPod(leader(), WANTED, None, JOBSET, POOLS)


def refused(action: AnySliceAction, http: int, message: str = "no") -> SliceActionError:
    reason = "forbidden" if http == 403 else "because"
    return SliceActionError(action, CallError("nodePools.call", http, reason, message))


def queued() -> Emit:
    message = (
        "node pool train-bfcf5ebea76efcf5 waits for others that are being created or deleted: no"
    )
    return Emit(Event("NodePoolQueued", message), once=True)


def failed(what: str, error: CallError) -> Emit:
    return Emit(Event(f"NodePool{what}Failed", str(error), is_warning=True), once=True)


CREATION, DELETION, DEADLINE = CreateSlice(WANTED), DeleteSlice(LOST), kept(MARKED)
REFUSALS: dict[str, tuple[CallError, bool, Plan | None]] = {
    "no room": (refused(CREATION, 429), False, Plan("Queued", (queued(),))),
    "still no room": (refused(CREATION, 429), True, Plan("Queued")),
    "no room to delete": (refused(DELETION, 429), False, Plan("Queued", (queued(),))),
    "where it would be made is not there": (
        refused(CREATION, 404),
        True,
        Plan("Refused", (failed("Creation", refused(CREATION, 404)),)),
    ),
    "forbidden to create": (
        refused(CREATION, 403),
        False,
        Plan("PermissionDenied", (failed("Creation", refused(CREATION, 403)),)),
    ),
    "forbidden to delete": (
        refused(DELETION, 403),
        False,
        Plan("PermissionDenied", (failed("Deletion", refused(DELETION, 403)),)),
    ),
    "forbidden to remove the deadline": (
        refused(DEADLINE, 403),
        False,
        Plan("PermissionDenied", (failed("Creation", refused(DEADLINE, 403)),)),
    ),
    "made meanwhile": (refused(CREATION, 409), False, None),
    "gone meanwhile": (refused(DELETION, 404), False, None),
    "busy": (refused(CREATION, 503), False, None),
    "a read that was forbidden": (CallError("GET /x", 403, "Forbidden", "no"), False, None),
}


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
def test_what_is_done_about_a_refusal(case: tuple[CallError, bool, Plan | None]) -> None:
    error, is_resync, plan = case
    work = SimpleNamespace(observed=replace(POD, is_resync=is_resync), provider=POOLS, now=NOW)
    expected = plan and replace(plan, note=str(error))
    assert recover(cast("PodWork", work), error) == expected


def another(name: str) -> tuple[Leader, DesiredSlice]:
    owner = replace(OWNER, job=name)
    return leader(metadata={"name": name, "uid": name}), replace(WANTED, name=name, owner=owner)


def wake(*leaders: Leader) -> Action:
    return Require(Send("provision_slice", tuple(build_message(one, NOW) for one in leaders)))


def test_after_a_deletion_its_own_pod_is_served_and_then_those_for_whom_there_is_room() -> None:
    event = LogEvent("container.nodePools.delete", "p", "us-central1", WANTED.name, cluster="c")
    first, second, third = another("first"), another("second"), another("third")
    waiting = WaitingPods(5, ((POD.leader, WANTED), first, second, third), (COMING, COMING))
    observed = ObservedOperation(event, POOLS, POD, has_pod=True, waiting=waiting)
    plan = decide(observed, NOW)
    assert plan.outcome == "Creating"
    assert plan.actions[0] == CREATION
    assert plan.facts == {"waiting": 3, "triggered": 2}, "its own takes one of three places"
    assert isinstance(plan.actions[-1], Require)
    work = cast("PodWork", SimpleNamespace(observed=observed, provider=POOLS, now=NOW))
    recovery = recover(work, refused(CREATION, 429))
    assert recovery is not None
    assert (recovery.outcome, recovery.facts) == ("Queued", {"waiting": 4, "triggered": 3})


def test_the_end_of_a_creation_without_a_pod_triggers_the_pods_that_wait() -> None:
    event = LogEvent("container.nodePools.create", "p", "us-central1", "gone", cluster="c")
    waiting = WaitingPods(5, (another("first"),), ())
    observed = ObservedOperation(event, POOLS, None, has_pod=False, waiting=waiting)
    assert decide(observed, NOW) == Plan(
        "NoPod", (wake(another("first")[0]),), facts={"waiting": 1, "triggered": 1}
    )


def test_slices_that_the_plan_does_not_change_take_no_place() -> None:
    event = LogEvent("container.nodePools.create", "p", "us-central1", "gone", cluster="c")
    ready = [replace(COMING, name=name, state=SliceState.READY) for name in ("a", "b", "c")]
    waiting = WaitingPods(5, tuple(map(another, ("x", "y", "z"))), tuple(ready))
    observed = ObservedOperation(event, POOLS, None, has_pod=False, waiting=waiting)
    assert decide(observed, NOW).facts == {"waiting": 3, "triggered": 3}


def test_a_pod_waits_since_the_scheduler_reported_it_unschedulable() -> None:
    assert find_wait_start(leader()) == datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize("since", ["", "0000-12-31T10:00:00Z"])
def test_without_the_schedulers_time_a_pod_waits_since_its_creation(since: str) -> None:
    status = objects.unschedulable(since)
    assert find_wait_start(leader(status=status)) == datetime(2026, 11, 20, 9, 59, tzinfo=UTC)


def test_when_a_wait_without_end_is_looked_at_is_soon_known() -> None:
    """Every minute it is asked for each Pod that waits, whatever its status says."""
    began = process_time()
    assert backoff.is_due(NOW - timedelta(days=365 * 2_000), NOW) is False
    assert process_time() - began < 1


def on_node(phase: str, job: str = JOB, namespace: str = "default") -> dict[str, Any]:
    pod: dict[str, Any] = objects.pod(
        metadata={"namespace": namespace, "labels": {"batch.kubernetes.io/job-name": job}},
        status={"phase": phase},
    )
    return pod


def without_chips() -> dict[str, Any]:
    pod = on_node("Running")
    pod["spec"]["containers"] = [{"name": "main", "image": "busybox"}]
    return pod


def deleted(seconds: int) -> dict[str, Any]:
    pod = on_node("Running")
    pod["metadata"]["deletionTimestamp"] = render_time(NOW + timedelta(seconds=seconds))
    return pod


ON_NODES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "runs": (on_node("Running"), [f"default/{JOB}"]),
    "has not started": (on_node("Pending", "other"), ["default/other"]),
    "has ended": (on_node("Succeeded"), []),
    "asks for no chips": (without_chips(), []),
    "is ending": (deleted(1), [f"default/{JOB}"]),
    "was to have ended": (deleted(0), []),
}


@pytest.mark.parametrize("case", ON_NODES.values(), ids=ON_NODES)
def test_whose_pod_uses_a_slice_that(case: tuple[dict[str, Any], list[str]]) -> None:
    pod, jobs = case
    assert list(find_jobs([pod], NOW)) == jobs


PODS: dict[str, tuple[dict[str, Any], bool]] = {
    "the first": ({}, True),
    "another": ({"labels": {"batch.kubernetes.io/job-completion-index": "1"}}, False),
    "of another namespace, with the Job's key": ({"namespace": "other"}, False),
    "of no Job": ({"ownerReferences": []}, False),
    "of no JobSet": ({"labels": {"jobset.sigs.k8s.io/jobset-name": None}}, False),
}


@pytest.mark.parametrize("case", PODS.values(), ids=PODS)
def test_whose_slice_has_a_name(case: tuple[dict[str, Any], bool]) -> None:
    metadata, is_its = case
    assert is_first_pod_of(objects.pod(metadata=metadata), WANTED.name) is is_its
