# ruff: noqa: E501  (a table reads best with a row on a line)
"""How a TPUNodeGroup is read as a slice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shared.base.reasons import Reason, find_advice
from shared.base.timestamps import render_time
from shared.node_groups.recovery import RESTORED_WITHIN
from shared.slices.by_node_group.desired_group import TEMPLATE_HASH_ANNOTATION
from shared.slices.by_node_group.provider import (
    LOST_AFTER,
    has_outdated_template,
    is_selected,
    read_slice,
)
from shared.slices.classes import Place
from shared.slices.provider import Slice, SliceState
from shared.slices.units import Unit
from tests.support.builders import NOW, merge
from tests.support.jobset_objects import options, waiting_pod
from tests.support.slices import asked, build_group
from tests.unit.shared.slices.by_node_group.objects import SINCE, group, read

MOMENT = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)
COMPLETE = {"completedAt": "2026-11-20T09:00:00Z"}
SPOT = {"spec": {"instanceConfig": {"provisioningModel": "SPOT"}}}
FLEX_START = {"spec": {"instanceConfig": {"provisioningModel": "FLEX_START"}}}
ONE_HOST = {"spec": {"targetSizePolicyMode": "INDIVIDUAL"}}


def ready(status: str, reason: str = "Ready", **rest: Any) -> dict[str, Any]:
    """Return a change that sets the condition Ready."""
    condition = {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": "the cloud's message",
    }
    return {"status": {"conditions": [{**condition, "lastTransitionTime": SINCE}], **rest}}


def test_a_slice_is_read() -> None:
    marks = {"slice-class": "v6e", "asked-at": render_time(NOW), "release-after": SINCE}
    annotations = {f"tpu-functions.dev/{key}": value for key, value in marks.items()}
    manifest = group(metadata={"annotations": annotations})
    found = read_slice(manifest, NOW)
    assert found == Slice(
        name="train-bfcf5ebea76efcf5",
        unit=Unit("JobSet", "default", "train", "train-workers-0"),
        hash=manifest["metadata"]["annotations"]["tpu-functions.dev/slice-hash"],
        state=SliceState.PROVISIONING,
        is_self_healing=True,
        release_after=MOMENT,
        since=MOMENT,
        chips=16,
        place=Place("us-central1-c", project="my-gcp-project"),
        class_name="v6e",
        created=MOMENT,
        asked=NOW,
        has_vms=False,
        was_ready=False,
    )


STATES: dict[str, tuple[dict[str, Any], SliceState, str]] = {
    "no status yet": ({}, SliceState.PROVISIONING, ""),
    "resources are being created": (ready("False", Reason.PROVISIONING), SliceState.PROVISIONING, ""),
    "Nodes are joining": (ready("False", Reason.AWAITING_NODE_JOIN), SliceState.PROVISIONING, ""),
    "the interconnect is not ready": (ready("False", Reason.INTERCONNECT_NOT_READY), SliceState.PROVISIONING, ""),
    "a new Node is not Ready": (ready("False", Reason.NODE_NOT_READY), SliceState.PROVISIONING, ""),
    "a Node that was Ready is not": (ready("False", Reason.NODE_NOT_READY, **COMPLETE), SliceState.FAILED, "NodeNotReady: the cloud's message"),
    "no capacity": (ready("False", Reason.INSUFFICIENT_CAPACITY), SliceState.FAILED, "InsufficientCapacity: the cloud's message"),
    "an invalid spec": (ready("False", Reason.INVALID_SPEC), SliceState.FAILED, "InvalidSpec: the cloud's message"),
    "paused by a user": (ready("False", Reason.PAUSED), SliceState.FAILED, "Paused: the cloud's message"),
    "ready": (ready("True"), SliceState.READY, ""),
    "being deleted": ({"metadata": {"deletionTimestamp": SINCE}, **ready("True")}, SliceState.DELETING, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", STATES.values(), ids=STATES)
def test_the_state_of_a_slice_follows_from_the_condition_ready(
    case: tuple[dict[str, Any], SliceState, str],
) -> None:
    change, state, message = case
    found = read(change)
    assert (found.state, found.message, found.since) == (state, message, MOMENT)


def mig(reason: str, state: str = "Ready", status: str = "False", **rest: Any) -> dict[str, Any]:
    """Return a change that sets the MIG's entry and condition."""
    text = f"the cloud's words. {find_advice(reason)}".strip()
    condition = {
        "type": "ManagedInstanceGroupReady",
        "status": status,
        "reason": reason,
        "message": text,
    }
    resources = {"managedInstanceGroup": {"name": "tng-x", "state": state}}
    return {"status": {"conditions": [condition], "resources": resources, **rest}}


