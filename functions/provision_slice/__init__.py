"""provision_slice: create a slice for a unit whose leading Pod is unschedulable.

The provider of slices is GKE, where a slice is a node pool, or this system, where it is a TPUNodeGroup
(`shared.slices.provider`). A leader is a Pod that waits for a slice and stands for its unit
(`slices.kinds`).

Triggers:

- A leader is unschedulable, or a resync about one.
- A ProvisioningRequest of this system's class was added, or a resync about one (`requests`).
- A message of the sweep, each minute. It names no Pod: the step lists the Pods that wait, and publishes
  resyncs about them to its own topic, at intervals that grow with the wait.
- An operation of GKE has ended that created or deleted a node pool. GKE changes a few node pools at a
  time and rejects other changes; the step then selects the Pods that try next.

`slices.create_or_release.ROWS` decides about each Pod, and which slices are deleted to be created again:
those that are lost, and those that are not what the Pod asks for, unless a Pod runs on one that keeps it
(`observe.is_user`). While the ConfigMap ``jobsets`` pauses this, release_slice goes on. An Event on the
Pod reports once what prevents a slice.
"""

from dataclasses import replace

from functions.provision_slice import decide, observe, quotas, requests, waiting
from shared.base.reasons import Reason
from shared.base.timestamps import parse_time
from shared.frame.plan import Emit, NothingToDo, Plan
from shared.frame.step import Invocation, Step
from shared.ports.error_reasons import ErrorKind
from shared.ports.errors import CallError
from shared.slices import create_or_release
from shared.slices.actions import CreateSlice, SliceActionError
from shared.slices.kinds import find_waiting
from shared.slices.requests import is_open
from shared.slices.units import find_wait_start
from shared.slices.work import (
    GIVEN_UP,
    QUEUED,
    RETRY_REPORTED_AFTER,
    SliceWork,
    is_out_of_slots,
    open_slices,
)
from shared.triggers import routes
from shared.triggers.message import REQUEST_KIND, Message
from shared.triggers.trigger import LogTrigger, ObjectTrigger


def open_pod(invocation: Invocation, is_first_observation: bool) -> SliceWork:
    """The work for the Pod that the trigger names. Raises `NothingToDo` and `CallError`."""
    work = open_slices(invocation, is_first_observation)
    if not isinstance(invocation.trigger, ObjectTrigger):
        return work
    message = invocation.trigger.message
    if message.kind == REQUEST_KIND:
        return _open_request(work, message)
    work.facts["pod"] = f"{message.namespace}/{message.name}"
    pod = work.cluster.find_pod(message.namespace, message.name)
    if pod is None:
        raise NothingToDo("PodGone")
    if message.uid and pod["metadata"]["uid"] != message.uid:
        raise NothingToDo("PodReplaced")
    found = find_waiting(pod)
    work.leader = found if found and (found.claim.is_leader or work.trigger.is_resync) else None
    if work.leader is None:
        raise NothingToDo("NotWaiting")
    if waiting.may_be_tried(work.leader, work.now):
        raise NothingToDo("NotWaiting", "the scheduler has not tried it yet")
    if not quotas.is_switched_on(work.cluster, work.leader):
        raise NothingToDo("KindOff")
    work.about = pod
    return work


def _open_request(work: SliceWork, message: Message) -> SliceWork:
    """The work for the ProvisioningRequest that a message names. Raises `NothingToDo`."""
    work.facts["request"] = f"{message.namespace}/{message.name}"
    request = work.cluster.find_owner(REQUEST_KIND, message.namespace, message.name)
    if request is None or message.uid not in ("", request["metadata"]["uid"]):
        raise NothingToDo("RequestGone")
    if not is_open(request):
        raise NothingToDo("RequestClosed")
    work.about = work.request = request
    return work


def recover(work: SliceWork, error: CallError) -> Plan | None:
    """Report an environment error of an action on the Pod's slice, or of any call for a request."""
    if not isinstance(error, SliceActionError):
        if work.request is None or error.reason is None:
            return None
        event = create_or_release.CREATION_REFUSED.render(work.provider, {"failure": str(error)})
        return Plan(error.reason, first=(Emit(event, once=True),), note=str(error))
    observed = work.observed
    is_operation = isinstance(observed, observe.ObservedOperation)
    pod = observed.waiting_pod if is_operation else observed
    is_creation = isinstance(error.action, CreateSlice)
    if isinstance(observed, requests.ObservedRequest):
        action = error.action
        one = action.desired if isinstance(action, CreateSlice) else action.existing
        pod = observed.slices.get(one.name)
    if not isinstance(pod, observe.ObservedPod):
        return None
    outcome: str | None = error.reason
    template = (
        create_or_release.CREATION_REFUSED if is_creation else create_or_release.DELETION_REFUSED
    )
    words = {"failure": str(error)}
    if is_out_of_slots(error, work.provider):
        outcome, template = QUEUED, create_or_release.QUEUED
        words = {"name": pod.desired.name, "failure": error.message}
    elif is_creation and error.kind is ErrorKind.ABSENT:
        # The cluster or namespace in which it is to be created does not exist.
        outcome = Reason.REFUSED
    if outcome is None:
        return None
    event = template.render(pod.wording, words)
    plan = Plan(outcome, first=(Emit(event, once=True),), note=str(error))
    # The API server may reject a TPUNodeGroup, but no candidate refuses by that.
    if is_creation and work.provider.is_gke:
        plan = decide.plan_refused_call(plan, pod, error, work.now)
    if is_operation:
        return decide.add_resyncs(plan, observed, work.now, rejected=pod.desired.name)
    if isinstance(observed, requests.ObservedRequest):
        status = requests.plan_status(observed, {pod.desired.name: plan}, work.now)
        return replace(plan, first=(*plan.first, *status.first))
    return plan


def report_retry(work: SliceWork, error: Exception) -> Plan | None:
    """Report a transient error that only the sweep retries, if the Pod or request has waited for long.
    The end of an operation is reported by nothing else."""
    leader, request = work.leader, work.request
    if isinstance(work.trigger, LogTrigger):
        return None
    created = parse_time(request["metadata"]["creationTimestamp"]) if request else work.now
    since = find_wait_start(leader.demand) if leader else created
    if work.now - since < RETRY_REPORTED_AFTER:
        return Plan(GIVEN_UP)
    event = create_or_release.CREATION_RETRIED.render(work.provider, {"failure": str(error)})
    return Plan(GIVEN_UP, first=(Emit(event, once=True),))


STEP = Step(
    routes.PROVISION_SLICE,
    open_pod,
    requests.observe,
    requests.decide,
    recover,
    give_up=report_retry,
)
