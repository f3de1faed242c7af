# ruff: noqa: E501  (a table reads best with a row on a line)
"""What the message of a lost slice says: since when, who restores it, until when, and what then."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from shared.base.names import (
    FINALIZER,
    JOBSET_LABEL,
    PAUSED_ANNOTATION,
    RESOURCE_NAME_LABEL,
    UNIT_KIND_LABEL,
)
from shared.base.reasons import REASONS, Reason
from shared.base.slice_names import JOB_LABEL
from shared.node_groups.readiness import conclude, find_readiness
from shared.node_groups.recovery import (
    begin_repair,
    describe_recovery,
    find_repair_time,
    is_lost,
    is_repair_due,
)
from shared.node_groups.status import (
    MIG,
    Condition,
    Counts,
    Pending,
    Repairs,
    Resource,
    ResourceError,
    State,
    Status,
    Type,
)
from shared.ports.gce.values import ManagedInstance, Mig
from tests.support.builders import NOW, RESOURCE, group
from tests.support.compute import instance_group

MINUTE = timedelta(minutes=1)
LOST = "Lost at 2026-11-20T10:00:00Z."
UNTIL = "If the slice is not Ready by 2026-11-20T10:30:00Z,"
TOGETHER = (
    f"{LOST} Compute Engine restarts the VMs of a slice together, except deleted ones. {UNTIL}"
)
NOT_SPOT = f"{LOST} Compute Engine does not restart Spot VMs of a slice."
NOT_FLEX = f"{LOST} Its managed instance group does not create flex-start VMs again."
BY_USER = "elete the group and apply it again."
AGAIN = "tpu-functions creates it again for {}, as long as its Pods need it. The setting jobset_lost_rebuild_minutes can delay this; with 0 the slice stays."
OF_JOBSET = {JOBSET_LABEL: "train", JOB_LABEL: "train-0"}
OF_LWS = {JOBSET_LABEL: "serve", JOB_LABEL: "x", UNIT_KIND_LABEL: "LeaderWorkerSet"}
SINGLE = {"targetSizePolicyMode": "INDIVIDUAL", "topology": "2x2x1"}
CASES: dict[str, tuple[dict[str, Any], dict[str, str], str, Reason, str]] = {
    "on demand": ({}, {}, "STANDARD", Reason.PREEMPTED, f"{TOGETHER} d{BY_USER}"),
    "the model is unknown": ({}, {}, "", Reason.NODE_LOST, f"{TOGETHER} d{BY_USER}"),
    "Spot": ({}, {}, "SPOT", Reason.PREEMPTED, f"{NOT_SPOT} D{BY_USER}"),
    "of a JobSet": ({}, OF_JOBSET, "STANDARD", Reason.NODE_LOST, f"{TOGETHER} {AGAIN.format('JobSet train')}"),
    "Spot, of a LeaderWorkerSet": ({}, OF_LWS, "SPOT", Reason.NODE_LOST, f"{NOT_SPOT} {AGAIN.format('LeaderWorkerSet serve')}"),
    "its MIG repairs it": (SINGLE, {}, "SPOT", Reason.NODE_LOST, f"{LOST} Its managed instance group creates it again. Nothing to do."),
    "its MIG repairs it at the end of a run": (SINGLE, {}, "SPOT", Reason.MAX_RUN_DURATION_REACHED, f"{LOST} Its managed instance group creates it again. Nothing to do."),
    "the end of its reservation, one host": (SINGLE, {}, "RESERVATION_BOUND", Reason.RUN_ENDED, REASONS[Reason.RUN_ENDED]),
    "one host, flex start": (SINGLE, {}, "FLEX_START", Reason.NODE_LOST, f"{NOT_FLEX} D{BY_USER}"),
    "one host, flex start, of a JobSet": (SINGLE, OF_JOBSET, "FLEX_START", Reason.NODE_LOST, f"{NOT_FLEX} {UNTIL} {AGAIN.format('JobSet train')}"),
    "the run is over": ({}, {}, "FLEX_START", Reason.MAX_RUN_DURATION_REACHED, REASONS[Reason.MAX_RUN_DURATION_REACHED]),
    "the run is over, of a JobSet": ({}, OF_JOBSET, "FLEX_START", Reason.MAX_RUN_DURATION_REACHED, f"{LOST} The VMs have run for their maxRunDuration and were ended. {AGAIN.format('JobSet train')}"),
    "not a loss": ({}, {}, "SPOT", Reason.NODE_DELETED, REASONS[Reason.NODE_DELETED]),
}  # fmt: skip


def lost(model: str, repairs: Repairs | None = None) -> Status:
    """The status of a slice that was complete and has lost a VM."""
    return Status(
        completed_at=NOW,
        provisioning_model=model,
        conditions={Type.MIG_READY: Condition("True", "Ready", "", NOW, 1)},
        resources={MIG: Resource(RESOURCE, State.READY, NOW)},
        pending=(Pending("vm", Reason.NODE_LOST, NOW),),
        repairs=repairs or Repairs(),
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_message_of_a_loss_says_who_restores_the_slice_and_until_when(
    case: tuple[dict[str, Any], dict[str, str], str, Reason, str],
) -> None:
    change, labels, model, reason, text = case
    known = Status(provisioning_model=model, pending=(Pending("vm", Reason.NODE_LOST, NOW),))
    about = group(change=change, labels=labels)
    assert describe_recovery(about, known, reason) == text


def test_the_advice_for_a_lost_flex_start_vm_names_the_vms_that_go_on() -> None:
    known = replace(lost("FLEX_START"), counts=Counts(desired=2, joined=1))
    text = describe_recovery(group(change=SINGLE), known, Reason.NODE_LOST)
    assert text == f"{NOT_FLEX} D{BY_USER} VMs that still run are deleted with it."
    of_workload = describe_recovery(group(change=SINGLE, labels=OF_JOBSET), known, Reason.NODE_LOST)
    assert not of_workload.endswith("deleted with it.")


def test_the_advice_at_the_end_of_a_run_names_the_vms_that_go_on() -> None:
    known = Status(counts=Counts(joined=1), pending=(Pending("vm", Reason.NODE_LOST, NOW),))
    texts = [
        describe_recovery(group(change=change), known, Reason.RUN_ENDED) for change in (SINGLE, {})
    ]
    plain = REASONS[Reason.RUN_ENDED]
    assert texts == [f"{plain} VMs that still run are deleted with it.", plain]


@pytest.mark.parametrize("change", [{}, SINGLE], ids=["BULK", "INDIVIDUAL"])
def test_nobody_is_said_to_restore_vms_whose_mig_is_gone(change: dict[str, Any]) -> None:
    known = lost("STANDARD")
    gone = Condition("False", Reason.RESOURCE_LOST, "", NOW, 1)
    known = replace(known, conditions={Type.MIG_READY: gone})
    text = describe_recovery(group(change=change), known, Reason.NODE_LOST)
    assert text == REASONS[Reason.RESOURCE_LOST]
    of_workload = describe_recovery(group(change=change, labels=OF_JOBSET), known, Reason.NODE_LOST)
    assert of_workload == (
        "The slice was complete and its managed instance group is gone. tpu-functions creates it again "
        "for JobSet train, as long as its Pods need it. The setting jobset_lost_rebuild_minutes can "
        "delay this; with 0 the slice stays."
    )


def test_a_paused_group_that_would_be_repaired_says_what_removes_the_obstacle() -> None:
    paused = replace(group(change={"repair": "Recreate"}), is_paused=True)
    assert describe_recovery(paused, lost("SPOT"), Reason.NODE_LOST).endswith(
        " The group is paused: without the annotation tpu-functions.dev/paused, tpu-functions creates it "
        "again (spec.repair)."
    )
    assert find_repair_time(paused, lost("SPOT")) is None


RECREATED = "and creates it again (spec.repair)."
REPAIRED: dict[str, tuple[str, Repairs, timedelta | None]] = {
    "Spot": ("SPOT", Repairs(), 0 * MINUTE),
    "on demand": ("STANDARD", Repairs(), 30 * MINUTE),
    "Spot, once before": ("SPOT", Repairs(1, NOW - MINUTE), 9 * MINUTE),
    "Spot, once long before": ("SPOT", Repairs(1, NOW - 10 * MINUTE), 0 * MINUTE),
    "on demand, once before": ("STANDARD", Repairs(1, NOW - MINUTE), 30 * MINUTE),
    "Spot, seven times before": ("SPOT", Repairs(7, NOW), 640 * MINUTE),
    "Spot, eight times before": ("SPOT", Repairs(8, NOW), 1280 * MINUTE),
    "Spot, more often before": ("SPOT", Repairs(10**6, NOW), 1440 * MINUTE),
    "Spot, a day before": ("SPOT", Repairs(9, NOW - 1440 * MINUTE), 0 * MINUTE),
    "Spot, at a wrong time": ("SPOT", Repairs(9, NOW + 1440 * MINUTE), 0 * MINUTE),
}


@pytest.mark.parametrize("case", REPAIRED.values(), ids=REPAIRED)
def test_a_repair_waits_for_compute_engine_and_for_growing_gaps(
    case: tuple[str, Repairs, timedelta],
) -> None:
    model, repairs, gap = case
    known, about = lost(model, repairs), group(change={"repair": "Recreate"})
    assert find_repair_time(about, known) == NOW + gap
    assert describe_recovery(about, known, Reason.NODE_LOST).endswith(RECREATED)
    assert not is_repair_due(about, known, NOW + gap - timedelta(seconds=1))
    assert is_repair_due(about, known, NOW + gap)
    begun = begin_repair(replace(known, run_ends=NOW), NOW + gap)
    assert (begun.repairs.last_at, begun.pending) == (NOW + gap, ())
    assert (begun.completed_at, begun.run_ends) == (None, None)
    assert begun.resources[MIG].state is State.DELETING
    assert find_readiness(about, begun).reason == Reason.REPAIRING


RUN_OVER = Pending("vm", Reason.MAX_RUN_DURATION_REACHED, NOW)
NOT_REPAIRED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Never": ({"change": {"repair": "Never"}}, {}),
    "it is paused": ({"annotations": {PAUSED_ANNOTATION: "true"}}, {}),
    "it is being deleted": ({"deleting": True}, {}),
    "it is not owned": ({"owned": False}, {}),
    "it is tpu-operator's, too": ({"finalizers": [FINALIZER, "tpu.google.com/cleanup-mig"]}, {}),
    "nothing is lost": ({}, {"pending": ()}),
    "the run is over": ({}, {"pending": (RUN_OVER,)}),
    "the reservation is over": ({}, {"pending": (replace(RUN_OVER, why=Reason.RUN_ENDED),)}),
    "the reservation ends before Compute Engine gives up": (
        {},
        {"provisioning_model": "RESERVATION_BOUND", "run_ends": NOW + 35 * MINUTE},
    ),
    "the MIG is gone": ({}, {"resources": {MIG: Resource(RESOURCE, State.GONE, NOW)}}),
    "the MIG was resized": ({}, {"conditions": {}}),
    "the run ends before Compute Engine gives up": (
        {},
        {
            "provisioning_model": "STANDARD",
            "completed_at": NOW - 90 * MINUTE,
            "max_run_s": 115 * 60,
        },
    ),
    "it is a workload's": ({"labels": {**OF_JOBSET, RESOURCE_NAME_LABEL: RESOURCE}}, {}),
}


@pytest.mark.parametrize("case", NOT_REPAIRED.values(), ids=NOT_REPAIRED)
def test_a_slice_is_not_repaired(case: tuple[dict[str, Any], dict[str, Any]]) -> None:
    options, change = case
    about = group(**{"change": {"repair": "Recreate"}, **options})
    assert find_repair_time(about, replace(lost("SPOT"), **change)) is None


def mig(**change: Any) -> Mig:
    return instance_group(is_stable=True, **change)


def members(*statuses: str) -> tuple[ManagedInstance, ...]:
    return tuple(ManagedInstance(f"vm-{at}", status) for at, status in enumerate(statuses))


MEMBERS: dict[str, tuple[Mig | None, tuple[ManagedInstance, ...], bool]] = {
    "all run": (mig(), members("RUNNING", "RUNNING"), False),
    "one has ended": (mig(), members("RUNNING", "TERMINATED"), True),
    "one does not exist": (mig(), members("RUNNING", ""), True),
    "one is not listed": (mig(), members("RUNNING"), True),
    "one is being restarted": (mig(), members("RUNNING", "REPAIRING"), False),
    "something changes": (replace(mig(), is_stable=False), members("RUNNING", ""), False),
    "somebody else's": (mig(description="?"), members("RUNNING", ""), False),
    "it was resized": (mig(target_size=1), members("TERMINATED"), False),
    "there is none": (None, (), False),
}


@pytest.mark.parametrize("case", MEMBERS.values(), ids=MEMBERS)
def test_a_slice_is_lost_if_compute_engine_lacks_vms_and_changes_nothing(
    case: tuple[Mig | None, tuple[ManagedInstance, ...], bool],
) -> None:
    found, listed, is_so = case
    assert is_lost(group(), found, listed) is is_so


def test_the_slice_of_a_workload_must_not_ask_for_repairs() -> None:
    about = group(change={"repair": "Recreate"}, labels=OF_JOBSET)
    assert [*map(str, about.violations)] == [
        "spec.repair: must be Never for the slice of a workload: jobset_lost_rebuild_minutes replaces it"
    ]


def test_the_message_of_a_loss_says_that_a_repair_waits_for_compute_engine() -> None:
    about = group(change={"repair": "Recreate"})
    again = "and creates it again (spec.repair)."
    assert describe_recovery(about, lost("SPOT"), Reason.NODE_LOST) == (
        f"{NOT_SPOT} At 2026-11-20T10:00:00Z, or as soon as Compute Engine has ended its changes, "
        f"tpu-functions deletes its VMs {again}"
    )
    assert describe_recovery(about, lost("STANDARD"), Reason.NODE_LOST) == (
        f"{TOGETHER} tpu-functions deletes its VMs as soon as Compute Engine has ended its changes, {again}"
    )


def test_the_message_of_a_loss_promises_a_repair_also_while_other_vms_are_being_created() -> None:
    about, known = group(change={"repair": "Recreate"}), lost("SPOT")
    creating = Condition("False", Reason.PROVISIONING, "", NOW, 1)
    changing = replace(known, conditions={Type.MIG_READY: creating})
    assert find_repair_time(about, changing) is None
    texts = [describe_recovery(about, one, Reason.NODE_LOST) for one in (changing, known)]
    assert texts[0] == texts[1]
    resized = replace(creating, reason=Reason.RESOURCE_CONFLICT)
    of_resized = replace(known, conditions={Type.MIG_READY: resized})
    assert describe_recovery(about, of_resized, Reason.NODE_LOST) == f"{NOT_SPOT} D{BY_USER}"


def test_a_mig_that_a_repair_cannot_delete_is_reported_with_the_clouds_error() -> None:
    begun = begin_repair(lost("SPOT"), NOW)
    error = ResourceError(Reason.PERMISSION_DENIED, "forbidden", "Required 'x' permission", NOW)
    mig = replace(begun.resources[MIG], error=error)
    failed = find_readiness(group(), replace(begun, resources={**begun.resources, MIG: mig}))
    assert failed.reason == Reason.PERMISSION_DENIED
    assert failed.message.startswith(
        f"The managed instance group {RESOURCE} cannot be deleted: Required 'x' permission. "
    )


@pytest.mark.parametrize("step", ["tear_down", "label_node"])
def test_an_error_that_lasts_during_a_repair_is_reported(step: str) -> None:
    begun = begin_repair(lost("SPOT"), NOW).with_retry(step, "503", NOW)
    ready = conclude(group(), begun, NOW + 10 * MINUTE).conditions[Type.READY]
    assert ready.reason == Reason.REPAIRING
    assert ready.message.endswith(
        f"{step} has failed since 2026-11-20T10:00:00Z and is retried: 503."
    )


def test_during_a_deletion_only_the_errors_of_tear_down_are_reported() -> None:
    known = Status().with_retry("tear_down", "503", NOW).with_retry("label_node", "504", NOW)
    message = (
        conclude(group(deleting=True), known, NOW + 10 * MINUTE).conditions[Type.READY].message
    )
    assert "503" in message
    assert "504" not in message


def test_a_loss_without_a_known_time_has_the_general_advice() -> None:
    assert describe_recovery(group(), Status(), Reason.NODE_LOST) == REASONS[Reason.NODE_LOST]
