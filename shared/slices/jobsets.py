"""JobSets, and the Pods that wait for a slice.

JobSet sets its keys as labels and as annotations, on Jobs and on Pods. A Job's ``job-key`` is the SHA-1
of ``namespace/name`` in hex. It is the same after restarts and unique in the cluster.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shared.base import names
from shared.base.documents import read_mapping, read_mappings, read_text, read_texts
from shared.base.pods import find_controller, parse_count
from shared.base.slice_names import JOB_KEY_SELECTOR, job_key
from shared.base.topology import chips_of
from shared.slices.kinds.kind import (
    find_transition_time,
    find_true,
)
from shared.slices.units import has_opted_out, is_unschedulable, read_demand

EXCLUSIVE_TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"
MIN_KEY = 5
FINISHED = ("Completed", "Failed")
"""The conditions of a JobSet that has ended."""


@dataclass(frozen=True)
class Leader:
    """A Pod that waits for a slice: the first of a JobSet's Job.

    ``chips`` is the sum of its containers' requests, all on one host. ``owner_kind`` and ``owner_name``
    are those of its controller, normally the Job; so is ``owner_uid``.
    """

    namespace: str
    name: str
    uid: str
    jobset: str
    job_key: str
    owner_kind: str
    owner_name: str
    owner_uid: str
    chips: int
    selector: Mapping[str, str]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def topology(self) -> str:
        return self.selector[names.TOPOLOGY_LABEL]

    @property
    def accelerator(self) -> str:
        """The accelerator label in the node selector; empty if there is none."""
        return self.selector.get(names.ACCELERATOR_LABEL, "")


def find_leader(pod: Mapping[str, Any]) -> Leader | None:
    """The leader, if the Pod waits for a slice; otherwise ``None``.

    A Pod waits for a slice if it is the first Pod of a JobSet's Job, is Pending and Unschedulable,
    requests TPU chips and a topology, and has not opted out. Malformed parts of the Pod count as absent.
    """
    metadata, spec, status = (read_mapping(pod, part) for part in ("metadata", "spec", "status"))
    labels, annotations = read_texts(metadata, "labels"), read_texts(metadata, "annotations")
    owner = find_controller(metadata)
    chips = read_demand(pod).chips
    waits = (
        annotations.get(names.JOBSET_NAME)
        and is_first_pod(metadata)
        and status.get("phase") == "Pending"
        and is_unschedulable(status)
        and chips >= 1
        and names.TOPOLOGY_LABEL in read_texts(spec, "nodeSelector")
        and not has_opted_out(labels, annotations)
        and "deletionTimestamp" not in metadata
    )
    if not waits or owner is None:
        return None
    return Leader(
        namespace=str(metadata.get("namespace")),
        name=str(metadata.get("name")),
        uid=str(metadata.get("uid")),
        jobset=find_jobset_name(metadata),
        job_key=labels.get(names.JOB_KEY, ""),
        owner_kind=str(owner.get("kind")),
        owner_name=str(owner.get("name")),
        owner_uid=read_text(owner, "uid"),
        chips=chips,
        selector=read_texts(spec, "nodeSelector"),
        labels=labels,
        annotations=annotations,
        tolerations=tuple(read_mappings(spec, "tolerations")),
        raw=pod,
    )


def find_jobset_name(metadata: Mapping[str, Any]) -> str:
    """The name of a Pod's JobSet; empty if it has none."""
    both = (read_texts(metadata, "labels"), read_texts(metadata, "annotations"))
    return next((one[names.JOBSET_NAME] for one in both if one.get(names.JOBSET_NAME)), "")


def is_first_pod(metadata: Mapping[str, Any]) -> bool:
    """Whether a Pod is the first of its Job."""
    return read_texts(metadata, "annotations").get(names.COMPLETION_INDEX) == "0"


def find_end(jobset: Mapping[str, Any]) -> str | None:
    """``Completed`` or ``Failed`` if a JobSet has ended, otherwise ``None``."""
    condition = find_true(jobset, FINISHED)
    return str(condition["type"]) if condition else None


def find_end_time(jobset: Mapping[str, Any]) -> datetime | None:
    """When a JobSet ended; ``None`` if that is unknown."""
    return find_transition_time(jobset, FINISHED)


def count_completed(jobset: Mapping[str, Any]) -> int:
    """The number of completed Jobs in a JobSet's status; just after a restart, those of before."""
    counts = read_mappings(read_mapping(jobset, "status"), "replicatedJobsStatus")
    return sum(parse_count(one.get("succeeded")) or 0 for one in counts)


