# ruff: noqa: E501  (a table reads best with a row on a line)
"""Requests of the relay and the steps for JobSets: Pods by phase, Node and labels, and JobSets."""

from __future__ import annotations

from typing import Any

from local.tests.contract.kubernetes.cases.objects import PODS, TABLE
from local.tests.contract.kubernetes.dialogue import (
    ABSENT,
    ANYTHING,
    Step,
    case,
    delete,
    get,
    patch,
    post,
)

JOBSETS = "/apis/cases.example.com/v1alpha2/namespaces/{ns}/jobsets"
_PENDING = "labelSelector=jobset.sigs.k8s.io%2Fjob-key&fieldSelector=status.phase%3DPending"
_OF_JOBS = "labelSelector=batch.kubernetes.io%2Fjob-name"


def _pod(name: str, node: str = "", **labels: str) -> Step:
    """Create a Pod. No scheduler and no kubelet handles it."""
    spec = {"containers": [{"name": "jax", "image": "jax"}]}
    place = {"nodeName": node} if node else {"schedulerName": "nobody"}
    return post(PODS, {"metadata": {"name": name, "labels": labels}, "spec": {**spec, **place}})


def _first(key: str = "{id}") -> dict[str, str]:
    return {"jobset.sigs.k8s.io/job-key": key, "batch.kubernetes.io/job-name": "train-0"}


RUNS = {"status": {"phase": "Running"}}

PENDING_PODS = (
    case(
        "pending pods of jobsets can be listed",
        _pod("waits", **_first()),
        _pod("runs", **_first()),
        _pod("alone"),
        patch(f"{PODS}/runs/status", RUNS),
        get(f"{PODS}?{_PENDING}").has({"kind": "PodList", "items.0.metadata.name": "waits", "items.1": ABSENT}),
        get(f"/api/v1/pods?{_PENDING.replace('job-key', 'job-key%3D{id}')}").has({"items.0.metadata.name": "waits", "items.0.kind": ABSENT, "items.1": ABSENT}),
        get(f"{PODS}?{_PENDING}", accept=TABLE).has({"rows.0.cells.0": "waits", "rows.1": ABSENT}),
    ),
    case(
        "a watch of pending pods shows DELETED when a pod runs",
        _pod("waits", **_first()).saves(rv="metadata.resourceVersion"),
        _pod("alone"),
        _pod("another", **_first("other")),
        patch(f"{PODS}/waits/status", RUNS),
        get(f"{PODS}?watch=true&timeoutSeconds=1&{_PENDING}&resourceVersion={{rv}}").shows(("ADDED", "another"), ("DELETED", "waits")),
    ),
    case(
        "pods of jobs can be listed by node",
        _pod("here", "node-{ns}", **_first()),
        _pod("beside", "node-{ns}"),
        _pod("waits", **_first()),
        get(f"{PODS}?{_OF_JOBS}&fieldSelector=spec.nodeName%3Dnode-{{ns}}").has({"items.0.metadata.name": "here", "items.1": ABSENT}),
        get(f"/api/v1/pods?{_OF_JOBS}&fieldSelector=spec.nodeName%3Dnode-{{ns}}").has({"items.0.metadata.name": "here", "items.1": ABSENT}),
        get(f"{PODS}?fieldSelector=spec.nodeName%3D").has({"items.0.metadata.name": "waits", "items.1": ABSENT}),
        get(f"{PODS}?fieldSelector=spec.nodeName%3Dnode-other").has({"items": []}),
    ),
    case("a field selector by a pod's image is a BadRequest", get(f"{PODS}?fieldSelector=spec.image%3Djax").gives(400, reason="BadRequest")),
)  # fmt: skip


def _jobset(name: str, **spec: Any) -> Step:
    job = {"template": {"spec": {"containers": [{"name": "jax", "image": "jax"}]}}}
    replicated = {"name": "slice", "template": {"spec": job}}
    return post(JOBSETS, {**_KIND, "metadata": {"name": name}, "spec": {**_of(replicated), **spec}})


_KIND = {"apiVersion": "cases.example.com/v1alpha2", "kind": "JobSet"}


def _of(*jobs: dict[str, Any]) -> dict[str, Any]:
    return {"replicatedJobs": list(jobs)}


COMPLETED = {
    "status": {
        "conditions": [{"type": "Completed", "status": "True", "reason": "AllJobsCompleted"}],
        "restarts": 1,
        "terminalState": "Completed",
    }
}

JOBSET_LISTS = (
    case(
        "jobsets are listed in pages, and each item has its kind",
        _jobset("a"),
        _jobset("b", suspend=True),
        get(f"{JOBSETS}?limit=1")
        .has(
            {
                "kind": "JobSetList",
                "items.0.kind": "JobSet",
                "items.0.metadata.name": "a",
                "items.0.spec.replicatedJobs.0.replicas": 1,
                "items.1": ABSENT,
                "metadata.continue": ANYTHING,
            }
        )
        .saves(token="metadata.continue"),
        get(f"{JOBSETS}?limit=1&continue={{token}}").has({"items.0.metadata.name": "b", "items.0.spec.suspend": True, "items.1": ABSENT}),
    ),
    case(
        "lists and watches show that a jobset has completed",
        _jobset("a").saves(rv="metadata.resourceVersion"),
        patch(f"{JOBSETS}/a/status", COMPLETED).has({"status.terminalState": "Completed"}),
        get(JOBSETS, accept=TABLE).has({"rows.0.cells.0": "a", "rows.0.cells.1": "Completed", "rows.0.cells.2": "1"}),
        delete(f"{JOBSETS}/a"),
        get(f"{JOBSETS}?watch=true&timeoutSeconds=1&resourceVersion={{rv}}").shows(("MODIFIED", "a"), ("DELETED", "a")),
    ),
    case(
        "an absent jobset has a Status, and an API that is not served only a 404",
        get(f"{JOBSETS}/a").gives(404, reason="NotFound"),
        Step("GET", f"{JOBSETS.replace('v1alpha2', 'v1')}/a", status=404),
        Step("GET", "/apis/jobsets.example.com/v1alpha2/jobsets", status=404),
    ),
)  # fmt: skip
