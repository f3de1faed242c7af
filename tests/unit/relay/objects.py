"""TPUNodeGroups, Nodes, Pods and JobSets as an API server sends them, for the relay's tests."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from relay.watching.projection import parse
from shared.base.names import (
    ACCELERATOR_LABEL,
    COMPLETION_INDEX,
    FINALIZER,
    GROUP,
    GROUP_LABEL,
    JOB_KEY,
    JOBSET_NAME,
    KIND,
    PAUSED_ANNOTATION,
    RESOURCE_NAME_LABEL,
    TOPOLOGY_LABEL,
    TPU_RESOURCE,
    VERSION,
    VM_ID_LABEL,
)
from shared.base.slice_names import job_key, slice_name
from shared.slices.classes import CLASS_ANNOTATION

Raw = dict[str, Any]

RESOURCE_NAME = "tng-train-0123abcd"
OWN_LABELS = {
    RESOURCE_NAME_LABEL: RESOURCE_NAME,
    TOPOLOGY_LABEL: "2x2x1",
    ACCELERATOR_LABEL: "tpu7x",
    GROUP_LABEL: "default_train",
    VM_ID_LABEL: "4711",
}


def group(
    name: str = "train",
    *,
    uid: str = "uid-1",
    resource_name: str = RESOURCE_NAME,
    finalizers: tuple[str, ...] = (FINALIZER,),
    generation: int = 1,
    paused: str = "",
    deleting: bool = False,
    ready: str = "",
    observed: int = 0,
    nodes_ready: int = 0,
    node_count: int = 64,
) -> Raw:
    """A group that ``create_resources`` owns, unless ``finalizers`` is empty."""
    metadata: Raw = {"namespace": "default", "name": name, "uid": uid, "generation": generation}
    if resource_name:
        metadata["labels"] = {RESOURCE_NAME_LABEL: resource_name}
    if finalizers:
        metadata["finalizers"] = list(finalizers)
    if paused:
        metadata["annotations"] = {PAUSED_ANNOTATION: paused}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status: Raw = {"nodeSummary": {"ready": nodes_ready}}
    if observed:
        status["observedGeneration"] = observed
    if ready:
        status["conditions"] = [{"type": "Accepted", "status": "True"}, ready_condition(ready)]
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": metadata,
        "spec": {"nodeCount": node_count},
        "status": status,
    }


SLICE = slice_name("train", job_key("default", "train-workers-0"))


def slice_group(
    reason: str = "Provisioning", *, name: str = SLICE, of: str = "v6e", has_vms: bool = False
) -> Raw:
    """The TPUNodeGroup of the leader's slice, not Ready for this reason."""
    raw = group(name, uid="group-uid-1", observed=1)
    raw["metadata"]["annotations"] = {CLASS_ANNOTATION: of} if of else {}
    raw["status"]["conditions"] = [
        {"type": "Ready", "status": "False", "reason": reason},
        {"type": "ManagedInstanceGroupReady", "status": str(has_vms), "reason": reason},
    ]
    return raw


def settled_group(nodes_ready: int = 1, **changes: Any) -> Raw:
    """A settled group."""
    return group(**{"ready": "True", "observed": 1, "nodes_ready": nodes_ready, **changes})


def node(
    name: str = f"{RESOURCE_NAME}-ab12",
    *,
    uid: str = "node-uid-1",
    labels: dict[str, str] | None = None,
    ready: str = "True",
    capacity: str = "4",
    allocatable: str = "4",
    provider_id: str = "gce://p/z/vm",
    heartbeat: str = "2026-01-01T00:00:00Z",
    taints: tuple[str, ...] = (),
    unschedulable: bool = False,
) -> Raw:
    """A Node of the group ``train``, labelled and Ready by default."""
    labels = OWN_LABELS if labels is None else labels
    quantities = {"cpu": "224", "memory": "960Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": uid, "labels": {"kubernetes.io/os": "linux", **labels}},
        "spec": {
            "providerID": provider_id,
            "unschedulable": unschedulable,
            "taints": [{"key": key, "effect": "NoSchedule"} for key in taints],
        },
        "status": {
            "capacity": {**quantities, **({TPU_RESOURCE: capacity} if capacity else {})},
            "allocatable": {**quantities, **({TPU_RESOURCE: allocatable} if allocatable else {})},
            "conditions": [
                {"type": "MemoryPressure", "status": "False", "lastHeartbeatTime": heartbeat},
                {**ready_condition(ready), "lastHeartbeatTime": heartbeat},
            ],
            "nodeInfo": {"kubeletVersion": "v1.34.1"},
        },
    }


def foreign_node(name: str) -> Raw:
    """A Node outside this system, as large as real Nodes are."""
    raw = node(name, labels={"cloud.google.com/machine-family": "n2"}, capacity="", allocatable="")
    raw["metadata"]["annotations"] = {"volumes.kubernetes.io/controller-managed": "true"}
    raw["metadata"]["managedFields"] = [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}] * 6
    raw["status"]["images"] = [
        {"names": [f"registry.example/{index}@sha256:{'0' * 64}", f"registry.example/{index}:v1"]}
        | {"sizeBytes": 10_000_000 + index}
        for index in range(50)
    ]
    return raw


def ready_condition(status: str) -> Raw:
    return {"type": "Ready", "status": status, "reason": "R", "message": "m"}


def versioned(raw: Raw, version: int) -> Raw:
    """The same object with a resourceVersion."""
    return {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(version)}}


