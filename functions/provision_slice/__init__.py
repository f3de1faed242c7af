"""provision_slice: create a slice for a Job of a JobSet whose first Pod is unschedulable.

The provider of slices is GKE, where a slice is a node pool, or this system, where it is a TPUNodeGroup
(`shared.slices.provider`). A Job's first Pod is the one with completion index 0. A leader is a Pod that
waits for a slice and has this index by its annotation.

Triggers:

- The first Pod of a Job is unschedulable.
- A resync about such a Pod.
- A message of the sweep, each minute. It names no Pod: the step lists the Pods that wait, and publishes
  resyncs about them to its own topic, at intervals that grow with the wait.
- An operation of GKE has ended that created or deleted a node pool.

`slices.lifecycle.ROWS` decides about each Pod. Besides creating slices, the step replaces some: it
deletes the slice, and creates it again when it is gone. Two kinds of slices are replaced:

- On a resync, one that could not be created or has no ready Node any more. It is kept if its provider
  retries by itself.
- One with other properties or labels than the Pod asks for, unless one of these Pods runs on it
  (`list_jobs_on`):

  - a Pod of another Job, or of an older Job of the same name;
  - a Pod of the Job that is being deleted, because it may be writing a checkpoint;
  - another Pod of the Job with index 0. A Job has only one, so one of the two annotations is false:
    anyone can write them. The slice of the one that runs is kept.

  The Job's other Pods do not count, because they cannot work without the first one.

The ConfigMap ``jobsets`` can pause creating and replacing. release_slice goes on meanwhile, and also
deletes lost slices that are to be created again. A slice that is kept for a Pod loses its release
deadline, after which release_slice would delete it.

GKE changes a few node pools at a time and rejects other changes. A creation that is rejected for this
reason is not retried through Pub/Sub: when an operation ends, the step selects the Pods that try next.

An Event on the Pod reports once what prevents a slice.
"""

from __future__ import annotations

from functions.provision_slice import decide, observe
from shared.base.reasons import Reason
from shared.frame.plan import Emit, NothingToDo, Plan
from shared.frame.step import Invocation, Step
from shared.ports.classify import ErrorKind
from shared.ports.errors import CallError
from shared.slices import lifecycle
from shared.slices.actions import CreateSlice, SliceActionError
from shared.slices.jobsets import Leader, find_leader
from shared.slices.waiting import find_wait_start
from shared.slices.work import (
    GIVEN_UP,
    QUEUED,
    RETRY_REPORTED_AFTER,
    is_out_of_slots,
    slice_work_fields,
)
from shared.triggers import routes
from shared.triggers.message import Message
from shared.triggers.trigger import ObjectTrigger


def open_pod(invocation: Invocation, is_first_observation: bool) -> observe.PodWork:
    """The work for the Pod that the trigger names. Raises `NothingToDo` and `CallError`."""
    work = observe.PodWork(
        **slice_work_fields(invocation, is_first_observation=is_first_observation)
    )
    if isinstance(invocation.trigger, ObjectTrigger):
        work.leader = _find_leader(invocation.trigger.message, work)
        work.about = work.leader.raw
    return work


def recover(work: observe.PodWork, error: CallError) -> Plan | None:
    """Report an environment error of an action on the Pod's slice."""
    if not isinstance(error, SliceActionError):
        return None
    observed, triggers_next = work.observed, False
    if isinstance(observed, observe.ObservedOperation):
        observed, triggers_next = observed.waiting_pod, True
    if not isinstance(observed, observe.ObservedPod):
        return None
    plan = _report_environment_error(work, observed, error)
    if plan is not None and triggers_next:
        return decide.with_next(plan, work.observed, work.now, rejected=observed.desired.name)
    return plan


def report_retry(work: observe.PodWork, error: Exception) -> Plan:
    """Report a transient error that only the sweep retries, if the Pod has waited for long."""
    leader = work.leader
    if leader is None or work.now - find_wait_start(leader) < RETRY_REPORTED_AFTER:
        return Plan(GIVEN_UP)
    event = lifecycle.CREATION_RETRIED.render(work.provider, {"failure": str(error)})
    return Plan(GIVEN_UP, first=(Emit(event, once=True),))


STEP = Step(
    routes.PROVISION_SLICE, open_pod, observe.observe, decide.decide, recover, give_up=report_retry
)
run = STEP.run


def _find_leader(message: Message, work: observe.PodWork) -> Leader:
    work.facts["pod"] = f"{message.namespace}/{message.name}"
    pod = work.cluster.find_pod(message.namespace, message.name)
    if pod is None:
        raise NothingToDo("PodGone")
    if message.uid and pod["metadata"]["uid"] != message.uid:
        raise NothingToDo("PodReplaced")
    leader = find_leader(pod)
    if leader is None:
        raise NothingToDo("NotWaiting")
    return leader


def _report_environment_error(
    work: observe.PodWork, observed: observe.ObservedPod, error: SliceActionError
) -> Plan | None:
    action, wording = error.action, observed.wording
    if is_out_of_slots(error, work.provider):
        words = {"name": observed.desired.name, "failure": error.message}
        queued = Emit(lifecycle.QUEUED.render(wording, words), once=True)
        return Plan(QUEUED, first=(queued,), note=str(error))
    # A create that gets 404: the cluster or namespace in which it is to be created does not exist.
    is_creation = isinstance(action, CreateSlice)
    is_place_missing = is_creation and error.kind is ErrorKind.ABSENT
    reason = Reason.REFUSED if is_place_missing else error.reason
    if reason is None:
        return None
    template = lifecycle.CREATION_REFUSED if is_creation else lifecycle.DELETION_REFUSED
    event = template.render(wording, {"failure": str(error)})
    return Plan(reason, first=(Emit(event, once=True),), note=str(error))
