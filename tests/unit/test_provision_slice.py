"""What is done for a Pod that waits: a table of what is seen."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import process_time
from typing import Any

import pytest

from functions.provision_slice import (
    PAUSED,
    Decision,
    Do,
    Seen,
    decide,
    is_of,
    waits_since,
)
from shared.base import backoff
from shared.base.timestamps import render_time
from shared.ports.kubernetes.events import Event
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


def seen(existing: Slice | NameConflict | None = None, **more: Any) -> Seen:
    return replace(Seen(leader(), WANTED, existing, JOBSET, NOW), **more)


def told(reason: str, message: str, *, is_warning: bool = False) -> Event:
    return Event(f"TPUNodeGroup{reason}", message, is_warning)


def changed(**change: Any) -> dict[str, Any]:
    """The JobSet, otherwise."""
    made: dict[str, Any] = merge(JOBSET, change)
    return made


def opted_out(holder: str, value: str) -> dict[str, Any]:
    return {"metadata": {holder: {OPT_OUT: value}}}


CREATE = Decision(
    "Creating",
    Do.CREATE,
    told(
        "CreationStarted",
        "Creating TPUNodeGroup train-bfcf5ebea76efcf5, 4 hosts of ct6e-standard-4t (4x4), for Job "
        "train-workers-0 of JobSet train",
    ),
)
PAUSE = Decision("SlicePaused", event=PAUSED)
NAME = "TPUNodeGroup train-bfcf5ebea76efcf5"
TROUBLE = told("CreationFailed", f"{NAME}: {TROUBLED.message}", is_warning=True)
LOSS = told("CreationFailed", f"{NAME}: {LOST.message}", is_warning=True)
JOB_TEMPLATE = {"spec": objects.jobset()["spec"]["replicatedJobs"][0]["template"]["spec"]}


def jobs(**template: Any) -> dict[str, Any]:
    job = {"name": "workers", "replicas": 1, "template": {**JOB_TEMPLATE, **template}}
    return {"spec": {"replicatedJobs": [{**job, "name": "others", "template": {}}, job]}}


UNFIT = Decision(
    "Unfit",
    event=told(
        "Unfit",
        f"{NAME} is there, and the scheduler finds no Node of it for the Pod: compare what it says with "
        "kubectl get nodes --show-labels -l cloud.google.com/gke-nodepool=train-bfcf5ebea76efcf5",
        is_warning=True,
    ),
)
LATER = datetime(2026, 11, 20, 10, 15, tzinfo=UTC)
"""A quarter of an hour after the Pod began to wait."""

TABLE: dict[str, tuple[Seen, Decision]] = {
    "nothing there": (seen(), CREATE),
    "nothing there, and time to look again": (seen(is_sync=True), CREATE),
    "nothing there, and paused": (seen(is_paused=True), PAUSE),
    "the JobSet is gone": (seen(jobset=None), Decision("JobSetGone")),
    "the JobSet is being deleted": (
        seen(jobset=changed(metadata={"deletionTimestamp": "2026-11-20T10:00:00Z"})),
        Decision("JobSetGone"),
    ),
    "the JobSet has completed": (
        seen(jobset=changed(**with_condition("Completed"))),
        Decision("JobSetEnded"),
    ),
    "the JobSet has failed": (
        seen(jobset=changed(**with_condition("Failed"))),
        Decision("JobSetEnded"),
    ),
    "the JobSet has opted out": (
        seen(jobset=changed(**opted_out("annotations", "True"))),
        Decision("OptedOut"),
    ),
    "the JobSet has opted out by a label": (
        seen(jobset=changed(**opted_out("labels", "yes"))),
        Decision("OptedOut"),
    ),
    "the Job has opted out": (
        seen(jobset=changed(**jobs(**opted_out("labels", "true")))),
        Decision("OptedOut"),
    ),
    "the Job has not opted out": (
        seen(jobset=changed(**jobs(**opted_out("labels", "false")))),
        CREATE,
    ),
    "somebody else's of that name": (
        seen(NameConflict(WANTED.name, "a TPUNodeGroup that was not made for a JobSet")),
        Decision(
            "Clash",
            event=told(
                "CreationFailed",
                "The Pod's slice would be called train-bfcf5ebea76efcf5, and there is a TPUNodeGroup "
                "that was not made for a JobSet, of that name. It is not touched: delete it, or give "
                "the JobSet another name",
                is_warning=True,
            ),
        ),
    ),
    "it is being made": (seen(COMING), Decision("Coming")),
    "it is there": (seen(GOOD), Decision("Ready")),
    "it is there and was to go": (
        seen(replace(GOOD, release_after=NOW)),
        Decision("Ready", Do.KEEP),
    ),
    "it is there, and paused": (seen(GOOD, is_paused=True), Decision("Ready")),
    "it says nothing of what it was made of": (
        seen(replace(GOOD, hash="")),
        Decision("Ready"),
    ),
    "it is being deleted": (
        seen(replace(GOOD, state=SliceState.DELETING)),
        Decision("Going"),
    ),
    "it is being deleted and is another": (
        seen(replace(ANOTHER, state=SliceState.DELETING), is_sync=True),
        Decision("Going"),
    ),
    "it is there, and the Pod waits for long": (
        seen(GOOD, is_sync=True, now=LATER),
        UNFIT,
    ),
    "it is there, was to go, and the Pod waits for long": (
        seen(replace(GOOD, release_after=NOW), is_sync=True, now=LATER),
        replace(UNFIT, do=Do.KEEP),
    ),
    "it is there, and the Pod waits for nearly as long": (
        seen(GOOD, is_sync=True, now=LATER - timedelta(seconds=1)),
        Decision("Ready"),
    ),
    "it is there at last, and the Pod has waited for long": (
        seen(replace(GOOD, since=LATER - timedelta(minutes=14)), is_sync=True, now=LATER),
        Decision("Ready"),
    ),
    "it is there for long, and the Pod waits for less": (
        seen(
            replace(GOOD, since=LATER - timedelta(hours=9)),
            is_sync=True,
            now=LATER - timedelta(seconds=1),
        ),
        Decision("Ready"),
    ),
    "it is there, the Pod waits for long, and something has happened": (
        seen(GOOD, now=LATER),
        Decision("Ready"),
    ),
    "it is another than the Pod asks for": (
        seen(ANOTHER),
        Decision(
            "Replacing",
            Do.DELETE,
            told(
                "DeletionStarted",
                f"Deleting {NAME} to create it anew: the Pod asks for 4 hosts of ct6e-standard-4t "
                "(4x4) with other properties than it has",
            ),
        ),
    ),
    "it is another, and in use": (
        seen(ANOTHER, guests=("default/serve-workers-0",)),
        Decision(
            "InUse",
            event=told(
                "CreationFailed",
                f"{NAME} is not what the Pod asks for (4 hosts of ct6e-standard-4t (4x4)), and is in "
                "use by Job default/serve-workers-0: it is replaced when that has ended",
                is_warning=True,
            ),
        ),
    ),
    "it is another, and paused": (seen(ANOTHER, is_paused=True), PAUSE),
    "it waits for capacity": (seen(TROUBLED), Decision("Troubled", event=TROUBLE)),
    "it waits for capacity still": (
        seen(TROUBLED, is_sync=True),
        Decision("Troubled", event=TROUBLE),
    ),
    "it waits for capacity and was to go": (
        seen(replace(TROUBLED, release_after=NOW)),
        Decision("Troubled", Do.KEEP, TROUBLE),
    ),
    "it was lost": (seen(LOST), Decision("Troubled", event=LOSS)),
    "it was lost, and time has passed": (
        seen(LOST, is_sync=True),
        Decision(
            "Replacing",
            Do.DELETE,
            told("DeletionStarted", f"Deleting {NAME} to create it anew: {LOST.message}"),
        ),
    ),
    "it was lost, and some of its Nodes are ready": (
        seen(replace(LOST, has_ready_nodes=True), is_sync=True),
        Decision("Troubled", event=LOSS),
    ),
    "it was lost, and paused": (seen(LOST, is_sync=True, is_paused=True), PAUSE),
}


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
def test_what_is_done(case: tuple[Seen, Decision]) -> None:
    world, decision = case
    assert decide(world, GroupSlices) == decision


def test_the_pause_says_how_it_ends() -> None:
    assert PAUSED.message == (
        'No slice is made: the ConfigMap tpu-functions/jobsets has paused: "true". It goes on when '
        "that is taken out"
    )


def test_a_pod_waits_since_the_scheduler_said_so() -> None:
    assert waits_since(leader()) == datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize("since", ["", "0000-12-31T10:00:00Z"])
def test_a_pod_waits_since_it_was_made_if_nobody_says_since_when(since: str) -> None:
    status = objects.unschedulable(since)
    assert waits_since(leader(status=status)) == datetime(2026, 11, 20, 9, 59, tzinfo=UTC)


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


POD_LABELS: dict[str, tuple[dict[str, str | None], bool]] = {
    "the first": ({}, True),
    "another": ({"batch.kubernetes.io/job-completion-index": "1"}, False),
    "of another Job": ({"jobset.sigs.k8s.io/job-key": "0" * 40}, False),
    "of no JobSet": ({"jobset.sigs.k8s.io/jobset-name": None}, False),
}


@pytest.mark.parametrize("case", POD_LABELS.values(), ids=POD_LABELS)
def test_whose_slice_has_a_name(case: tuple[dict[str, str | None], bool]) -> None:
    labels, is_its = case
    assert is_of(objects.pod(metadata={"labels": labels}), WANTED.name) is is_its
