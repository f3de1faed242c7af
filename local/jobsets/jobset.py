"""JobSet's controller: the Jobs of a JobSet, and its end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any

from local.jobsets.objects import (
    EXCLUSIVE_TOPOLOGY,
    JOB_KEY,
    JOBS,
    JOBSET_NAME,
    JOBSET_PREFIX,
    JOBSETS,
    RESTART_ATTEMPT,
    Call,
    Document,
    Step,
    condition,
    controlled_by,
    create,
    delete,
    expire,
    is_deleting,
    is_true,
    patch,
    patch_status,
    with_condition,
)

ENDED = ("Completed", "Failed")
"""The conditions of a finished JobSet."""
_JOB_ENDED = ("Complete", "Failed")
_SELECTOR = "job-key"
_PRIORITY = f"{JOBSET_PREFIX}/priority"
_REPLICATED_JOB = f"{JOBSET_PREFIX}/replicatedjob-name"


def step(
    jobset: Document, jobs: Sequence[Document], now: datetime, *, adds_selector: bool
) -> Iterator[Step]:
    """Decide the next calls of JobSet's controller. ``adds_selector``: no webhook adds it."""
    if is_deleting(jobset):
        return
    attempt = _restarts(jobset)
    current = [job for job in jobs if _attempt(job) == attempt]
    counts = {"replicatedJobsStatus": _count_jobs(jobset, current)}
    if is_true(jobset, *ENDED):
        yield from _delete_jobs(job for job in current if not is_true(job, *_JOB_ENDED))
        yield from patch_status(JOBSETS, jobset, counts)
        yield from expire(JOBSETS, jobset, ENDED, now)
        return
    present = {job["metadata"]["name"]: job for job in jobs}
    yield from _delete_jobs(job for job in jobs if _attempt(job) < attempt)
    failed = [job["metadata"]["name"] for job in current if is_true(job, "Failed")]
    wanted = list(_jobs(jobset, attempt, adds_selector=adds_selector))
    status: Document = {}
    if failed:
        status = _fail(jobset, attempt, failed[0], now)
    elif len(current) == len(wanted) and all(is_true(job, "Complete") for job in current):
        message = "jobset completed successfully"
        status = _end(jobset, "Completed", "AllJobsCompleted", message, now)
    else:
        status = _report_suspended(jobset, now)
        yield from _create_jobs(jobset, wanted, present)
    yield from patch_status(JOBSETS, jobset, {**counts, **status})


def _delete_jobs(jobs: Iterable[Document]) -> Iterator[Call]:
    for job in jobs:
        if not is_deleting(job):
            yield delete(JOBS, job, propagationPolicy="Foreground")


def _count_jobs(jobset: Document, current: Sequence[Document]) -> list[Document]:
    """The Jobs of this attempt by replicated Job and state."""
    counts = {
        one["name"]: dict.fromkeys(("ready", "succeeded", "failed", "active", "suspended"), 0)
        for one in jobset["spec"]["replicatedJobs"]
    }
    for job in current:
        count, status = counts[job["metadata"]["labels"][_REPLICATED_JOB]], job.get("status") or {}
        if is_true(job, *_JOB_ENDED):
            count["succeeded" if is_true(job, "Complete") else "failed"] += 1
            continue
        working = status.get("succeeded", 0) + status.get("ready", 0)
        count["ready"] += working >= int(job["spec"].get("parallelism", 1))
        count["active"] += bool(status.get("active"))
        count["suspended"] += bool(job["spec"].get("suspend"))
    return [{"name": name, **count} for name, count in counts.items()]


def _report_suspended(jobset: Document, now: datetime) -> Document:
    is_suspended = bool(jobset["spec"].get("suspend"))
    words = ("True", "SuspendedJobs", "jobset is suspended")
    if not is_suspended:
        words = ("False", "ResumeJobs", "jobset is resumed")
    if not is_suspended and condition(jobset, "Suspended") is None:
        return {}
    conditions = with_condition(jobset, "Suspended", *words, now)
    return {"conditions": conditions, "restarts": _restarts(jobset)}


def _create_jobs(
    jobset: Document, wanted: Sequence[Document], present: Mapping[str, Document]
) -> Iterator[Call]:
    for job in wanted:
        existing = present.get(job["metadata"]["name"])
        if existing is None:
            yield create(JOBS, jobset["metadata"]["namespace"], job)
        elif is_true(existing, *_JOB_ENDED):
            continue
        elif job["spec"]["suspend"] and not existing["spec"].get("suspend"):
            yield patch(JOBS, existing, {"spec": {"suspend": True}})
        elif existing["spec"].get("suspend") and not job["spec"]["suspend"]:
            yield from _resume(existing, job)


def _resume(existing: Document, job: Document) -> Iterator[Call]:
    """Add what the template has now to the Job's, as JobSet does: what it had before stays."""
    if (existing.get("status") or {}).get("startTime"):  # with it, the template is immutable
        yield patch(JOBS, existing, {"status": {"startTime": None}}, "status")
        return
    template = job["spec"]["template"]
    spec = {"nodeSelector": template["spec"].get("nodeSelector") or {}}
    given = existing["spec"]["template"]["spec"].get("tolerations") or []
    new = [one for one in template["spec"].get("tolerations") or () if one not in given]
    change = {"metadata": template["metadata"], "spec": {**spec, "tolerations": [*given, *new]}}
    yield patch(JOBS, existing, {"spec": {"suspend": False, "template": change}})


