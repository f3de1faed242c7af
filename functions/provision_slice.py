"""provision_slice: a Job of a JobSet whose first Pod no Node takes gets a slice.

Occasions: such a Pod (its leader) is unschedulable; a node pool was made, or deleted; SYNC, which the
minute sends to this inbox for each Pod that waits, at gaps that grow with the wait.

GKE changes a few node pools at a time and refuses the rest. Who is refused for that is not tried again
by Pub/Sub: when a node pool was made or deleted, those whose turn it is get a SYNC.

What stands in the way is told once, as an Event on the Pod. A slice that cannot be made is deleted
and made anew on a SYNC, and so at those gaps; one whose maker goes on by itself is left to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from shared.base import backoff
from shared.base.errors import CallError
from shared.base.fields import is_yes
from shared.base.names import COMPLETION_INDEX, JOB_KEY, JOBSET_NAME, POOL_LABEL, SYSTEM_NAMESPACE
from shared.base.reasons import Reason
from shared.base.timestamps import guess_time, parse_time
from shared.frame.audit_log import LogEvent
from shared.frame.message import POD_KIND, SWEEP_KIND, Cause, Message
from shared.frame.step import ACKNOWLEDGED, Answer, Invocation
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.events import Event
from shared.slices import concurrency
from shared.slices.jobsets import Leader, find_end, find_foreign_key, find_leader, has_opted_out
from shared.slices.provider import (
    DesiredSlice,
    InputError,
    NameConflict,
    Naming,
    Provider,
    Slice,
    SliceState,
    slice_name,
)
from shared.slices.work import (
    QUEUED,
    is_of_our_pools,
    is_out_of_places,
    list_jobs_on,
    look_until_done,
    make_provider,
    refuse,
    tell,
    trace,
)

UNFIT_AFTER = timedelta(minutes=15)
"""The Pod waits for so long, and its slice is ready for as long, if anybody knows since when: it does
not fit, or the Nodes are not there."""
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
MADE = "container.nodePools.create"
"""The method of an entry of the audit log: of the end of it, good or bad."""
PAUSED_KEY = "paused"
"""In the ConfigMap ``jobsets``: while it is "true", in any spelling, nothing is made."""


class Do(StrEnum):
    """What is done about the slice."""

    NOTHING = "nothing"
    CREATE = "create"
    DELETE = "delete"
    KEEP = "keep"
    """Remove the release deadline."""


@dataclass(frozen=True)
class Seen:
    """What the step has seen of a Pod that waits.

    ``jobset`` is ``None`` if there is none. ``guests`` names the Jobs of others whose Pods run on the
    slice that is there. ``is_sync``: nothing new has happened, it is time to look again.
    """

    leader: Leader
    desired: DesiredSlice
    existing: Slice | NameConflict | None
    jobset: Mapping[str, Any] | None
    now: datetime
    guests: tuple[str, ...] = ()
    is_paused: bool = False
    is_sync: bool = False


PAUSED = Event(
    "SlicePaused",
    f'No slice is made: the ConfigMap {SYSTEM_NAMESPACE}/jobsets has {PAUSED_KEY}: "true". It goes on '
    "when that is taken out",
)


@dataclass(frozen=True)
class Decision:
    """What is to be done, in one word why, and what the Pod is told of it."""

    outcome: str
    do: Do = Do.NOTHING
    event: Event | None = None


def run(invocation: Invocation) -> Answer:
    """See to one Pod that waits; or, once a minute, wake the step for each that does."""
    if not invocation.runtime.settings.jobset_provider:
        return Answer(ACKNOWLEDGED, "SwitchedOff")
    if invocation.occasion.kind == SWEEP_KIND:
        return _wake(invocation)
    return look_until_done(invocation, lambda provider: _see_to(invocation, provider))


def _wake(invocation: Invocation) -> Answer:
    invocation.cluster.get_cluster_id()
    provider, now = make_provider(invocation), invocation.runtime.now()
    waiting = find_leaders(invocation.cluster.list_pending_pods())
    due = [leader for leader in waiting if is_due(leader, now, provider)]
    if provider.concurrency_limit is not None and len(due) > concurrency.FEWEST:
        places = concurrency.count_places(
            provider.concurrency_limit, provider.list_all(with_nodes=False)
        )
        due = choose(due, places, now)
    invocation.facts |= {"waiting": len(waiting), "woken": len(due)}
    _send_sync(due, invocation)
    return Answer(ACKNOWLEDGED, "Swept")


def find_leaders(pods: Iterable[Mapping[str, Any]]) -> list[Leader]:
    """Those of the Pods that wait for a slice, the one that has waited longest first."""
    found = (leader for pod in pods if (leader := find_leader(pod)))
    return sorted(found, key=lambda leader: (waits_since(leader), leader.uid))


def is_due(leader: Leader, now: datetime, provider: Provider) -> bool:
    """Whether this minute is one of the Pod's. Where not all can be served at once, those that came
    together have minutes of their own."""
    lag = 0.0 if provider.concurrency_limit is None else concurrency.draw(leader.uid)
    return backoff.is_due(waits_since(leader), now, lag)


def choose(leaders: Sequence[Leader], places: int, now: datetime) -> list[Leader]:
    """Whose turn it is."""
    return concurrency.choose(leaders, places, now, lambda leader: leader.uid)


def _send_sync(leaders: Iterable[Leader], invocation: Invocation) -> None:
    now = invocation.runtime.now()
    messages = [
        Message(leader.namespace, leader.name, leader.uid, Cause.SYNC, now, kind=POD_KIND)
        for leader in leaders
    ]
    if messages:
        invocation.runtime.publish(invocation.step, messages)


def waits_since(leader: Leader) -> datetime:
    """When the scheduler first said of a Pod that no Node takes it."""
    metadata = leader.raw["metadata"]
    said = (
        condition.get("lastTransitionTime")
        for condition in leader.raw["status"]["conditions"]
        if condition.get("type") == "PodScheduled"
    )
    return guess_time(next(said, None)) or parse_time(metadata["creationTimestamp"])


def _see_to(invocation: Invocation, provider: Provider) -> Answer:
    event = invocation.occasion.event
    if event is not None:
        if not is_of_our_pools(event, invocation.runtime.settings):
            return Answer(ACKNOWLEDGED, "NotOurs")
        return _hear(event, invocation, provider)
    pod, why_not = _find_pod(invocation)
    leader = find_leader(pod) if pod else None
    if leader is None:
        return Answer(ACKNOWLEDGED, why_not)
    return _see_to_leader(leader, invocation, provider)


def _hear(event: LogEvent, invocation: Invocation, provider: Provider) -> Answer:
    """An operation has ended: about its own Pod first, and then whose turn it is."""
    invocation.facts["slice"] = event.name
    pods = invocation.cluster.list_pending_pods()
    pod = next((pod for pod in pods if is_of(pod, event.name)), None)
    leader = find_leader(pod) if pod else None
    if event.method == MADE:
        answer = _tell_of_the_making(event, pod, invocation, provider)
    elif leader is not None:
        answer = _see_to_leader(leader, invocation, provider)
    else:
        answer = Answer(ACKNOWLEDGED, "NobodyWaits")
    _wake_next(find_leaders(pods), invocation, provider)
    return answer


def _wake_next(waiting: Sequence[Leader], invocation: Invocation, provider: Provider) -> None:
    """Those who wait for a slice of which nothing is there yet; what is, the minute sees to."""
    if not waiting or provider.concurrency_limit is None:
        return
    slices = list(provider.list_all(with_nodes=False))
    without = find_those_without(waiting, slices, provider)
    places = concurrency.count_places(provider.concurrency_limit, slices)
    chosen = choose(without, places, invocation.runtime.now())
    invocation.facts |= {"waiting": len(without), "woken": len(chosen)}
    _send_sync(chosen, invocation)


def find_those_without(
    leaders: Iterable[Leader], slices: Iterable[Slice], provider: Provider
) -> list[Leader]:
    """The leaders for whom a slice could be made, and is not there."""
    there = list(slices)
    names, owners = {one.name for one in there}, {one.owner for one in there}
    found = []
    for leader in leaders:
        try:
            desired = _build_desired(leader, provider)
        except InputError:
            continue
        if desired.name not in names and desired.owner not in owners:
            found.append(leader)
    return found


def _build_desired(leader: Leader, provider: Provider) -> DesiredSlice:
    """What a leader asks for. Raises `InputError`."""
    desired, foreign = provider.build_desired(leader), find_foreign_key(leader)
    if foreign is not None:
        raise InputError(foreign)
    return desired


def _find_pod(invocation: Invocation) -> tuple[Mapping[str, Any] | None, str]:
    message = invocation.occasion.message
    if message is None:
        return None, "NotForThisStep"
    invocation.facts["pod"] = f"{message.namespace}/{message.name}"
    pod = invocation.cluster.find_pod(message.namespace, message.name)
    if pod is None:
        return None, "PodGone"
    if message.uid and pod["metadata"]["uid"] != message.uid:
        return None, "PodReplaced"
    return pod, "NotWaiting"


def is_of(pod: Mapping[str, Any], name: str) -> bool:
    """Whether a Pod is the first of the Job whose slice has this name."""
    labels = pod["metadata"].get("labels") or {}
    is_first = labels.get(COMPLETION_INDEX) == "0" and JOBSET_NAME in labels and JOB_KEY in labels
    return is_first and slice_name(labels[JOBSET_NAME], labels[JOB_KEY]) == name


def _tell_of_the_making(
    event: LogEvent, pod: Mapping[str, Any] | None, invocation: Invocation, provider: Provider
) -> Answer:
    """What is there now, if it is in trouble, is looked at when the minute says so."""
    pod = pod or _find_started_pod_of(event.name, invocation, provider)
    if pod is None:
        return Answer(ACKNOWLEDGED, "NobodyWaits")
    outcome = "CreationFailed" if event.has_failed else "CreationSucceeded"
    said = f"could not be made: {event.words}" if event.has_failed else "has been made"
    message = f"{provider.noun} {event.name} {said}"
    about = Event(f"{provider.event_prefix}{outcome}", message, is_warning=event.has_failed)
    tell(invocation, pod, about, once=True)
    return Answer(ACKNOWLEDGED, outcome)


def _find_started_pod_of(
    name: str, invocation: Invocation, provider: Provider
) -> Mapping[str, Any] | None:
    owners = (one.owner for one in provider.list_all() if one.name == name)
    owner = next(owners, None)
    pods = invocation.cluster.list_job_pods(owner.namespace, owner.job) if owner else []
    return next((pod for pod in pods if is_of(pod, name)), None)


def _see_to_leader(leader: Leader, invocation: Invocation, provider: Provider) -> Answer:
    try:
        seen = _look(invocation, provider, leader)
    except InputError as error:
        event = Event(f"{provider.event_prefix}CreationFailed", str(error), is_warning=True)
        tell(invocation, leader.raw, event, once=True)
        return Answer(ACKNOWLEDGED, "InputRefused", str(error))
    return _carry_out(decide(seen, provider), seen, provider, invocation)


def _look(invocation: Invocation, provider: Provider, leader: Leader) -> Seen:
    cluster, now = invocation.cluster, invocation.runtime.now()
    desired = _build_desired(leader, provider)
    invocation.facts["slice"] = desired.name
    existing = provider.find(desired)
    guests: tuple[str, ...] = ()
    if isinstance(existing, Slice):
        trace(invocation, existing)
        if _has_waited_beside(existing, leader, invocation):
            existing = replace(existing, since=_since_its_nodes(existing, cluster) or now)
        if _differs(existing, desired):
            guests = list_jobs_on(cluster, existing.name, now, but=desired.owner)
    return Seen(
        leader=leader,
        desired=desired,
        existing=existing,
        jobset=cluster.find_jobset(leader.namespace, leader.jobset),
        now=now,
        guests=guests,
        is_paused=is_yes(cluster.get_jobset_options().get(PAUSED_KEY, "")),
        is_sync=invocation.occasion.is_sync,
    )


def _has_waited_beside(existing: Slice, leader: Leader, invocation: Invocation) -> bool:
    """Whether it matters since when the slice is there, and its maker does not say so, as GKE."""
    is_dated = existing.state is not SliceState.READY or existing.since is not None
    waited = invocation.runtime.now() - waits_since(leader)
    return not is_dated and invocation.occasion.is_sync and waited >= UNFIT_AFTER


def _since_its_nodes(existing: Slice, cluster: Cluster) -> datetime | None:
    """Since when all Nodes of a slice that there are have been there; ``None``: there are none yet."""
    nodes = cluster.list_nodes_of_slice(existing.name)
    times = (guess_time(node["metadata"].get("creationTimestamp")) for node in nodes)
    return max((one for one in times if one is not None), default=None)


def _differs(existing: Slice, desired: DesiredSlice) -> bool:
    """Whether the Job's slice is not what it asks for; one that says nothing of it is."""
    return existing.hash not in ("", desired.hash)