PLACES = [
    ({}, Place("us-central1-c", project="my-gcp-project")),
    (SPOT, Place("us-central1-c", "SPOT", project="my-gcp-project")),
    (
        {"spec": {"instanceConfig": {"provisioningModel": "RESERVATION_BOUND", "reservation": "r/reservationBlocks/b"}}},
        Place("us-central1-c", "RESERVATION_BOUND", "r/reservationBlocks/b", "my-gcp-project"),
    ),
    (merge(FLEX_START, {"spec": {"nodeLocation": "us-east5-b"}}), Place("us-east5-b", "FLEX_START", project="my-gcp-project")),
]  # fmt: skip


@pytest.mark.parametrize("change, place", PLACES)
def test_the_candidate_of_a_slice_is_read_from_the_spec(
    change: dict[str, Any], place: Place
) -> None:
    assert read(change).place == place


WAITS, REFUSED = (None, True), (Reason.RESERVATION_FULL, "the cloud's words.")
STUCK = (None, False)
PAUSED = {"metadata": {"annotations": {"tpu-functions.dev/paused": "true"}}}
CREATIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "no status yet": ({}, STUCK),
    "the MIG is being inserted": (mig(Reason.PROVISIONING, "Creating"), STUCK),
    "the MIG waits for VMs": (mig(Reason.PROVISIONING), WAITS),
    "the MIG waits, and is paused": (merge(mig(Reason.PROVISIONING), PAUSED), STUCK),
    "in BULK mode the MIG waits for capacity": (mig(Reason.INSUFFICIENT_CAPACITY), WAITS),
    "one host is refused for capacity": (
        merge(mig(Reason.INSUFFICIENT_CAPACITY), ONE_HOST),
        ((Reason.INSUFFICIENT_CAPACITY, "the cloud's words."), False),
    ),
    "the reservation is full": (mig(Reason.RESERVATION_FULL), (REFUSED, False)),
    "the insert of the MIG is refused": (mig(Reason.RESERVATION_FULL, "Failed"), (REFUSED, False)),
    "the reservation is full, and paused": (merge(mig(Reason.RESERVATION_FULL), PAUSED), STUCK),
    "VMs run": (mig(Reason.RESERVATION_FULL, nodeSummary={"running": 1}), "has VMs"),
    "Nodes have joined": (mig(Reason.RESERVATION_FULL, nodeSummary={"joined": 1}), "has VMs"),
    "the slice was complete": (mig(Reason.RESERVATION_FULL, **COMPLETE), "has VMs"),
    "the MIG has its VMs": (mig("Ready", status="True"), "has VMs"),
}  # fmt: skip


@pytest.mark.parametrize("case", CREATIONS.values(), ids=CREATIONS)
def test_whether_a_slice_waits_is_refused_or_has_vms_follows_from_its_status(
    case: tuple[dict[str, Any], Any],
) -> None:
    change, expected = case
    found = read(change)
    waits = (found.refusal, found.can_be_given_up)
    assert ("has VMs" if found.has_vms else waits) == expected
    assert not (found.has_vms and any(waits))
    assert found.was_ready is ("completedAt" in change.get("status", {}))


PREEMPTED = ready("False", Reason.PREEMPTED, **COMPLETE)
LATER, SOON = MOMENT + LOST_AFTER, MOMENT + LOST_AFTER - timedelta(seconds=1)
RESTORED = MOMENT + RESTORED_WITHIN
LOSSES: dict[str, tuple[dict[str, Any], datetime, bool]] = {
    "never complete, no capacity": (ready("False", Reason.INSUFFICIENT_CAPACITY), LATER, True),
    "never complete, and preempted": (ready("False", Reason.PREEMPTED), RESTORED, False),
    "never complete, Spot, and preempted": (
        {**ready("False", Reason.PREEMPTED), **SPOT},
        MOMENT,
        False,
    ),
    "a host with an error, within the limit": (PREEMPTED, RESTORED - timedelta(seconds=1), True),
    "a host with an error, after the limit": (PREEMPTED, RESTORED, False),
    "a host that was deleted": (ready("False", Reason.NODE_LOST, **COMPLETE), RESTORED, False),
    "a host that stopped with the others": (
        ready("False", Reason.NODE_LOST, **COMPLETE),
        RESTORED - timedelta(seconds=1),
        True,
    ),
    "an expired run duration": (
        ready("False", Reason.MAX_RUN_DURATION_REACHED, **COMPLETE),
        MOMENT,
        False,
    ),
    "a preempted Spot host": ({**PREEMPTED, **SPOT}, MOMENT, False),
    "a Spot host that was deleted": (
        {**ready("False", Reason.NODE_LOST, **COMPLETE), **SPOT},
        MOMENT,
        False,
    ),
    "a lost managed instance group": (
        ready("False", Reason.RESOURCE_LOST, **COMPLETE),
        MOMENT,
        False,
    ),
    "a preempted single host": ({**PREEMPTED, **ONE_HOST}, LATER, True),
    "a single host with a lost managed instance group": (
        {**ready("False", Reason.RESOURCE_LOST, **COMPLETE), **ONE_HOST},
        MOMENT,
        False,
    ),
    "a single host with an expired run duration": (
        merge({**PREEMPTED, **ONE_HOST}, FLEX_START),
        RESTORED,
        False,
    ),
    "a Node that is not Ready": (ready("False", Reason.NODE_NOT_READY, **COMPLETE), LATER, True),
}


