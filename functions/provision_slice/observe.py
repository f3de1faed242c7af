"""What provision_slice reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from shared.base.fields import is_yes
from shared.base.timestamps import guess_time
from shared.ports.kubernetes.cluster import Cluster
from shared.slices import concurrency
from shared.slices.jobsets import Leader, find_leader
from shared.slices.lifecycle import PAUSED_KEY, Need
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
    find_leaders,
    find_leaders_without_slice,
    find_wait_start,
    is_due,
    is_first_pod_of,
)
from shared.slices.work import SliceWork, list_jobs_on, set_trace_id
from shared.triggers.audit_log import LogEvent
from shared.triggers.trigger import LogTrigger

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


def observe(work: PodWork) -> Observed:
    """Read what the decision needs: about one Pod, the end of an operation, or all Pods that wait."""
    if work.leader is not None:
        return _observe_pod(work, work.leader)
    if isinstance(work.trigger, LogTrigger):
        return _observe_operation(work, work.trigger.event)
    return _observe_queue(work)


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
        if not is_as_asked(existing, desired):
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


def is_as_asked(existing: Slice, desired: DesiredSlice) -> bool:
    """Whether a slice is the one that its Job asks for: the Pods' node selector matches it, and its
    hash, if it has one, is the desired one."""
    return existing.is_selected and existing.hash in ("", desired.hash)
