"""The StatefulSet controller: Pods with stable names. No volumes and rolling updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from datetime import datetime

from local.jobsets.objects import (
    PODS,
    STATEFUL_SETS,
    Call,
    Document,
    controlled_by,
    create,
    delete,
    is_deleting,
    is_true,
    patch_status,
)

_INDEX = "apps.kubernetes.io/pod-index"
_POD_NAME = "statefulset.kubernetes.io/pod-name"
_ENDED = ("Succeeded", "Failed")


def step(stateful_set: Document, pods: Sequence[Document], _now: datetime) -> Iterator[Call]:
    """Decide the next calls of the StatefulSet controller."""
    if is_deleting(stateful_set):
        return
    metadata, spec = stateful_set["metadata"], stateful_set["spec"]
    names = [f"{metadata['name']}-{index}" for index in range(int(spec.get("replicas", 1)))]
    present = {pod["metadata"]["name"]: pod for pod in pods}
    for name, pod in present.items():
        is_over = (pod.get("status") or {}).get("phase") in _ENDED
        if (name not in names or is_over) and not is_deleting(pod):
            yield delete(PODS, pod)
    yield from _create_pods(stateful_set, names, present)
    ready = sum(is_true(pod, "Ready") for name, pod in present.items() if name in names)
    count = sum(name in present for name in names)
    status = {
        "observedGeneration": metadata.get("generation", 1),
        "replicas": count,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "currentReplicas": count,
        "updatedReplicas": count,
    }
    yield from patch_status(STATEFUL_SETS, stateful_set, status)


def _create_pods(
    stateful_set: Document, names: Sequence[str], present: dict[str, Document]
) -> Iterator[Call]:
    """Create missing Pods: all in parallel, or each after the one before is ready, by the policy."""
    is_parallel = stateful_set["spec"].get("podManagementPolicy") == "Parallel"
    for index, name in enumerate(names):
        pod = present.get(name)
        if pod is None:
            namespace = stateful_set["metadata"]["namespace"]
            yield create(PODS, namespace, _pod(stateful_set, name, index))
        if not is_parallel and (pod is None or not is_true(pod, "Ready")):
            return


def _pod(stateful_set: Document, name: str, index: int) -> Document:
    template, spec = stateful_set["spec"]["template"], stateful_set["spec"]
    given = template.get("metadata") or {}
    labels = {**(given.get("labels") or {}), _POD_NAME: name, _INDEX: str(index)}
    place = {"hostname": name, "subdomain": spec.get("serviceName", "")}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": stateful_set["metadata"]["namespace"],
            "labels": labels,
            "annotations": dict(given.get("annotations") or {}),
            "ownerReferences": controlled_by(STATEFUL_SETS, stateful_set),
        },
        "spec": {**deepcopy(template["spec"]), **place},
    }