@pytest.mark.parametrize("case", LOSSES.values(), ids=LOSSES)
def test_a_slice_is_self_healing_if_its_failure_can_end_without_a_new_slice(
    case: tuple[dict[str, Any], datetime, bool],
) -> None:
    change, now, is_self_healing = case
    assert read(change, now).is_self_healing is is_self_healing


def test_a_slice_has_ready_nodes_if_the_node_summary_counts_one() -> None:
    assert read(ready("False", nodeSummary={"ready": 1})).has_ready_nodes
    assert not read(ready("False", nodeSummary={"desired": 4})).has_ready_nodes


JOBSET, JOB, KEY = (f"tpu-functions.dev/{name}" for name in ("jobset-name", "job-name", "job-key"))
OTHERS: dict[str, dict[str, Any]] = {
    "a group of a user": {"metadata": {"labels": None}},
    "a name that does not match its labels": {"metadata": {"name": "train-bfcf5ebea76efcf6"}},
    "without the JobSet": {"metadata": {"labels": {JOBSET: None}}},
    "without the Job": {"metadata": {"labels": {JOB: None}}},
    "without the key": {"metadata": {"labels": {KEY: None}}},
    "the labels of another slice": {"metadata": {"labels": {KEY: "f" * 40}}},
}


@pytest.mark.conformance(
    cases={"a group of a user": "delete-node-not-managed gc-manager-label-not-checked"}
)
@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_a_group_whose_labels_do_not_match_its_name_is_not_a_slice(change: dict[str, Any]) -> None:
    assert read_slice(group(**change), NOW) is None


@pytest.mark.parametrize("text", ["soon", "0001-01-01T00:00:00+14:00", "9" * 300])
def test_a_release_deadline_that_is_not_a_time_is_none(text: str) -> None:
    annotations = {"tpu-functions.dev/release-after": text}
    assert read({"metadata": {"annotations": annotations}}).release_after is None


def test_a_slice_whose_transition_time_is_invalid_has_no_time() -> None:
    change = ready("False", Reason.NODE_LOST, **COMPLETE)
    change["status"]["conditions"][0]["lastTransitionTime"] = "2026-11-20T09:30:00+99:00"
    found = read(change)
    assert (found.state, found.since) == (SliceState.FAILED, None)


FULL = ready("False", Reason.INSUFFICIENT_CAPACITY)
OTHER = {"metadata": {"annotations": {TEMPLATE_HASH_ANNOTATION: "other"}}}
TEMPLATES: dict[str, tuple[dict[str, Any], bool]] = {
    "the current template": (FULL, False),
    "another template": ({**FULL, **OTHER}, True),
    "another template, and the group is complete": ({**ready("True", **COMPLETE), **OTHER}, False),
    "another template, and the group is paused": (
        {**ready("False", Reason.PAUSED), **OTHER},
        False,
    ),
    "no hash of a template": (
        {**FULL, "metadata": {"annotations": {TEMPLATE_HASH_ANNOTATION: None}}},
        False,
    ),
}


@pytest.mark.parametrize("case", TEMPLATES.values(), ids=TEMPLATES)
def test_a_failed_group_of_another_template_has_an_outdated_template(
    case: tuple[dict[str, Any], bool],
) -> None:
    change, is_outdated = case
    demand, unit = asked(waiting_pod())
    assert (
        has_outdated_template(group(**change), build_group(demand, unit, options())) is is_outdated
    )