def _fail(jobset: Document, attempt: int, job: str, now: datetime) -> Document:
    allowed = int((jobset["spec"].get("failurePolicy") or {}).get("maxRestarts") or 0)
    if attempt < allowed:
        return {"restarts": attempt + 1}
    reason = "ReachedMaxRestarts" if allowed else "FailedJobs"
    return _end(jobset, "Failed", reason, f"jobset failed: job {job} has failed", now)


def _end(jobset: Document, kind: str, reason: str, message: str, now: datetime) -> Document:
    return {
        "conditions": with_condition(jobset, kind, "True", reason, message, now),
        "restarts": _restarts(jobset),
        "terminalState": kind,
    }


def _restarts(jobset: Document) -> int:
    return int((jobset.get("status") or {}).get("restarts") or 0)


def _attempt(job: Document) -> int:
    return int(job["metadata"]["labels"][RESTART_ATTEMPT])


def _jobs(jobset: Document, attempt: int, *, adds_selector: bool) -> Iterator[Document]:
    for replicated in jobset["spec"]["replicatedJobs"]:
        for index in range(int(replicated.get("replicas", 1))):
            yield _job(jobset, replicated, index, attempt, adds_selector=adds_selector)


def _job(
    jobset: Document,
    replicated: Mapping[str, Any],
    index: int,
    attempt: int,
    *,
    adds_selector: bool,
) -> Document:
    metadata = jobset["metadata"]
    name = f"{metadata['name']}-{replicated['name']}-{index}"
    key = hashlib.sha1(f"{metadata['namespace']}/{name}".encode(), usedforsecurity=False)
    labels = {
        JOBSET_NAME: metadata["name"],
        _REPLICATED_JOB: replicated["name"],
        f"{JOBSET_PREFIX}/replicatedjob-replicas": str(replicated.get("replicas", 1)),
        f"{JOBSET_PREFIX}/job-index": str(index),
        RESTART_ATTEMPT: str(attempt),
        JOB_KEY: key.hexdigest(),
    }
    template = replicated["template"]
    spec = deepcopy(template["spec"])
    spec.setdefault("completionMode", "Indexed")  # JobSet's webhook does
    spec["suspend"] = bool(jobset["spec"].get("suspend"))
    topology = _exclusive(jobset, template)
    annotations = labels | ({EXCLUSIVE_TOPOLOGY: topology} if topology else {})
    pod = spec["template"].setdefault("spec", {})
    pod.setdefault("restartPolicy", "OnFailure")
    # Not simulated: the headless Service, which publishes the host names.
    pod.setdefault("subdomain", metadata["name"])
    priority = {_PRIORITY: str(pod.get("priority", 0))}
    if topology:
        _add_anti_affinity(pod, topology, labels[JOB_KEY], priority[_PRIORITY])
    if adds_selector and "cloud.google.com/gke-tpu-topology" in (pod.get("nodeSelector") or {}):
        pod["nodeSelector"][_SELECTOR] = labels[JOB_KEY]
    spec["template"]["metadata"] = _with_labels(
        spec["template"].get("metadata"), labels | priority, annotations
    )
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **_with_labels(template.get("metadata"), labels, annotations),
            "name": name,
            "namespace": metadata["namespace"],
            "ownerReferences": controlled_by(JOBSETS, jobset),
        },
        "spec": spec,
    }


def _with_labels(
    metadata: Mapping[str, Any] | None, labels: Document, annotations: Document
) -> Document:
    given = metadata or {}
    return {
        "labels": {**(given.get("labels") or {}), **labels},
        "annotations": {**(given.get("annotations") or {}), **annotations},
    }


def _exclusive(jobset: Document, template: Mapping[str, Any]) -> str:
    """The topology label of exclusive placement; the Job template's annotation overrides the set's."""
    for metadata in (template.get("metadata") or {}, jobset["metadata"]):
        topology = (metadata.get("annotations") or {}).get(EXCLUSIVE_TOPOLOGY)
        if topology:
            return str(topology)
    return ""


def _add_anti_affinity(pod: Document, topology: str, key: str, priority: str) -> None:
    """Add the affinity of JobSet's webhook: no other Job of the same priority in the domain."""

    def term(*expressions: Document) -> Document:
        return {
            "labelSelector": {"matchExpressions": list(expressions)},
            "topologyKey": topology,
            "namespaceSelector": {},
        }

    own = {"key": JOB_KEY, "operator": "In", "values": [key]}
    any_ = {"key": JOB_KEY, "operator": "Exists"}
    other = {"key": JOB_KEY, "operator": "NotIn", "values": [key]}
    same = {"key": _PRIORITY, "operator": "In", "values": [priority]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    pod["affinity"] = {
        **(pod.get("affinity") or {}),
        "podAffinity": {required: [term(own)]},
        "podAntiAffinity": {required: [term(any_, other, same)]},
    }
