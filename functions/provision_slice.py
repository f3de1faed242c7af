"""provision_slice: a Job of a JobSet whose first Pod no Node takes gets a slice.

Occasions: such a Pod (its leader) is unschedulable; SYNC, which the minute sends to this inbox for
each that waits, at gaps that grow with the wait.

What stands in the way is told once, as an Event on the Pod. A slice that cannot be made is deleted
and made anew on a SYNC, and so at those gaps; one whose maker goes on by itself is left to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from shared import pace
from shared.cluster import Event
from shared.errors import CallError
from shared.jobsets import (
    JOB_NAME,
    Leader,
    find_end,
    find_leader,
    has_opted_out,
)
from shared.names import SYSTEM_NAMESPACE
from shared.occasions import POD_KIND, SWEEP_KIND, Cause, Message
from shared.slice_work import look_until_done, refuse, tell
from shared.slices import Clash, InputError, Provider, Slice, SliceState, Wanted
from shared.step import ACKNOWLEDGED, Answer, Invocation
from shared.when import parse_time

REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
PAUSED_KEY = "paused"
"""In the ConfigMap ``jobsets``: while it is "true", nothing is made."""


class Do(StrEnum):
    """What is done about the slice."""

    NOTHING = "nothing"
    CREATE = "create"
    DELETE = "delete"
    KEEP = "keep"
    """Take the stamp back by which it would have gone."""


@dataclass(frozen=True)
class Seen:
    """What the step has seen of a Pod that waits.

    ``jobset`` is ``None`` if there is none. ``guests`` names the Jobs of others whose Pods run on the
    slice that is there. ``is_sync``: nothing new has happened, it is time to look again.
    """

    leader: Leader
    wanted: Wanted
    existing: Slice | Clash | None
    jobset: Mapping[str, Any] | None
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
    now = invocation.runtime.now()
    waiting = [
        leader for pod in invocation.cluster.list_pending_pods() if (leader := find_leader(pod))
    ]
    due = [leader for leader in waiting if pace.is_due(now - waits_since(leader))]
    messages = [
        Message(leader.namespace, leader.name, leader.uid, Cause.SYNC, now, kind=POD_KIND)
        for leader in due
    ]
    invocation.facts |= {"waiting": len(waiting), "woken": len(messages)}
    invocation.runtime.publish(invocation.step, messages)
    return Answer(ACKNOWLEDGED, "Swept")


def waits_since(leader: Leader) -> datetime:
    """When the scheduler first said of a Pod that no Node takes it."""
    metadata = leader.raw["metadata"]
    said = (
        condition.get("lastTransitionTime")
        for condition in leader.raw["status"]["conditions"]
        if condition.get("type") == "PodScheduled"
    )
    return parse_time(next(said, None) or metadata["creationTimestamp"])


def _see_to(invocation: Invocation, provider: Provider) -> Answer:
    leader, why_not = _find_leader(invocation)
    if leader is None:
        return Answer(ACKNOWLEDGED, why_not)
    try:
        seen = _look(invocation, provider, leader)
    except InputError as error:
        event = Event(f"{provider.event_prefix}CreationFailed", str(error), is_warning=True)
        tell(invocation, leader.raw, event, once=True)
        return Answer(ACKNOWLEDGED, "InputRefused", str(error))
    return _carry_out(decide(seen, provider), seen, provider, invocation)


def _find_leader(invocation: Invocation) -> tuple[Leader | None, str]:
    message = invocation.occasion.message
    if message is None:
        return None, "NotForThisStep"
    invocation.facts["pod"] = f"{message.namespace}/{message.name}"
    pod = invocation.cluster.find_pod(message.namespace, message.name)
    if pod is None:
        return None, "PodGone"
    if message.uid and pod["metadata"]["uid"] != message.uid:
        return None, "PodReplaced"
    return find_leader(pod), "NotWaiting"


def _look(invocation: Invocation, provider: Provider, leader: Leader) -> Seen:
    cluster = invocation.cluster
    wanted = provider.want(leader)
    invocation.facts["slice"] = wanted.name
    existing = provider.find(wanted)
    return Seen(
        leader=leader,
        wanted=wanted,
        existing=existing,
        jobset=cluster.find_jobset(leader.namespace, leader.jobset),
        guests=_guests(invocation, wanted) if _differs(existing, wanted) else (),
        is_paused=cluster.get_jobset_options().get(PAUSED_KEY) == "true",
        is_sync=invocation.occasion.is_sync,
    )


def _differs(existing: Slice | Clash | None, wanted: Wanted) -> bool:
    """Whether the Job's slice is not what it asks for; one that says nothing of it is."""
    return isinstance(existing, Slice) and existing.hash not in ("", wanted.hash)