def affine(key: str, *values: str) -> dict[str, Any]:
    """Return a change by which the Pod requires a label of its Nodes by affinity."""
    expression = {"key": key, "operator": "In", "values": list(values)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return {"spec": {"affinity": {"nodeAffinity": required}}}


SELECTIONS: dict[str, tuple[dict[str, Any], dict[str, str | None], bool]] = {
    "the labels of the template": (affine("rack", "a"), {}, True),
    "a label that was added to the template later": (
        affine("rack", "a"),
        {"rack": None},
        False,
    ),
    "a label whose value in the template changed later": (
        affine("rack", "a"),
        {"rack": "b"},
        False,
    ),
    "none of its labels": ({}, {"rack": None}, True),
    "its topology": (affine("cloud.google.com/gke-tpu-topology", "4x4"), {}, True),
}


@pytest.mark.parametrize("case", SELECTIONS.values(), ids=SELECTIONS)
def test_a_pod_selects_a_group_only_if_the_group_has_the_required_labels(
    case: tuple[dict[str, Any], dict[str, str | None], bool],
) -> None:
    change, existing_labels, is_expected = case
    demand, unit = asked(waiting_pod(**change))
    desired = build_group(demand, unit, options(spec={"nodeLabels": {"rack": "a"}}))
    found = merge(desired.body, {"spec": {"nodeLabels": existing_labels}})
    assert is_selected(found, desired) is is_expected


NODE_LOSSES = [Reason.NODE_DELETED, Reason.NODE_JOIN_TIMEOUT]


@pytest.mark.parametrize("hosts", [{}, ONE_HOST], ids=["some hosts", "one host"])
@pytest.mark.parametrize("reason", NODE_LOSSES)
def test_a_vm_without_a_node_does_not_recover_if_its_slice_was_complete(
    reason: str, hosts: dict[str, Any]
) -> None:
    lost, never_complete = ready("False", reason, **COMPLETE), ready("False", reason)
    assert not read({**lost, **hosts}, LATER).is_self_healing
    assert read({**lost, **hosts}, SOON).is_self_healing
    assert read({**never_complete, **hosts}, LATER).is_self_healing


def pending(*entries: tuple[str, datetime]) -> list[dict[str, Any]]:
    """Return the entries of ``status.pending``, each with a reason and its time."""
    return [
        {"name": f"tng-{number}", "why": why, "since": render_time(since)}
        for number, (why, since) in enumerate(entries)
    ]


HOUR_LATER = MOMENT + timedelta(hours=1)
NODE_DELETED, NODE_LOST = (Reason.NODE_DELETED, HOUR_LATER), (Reason.NODE_LOST, HOUR_LATER)
LATE_LOSSES: dict[str, tuple[Reason, list[Any], datetime]] = {
    "a Node that was deleted after an hour": (Reason.NODE_DELETED, pending(NODE_DELETED), HOUR_LATER),
    "a VM that was lost after an hour": (Reason.NODE_LOST, pending(NODE_LOST), HOUR_LATER),
    "a VM that was lost before another Node was not Ready": (
        Reason.NODE_LOST,
        pending(NODE_LOST, (Reason.NODE_NOT_READY, HOUR_LATER + timedelta(minutes=9))),
        HOUR_LATER,
    ),
    "two VMs, the second of which was lost an hour later": (Reason.NODE_LOST, pending((Reason.NODE_LOST, MOMENT), (Reason.PREEMPTED, HOUR_LATER)), HOUR_LATER),
    "a VM that was lost, and a Node that was deleted an hour later": (Reason.NODE_LOST, pending((Reason.NODE_LOST, MOMENT), NODE_DELETED), MOMENT),
    "a VM whose time is unreadable": (Reason.NODE_LOST, [{"name": "tng-0", "why": Reason.NODE_LOST, "since": "soon"}, "tng-1"], MOMENT),
}  # fmt: skip


@pytest.mark.parametrize("case", LATE_LOSSES.values(), ids=LATE_LOSSES)
def test_a_slice_with_a_lost_host_is_self_healing_for_some_time_after_the_loss(
    case: tuple[Reason, list[Any], datetime],
) -> None:
    reason, entries, lost_at = case
    change = ready("False", reason, **COMPLETE, pending=entries)
    limit = LOST_AFTER if reason is Reason.NODE_DELETED else RESTORED_WITHIN
    assert read(change, lost_at + limit - timedelta(seconds=1)).is_self_healing
    found = read(change, lost_at + limit)
    assert not found.is_self_healing
    assert found.since == lost_at, "the time until the rebuild is counted from the loss, too"


def test_a_failed_slice_that_has_lost_no_host_has_failed_since_it_was_ready() -> None:
    entries = pending((Reason.NODE_NOT_READY, HOUR_LATER))
    found = read(ready("False", Reason.NODE_NOT_READY, **COMPLETE, pending=entries))
    assert found.since == MOMENT
