"""What a TPUNodeGroup says of itself as a slice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shared.base.reasons import Reason
from shared.slices.by_node_group.desired_group import TEMPLATE_HASH_ANNOTATION, build_desired_slice
from shared.slices.by_node_group.provider import (
    LOST_AFTER,
    has_outdated_template,
    is_selected,
    read_slice,
)
from shared.slices.jobsets import find_leader
from shared.slices.provider import Owner, Slice, SliceState
from tests.jobset_objects import options, waiting_pod
from tests.unit.builders import NOW, merge

SINCE = "2026-11-20T09:30:00Z"
MOMENT = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)
COMPLETE = {"completedAt": "2026-11-20T09:00:00Z"}
SPOT = {"spec": {"instanceConfig": {"provisioningModel": "SPOT"}}}
FLEX_START = {"spec": {"instanceConfig": {"provisioningModel": "FLEX_START"}}}
ONE_HOST = {"spec": {"targetSizePolicyMode": "INDIVIDUAL"}}


def group(**change: Any) -> dict[str, Any]:
    """The group of the JobSet's Job as the API server gives it."""
    leader = find_leader(waiting_pod())
    assert leader is not None
    read = {"metadata": {"uid": "u", "resourceVersion": "5", "creationTimestamp": SINCE}}
    made: dict[str, Any] = merge(merge(build_desired_slice(leader, options()).body, read), change)
    return made


def ready(status: str, reason: str = "Ready", **rest: Any) -> dict[str, Any]:
    """A change: the condition Ready."""
    condition = {"type": "Ready", "status": status, "reason": reason, "message": "GCE said so"}
    return {"status": {"conditions": [{**condition, "lastTransitionTime": SINCE}], **rest}}


def read(change: dict[str, Any], now: datetime = NOW) -> Slice:
    found = read_slice(group(**change), now)
    assert found is not None
    return found


def test_a_slice_is_read() -> None:
    made = group(metadata={"annotations": {"tpu-functions.dev/release-after": SINCE}})
    found = read_slice(made, NOW)
    assert found == Slice(
        name="train-bfcf5ebea76efcf5",
        owner=Owner("default", "train", "train-workers-0"),
        hash=made["metadata"]["annotations"]["tpu-functions.dev/slice-hash"],
        state=SliceState.PROVISIONING,
        is_self_healing=True,
        release_after=MOMENT,
        since=MOMENT,
    )


STATES: dict[str, tuple[dict[str, Any], SliceState, str]] = {
    "no status yet": ({}, SliceState.PROVISIONING, ""),
    "being made": (ready("False", Reason.PROVISIONING), SliceState.PROVISIONING, ""),
    "joining": (ready("False", Reason.AWAITING_NODE_JOIN), SliceState.PROVISIONING, ""),
    "being wired": (ready("False", Reason.INTERCONNECT_NOT_READY), SliceState.PROVISIONING, ""),
    "half of it joined": (ready("False", Reason.NODE_NOT_READY), SliceState.PROVISIONING, ""),
    "a Node that was Ready is not": (
        ready("False", Reason.NODE_NOT_READY, **COMPLETE),
        SliceState.FAILED,
        "NodeNotReady: GCE said so",
    ),
    "no capacity": (
        ready("False", Reason.INSUFFICIENT_CAPACITY),
        SliceState.FAILED,
        "InsufficientCapacity: GCE said so",
    ),
    "the user's fault": (
        ready("False", Reason.INVALID_SPEC),
        SliceState.FAILED,
        "InvalidSpec: GCE said so",
    ),
    "paused by somebody": (
        ready("False", Reason.PAUSED),
        SliceState.FAILED,
        "Paused: GCE said so",
    ),
    "ready": (ready("True"), SliceState.READY, ""),
    "being deleted": (
        {"metadata": {"deletionTimestamp": SINCE}, **ready("True")},
        SliceState.DELETING,
        "",
    ),
}


@pytest.mark.parametrize("case", STATES.values(), ids=STATES)
def test_where_it_stands(case: tuple[dict[str, Any], SliceState, str]) -> None:
    change, state, words = case
    found = read(change)
    assert (found.state, found.message, found.since) == (state, words, MOMENT)


PREEMPTED = ready("False", Reason.PREEMPTED, **COMPLETE)
LATER, SOON = MOMENT + LOST_AFTER, MOMENT + LOST_AFTER - timedelta(seconds=1)
LOSSES: dict[str, tuple[dict[str, Any], datetime, bool]] = {
    "never complete": (ready("False", Reason.INSUFFICIENT_CAPACITY), LATER, True),
    "never complete, and preempted": (ready("False", Reason.PREEMPTED), LATER, False),
    "never complete, Spot, and preempted": (
        {**ready("False", Reason.PREEMPTED), **SPOT},
        MOMENT,
        False,
    ),
    "a host that may come back": (PREEMPTED, SOON, True),
    "a host that does not come back": (PREEMPTED, LATER, False),
    "a host that was deleted": (ready("False", Reason.NODE_LOST, **COMPLETE), LATER, False),
    "a Spot host that was taken": ({**PREEMPTED, **SPOT}, MOMENT, False),
    "a Spot host that was deleted": (
        {**ready("False", Reason.NODE_LOST, **COMPLETE), **SPOT},
        SOON,
        True,
    ),
    "all of it": (ready("False", Reason.RESOURCE_LOST, **COMPLETE), MOMENT, False),
    "a single host is repaired": ({**PREEMPTED, **ONE_HOST}, LATER, True),
    "a single host, and its managed instance group": (
        {**ready("False", Reason.RESOURCE_LOST, **COMPLETE), **ONE_HOST},
        MOMENT,
        False,
    ),
    "a single host whose time is over": (
        merge({**PREEMPTED, **ONE_HOST}, FLEX_START),
        LATER,
        False,
    ),
    "a Node that is silent": (ready("False", Reason.NODE_NOT_READY, **COMPLETE), LATER, True),
}


