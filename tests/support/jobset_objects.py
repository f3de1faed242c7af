"""JobSets and Pods as the JobSet controller and the scheduler write them, for tests."""

from __future__ import annotations

from typing import Any

import yaml

from shared.base.names import POOL_LABEL
from shared.base.slice_names import job_key
from tests.support.builders import merge

NAMESPACE = "default"
JOBSET = "train"
REPLICATED_JOB = "workers"
JOB = f"{JOBSET}-{REPLICATED_JOB}-0"
TEMPLATE: dict[str, Any] = {
    "apiVersion": "tpu.google.com/v1alpha1",
    "kind": "TPUNodeGroup",
    "spec": {
        "project": "my-gcp-project",
        "nodeLocation": "us-central1-c",
        "instanceConfig": {
            "provisioningModel": "STANDARD",
            "image": "projects/my-gcp-project/global/images/my-v6e-image",
        },
        "bootstrapKubernetes": {"version": "1.33", "controlPlaneIP": "10.128.0.2"},
    },
}
"""The template of slices in the ConfigMap."""


def options(**change: Any) -> dict[str, str]:
    """The data of the ConfigMap ``jobsets``, its template changed by a JSON merge patch."""
    return {"template": yaml.safe_dump(merge(TEMPLATE, change))}


def config_map(**data: str) -> dict[str, Any]:
    """The ConfigMap ``jobsets``, with more data than the template."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "jobsets", "namespace": "tpu-functions"},
        "data": {**options(), **data},
    }


def selector(accelerator: str = "tpu-v6e-slice", topology: str = "4x4") -> dict[str, str]:
    """The nodeSelector of a Pod for the Nodes of a slice."""
    return {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }


def pod(chips: int = 4, **change: Any) -> dict[str, Any]:
    """The first Pod of a JobSet's Job at its creation, changed by a JSON merge patch."""
    keys = {
        "jobset.sigs.k8s.io/jobset-name": JOBSET,
        "jobset.sigs.k8s.io/replicatedjob-name": REPLICATED_JOB,
        "jobset.sigs.k8s.io/job-index": "0",
        "jobset.sigs.k8s.io/restart-attempt": "0",
        "jobset.sigs.k8s.io/job-key": job_key(NAMESPACE, JOB),
    }
    index = {"batch.kubernetes.io/job-completion-index": "0"}
    exclusive = {"alpha.jobset.sigs.k8s.io/exclusive-topology": POOL_LABEL}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": JOB, "uid": "job-uid"}
    merged: dict[str, Any] = merge(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{JOB}-0-abcde",
                "namespace": NAMESPACE,
                "labels": {"batch.kubernetes.io/job-name": JOB, **index, **keys},
                "annotations": {**index, **keys, **exclusive},
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": {
                "nodeSelector": selector(),
                "containers": [
                    {
                        "name": "train",
                        "image": "train",
                        "resources": {"requests": {"google.com/tpu": str(chips)}},
                    }
                ],
            },
        },
        change,
    )
    return merged


def unschedulable(since: str = "2026-11-20T10:00:00Z") -> dict[str, Any]:
    """The status of a Pod that the scheduler reports as unschedulable."""
    return {
        "phase": "Pending",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/3 nodes are available",
                "lastTransitionTime": since,
            }
        ],
    }


def waiting_pod(chips: int = 4, **change: Any) -> dict[str, Any]:
    """The same Pod as the API server returns it, while it waits for a slice."""
    read: dict[str, Any] = merge(
        {
            "metadata": {
                "uid": "pod-uid",
                "resourceVersion": "7",
                "creationTimestamp": "2026-11-20T09:59:00Z",
            },
            "status": unschedulable(),
        },
        pod(chips),
    )
    merged: dict[str, Any] = merge(read, change)
    return merged


def jobset(**change: Any) -> dict[str, Any]:
    """The JobSet of that Pod, with one Job of four, changed by a JSON merge patch."""
    spec = {"restartPolicy": "Never", **pod()["spec"]}
    job = {"parallelism": 4, "completions": 4, "backoffLimit": 0, "template": {"spec": spec}}
    exclusive = {"alpha.jobset.sigs.k8s.io/exclusive-topology": POOL_LABEL}
    merged: dict[str, Any] = merge(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": JOBSET, "namespace": NAMESPACE, "annotations": exclusive},
            "spec": {
                "replicatedJobs": [
                    {"name": REPLICATED_JOB, "replicas": 1, "template": {"spec": job}}
                ]
            },
        },
        change,
    )
    return merged


def small_jobset(name: str = JOBSET, topology: str = "2x2", hosts: int = 1) -> dict[str, Any]:
    """A JobSet with one Job of few hosts."""
    job = jobset()["spec"]["replicatedJobs"][0]
    spec = job["template"]["spec"]
    spec["template"]["spec"]["nodeSelector"] = selector(topology=topology)
    spec |= {"parallelism": hosts, "completions": hosts}
    return jobset(metadata={"name": name}, spec={"replicatedJobs": [job]})


def with_condition(kind: str, since: str = "2026-11-20T10:00:00Z") -> dict[str, Any]:
    """A change that sets a condition in the status of a JobSet."""
    condition = {"type": kind, "status": "True", "reason": kind, "message": ""}
    return {"status": {"conditions": [{**condition, "lastTransitionTime": since}]}}