def decide(seen: Seen, naming: Naming) -> Decision:
    """What is to be done for a Pod that waits. Pure."""
    unwanted = find_objection(seen)
    if unwanted is not None:
        return unwanted
    existing = seen.existing
    if existing is None:
        return _decide_to_create(seen, naming)
    if isinstance(existing, NameConflict):
        return Decision("Clash", event=_conflict(existing, naming))
    if existing.state is SliceState.DELETING:
        return Decision("Going")
    if _differs(existing, seen.desired):
        return _decide_about_another(seen, existing, naming)
    if existing.state is SliceState.FAILED:
        return _decide_about_trouble(seen, existing, naming)
    if existing.state is SliceState.READY and seen.is_sync:
        return _decide_about_unused(seen, existing, naming)
    return _keep(existing)


def find_objection(seen: Seen) -> Decision | None:
    """Why no slice is made for the Pod, whatever there is; ``None`` if nothing speaks against it."""
    jobset = seen.jobset
    if jobset is None or "deletionTimestamp" in jobset["metadata"]:
        return Decision("JobSetGone")
    if find_end(jobset) is not None:
        return Decision("JobSetEnded")
    job = seen.leader.labels.get(REPLICATED_JOB)
    holders = [jobset, *(one["template"] for one in list_jobs(jobset) if one["name"] == job)]
    for metadata in (holder.get("metadata") or {} for holder in holders):
        if has_opted_out(metadata.get("labels") or {}, metadata.get("annotations") or {}):
            return Decision("OptedOut")
    return None


