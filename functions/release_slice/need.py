"""Whether a JobSet needs a slice that exists, and which JobSet a slice's name belongs to."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from shared.base.slice_names import job_key, slice_name
from shared.slices import jobsets
from shared.slices.kinds.kind import find_suspension_time, is_suspended
from shared.slices.provider import Slice
from shared.slices.units import Need

MAX_JOBS = 10_000
"""How many Jobs of one JobSet are compared by name: users can write billions of replicas."""


def find_slice_need(
    existing: Slice,
    jobset: Mapping[str, Any] | None,
    job: Mapping[str, Any] | None,
    now: datetime,
    suspended_release: timedelta | None,
) -> tuple[Need, str]:
    """Whether the JobSet of a slice needs it, and why not; the text is empty while it keeps its slice.

    ``job``: the slice's Job; ``None`` if the JobSet counts no completed Job or it does not exist.
    ``suspended_release``: how long a suspended JobSet keeps its slices; ``None``: until it is resumed.
    """
    owner = existing.owner
    if jobset is None:
        return Need.OWNER_GONE, f"JobSet {owner.jobset} no longer exists"
    end = jobsets.find_end(jobset)
    if end is not None:
        return Need.OWNER_ENDED, f"JobSet {owner.jobset} has ended ({end})"
    if "deletionTimestamp" in jobset["metadata"]:
        return Need.OWNER_GONE, f"JobSet {owner.jobset} is being deleted"
    if job is not None and jobsets.has_completed(job, jobset):
        return Need.NOT_NEEDED, f"Job {owner.job} of JobSet {owner.jobset} has completed"
    # A JobSet that was recreated may have fewer Jobs. A slice whose name this system has not computed,
    # such as a node pool of TPU Provisioner, is kept: its labels may name no Job.
    is_named_by_us = existing.name == slice_name(owner.jobset, job_key(owner.namespace, owner.job))
    if is_named_by_us and not jobsets.has_job(jobset, owner.jobset, owner.job):
        return Need.NOT_NEEDED, f"JobSet {owner.jobset} has no Job {owner.job} any more"
    since = find_suspension_time(jobset)
    if suspended_release and since is not None and now - since >= suspended_release:
        minutes = int((now - since) / timedelta(minutes=1))
        return Need.NOT_NEEDED, f"JobSet {owner.jobset} has been suspended for {minutes} minutes"
    return Need.SUSPENDED if is_suspended(jobset) else Need.NEEDED, ""


def find_jobset_of(wanted: str, found: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The JobSet with a Job whose slice has this name. The slice itself need not exist."""
    for jobset in found:
        namespace, name = jobset["metadata"]["namespace"], jobset["metadata"]["name"]
        # A cheap filter: the part of a slice's name before the Job's key follows from the JobSet's.
        if slice_name(name, job_key("", "")).rpartition("-")[0] != wanted.rpartition("-")[0]:
            continue
        jobs = (
            f"{name}-{one['name']}-{index}"
            for one in jobsets.list_replicated_jobs(jobset)
            for index in range(one.get("replicas", 1))
        )
        names = (slice_name(name, job_key(namespace, job)) for job in islice(jobs, MAX_JOBS))
        if wanted in names:
            return jobset
    return None
