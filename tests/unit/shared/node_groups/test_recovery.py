# ruff: noqa: E501  (a table reads best with a row on a line)
"""What the message of a lost slice says: since when, who restores it, until when, and what then."""

from __future__ import annotations

from typing import Any

import pytest

from shared.base.names import JOBSET_LABEL, UNIT_KIND_LABEL
from shared.base.reasons import REASONS, Reason
from shared.base.slice_names import JOB_LABEL
from shared.node_groups.recovery import describe_recovery
from shared.node_groups.status import Pending, Status
from tests.support.builders import NOW, group

LOST = "Lost at 2026-11-20T10:00:00Z."
TOGETHER = f"{LOST} Compute Engine restarts the VMs of a slice together, except deleted ones. If the slice is not Ready by 2026-11-20T10:30:00Z,"
NOT_SPOT = f"{LOST} Compute Engine does not restart Spot VMs of a slice."
BY_USER = "elete the group and apply it again."
AGAIN = "tpu-functions creates it again for {}, as long as its Pods need it (jobset_lost_rebuild_minutes)."
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
    "one host, flex start": (SINGLE, {}, "FLEX_START", Reason.NODE_LOST, f"{TOGETHER} d{BY_USER}"),
    "the run is over": ({}, {}, "FLEX_START", Reason.MAX_RUN_DURATION_REACHED, REASONS[Reason.MAX_RUN_DURATION_REACHED]),
    "the run is over, of a JobSet": ({}, OF_JOBSET, "FLEX_START", Reason.MAX_RUN_DURATION_REACHED, f"{LOST} The VMs have run for their maxRunDuration and were ended. {AGAIN.format('JobSet train')}"),
    "not a loss": ({}, {}, "SPOT", Reason.NODE_DELETED, REASONS[Reason.NODE_DELETED]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_message_of_a_loss_says_who_restores_the_slice_and_until_when(
    case: tuple[dict[str, Any], dict[str, str], str, Reason, str],
) -> None:
    change, labels, model, reason, text = case
    known = Status(provisioning_model=model, pending=(Pending("vm", Reason.NODE_LOST, NOW),))
    about = group(change=change, labels=labels)
    assert describe_recovery(about, known, reason) == text


def test_a_loss_without_a_known_time_has_the_general_advice() -> None:
    assert describe_recovery(group(), Status(), Reason.NODE_LOST) == REASONS[Reason.NODE_LOST]
