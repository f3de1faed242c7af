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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from shared.base.fields import is_yes
from shared.base.reasons import Reason
from shared.base.timestamps import guess_time
from shared.frame.plan import Attempt, Emit, NothingToDo, Plan
from shared.frame.step import Invocation, Step
from shared.ports.errors import CallError
from shared.ports.kubernetes.cluster import Cluster
from shared.slices import concurrency, lifecycle
from shared.slices.actions import (
    AnySliceAction,
    CreateSlice,
    SliceActionError,
    build_plan,
)
from shared.slices.jobsets import (
    Leader,
    find_leader,
)
from shared.slices.lifecycle import (
    PAUSED_KEY,
    Need,
    Situation,
    SliceTrigger,
)
from shared.slices.need import find_pod_need
from shared.slices.provider import (
    DesiredSlice,
    InputError,
    NameConflict,
    Slice,
    SliceState,
    Wording,
)
from shared.slices.waiting import (
    PodsWithoutSlice,
    build_desired,
    build_message,
    find_leaders,
    find_leaders_without_slice,
    find_wait_start,
    is_due,
    is_first_pod_of,
    select_leaders,
    select_next,
)
from shared.slices.work import (
    GIVEN_UP,
    QUEUED,
    RETRY_REPORTED_AFTER,
    SliceWork,
    find_environment_reason,
    is_out_of_slots,
    list_jobs_on,
    require_send,
    set_trace_id,
    slice_work_fields,
)
from shared.triggers.audit_log import LogEvent
from shared.triggers.message import Message

NAME = "provision_slice"
UNFIT_AFTER = timedelta(minutes=15)
"""A Pod that still waits so long after it began to wait, and after its slice became ready, does not fit
the slice's Nodes."""
CREATE_METHOD = "container.nodePools.create"
"""The method in the audit log for the end of a creation, whether it succeeded or failed."""


@dataclass(kw_only=True)
class PodWork(SliceWork):
    """Work for the Pod that a message names. The end of an operation and the sweep name none."""

    leader: Leader | None = None


@dataclass(frozen=True)
class ObservedPod:
    """A Pod that waits, and its slice.

    ``jobset`` is ``None`` if it does not exist. ``users`` are the Jobs with Pods that prevent that the
    existing slice is replaced; they are read only if the slice is not as asked.
    ``wording``: the provider, used only for how its slices are called in Events. ``is_resync``: the
    trigger is a resync.
    """

    leader: Leader
    desired: DesiredSlice
    existing: Slice | NameConflict | None
    jobset: Mapping[str, Any] | None
    wording: Wording
    users: tuple[str, ...] = ()
    is_paused: bool = False
    is_resync: bool = False


@dataclass(frozen=True)
class ObservedImpossible:
    """A Pod that asks for an impossible slice. ``message`` says what would be valid."""

    message: str
    wording: Wording
    has_opted_out: bool = False


@dataclass(frozen=True)
class ObservedOperation:
    """The end of an operation on a node pool.

    ``waiting_pod``: after a deletion that has succeeded, the Pod that waits for the slice.
    ``has_pod``: a Pod exists on which the end of a creation can be reported.
    """

    event: LogEvent
    wording: Wording
    waiting_pod: ObservedPod | ObservedImpossible | None
    has_pod: bool
    others: PodsWithoutSlice | None
    """The Pods that may try next; ``None`` if no Pod waits or the provider has no limit."""


@dataclass(frozen=True)
class ObservedQueue:
    """All Pods that wait, once a minute. ``due`` are those whose resync is due in this minute.

    ``waiting`` is the number of Pods. ``slots`` is the number of free slots; ``None``: all that are due
    may try.
    """

    waiting: int
    due: tuple[Leader, ...]
    slots: int | None


Observed = ObservedPod | ObservedImpossible | ObservedOperation | ObservedQueue


def open_pod(invocation: Invocation, is_first_observation: bool) -> PodWork:
    """The work for the Pod that the trigger names. Raises `NothingToDo` and `CallError`."""
    work = PodWork(**slice_work_fields(invocation, is_first_observation=is_first_observation))
    message = invocation.trigger.message
    if message is not None:  # it is also None for a message of the sweep, which names no object
        work.leader = _find_leader(message, work)
        work.about = work.leader.raw
    return work