def pod(
    name: str = "train-workers-0-0-abcde",
    *,
    uid: str = "pod-uid-1",
    index: str = "0",
    phase: str = "Pending",
    scheduled: str = "False",
    reason: str = "Unschedulable",
    message: str = "0/3 nodes are available.",
    chips: str = "4",
    topology: str = "2x2x2",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    tolerations: tuple[Raw, ...] = (),
    deleting: bool = False,
) -> Raw:
    """The leader of a JobSet's first Job; by default it is unschedulable."""
    keys = {JOBSET_NAME: "train", JOB_KEY: job_key("default", "train-workers-0")}
    owner = {"kind": "Job", "name": "train-workers-0", "uid": "job-uid-1", "controller": True}
    metadata: Raw = {
        "namespace": "default",
        "name": name,
        "uid": uid,
        "labels": {**keys, **(labels or {})},
        "annotations": {**keys, COMPLETION_INDEX: index, **(annotations or {})},
        "ownerReferences": [owner],
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    container = {"name": "train", "image": "train:1", "env": [{"name": "A", "value": "1"}]}
    requests = {"cpu": "8", **({TPU_RESOURCE: chips} if chips else {})}
    selector = {ACCELERATOR_LABEL: "tpu7x", **({TOPOLOGY_LABEL: topology} if topology else {})}
    condition = {"type": "PodScheduled", "status": scheduled, "reason": reason, "message": message}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "containers": [{**container, "resources": {"requests": requests, "limits": requests}}],
            "nodeSelector": selector,
            "tolerations": list(tolerations),
            "volumes": [{"name": "token", "projected": {"sources": []}}],
        },
        "status": {"phase": phase, "conditions": [condition], "qosClass": "Burstable"},
    }


def cpu_pod(name: str) -> Raw:
    """A Pod without chips that waits for a Node, as large as Pods of Deployments are."""
    raw = pod(name, uid=f"uid-of-{name}", chips="", topology="")
    raw["metadata"]["managedFields"] = [{"manager": "kcm", "fieldsV1": {"f:spec": {}}}] * 6
    [container] = raw["spec"]["containers"]
    container["env"] = [{"name": f"SETTING_{index}", "value": "x" * 50} for index in range(30)]
    return raw


def held_pod(**spec: Any) -> Raw:
    """A Pod that the scheduler has not tried yet, because its gang is not complete."""
    raw = pod()
    raw["status"]["conditions"] = []
    raw["spec"] |= {"schedulingGroup": {"podGroupName": "g"}, **spec}
    return raw


def jobset(
    name: str = "train",
    *,
    uid: str = "jobset-uid-1",
    end: str = "",
    ended_at: str = "2026-01-01T00:00:00Z",
    chips: str = "4",
    restarts: int = 0,
    completed: int = 0,
    deleting: bool = False,
) -> Raw:
    """A JobSet that runs, or has ended with the condition ``end``. ``completed`` counts its Jobs."""
    limits = {TPU_RESOURCE: chips} if chips else {"cpu": "8"}
    container = {"name": "train", "image": "train:1", "resources": {"limits": limits}}
    pod_template = {"metadata": {"labels": {"app": "train"}}, "spec": {"containers": [container]}}
    job = {"metadata": {}, "spec": {"parallelism": 2, "template": pod_template}}
    conditions = [{"type": "Suspended", "status": "False", "reason": "ResumeJobs", "message": ""}]
    if end:
        ended = {"type": end, "status": "True", "reason": "R", "message": "m"}
        conditions.append({**ended, "lastTransitionTime": ended_at})
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "namespace": "default",
            "name": name,
            "uid": uid,
            **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}),
        },
        "spec": {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": job}]},
        "status": {
            "conditions": conditions,
            "restarts": restarts,
            "replicatedJobsStatus": [{"name": "workers", "succeeded": completed}],
        },
    }


def signing_request(
    approved: str = "",
    *,
    name: str = "csr-x",
    group: str = "system:bootstrappers:tpu-functions",
    token_id: str = "abcdef",
    created: str = "2026-01-01T00:00:00Z",
) -> Raw:
    """A request for a kubelet's certificate by the holder of a bootstrap token."""
    conditions = [{"type": "Approved", "status": "True", "reason": approved}] if approved else []
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "resourceVersion": "1",
            "creationTimestamp": created,
        },
        "spec": {
            "request": "LS0t",
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "username": f"system:bootstrap:{token_id}",
            "groups": ["system:bootstrappers", group, "system:authenticated"],
        },
        "status": {"conditions": conditions},
    }


START = datetime(2026, 1, 1, tzinfo=UTC)


def seconds(amount: float) -> datetime:
    """Return the time this long after the start."""
    return START + timedelta(seconds=amount)


def projected(raw: Raw) -> Raw:
    parsed: Raw = parse(json.dumps(raw).encode())
    return parsed


def provisioning_request(
    name: str = "train-1", *, uid: str = "request-uid-1", end: str = "", deleting: bool = False
) -> Raw:
    """A ProvisioningRequest of this system's class that waits, or has the condition ``end``."""
    return {
        "apiVersion": "autoscaling.x-k8s.io/v1",
        "kind": "ProvisioningRequest",
        "metadata": {
            "namespace": "default",
            "name": name,
            "uid": uid,
            **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}),
        },
        "spec": {"provisioningClassName": "slices.tpu-functions.dev", "podSets": []},
        "status": {"conditions": [{"type": end, "status": "True"}] if end else []},
    }
