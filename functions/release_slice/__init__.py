"""release_slice: delete a slice that its unit needs no longer, normally within a minute and a half.

Triggers:

- A JobSet has completed, failed or is deleted, or one of its Jobs has completed.
- A resync about a slice.
- A message of the sweep, each minute. It names no slice: the step lists all, and publishes resyncs about
  those that need an action or a report to its own topic.
- An operation of GKE has ended that created or deleted a node pool, or an update of one has failed. GKE
  changes only a few node pools at a time: the step selects some, and when an operation ends, the next.

`slices.create_or_release.ROWS` decides about each slice, and `slices.kinds` whether it is needed. One
that is needed no longer gets a release deadline first, and is deleted after it: an owner that is deleted
and created again under the same name keeps its slices. One that is needed, and is lost for longer than
Compute Engine may take to restore it, is deleted, so that provision_slice creates it again
(`Settings.lost_rebuild`): TPUNodeGroups alone, because GKE repairs node pools itself.
"""

from dataclasses import replace
from datetime import datetime

from functions.release_slice import decide, observe
from shared.frame.plan import Emit, Plan
from shared.frame.step import Step
from shared.ports.errors import CallError
from shared.slices import create_or_release
from shared.slices.actions import DeleteSlice, SetReleaseDeadline, SliceActionError
from shared.slices.work import (
    GIVEN_UP,
    QUEUED,
    RETRY_REPORTED_AFTER,
    SliceWork,
    is_out_of_slots,
    open_slices,
    read_states,
)
from shared.triggers import routes
from shared.triggers.message import SLICE_KIND
from shared.triggers.trigger import LogTrigger, ObjectTrigger


def recover(work: SliceWork, error: CallError) -> Plan | None:
    """Report an environment error.

    A slice whose release deadline cannot be written is deleted as soon as no Pods run on it. Otherwise
    it would never be deleted.
    """
    if not isinstance(error, SliceActionError):
        return None
    if is_out_of_slots(error, work.provider):
        return Plan(QUEUED, note=str(error))
    if isinstance(error.action, SetReleaseDeadline) and error.reason is not None:
        # Only its plan sets deadlines.
        observed: observe.ObservedSlices = work.observed
        one = next(one for one in observed.slices if one.existing == error.action.existing)
        refused = observe.with_users(work, replace(one, refusal=str(error)))
        return decide.plan_slice(refused, work.now).to_plan()
    report = decide.plan_report("", error, work.provider)
    return report.to_plan() if report is not None else None


def report_retry(work: SliceWork, error: Exception) -> Plan | None:
    """Report a transient error that only the sweep retries, on the JobSet of the slice: that of the
    action that failed or, for a failed read, the one that the message names. The end of an operation is
    reported by nothing else."""
    action = error.action if isinstance(error, SliceActionError) else None
    existing = None
    if isinstance(action, DeleteSlice | SetReleaseDeadline):
        existing = action.existing
    elif isinstance(work.trigger, ObjectTrigger) and work.trigger.message.kind == SLICE_KIND:
        message = work.trigger.message
        existing = work.provider.get(message.namespace, message.name)
    if existing is None:
        return None if isinstance(work.trigger, LogTrigger) else Plan(GIVEN_UP)
    (one,) = observe.match_states(work, [existing], read_states(work, [existing]))
    if not is_retry_reported(one, work.now):
        return Plan(GIVEN_UP)
    observe.set_subject(work, existing.unit, one.state)
    event = create_or_release.DELETION_RETRIED.render(work.provider, {"failure": str(error)})
    return Plan(GIVEN_UP, first=(Emit(event, once=True),))


STEP = Step(
    routes.RELEASE_SLICE,
    open_slices,
    observe.observe,
    decide.decide,
    recover,
    recovers_each=True,
    give_up=report_retry,
)


def is_retry_reported(one: observe.ObservedSlice, now: datetime) -> bool:
    """Whether a transient error is reported: the slice has been due for release for ten minutes.

    If the JobSet is gone and no release deadline could be written, nothing tells since when the slice
    has been due. Then only the log has the error: to report it immediately would also report the normal
    answer "running incompatible operation", which GKE gives for some minutes while it changes the pool
    or the cluster.
    """
    since = one.state.since or one.existing.release_after
    return bool(one.state.why) and since is not None and now - since >= RETRY_REPORTED_AFTER


def has_work(one: observe.ObservedSlice, now: datetime) -> bool:
    """Whether the slice needs an action or a report, so that this step sends resyncs about it to itself
    (for ``kubectl tng explain``)."""
    return one.is_change_due(now) or one.find_row(now).event is not None
