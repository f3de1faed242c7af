"""Whether a Pod, or a slice that exists, is needed by its JobSet, and if not, why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from shared.base.jobs import job_key, slice_name
from shared.slices.jobsets import (
    Leader,
    find_end,
    find_end_time,
    find_suspension_time,
    has_job,
    has_opted_out,
    is_suspended,
    list_replicated_jobs,
)
from shared.slices.lifecycle import Need
from shared.slices.provider import Slice

MAX_JOBS = 10_000
"""How many Jobs of one JobSet are compared by name: users can write billions of replicas."""
_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"


def find_pod_need(leader: Leader, jobset: Mapping[str, Any] | None) -> Need:
    """Whether the Pod's JobSet needs a slice, and if not, why."""
    if jobset is None or "deletionTimestamp" in jobset["metadata"]:
        return Need.JOBSET_GONE
    if find_end(jobset) is not None:
        return Need.JOBSET_ENDED
    if not has_job(jobset, leader.jobset, leader.owner_name):
        return Need.NOT_NEEDED  # a Job that only names the JobSet gets no slice
    job = leader.labels.get(_REPLICATED_JOB)
    jobs = (one["template"] for one in list_replicated_jobs(jobset) if one["name"] == job)
    for metadata in (holder.get("metadata") or {} for holder in (jobset, *jobs)):
        if has_opted_out(metadata.get("labels") or {}, metadata.get("annotations") or {}):
            return Need.OPTED_OUT
    return Need.SUSPENDED if is_suspended(jobset) else Need.NEEDED


def find_slice_need(
    existing: Slice,
    jobset: Mapping[str, Any] | None,
    now: datetime,
    suspended_release: timedelta | None,
) -> Need:
    """Whether the JobSet of a slice needs it. ``suspended_release``: how long a suspended JobSet keeps
    its slices; ``None``: as long as it is suspended."""
    if jobset is None:
        return Need.JOBSET_GONE
    if find_end(jobset) is not None:
        return Need.JOBSET_ENDED
    if find_reason(existing, jobset, now, suspended_release) is not None:
        return Need.NOT_NEEDED
    return Need.SUSPENDED if is_suspended(jobset) else Need.NEEDED


def find_reason(
    existing: Slice,
    jobset: Mapping[str, Any] | None,
    now: datetime,
    suspended_release: timedelta | None,
) -> str | None:
    """Why a slice is no longer needed; ``None`` while it is needed."""
    owner = existing.owner
    if jobset is None:
        return f"JobSet {owner.jobset} no longer exists"
    end = find_end(jobset)
    if end is not None:
        return f"JobSet {owner.jobset} has ended ({end})"
    if not _may_have_job(existing, jobset):
        return f"JobSet {owner.jobset} has no Job {owner.job} any more"
    since = find_suspension_time(jobset)
    if suspended_release and since is not None and now - since >= suspended_release:
        minutes = int((now - since) / timedelta(minutes=1))
        return f"JobSet {owner.jobset} has been suspended for {minutes} minutes"
    return None


def find_unneeded_time(
    existing: Slice, jobset: Mapping[str, Any] | None, suspended_release: timedelta | None
) -> datetime | None:
    """Since when a slice for which there is a reason (`find_reason`) is not needed; ``None``: unknown.

    If its JobSet has not ended and is not suspended, its release deadline counts.
    """
    ended, suspended = find_end_time(jobset or {}), find_suspension_time(jobset or {})
    if ended is not None:
        return ended
    if suspended is not None and suspended_release is not None:
        return suspended + suspended_release
    return existing.release_after


def _may_have_job(existing: Slice, jobset: Mapping[str, Any]) -> bool:
    """Whether the JobSet still has the slice's Job: a JobSet that was recreated may have fewer.

    True also for a slice whose name this system has not computed, such as a node pool of TPU
    Provisioner: its labels may name no Job.
    """
    owner = existing.owner
    key = job_key(owner.namespace, owner.job)
    if existing.name != slice_name(owner.jobset, key):
        return True
    return has_job(jobset, owner.jobset, owner.job)


def find_jobset_of(wanted: str, jobsets: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The JobSet with a Job whose slice has this name. The slice itself need not exist."""
    for jobset in jobsets:
        namespace, name = jobset["metadata"]["namespace"], jobset["metadata"]["name"]
        if not _has_name_of_jobset(wanted, name):
            continue
        jobs = islice(_list_job_names(name, jobset), MAX_JOBS)
        if any(slice_name(name, job_key(namespace, job)) == wanted for job in jobs):
            return jobset
    return None


def _has_name_of_jobset(name: str, jobset: str) -> bool:
    """Whether the part of a slice's name before the Job's key is that of a JobSet: a cheap filter."""
    return slice_name(jobset, job_key("", "")).rpartition("-")[0] == name.rpartition("-")[0]


def _list_job_names(name: str, jobset: Mapping[str, Any]) -> Iterator[str]:
    for one in list_replicated_jobs(jobset):
        for index in range(one.get("replicas", 1)):
            yield f"{name}-{one['name']}-{index}"