def observe(work: PodWork) -> Observed:
    """Read what the decision needs: about one Pod, the end of an operation, or all Pods that wait."""
    event = work.trigger.event
    if work.leader is not None:
        return _observe_pod(work, work.leader)
    if event is not None:
        return _observe_operation(work, event)
    return _observe_queue(work)  # a message of the sweep


def decide(observed: Observed, now: datetime) -> Plan:
    """Decide what to do for the Pod, or which Pods get a resync."""
    if isinstance(observed, ObservedQueue):
        return _decide_to_trigger(observed, now)
    if isinstance(observed, ObservedOperation):
        return _and_trigger_next(_decide_after(observed, now), observed, now)
    return _decide_about_pod(observed, now)


def recover(work: PodWork, error: CallError) -> Plan | None:
    """Report an environment error of an action on the Pod's slice."""
    if not isinstance(error, SliceActionError):
        return None
    observed, triggers_next = work.observed, False
    if isinstance(observed, ObservedOperation):
        observed, triggers_next = observed.waiting_pod, True
    if not isinstance(observed, ObservedPod):
        return None
    plan = _report_environment_error(work, observed, error)
    if plan is not None and triggers_next:
        return _and_trigger_next(plan, work.observed, work.now, rejected=observed.desired.name)
    return plan


def report_retry(work: PodWork, error: Exception) -> Plan:
    """Report a transient error that only the sweep retries, if the Pod has waited for long."""
    leader = work.leader
    if leader is None or work.now - find_wait_start(leader) < RETRY_REPORTED_AFTER:
        return Plan(GIVEN_UP)
    event = lifecycle.CREATION_RETRIED.render(work.provider, {"failure": str(error)})
    return Plan(GIVEN_UP, (Emit(event, once=True),))


STEP = Step(NAME, open_pod, observe, decide, recover, give_up=report_retry)
run = STEP.run


def _find_leader(message: Message, work: PodWork) -> Leader:
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


def _observe_queue(work: PodWork) -> ObservedQueue:
    provider = work.provider
    waiting = find_leaders(work.cluster.list_pending_pods())
    # Computed for the minute of the sweep's message: this run may begin later.
    due = tuple(leader for leader in waiting if is_due(leader, work.trigger.at, provider))
    slots = None
    if provider.concurrency_limit is not None and len(due) > concurrency.MIN_SELECTED:
        slices = provider.list_all(with_nodes=False)
        slots = concurrency.count_slots(provider.concurrency_limit, slices)
    return ObservedQueue(len(waiting), due, slots)


def _decide_to_trigger(observed: ObservedQueue, now: datetime) -> Plan:
    due: Sequence[Leader] = observed.due
    if observed.slots is not None:
        due = select_leaders(due, observed.slots, now)
    facts = {"waiting": observed.waiting, "triggered": len(due)}
    return Plan("Swept", require_send(NAME, _messages(due, now)), facts=facts)


def _messages(leaders: Iterable[Leader], now: datetime) -> list[Message]:
    return [build_message(leader, now) for leader in leaders]


def _observe_operation(work: PodWork, event: LogEvent) -> ObservedOperation:
    """Read the Pod of the operation's slice, and the Pods that may try next.

    Both steps of JobSets get the end of each operation. After a deletion, this step changes a slice in
    the same invocation, and release_slice only publishes resyncs. After a creation it is the reverse.
    """
    work.facts["slice"] = event.name
    pods = work.cluster.list_pending_pods()
    pod: Mapping[str, Any] | None = next(
        (pod for pod in pods if is_first_pod_of(pod, event.name)), None
    )
    observed = None
    if event.method == CREATE_METHOD:
        pod = pod or _find_started_pod_of(event.name, work)
    elif not event.has_failed:
        # A deletion that has failed is left to the sweep: repeated here, it might fail in a loop.
        leader = find_leader(pod) if pod else None
        observed = _observe_pod(work, leader) if leader else None
    work.about = pod
    others = _observe_others(work, find_leaders(pods))
    return ObservedOperation(event, work.provider, observed, pod is not None, others)