def list_jobs(jobset: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The replicated Jobs of a JobSet."""
    return list((jobset.get("spec") or {}).get("replicatedJobs") or ())


def _decide_to_create(seen: Seen, naming: Naming) -> Decision:
    if seen.is_paused:
        return Decision("SlicePaused", event=PAUSED)
    owner = seen.desired.owner
    message = (
        f"Creating {naming.noun} {seen.desired.name}, {seen.desired.size}, for Job {owner.job} of "
        f"JobSet {owner.jobset}"
    )
    event = Event(f"{naming.event_prefix}CreationStarted", message)
    return Decision("Creating", Do.CREATE, event)


def _conflict(conflict: NameConflict, naming: Naming) -> Event:
    message = (
        f"The Pod's slice would be called {conflict.name}, and there is {conflict.description}, of that "
        "name. It is not touched: delete it, or give the JobSet another name"
    )
    return Event(f"{naming.event_prefix}CreationFailed", message, is_warning=True)


def _decide_about_another(seen: Seen, existing: Slice, naming: Naming) -> Decision:
    """The Job was made anew and asks for something else than it did."""
    if seen.guests:
        message = (
            f"{naming.noun} {existing.name} is not what the Pod asks for ({seen.desired.size}), and is "
            f"in use by Job {seen.guests[0]}: it is replaced when that has ended"
        )
        event = Event(f"{naming.event_prefix}CreationFailed", message, is_warning=True)
        return Decision("InUse", event=event)
    why = f"the Pod asks for {seen.desired.size} with other properties than it has"
    return _replace(seen, existing, naming, why)


def _decide_about_trouble(seen: Seen, existing: Slice, naming: Naming) -> Decision:
    event = Event(
        f"{naming.event_prefix}CreationFailed",
        f"{naming.noun} {existing.name}: {existing.message}",
        is_warning=True,
    )
    if existing.is_self_healing or existing.has_ready_nodes or not seen.is_sync:
        return Decision("Troubled", _keep(existing).do, event)
    return _replace(seen, existing, naming, existing.message)


def _decide_about_unused(seen: Seen, existing: Slice, naming: Naming) -> Decision:
    """There is nothing to make, and still the Pod waits."""
    kept = _keep(existing)
    waits = waits_since(seen.leader)
    if seen.now - max(waits, existing.since or waits) < UNFIT_AFTER:
        return kept
    message = (
        f"{naming.noun} {existing.name} is there, and the scheduler finds no Node of it for the Pod: "
        f"compare what it says with kubectl get nodes --show-labels -l {POOL_LABEL}={existing.name}"
    )
    event = Event(f"{naming.event_prefix}Unfit", message, is_warning=True)
    return Decision("Unfit", kept.do, event)


def _replace(seen: Seen, existing: Slice, naming: Naming, why: str) -> Decision:
    if seen.is_paused:
        return Decision("SlicePaused", _keep(existing).do, PAUSED)
    message = f"Deleting {naming.noun} {existing.name} to create it anew: {why}"
    event = Event(f"{naming.event_prefix}DeletionStarted", message)
    return Decision("Replacing", Do.DELETE, event)


def _keep(existing: Slice) -> Decision:
    do = Do.KEEP if existing.release_after is not None else Do.NOTHING
    return Decision(str(existing.state), do)


def _carry_out(
    decision: Decision, seen: Seen, provider: Provider, invocation: Invocation
) -> Answer:
    try:
        _do(decision.do, seen, provider)
    except CallError as error:
        if is_out_of_places(error, provider):
            return _queue(error, seen, provider, invocation)
        what = "Deletion" if decision.do is Do.DELETE else "Creation"
        event = Event(f"{provider.event_prefix}{what}Failed", str(error), is_warning=True)
        if decision.do is Do.CREATE and error.http == 404:  # that in which it would be made
            tell(invocation, seen.leader.raw, event, once=True)
            return Answer(ACKNOWLEDGED, Reason.REFUSED, str(error))
        return refuse(error, lambda: tell(invocation, seen.leader.raw, event, once=True))
    if decision.event is not None:
        is_start = decision.do in (Do.CREATE, Do.DELETE)
        tell(invocation, seen.leader.raw, decision.event, once=not is_start)
    return Answer(ACKNOWLEDGED, decision.outcome)


def _queue(error: CallError, seen: Seen, provider: Provider, invocation: Invocation) -> Answer:
    """It has its turn when an operation ends: told once, and not at each try."""
    if not seen.is_sync:
        event = Event(
            f"{provider.event_prefix}Queued",
            f"{provider.noun} {seen.desired.name} waits for others that are being made or deleted: "
            f"{error.message}",
        )
        tell(invocation, seen.leader.raw, event, once=True)
    return Answer(ACKNOWLEDGED, QUEUED, str(error))


def _do(do: Do, seen: Seen, provider: Provider) -> None:
    if do is Do.CREATE:
        provider.create(seen.desired)
    elif isinstance(seen.existing, Slice) and do is Do.DELETE:
        provider.delete(seen.existing)
    elif isinstance(seen.existing, Slice) and do is Do.KEEP:
        provider.set_release_deadline(seen.existing, None)
