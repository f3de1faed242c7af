"""The Job controller: the Pods of a Job, and its end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from copy import deepcopy
from datetime import datetime

from local.jobsets.objects import (
    COMPLETION_INDEX,
    EXCLUSIVE_TOPOLOGY,
    JOB_NAME,
    JOBS,
    PODS,
    Call,
    Document,
    Step,
    controlled_by,
    create,
    delete,
    expire,
    is_deleting,
    is_true,
    patch_status,
    render,
    with_condition,
)

_CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
_BACKOFF_LIMIT = 6


def step(job: Document, pods: Sequence[Document], now: datetime) -> Iterator[Step]:
    """Decide the next calls of the Job controller."""
    if is_deleting(job):
        return
    active = [pod for pod in pods if not is_deleting(pod) and _phase(pod) in ("Pending", "Running")]
    if is_true(job, "Complete", "Failed"):
        yield from (delete(PODS, pod) for pod in active)
        yield from expire(JOBS, job, ("Complete", "Failed"), now)
        return
    spec = job["spec"]
    failed = [pod for pod in pods if _phase(pod) == "Failed"]
    succeeded = [pod for pod in pods if _phase(pod) == "Succeeded"]
    done = {_index(pod) for pod in succeeded} if _is_indexed(job) else set()
    count = len(done) if _is_indexed(job) else len(succeeded)
    status: Document = {
        "active": len(active),
        "succeeded": count,
        "failed": len(failed),
        "ready": sum(_phase(pod) == "Running" for pod in active),
    }
    if done:  # the API server stores no empty text: it would be written again and again
        status["completedIndexes"] = _render_indexes(done)
    if len(failed) > int(spec.get("backoffLimit", _BACKOFF_LIMIT)):
        message = "Job has reached the specified backoff limit"
        status["conditions"] = with_condition(
            job, "Failed", "True", "BackoffLimitExceeded", message, now
        )
    elif count >= _completions(job):
        message = "Reached expected number of succeeded pods"
        status["conditions"] = with_condition(
            job, "Complete", "True", "CompletionsReached", message, now
        )
        status["completionTime"] = render(now)
    elif spec.get("suspend"):
        yield from (delete(PODS, pod) for pod in active)
        status["conditions"] = with_condition(job, "Suspended", "True", "JobSuspended", "", now)
    else:
        if is_true(job, "Suspended"):
            status["conditions"] = with_condition(job, "Suspended", "False", "JobResumed", "", now)
        status["startTime"] = (job.get("status") or {}).get("startTime") or render(now)
        if _is_indexed(job):
            yield from _create_pods(job, pods, active, done)
        else:
            missing = count_running(job, count) - len(active)
            namespace = job["metadata"]["namespace"]
            for number in range(missing):
                yield create(PODS, namespace, _pod(job, None, len(pods) + number))
    yield from patch_status(JOBS, job, status)


def _render_indexes(done: set[int]) -> str:
    """Indexes as in ``1,3-5,7``: three or more in a row as a range."""
    rows: list[list[int]] = []
    for index in sorted(done):
        if rows and rows[-1][-1] == index - 1:
            rows[-1].append(index)
        else:
            rows.append([index])
    texts = (f"{row[0]}-{row[-1]}" if len(row) > 2 else ",".join(map(str, row)) for row in rows)
    return ",".join(texts)


def count_running(job: Document, succeeded: int) -> int:
    """The number of Pods that run at a time, given how many have succeeded."""
    return min(int(job["spec"].get("parallelism", 1)), _completions(job) - succeeded)


def _create_pods(
    job: Document, pods: Sequence[Document], active: Sequence[Document], done: set[int]
) -> Iterator[Call]:
    present = {_index(pod) for pod in active}
    room = int(job["spec"].get("parallelism", 1)) - len(active)
    for index in range(_completions(job)):
        if room <= 0 or (index and _waits_for_leader(job, active, done)):
            return
        if index not in present | done:
            tries = sum(_index(pod) == index for pod in pods)
            yield create(PODS, job["metadata"]["namespace"], _pod(job, index, tries))
            room -= 1


def _waits_for_leader(job: Document, active: Sequence[Document], done: set[int]) -> bool:
    """Whether a Pod must wait: JobSet's webhook rejects followers until the first Pod is scheduled."""
    if EXCLUSIVE_TOPOLOGY not in (job["metadata"].get("annotations") or {}) or 0 in done:
        return False
    return not any(_index(pod) == 0 and pod["spec"].get("nodeName") for pod in active)


def _pod(job: Document, index: int | None, tries: int) -> Document:
    metadata, template = job["metadata"], job["spec"]["template"]
    drawn = hashlib.sha256(f"{metadata['uid']}/{index}/{tries}".encode()).hexdigest()[:5]
    given = template.get("metadata") or {}
    own = {} if index is None else {COMPLETION_INDEX: str(index)}
    name = metadata["name"] if index is None else f"{metadata['name']}-{index}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{drawn}",
            "namespace": metadata["namespace"],
            "labels": {
                **(given.get("labels") or {}),
                JOB_NAME: metadata["name"],
                "job-name": metadata["name"],
                _CONTROLLER_UID: metadata["uid"],
                **own,
            },
            "annotations": {**(given.get("annotations") or {}), **own},
            "ownerReferences": controlled_by(JOBS, job),
        },
        "spec": {**deepcopy(template["spec"]), **({} if index is None else {"hostname": name})},
    }


def _is_indexed(job: Document) -> bool:
    return bool(job["spec"].get("completionMode") == "Indexed")


def _completions(job: Document) -> int:
    return int(job["spec"].get("completions") or 1)


def _index(pod: Document) -> int:
    return int(pod["metadata"]["annotations"][COMPLETION_INDEX])


def _phase(pod: Document) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))