def _find_started_pod_of(name: str, work: PodWork) -> Mapping[str, Any] | None:
    """The first Pod of the slice's Job, in any phase; the caller looks for pending ones first."""
    owners = (one.owner for one in work.provider.list_all() if one.name == name)
    owner = next(owners, None)
    pods = work.cluster.list_job_pods(owner.namespace, owner.job) if owner else []
    return next((pod for pod in pods if is_first_pod_of(pod, name)), None)


def _observe_others(work: PodWork, leaders: Sequence[Leader]) -> PodsWithoutSlice | None:
    """The Pods whose slices do not exist, if the provider has a limit. Pods whose slices exist wait for
    the sweep."""
    provider = work.provider
    if not leaders or provider.concurrency_limit is None:
        return None
    slices = tuple(provider.list_all(with_nodes=False))
    desired = tuple(find_leaders_without_slice(leaders, slices, provider))
    return PodsWithoutSlice(provider.concurrency_limit, desired, slices)


def _decide_after(observed: ObservedOperation, now: datetime) -> Plan:
    event, wording = observed.event, observed.wording
    if event.method != CREATE_METHOD:
        if event.has_failed:  # release_slice reports it on the JobSet
            return Plan("DeletionFailed", note=event.words)
        if observed.waiting_pod is None:
            return Plan("NoPod")
        return _decide_about_pod(observed.waiting_pod, now)
    if not observed.has_pod:
        return Plan("NoPod")
    template = lifecycle.NOT_CREATED if event.has_failed else lifecycle.CREATED
    pod_event = template.render(wording, {"name": event.name, "failure": event.words})
    outcome = "CreationFailed" if event.has_failed else "CreationSucceeded"
    return Plan(outcome, (Emit(pod_event, once=True),))


def _and_trigger_next(
    plan: Plan, observed: ObservedOperation, now: datetime, *, rejected: str = ""
) -> Plan:
    """Add resyncs for the Pods that may try next, after the changes of the plan. ``rejected`` is the
    name of the slice whose creation has just been rejected, if any."""
    if observed.others is None:
        return plan
    # Also a deadline that is removed as an `Attempt` is a change of a node pool.
    actions = (one.action if isinstance(one, Attempt) else one for one in plan.actions)
    changed = [
        action.desired.name if isinstance(action, CreateSlice) else action.existing.name
        for action in actions
        if isinstance(action, AnySliceAction)
    ]
    left, selected = select_next(observed.others, changed, now, rejected=rejected)
    facts = {"without_slice": left, "triggered": len(selected)}
    sends = require_send(NAME, _messages(selected, now))
    return replace(plan, actions=(*plan.actions, *sends), facts={**plan.facts, **facts})


def _observe_pod(work: PodWork, leader: Leader) -> ObservedPod | ObservedImpossible:
    cluster, provider = work.cluster, work.provider
    try:
        desired = build_desired(leader, provider)
    except InputError as error:
        need = find_pod_need(leader, cluster.find_jobset(leader.namespace, leader.jobset))
        return ObservedImpossible(str(error), provider, has_opted_out=need is Need.OPTED_OUT)
    work.facts["slice"] = desired.name
    existing = provider.find(desired)
    users: tuple[str, ...] = ()
    if isinstance(existing, Slice):
        set_trace_id(work, existing)
        if _needs_node_ages(existing, leader, work):
            since = _find_newest_node_time(existing, cluster)
            # Without Nodes, it is counted as ready since now: they may still register.
            existing = replace(existing, since=since or work.now)
        if not _is_as_asked(existing, desired):
            users = list_jobs_on(
                cluster,
                existing.name,
                work.now,
                replaced_for=desired.owner,
                waiting_job_uid=leader.owner_uid,
            )
    return ObservedPod(
        leader=leader,
        desired=desired,
        existing=existing,
        jobset=cluster.find_jobset(leader.namespace, leader.jobset),
        wording=provider,
        users=users,
        is_paused=is_yes(cluster.get_jobset_options().get(PAUSED_KEY, "")),
        is_resync=work.trigger.is_resync,
    )


