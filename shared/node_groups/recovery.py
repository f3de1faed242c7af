"""What happens after a slice has lost VMs: who restores it, and until when.

Compute Engine restarts failed VMs of managed capacity itself, those of a slice together, on hosts that
can form its topology. It restores neither deleted VMs nor Spot VMs (tpu/docs/failure-recovery). After
that, or without it, this system or the user creates the slice again.
"""

from datetime import datetime, timedelta

from shared.base.reasons import VM_LOSSES, Reason, find_advice
from shared.base.timestamps import render_time
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.node_groups.status import Status

RESTORED_WITHIN = timedelta(minutes=30)
"""Compute Engine may restore a slice for so long after its last loss. Google documents no time: this one
is a guess."""


def is_repaired_by_mig(model: str, *, is_bulk: bool) -> bool:
    """Whether the MIG recreates VMs: not those of a BULK slice, and never flex-start VMs."""
    return not is_bulk and model != "FLEX_START"


def find_restore_time(model: str, reason: str) -> timedelta:
    """How long Compute Engine may take to restore the VMs of a slice; 0 if it does not."""
    is_ended = model == "SPOT" or reason == Reason.MAX_RUN_DURATION_REACHED
    return timedelta() if is_ended else RESTORED_WITHIN


def find_loss_time(known: Status) -> datetime | None:
    """When the last VM was lost of those that the status reports."""
    return max((one.since for one in known.pending if one.why in VM_LOSSES), default=None)


def describe_recovery(group: AnyGroup, known: Status, reason: str) -> str:
    """Since when VMs are lost, who restores the slice, until when, and what happens then; the advice of
    any other reason. The text has absolute times, so it stays true while nobody writes the status."""
    since = find_loss_time(known)
    if reason not in VM_LOSSES or since is None or not isinstance(group, NodeGroup):
        return find_advice(reason)
    if reason == Reason.MAX_RUN_DURATION_REACHED and not group.workload:
        return find_advice(reason)
    model, lost = known.provisioning_model, f"Lost at {render_time(since)}."
    if reason == Reason.MAX_RUN_DURATION_REACHED:
        return f"{lost} The VMs have run for their maxRunDuration and were ended. {describe_next(group)}"
    if is_repaired_by_mig(model, is_bulk=group.spec.is_bulk):
        return f"{lost} Its managed instance group creates it again. Nothing to do."
    restored = find_restore_time(model, reason)
    if not restored:
        return f"{lost} Compute Engine does not restart Spot VMs of a slice. {describe_next(group)}"
    until = render_time(since + restored)
    return (
        f"{lost} Compute Engine restarts the VMs of a slice together, except deleted ones. "
        f"{describe_next(group, until)}"
    )


def describe_next(group: NodeGroup, until: str = "") -> str:
    """Who creates a slice again that Compute Engine does not restore, or has not restored ``until``."""
    condition = f"If the slice is not Ready by {until}, " if until else ""
    if group.workload:
        return (
            f"{condition}tpu-functions creates it again for {group.workload}, as long as its Pods need "
            "it (jobset_lost_rebuild_minutes)."
        )
    return f"{condition}{'delete' if condition else 'Delete'} the group and apply it again."