def _guests(invocation: Invocation, wanted: Wanted) -> tuple[str, ...]:
    cluster = invocation.cluster
    for node in cluster.list_nodes_of_slice(wanted.name):
        found = tuple(find_guests(cluster.list_pods_on(node["metadata"]["name"]), wanted))
        if found:
            return found
    return ()


def find_guests(pods: list[dict[str, Any]], wanted: Wanted) -> Iterator[str]:
    """The Jobs, other than the one that asks, of Pods that have not ended."""
    for pod in pods:
        metadata, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
        job = metadata["namespace"], metadata["labels"][JOB_NAME]
        if job != (wanted.owner.namespace, wanted.owner.job) and phase in ("Pending", "Running"):
            yield "/".join(job)


def decide(seen: Seen, provider: Provider) -> Decision:
    """What is to be done for a Pod that waits. Pure."""
    unwanted = find_objection(seen)
    if unwanted is not None:
        return unwanted
    existing = seen.existing
    if existing is None:
        return _decide_to_create(seen, provider)
    if isinstance(existing, Clash):
        return Decision("Clash", event=_clash(existing, provider))
    if existing.state is SliceState.GOING:
        return Decision("Going")
    if _differs(existing, seen.wanted):
        return _decide_about_another(seen, existing, provider)
    if existing.state is SliceState.TROUBLED:
        return _decide_about_trouble(seen, existing, provider)
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


def _decide_to_create(seen: Seen, provider: Provider) -> Decision:
    if seen.is_paused:
        return Decision("SlicePaused", event=PAUSED)
    owner = seen.wanted.owner
    message = (
        f"Creating {provider.noun} {seen.wanted.name}, {seen.wanted.size}, for Job {owner.job} of "
        f"JobSet {owner.jobset}"
    )
    event = Event(f"{provider.event_prefix}CreationStarted", message)
    return Decision("Creating", Do.CREATE, event)


def _clash(clash: Clash, provider: Provider) -> Event:
    message = (
        f"The Pod's slice would be called {clash.name}, and there is {clash.whose}, of that name. It is "
        "not touched: delete it, or give the JobSet another name"
    )
    return Event(f"{provider.event_prefix}CreationFailed", message, is_warning=True)


def _decide_about_another(seen: Seen, existing: Slice, provider: Provider) -> Decision:
    """The Job was made anew and asks for something else than it did."""
    if seen.guests:
        message = (
            f"{provider.noun} {existing.name} is not what the Pod asks for ({seen.wanted.size}), and is "
            f"in use by Job {seen.guests[0]}: it is replaced when that has ended"
        )
        event = Event(f"{provider.event_prefix}CreationFailed", message, is_warning=True)
        return Decision("InUse", event=event)
    why = f"the Pod asks for {seen.wanted.size} with other properties than it has"
    return _replace(seen, existing, provider, why)


def _decide_about_trouble(seen: Seen, existing: Slice, provider: Provider) -> Decision:
    event = Event(
        f"{provider.event_prefix}CreationFailed",
        f"{provider.noun} {existing.name}: {existing.words}",
        is_warning=True,
    )
    if existing.mends_itself or existing.has_ready_nodes or not seen.is_sync:
        return Decision("Troubled", _keep(existing).do, event)
    return _replace(seen, existing, provider, existing.words)


def _replace(seen: Seen, existing: Slice, provider: Provider, why: str) -> Decision:
    if seen.is_paused:
        return Decision("SlicePaused", _keep(existing).do, PAUSED)
    message = f"Deleting {provider.noun} {existing.name} to create it anew: {why}"
    event = Event(f"{provider.event_prefix}DeletionStarted", message)
    return Decision("Replacing", Do.DELETE, event)


def _keep(existing: Slice) -> Decision:
    do = Do.KEEP if existing.release_after is not None else Do.NOTHING
    return Decision(str(existing.state), do)


def _carry_out(
    decision: Decision, seen: Seen, provider: Provider, invocation: Invocation
) -> Answer:
    if decision.event is not None:
        is_start = decision.do in (Do.CREATE, Do.DELETE)
        tell(invocation, seen.leader.raw, decision.event, once=not is_start)
    try:
        _do(decision.do, seen, provider)
    except CallError as error:
        what = "Deletion" if decision.do is Do.DELETE else "Creation"
        event = Event(f"{provider.event_prefix}{what}Failed", str(error), is_warning=True)
        return refuse(error, lambda: tell(invocation, seen.leader.raw, event, once=True))
    return Answer(ACKNOWLEDGED, decision.outcome)


def _do(do: Do, seen: Seen, provider: Provider) -> None:
    if do is Do.CREATE:
        provider.create(seen.wanted)
    elif isinstance(seen.existing, Slice) and do is Do.DELETE:
        provider.delete(seen.existing)
    elif isinstance(seen.existing, Slice) and do is Do.KEEP:
        provider.stamp(seen.existing, None)
