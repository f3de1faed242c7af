"""How many Pods may ask the candidates of a class in a run of the sweep."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from functions.provision_slice.quotas import (
    MAX_ASKING,
    WAITING,
    list_due_requests,
    select_with_candidate,
)
from shared.base.backoff import is_due
from shared.base.names import JOB_KEY
from shared.base.slice_names import job_key
from shared.base.timestamps import parse_time, render_time
from shared.ports.gce.calls import Gce
from shared.slices.by_node_group.provider import GroupSlices
from shared.slices.candidates import REMEMBERED_FOR
from shared.slices.classes import CLASS_ANNOTATION
from shared.slices.concurrency import MIN_SELECTED
from shared.slices.kinds import Leader, find_leader
from shared.slices.work import SliceWork
from shared.triggers.trigger import TimeTrigger
from tests.support import jobset_objects as objects
from tests.support.builders import NOW
from tests.support.class_specs import slice_class
from tests.support.reads import reading_slices

COUNT = MAX_ASKING + 5
A, B = "us-east5-a", "us-east5-b"
SECOND = timedelta(seconds=1)


def waiting_pods() -> list[Leader]:
    """The first Pods of Jobs in as many namespaces, which wait for slices of the class v6e."""
    pods = (
        objects.pod(
            metadata={
                "namespace": f"team-{number}",
                "uid": str(number),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {JOB_KEY: job_key(f"team-{number}", objects.JOB)},
                "annotations": {CLASS_ANNOTATION: "v6e"},
            },
            status=objects.unschedulable(),
        )
        for number in range(COUNT)
    )
    return [found for pod in pods if (found := find_leader(pod))]


def refused(place: str, ago: timedelta, topology: str = "4x4") -> dict[str, Any]:
    """What a class remembers of a refusal so long ago."""
    return {
        "candidate": f"my-project:{place}/STANDARD",
        "machineType": "ct6e-standard-4t",
        "topology": topology,
        "reason": "InsufficientCapacity",
        "message": "no capacity",
        "since": render_time(NOW - ago),
        "until": render_time(NOW - ago + REMEMBERED_FOR),
    }


def count_asking(*refusals: dict[str, Any]) -> int:
    """How many Pods are selected if a class with two candidates remembers this."""
    made = slice_class(candidates=[{"zone": A}, {"zone": B}])
    made["status"] = {"refusals": list(refusals)}
    answers = {"list_slice_classes": [made], "get_jobset_options": {}, "list_slice_groups": []}
    work, reads = reading_slices(SliceWork, TimeTrigger(NOW), answers)
    work.provider = GroupSlices(work.cluster, cast("Gce", reads), lambda: NOW)
    return len(select_with_candidate(work, waiting_pods()))


RECENTLY, LONG_AGO = 2 * REMEMBERED_FOR - SECOND, 2 * REMEMBERED_FOR
CASES: dict[str, tuple[list[dict[str, Any]], int]] = {
    "nothing is remembered": ([], COUNT),
    "the first candidate refuses": ([refused(A, SECOND)], MAX_ASKING),
    "both refuse": ([refused(A, SECOND), refused(B, SECOND)], 0),
    "the first one may be asked again": ([refused(A, REMEMBERED_FOR)], MIN_SELECTED),
    "the second one has refused recently": ([refused(B, RECENTLY)], MAX_ASKING),
    "the second one has refused long ago": ([refused(B, LONG_AGO)], COUNT),
    "another shape was refused": ([refused(A, SECOND, "2x4")], COUNT),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_few_pods_ask_a_class_that_has_refused_their_shape_recently(
    case: tuple[list[dict[str, Any]], int],
) -> None:
    refusals, expected = case
    assert count_asking(*refusals) == expected


def request(minutes: int, reason: str) -> dict[str, Any]:
    """A ProvisioningRequest that has waited so long, for this reason, and is not due by its age."""
    at = render_time(NOW - timedelta(minutes=minutes))
    waits = {"type": "Provisioned", "status": "False", "reason": reason, "lastTransitionTime": at}
    name = {"name": f"{reason}-{minutes}", "namespace": "default", "uid": f"{minutes}"}
    return {
        "metadata": {**name, "creationTimestamp": at},
        "spec": {"provisioningClassName": "slices.tpu-functions.dev"},
        "status": {"conditions": [waits]},
    }


@pytest.mark.parametrize("reason", WAITING)
def test_the_oldest_requests_that_wait_for_others_are_observed_in_each_run(reason: str) -> None:
    listed = [request(200 + age, reason) for age in range(COUNT)]
    listed += [request(600, "InsufficientCapacity")]
    cluster = SimpleNamespace(
        get_jobset_options=lambda: {"namespaces": "default: {kinds: [ProvisioningRequest]}"},
        list_requests=lambda *_: [
            one
            for one in listed
            if not is_due(parse_time(one["metadata"]["creationTimestamp"]), NOW)
        ],
    )
    work: Any = SimpleNamespace(
        cluster=cluster,
        provider=SimpleNamespace(is_gke=False),
        trigger=SimpleNamespace(at=NOW),
        now=NOW,
        best_effort=nullcontext,
    )
    found = [one.name for one in list_due_requests(work, [])]
    waiting = [
        one["metadata"]["name"]
        for one in reversed(cluster.list_requests())
        if reason in one["metadata"]["name"]
    ]
    assert found == waiting[:MAX_ASKING]
    assert len(waiting) > MAX_ASKING