def _needs_node_ages(existing: Slice, leader: Leader, work: PodWork) -> bool:
    """Whether the Pod waits long enough for `UNFIT_AFTER` and it is unknown how long the slice has been
    ready: GKE does not report that."""
    is_time_unknown = existing.state is SliceState.READY and existing.since is None
    waited = work.now - find_wait_start(leader)
    return is_time_unknown and work.trigger.is_resync and waited >= UNFIT_AFTER


def _find_newest_node_time(existing: Slice, cluster: Cluster) -> datetime | None:
    """The creation time of a slice's newest Node; ``None`` if it has no Node."""
    nodes = cluster.list_nodes_of_slice(existing.name)
    times = (guess_time(node["metadata"].get("creationTimestamp")) for node in nodes)
    return max((one for one in times if one is not None), default=None)


def _is_as_asked(existing: Slice, desired: DesiredSlice) -> bool:
    """Whether a slice is the one that its Job asks for: the Pods' node selector matches it, and its
    hash, if it has one, is the desired one."""
    return existing.is_selected and existing.hash in ("", desired.hash)


def _decide_about_pod(observed: ObservedPod | ObservedImpossible, now: datetime) -> Plan:
    if isinstance(observed, ObservedImpossible):
        if observed.has_opted_out:
            return Plan("OptedOut")
        event = lifecycle.CREATION_REFUSED.render(observed.wording, {"failure": observed.message})
        return Plan("InputRefused", (Emit(event, once=True),), note=observed.message)
    existing = observed.existing
    row = lifecycle.find_row(build_situation(observed, now))
    subject = existing if isinstance(existing, Slice) else observed.desired
    return build_plan(row, subject, _build_event_words(observed), observed.wording, now)


def build_situation(observed: ObservedPod, now: datetime) -> Situation:
    """What was observed, in the columns of the lifecycle table."""
    existing = observed.existing
    situation = Situation(
        trigger=SliceTrigger.POD_RESYNC if observed.is_resync else SliceTrigger.POD,
        need=find_pod_need(observed.leader, observed.jobset),
        phase=lifecycle.find_phase(existing),
        is_in_use=bool(observed.users),
        is_paused=observed.is_paused,
    )
    if not isinstance(existing, Slice):
        return situation
    start = find_wait_start(observed.leader)
    is_unfit = now - max(start, existing.since or start) >= UNFIT_AFTER
    return replace(
        situation,
        is_as_asked=_is_as_asked(existing, observed.desired),
        deadline=lifecycle.find_deadline(existing, now),
        is_unfit=is_unfit,  # the rows use it on resyncs alone, since GKE's ages are read only then
    )


def _build_event_words(observed: ObservedPod) -> dict[str, str]:
    """The values for the placeholders in the texts of Events."""
    desired, existing = observed.desired, observed.existing
    return {
        "name": desired.name if existing is None else existing.name,
        "size": desired.size,
        "job": desired.owner.job,
        "jobset": desired.owner.jobset,
        "user": next(iter(observed.users), ""),
        "conflict": existing.description if isinstance(existing, NameConflict) else "",
        "failure": existing.message if isinstance(existing, Slice) else "",
    }


def _report_environment_error(
    work: PodWork, observed: ObservedPod, error: SliceActionError
) -> Plan | None:
    action, wording = error.action, observed.wording
    if is_out_of_slots(error, work.provider):
        words = {"name": observed.desired.name, "failure": error.message}
        queued = Emit(lifecycle.QUEUED.render(wording, words), once=True)
        return Plan(QUEUED, (queued,), note=str(error))
    # A create that gets 404: the cluster or namespace in which it is to be created does not exist.
    is_place_missing = isinstance(action, CreateSlice) and error.http == 404
    reason = Reason.REFUSED if is_place_missing else find_environment_reason(error)
    if reason is None:
        return None
    is_creation = isinstance(action, CreateSlice)
    template = lifecycle.CREATION_REFUSED if is_creation else lifecycle.DELETION_REFUSED
    event = template.render(wording, {"failure": str(error)})
    return Plan(reason, (Emit(event, once=True),), note=str(error))
