"""What happens after a slice has lost VMs: who restores it, and until when.

Compute Engine restarts failed VMs of managed capacity itself, those of a slice together, on hosts that
can form its topology. It restores neither deleted VMs nor Spot VMs (tpu/docs/failure-recovery). After
that, or without it, this system or the user creates the slice again.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from shared.base.names import PAUSED_ANNOTATION
from shared.base.reasons import RUN_ENDS, VM_LOSSES, Reason, find_advice
from shared.base.timestamps import render_time
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.node_groups.resources import Found
from shared.node_groups.spec import RECREATE
from shared.node_groups.status import MIG, Counts, Repairs, State, Status, Type
from shared.ports.gce.values import ManagedInstance, Mig

RESTORED_WITHIN = timedelta(minutes=30)
"""Compute Engine may restore a slice for so long after its last loss. Google documents no time: this one
is a guess."""
FIRST_GAP = timedelta(minutes=10)
DAY = timedelta(days=1)
"""The gap after each repair is twice that before, from `FIRST_GAP` to a day: at most eight repairs in a
day. After a day without one, the count begins again."""


def is_repaired_by_mig(model: str, *, is_bulk: bool) -> bool:
    """Whether the MIG recreates VMs: not those of a BULK slice, and never flex-start VMs."""
    return not is_bulk and model != "FLEX_START"


def find_restore_time(model: str, reason: str) -> timedelta:
    """How long Compute Engine may take to restore the VMs of a slice; 0 if it does not."""
    is_ended = model == "SPOT" or reason in RUN_ENDS
    return timedelta() if is_ended else RESTORED_WITHIN


_STILL_RUN = " VMs that still run are deleted with it."


def find_loss_time(known: Status) -> datetime | None:
    """When the last VM was lost of those that the status reports."""
    return max((one.since for one in known.pending if one.why in VM_LOSSES), default=None)


def find_restore_end(known: Status, reason: str) -> str:
    """Until when Compute Engine may restore the VMs that the status reports as lost; empty: it does not,
    or the time of the loss is not known."""
    since, restored = find_loss_time(known), find_restore_time(known.provisioning_model, reason)
    return render_time(since + restored) if since is not None and restored else ""


def describe_recovery(group: AnyGroup, known: Status, reason: str) -> str:
    """Since when VMs are lost, who restores the slice, until when, and what happens then; the advice of
    any other reason. The text has absolute times, so it stays true while nobody writes the status."""
    since = find_loss_time(known)
    if reason not in VM_LOSSES or since is None or not isinstance(group, NodeGroup):
        return find_advice(reason)
    mig = known.conditions.get(Type.MIG_READY)
    if mig is not None and mig.reason == Reason.RESOURCE_LOST:
        return describe_gone(group, known)
    model, lost = known.provisioning_model, f"Lost at {render_time(since)}."
    # Not after the end of a reservation: nothing can be created in it any more.
    is_created = is_repaired_by_mig(model, is_bulk=group.spec.is_bulk)
    if is_created and reason != Reason.RUN_ENDED:
        return f"{lost} Its managed instance group creates it again. Nothing to do."
    others = "" if group.spec.is_bulk or group.workload or not known.counts.joined else _STILL_RUN
    if reason in RUN_ENDS and not group.workload:
        return f"{find_advice(reason)}{others}"
    if reason in RUN_ENDS:
        is_limited = reason == Reason.MAX_RUN_DURATION_REACHED
        why = "run for their maxRunDuration" if is_limited else "reached status.runEndsAt"
        text = f"{lost} The VMs have {why} and were ended."
        return f"{text} {describe_next(group, known)}"
    until = find_restore_end(known, reason)
    if not group.spec.is_bulk:
        text = f"{lost} Its managed instance group does not create flex-start VMs again."
        return f"{text} {describe_next(group, known, until if group.workload else '')}{others}"
    if not until:
        text = f"{lost} Compute Engine does not restart Spot VMs of a slice."
        return f"{text} {describe_next(group, known)}"
    return (
        f"{lost} Compute Engine restarts the VMs of a slice together, except deleted ones. "
        f"{describe_next(group, known, until)}"
    )


def describe_gone(group: NodeGroup, known: Status) -> str:
    """What follows when the MIG of a slice that was complete is gone."""
    if not group.workload:
        return find_advice(Reason.RESOURCE_LOST)
    gone = "The slice was complete and its managed instance group is gone."
    return f"{gone} {describe_next(group, known)}"


def describe_next(group: NodeGroup, known: Status, until: str = "") -> str:
    """Who creates a slice again that Compute Engine does not restore, or has not restored ``until``."""
    repair_at = _find_repair_time(group, known)
    if repair_at is not None and group.is_paused:
        return (
            f"The group is paused: without the annotation {PAUSED_ANNOTATION}, tpu-functions creates it "
            "again (spec.repair)."
        )
    if repair_at is not None:
        at = render_time(repair_at)
        stable = "as soon as Compute Engine has ended its changes"
        begin = f"At {at}, or {stable}, tpu-functions deletes its VMs"
        if until:
            begin = f"If the slice is not Ready by {at}, tpu-functions deletes its VMs {stable},"
        return f"{begin} and creates it again (spec.repair)."
    condition = f"If the slice is not Ready by {until}, " if until else ""
    if group.workload:
        return (
            f"{condition}tpu-functions creates it again for {group.workload}, as long as its Pods need "
            "it. The setting jobset_lost_rebuild_minutes can delay this; with 0 the slice stays."
        )
    return f"{condition}{'delete' if condition else 'Delete'} the group and apply it again."


def find_repair_time(group: AnyGroup, known: Status) -> datetime | None:
    """From when on a lost slice may be created again (``spec.repair``): when Compute Engine does not
    restore it any more, and the gap since the last repair is over. ``None``: it is not repaired."""
    is_possible = not group.is_paused and known.is_true(Type.MIG_READY)
    return _find_repair_time(group, known) if is_possible else None


def _find_repair_time(group: AnyGroup, known: Status) -> datetime | None:
    """The same of a group that is not paused, once Compute Engine has ended its changes to the MIG."""
    joined, mig = known.conditions.get(Type.NODES_JOINED), known.resources.get(MIG)
    whys = {one.why for one in known.pending}
    since = find_loss_time(known)
    if since is None and joined is not None and joined.reason in VM_LOSSES:
        since = joined.since  # the names of the VMs are unknown
    if not isinstance(group, NodeGroup) or group.spec.repair != RECREATE or since is None:
        return None
    is_left = group.deleting is not None or not group.is_owned or group.has_operator_finalizer
    is_possible = not is_left and not group.violations
    has_mig = mig is not None and mig.state is State.READY
    created = known.conditions.get(Type.MIG_READY)
    is_resized = created is not None and created.reason == Reason.RESOURCE_CONFLICT
    if not (is_possible and has_mig) or is_resized:
        return None
    if RUN_ENDS & whys or (joined is not None and joined.reason in RUN_ENDS):
        return None
    restored = since + find_restore_time(known.provisioning_model, Reason.NODE_LOST)
    count, last_at = _count_repairs(known, since)
    gap = FIRST_GAP * 2 ** min(count - 1, 10) if count else timedelta()
    at = restored if last_at is None else max(restored, last_at + min(DAY, gap))
    return at if known.find_end(at) is None else None


def is_repair_due(group: AnyGroup, known: Status, now: datetime) -> bool:
    """Whether a lost slice may be created again now, as far as the status shows."""
    repair_at = find_repair_time(group, known)
    return repair_at is not None and repair_at <= now and known.find_end(now) is None


def is_repair_begun(group: AnyGroup, known: Status) -> bool:
    """Whether the MIG is being deleted although the group is not."""
    mig = known.resources.get(MIG)
    return group.deleting is None and mig is not None and mig.state is State.DELETING


def is_lost(group: NodeGroup, found: Found | None, members: Iterable[ManagedInstance]) -> bool:
    """Whether Compute Engine, which changes nothing now, lacks VMs of a slice, or has ended them."""
    if not isinstance(found, Mig) or not found.is_stable or found.description != group.mark:
        return False
    statuses = [one.status for one in members]
    is_short = len(statuses) < found.target_size
    return found.target_size == group.spec.node_count and (
        is_short or any(one in ("", "STOPPED", "TERMINATED") for one in statuses)
    )


def _count_repairs(known: Status, at: datetime) -> tuple[int, datetime | None]:
    """The repairs that count at a time, and the last of them. A time in the future is wrong."""
    count, last_at = known.repairs.count, known.repairs.last_at
    if last_at is None or at - last_at >= DAY or last_at - at >= DAY:
        return 0, None
    return count, last_at


def begin_repair(known: Status, now: datetime) -> Status:
    """The status with the intent to delete the MIG. Apart from that, it is that of a group whose VMs do
    not exist yet: the conditions about them are of the lost slice. Those that run are billed until the
    MIG is gone."""
    count, _ = _count_repairs(known, now)
    mig = replace(known.resources[MIG], error=None).enter(State.DELETING, now)
    kept = (Type.ACCEPTED, Type.POLICY_READY, Type.TEMPLATE_READY, Type.READY)
    return replace(
        known.with_resource(MIG, mig),
        completed_at=None,
        run_ends=None,
        conditions={kind: one for kind, one in known.conditions.items() if kind in kept},
        counts=Counts(known.counts.desired, known.counts.running),
        pending=(),
        repairs=Repairs(count + 1, now),
    )