@pytest.mark.parametrize("case", LOSSES.values(), ids=LOSSES)
def test_which_slices_are_self_healing(case: tuple[dict[str, Any], datetime, bool]) -> None:
    change, now, is_self_healing = case
    assert read(change, now).is_self_healing is is_self_healing


def test_whether_some_of_its_nodes_are_ready() -> None:
    assert read(ready("False", nodeSummary={"ready": 1})).has_ready_nodes
    assert not read(ready("False", nodeSummary={"desired": 4})).has_ready_nodes


JOBSET, JOB, KEY = (f"tpu-functions.dev/{name}" for name in ("jobset-name", "job-name", "job-key"))
OTHERS: dict[str, dict[str, Any]] = {
    "a group of somebody's": {"metadata": {"labels": None}},
    "of another name than its labels make": {"metadata": {"name": "train-bfcf5ebea76efcf6"}},
    "without its JobSet": {"metadata": {"labels": {JOBSET: None}}},
    "without its Job": {"metadata": {"labels": {JOB: None}}},
    "without its key": {"metadata": {"labels": {KEY: None}}},
    "with the labels of another slice": {"metadata": {"labels": {KEY: "f" * 40}}},
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_what_is_no_slice_of_ours(change: dict[str, Any]) -> None:
    assert read_slice(group(**change), NOW) is None


@pytest.mark.parametrize("text", ["soon", "0001-01-01T00:00:00+14:00", "9" * 300])
def test_a_stamp_that_is_no_time_is_none(text: str) -> None:
    annotations = {"tpu-functions.dev/release-after": text}
    assert read({"metadata": {"annotations": annotations}}).release_after is None


def test_a_status_whose_time_is_none_says_not_since_when() -> None:
    change = ready("False", Reason.NODE_LOST, **COMPLETE)
    change["status"]["conditions"][0]["lastTransitionTime"] = "2026-11-20T09:30:00+99:00"
    found = read(change)
    assert (found.state, found.since) == (SliceState.FAILED, None)


FULL = ready("False", Reason.INSUFFICIENT_CAPACITY)
OTHER = {"metadata": {"annotations": {TEMPLATE_HASH_ANNOTATION: "other"}}}
TEMPLATES: dict[str, tuple[dict[str, Any], bool]] = {
    "as it would be now": (FULL, False),
    "otherwise": ({**FULL, **OTHER}, True),
    "otherwise, and is complete": ({**ready("True", **COMPLETE), **OTHER}, False),
    "otherwise, and somebody has paused it": ({**ready("False", Reason.PAUSED), **OTHER}, False),
    "by somebody who did not say how": (
        {**FULL, "metadata": {"annotations": {TEMPLATE_HASH_ANNOTATION: None}}},
        False,
    ),
}


@pytest.mark.parametrize("case", TEMPLATES.values(), ids=TEMPLATES)
def test_whether_a_group_has_an_outdated_template(case: tuple[dict[str, Any], bool]) -> None:
    change, is_outdated = case
    leader = find_leader(waiting_pod())
    assert leader is not None
    assert (
        has_outdated_template(group(**change), build_desired_slice(leader, options()))
        is is_outdated
    )


def affine(key: str, *values: str) -> dict[str, Any]:
    """A change: the Pod requires a label of its Nodes by affinity."""
    expression = {"key": key, "operator": "In", "values": list(values)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return {"spec": {"affinity": {"nodeAffinity": required}}}


SELECTIONS: dict[str, tuple[dict[str, Any], dict[str, str | None], bool]] = {
    "what it was made with": (affine("rack", "a"), {}, True),
    "a label that the template gained since, by affinity": (
        affine("rack", "a"),
        {"rack": None},
        False,
    ),
    "a label that the template gave another value since": (
        affine("rack", "a"),
        {"rack": "b"},
        False,
    ),
    "nothing of what it has": ({}, {"rack": None}, True),
    "its size": (affine("cloud.google.com/gke-tpu-topology", "4x4"), {}, True),
}


@pytest.mark.parametrize("case", SELECTIONS.values(), ids=SELECTIONS)
def test_a_group_is_right_for_a_pod_that_selects(
    case: tuple[dict[str, Any], dict[str, str | None], bool],
) -> None:
    change, made_with, is_right = case
    leader = find_leader(waiting_pod(**change))
    assert leader is not None
    desired = build_desired_slice(leader, options(spec={"nodeLabels": {"rack": "a"}}))
    found = merge(desired.body, {"spec": {"nodeLabels": made_with}})
    assert is_selected(found, desired) is is_right