def has_completed(job: Mapping[str, Any], jobset: Mapping[str, Any]) -> bool:
    """Whether a Job of a JobSet has completed. One that JobSet creates again does not count: one that is
    being deleted, is older than the last restart, or is of a predecessor of the same name."""
    metadata, attempt = job["metadata"], read_mapping(jobset, "status").get("restarts") or 0
    return (
        bool(find_true(job, ("Complete",)))
        and "deletionTimestamp" not in metadata
        and read_texts(metadata, "labels").get(names.RESTART_ATTEMPT) == str(attempt)
        and (find_controller(metadata) or {}).get("uid") == jobset["metadata"]["uid"]
    )


def list_replicated_jobs(jobset: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The replicated Jobs of a JobSet."""
    return list((jobset.get("spec") or {}).get("replicatedJobs") or ())


def has_job(jobset: Mapping[str, Any], name: str, job: str) -> bool:
    """Whether the JobSet of this name has a Job of this name."""
    replicated, _, index = job.rpartition("-")
    return bool(re.fullmatch("[0-9]{1,10}", index)) and any(
        replicated == f"{name}-{one['name']}" and int(index) < one.get("replicas", 1)
        for one in list_replicated_jobs(jobset)
    )


def requests_chips(jobset: Mapping[str, Any]) -> bool:
    """Whether Pods of the JobSet request TPU chips."""
    jobs = read_mappings(read_mapping(jobset, "spec"), "replicatedJobs")
    return any(
        names.TPU_RESOURCE in read_mapping(read_mapping(container, "resources"), part)
        for job in jobs
        for container in read_mappings(_pod_spec(job), "containers")
        for part in ("requests", "limits")
    )


def find_key_violation(leader: Leader) -> str | None:
    """The violation of the Pod's labels about its JobSet and Job, or ``None``."""
    if not re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", leader.jobset):
        return (
            f"the Pod's {names.JOBSET_NAME} is {leader.jobset!r}: it must be the name of a JobSet"
        )
    if not leader.job_key:
        return f"the Pod has no label {names.JOB_KEY}: JobSet sets it on the Pods of its Jobs"
    if len(leader.job_key) < MIN_KEY or not re.fullmatch("[a-z0-9-]+", leader.job_key):
        return (
            f"the label {names.JOB_KEY} is {leader.job_key!r}: it must be at least {MIN_KEY} "
            "letters and digits, as JobSet computes it (40 hex digits)"
        )
    return None


def find_foreign_key(leader: Leader) -> str | None:
    """The violation if the Pod has the key of another Job, or ``None``.

    Pods select the Nodes of their slice by this key, in all namespaces: Nodes with another Job's key
    would get that Job's Pods.
    """
    key = job_key(leader.namespace, leader.owner_name)
    no_other = "slices are created only for this Job"
    if leader.job_key != key:
        return (
            f"the label {names.JOB_KEY} is {leader.job_key!r}: for Job {leader.namespace}/"
            f"{leader.owner_name} JobSet computes {key}, and {no_other}"
        )
    selected = leader.selector.get(JOB_KEY_SELECTOR, key)
    if selected != key:
        return (
            f"the Pod's nodeSelector {JOB_KEY_SELECTOR} is {selected!r}: it must be the Pod's label "
            f"{names.JOB_KEY}, {key}: {no_other}"
        )
    return None


def find_fence_violation(leader: Leader) -> str | None:
    """The violation if Pods of other Jobs could take some hosts of the slice, or ``None``."""
    is_fenced = EXCLUSIVE_TOPOLOGY in leader.annotations or JOB_KEY_SELECTOR in leader.selector
    if is_fenced or chips_of(leader.topology) <= leader.chips:
        return None
    return (
        f"the JobSet has no annotation {EXCLUSIVE_TOPOLOGY}, and the Pod no nodeSelector "
        f"{JOB_KEY_SELECTOR}, so that Pods of other Jobs could take hosts of the slice: the JobSet must "
        f"have {EXCLUSIVE_TOPOLOGY}: {names.POOL_LABEL}, or the component admit-jobs be installed"
    )


def _pod_spec(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    """The Pod's spec in a replicated Job: its template is a Job's, whose template is a Pod's."""
    for key in ("template", "spec", "template", "spec"):
        holder = read_mapping(holder, key)
    return holder
