"""The Pods that wait for slices: since when, whether they need one, which are due, which try next."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from shared.base import backoff
from shared.base.pods import find_controller
from shared.base.slice_names import job_key, slice_name
from shared.base.timestamps import guess_time, parse_time
from shared.slices import concurrency, jobsets
from shared.slices.jobsets import Leader
from shared.slices.kinds.kind import is_suspended
from shared.slices.provider import DesiredSlice, Provider, Slice, SliceState
from shared.slices.units import InputError, Need, find_split_violation, has_opted_out, read_demand
from shared.triggers.message import POD_KIND, Cause, Message

_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"


@dataclass(frozen=True)
class PodsWithoutSlice:
    """The Pods that wait for slices that do not exist and can be created, and all existing slices.

    The provider changes at most ``limit`` slices at the same time.
    """

    limit: int
    desired: tuple[tuple[Leader, DesiredSlice], ...]
    slices: tuple[Slice, ...]


def find_leaders(pods: Iterable[Mapping[str, Any]]) -> list[Leader]:
    """The Pods that wait for a slice, the longest wait first."""
    found = (leader for pod in pods if (leader := jobsets.find_leader(pod)))
    return sorted(found, key=lambda leader: (find_wait_start(leader), leader.uid))


def is_due(leader: Leader, at: datetime, provider: Provider) -> bool:
    """Whether the Pod's resync is due in this minute. With a concurrency limit, Pods that were created
    together are spread over the minutes."""
    lag = 0.0 if provider.concurrency_limit is None else concurrency.hash_to_unit(leader.uid)
    return backoff.is_due(find_wait_start(leader), at, lag)


def find_wait_start(leader: Leader) -> datetime:
    """When the scheduler first reported that the Pod is unschedulable."""
    metadata = leader.raw["metadata"]
    times = (
        condition.get("lastTransitionTime")
        for condition in leader.raw["status"]["conditions"]
        if condition.get("type") == "PodScheduled"
    )
    return guess_time(next(times, None)) or parse_time(metadata["creationTimestamp"])


def find_pod_need(leader: Leader, jobset: Mapping[str, Any] | None) -> Need:
    """Whether the Pod's JobSet needs a slice, and if not, why."""
    if jobset is None or "deletionTimestamp" in jobset["metadata"]:
        return Need.OWNER_GONE
    if jobsets.find_end(jobset) is not None:
        return Need.OWNER_ENDED
    if not jobsets.has_job(jobset, leader.jobset, leader.owner_name):
        return Need.NOT_NEEDED  # a Job that only names the JobSet gets no slice
    job, replicated = leader.labels.get(_REPLICATED_JOB), jobsets.list_replicated_jobs(jobset)
    templates = (one["template"] for one in replicated if one["name"] == job)
    for metadata in (holder.get("metadata") or {} for holder in (jobset, *templates)):
        if has_opted_out(metadata.get("labels") or {}, metadata.get("annotations") or {}):
            return Need.OPTED_OUT
    return Need.SUSPENDED if is_suspended(jobset) else Need.NEEDED


def build_message(leader: Leader, now: datetime) -> Message:
    """A resync about a Pod that waits."""
    return Message(leader.namespace, leader.name, leader.uid, Cause.RESYNC, now, kind=POD_KIND)


def is_first_pod_of(pod: Mapping[str, Any], name: str) -> bool:
    """Whether a Pod is the first of the Job whose slice has this name.

    The key of the Job is computed, not read from the Pod's label: anyone can write that.
    """
    metadata = pod["metadata"]
    jobset, job = jobsets.find_jobset_name(metadata), find_controller(metadata)
    if not jobsets.is_first_pod(metadata) or not jobset or job is None:
        return False
    return slice_name(jobset, job_key(metadata["namespace"], job["name"])) == name


def build_desired(leader: Leader, provider: Provider) -> DesiredSlice:
    """The slice that a leader asks for. Raises `InputError`."""
    desired = provider.build_desired(leader)
    for find in (jobsets.find_foreign_key, jobsets.find_fence_violation):
        if violation := find(leader):
            raise InputError(violation)
    if violation := find_split_violation(read_demand(leader.raw)):
        raise InputError(violation)
    return desired


def find_leaders_without_slice(
    leaders: Iterable[Leader], slices: Iterable[Slice], provider: Provider
) -> Iterable[tuple[Leader, DesiredSlice]]:
    """The leaders for whom a slice could be created and does not exist, with that slice."""
    existing = list(slices)
    names, owners = {one.name for one in existing}, {one.owner for one in existing}
    for leader in leaders:
        try:
            desired = build_desired(leader, provider)
        except InputError:
            continue
        if desired.name not in names and desired.owner not in owners:
            yield leader, desired


def select_leaders(leaders: Sequence[Leader], slots: int, now: datetime) -> list[Leader]:
    """Select Pods for the free slots (`concurrency.select`)."""
    return concurrency.select(
        leaders, slots, now, lambda leader: leader.uid, lambda leader: leader.namespace
    )


def select_next(
    pods: PodsWithoutSlice, changed: Collection[str], now: datetime, *, rejected: str = ""
) -> tuple[int, list[Leader]]:
    """How many Pods are left without a slice, and those of them that may try next.

    ``changed`` names the slices that are about to be changed: their changes count as begun. ``rejected``
    names the slice whose creation has just been rejected: its Pod does not try again at once.
    """
    slices = [
        replace(one, state=SliceState.PROVISIONING) if one.name in changed else one
        for one in pods.slices
    ]
    created = [desired for _, desired in pods.desired if desired.name in changed]
    slices += [Slice(one.name, one.owner, one.hash, SliceState.PROVISIONING) for one in created]
    left = [(leader, desired) for leader, desired in pods.desired if desired not in created]
    others = [leader for leader, desired in left if desired.name != rejected]
    return len(left), select_leaders(others, concurrency.count_slots(pods.limit, slices), now)
