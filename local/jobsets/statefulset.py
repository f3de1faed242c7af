"""The StatefulSet controller: Pods with stable names, and rolling updates. No volumes.

A Pod below the partition that is created again has the new template, unlike a real one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import datetime

from local.jobsets import leader_worker_set
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
_REVISION = "controller-revision-hash"
_POD_NAME = "statefulset.kubernetes.io/pod-name"
_ENDED = ("Succeeded", "Failed")


def step(stateful_set: Document, pods: Sequence[Document], _now: datetime) -> Iterator[Call]:
    """Decide the next calls of the StatefulSet controller."""
    if is_deleting(stateful_set):
        return
    metadata, spec = stateful_set["metadata"], stateful_set["spec"]
    start = int((spec.get("ordinals") or {}).get("start", 0))
    names = [
        f"{metadata['name']}-{index}"
        for index in range(start, start + int(spec.get("replicas", 1)))
    ]
    present = {pod["metadata"]["name"]: pod for pod in pods}
    for name, pod in present.items():
        is_over = (pod.get("status") or {}).get("phase") in _ENDED
        if (name not in names or is_over) and not is_deleting(pod):
            yield delete(PODS, pod)
    yield from _create_pods(stateful_set, names, present)
    yield from _update(stateful_set, names, present)
    ready = sum(is_true(pod, "Ready") for name, pod in present.items() if name in names)
    count = sum(name in present for name in names)
    status = {
        "observedGeneration": metadata.get("generation", 1),
        "replicas": count,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "currentReplicas": count,
        "updatedReplicas": sum(
            _find_revision(present[name]) == _revision(stateful_set)
            for name in names
            if name in present
        ),
    }
    yield from patch_status(STATEFUL_SETS, stateful_set, status)


def _update(
    stateful_set: Document, names: Sequence[str], present: Mapping[str, Document]
) -> Iterator[Call]:
    """Delete the last Pod of an older template, unless another one is unavailable.

    ``maxUnavailable`` has no effect: its feature gate, MaxUnavailableStatefulSet, is off by default.
    """
    strategy = (stateful_set["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
    old = [
        name
        for name in names[int(strategy.get("partition", 0)) :]
        if name in present and _find_revision(present[name]) != _revision(stateful_set)
    ]
    away = [name for name in names if name not in present or not is_true(present[name], "Ready")]
    if all(name in old for name in away) and old and not is_deleting(present[old[-1]]):
        yield delete(PODS, present[old[-1]])


def _revision(stateful_set: Document) -> str:
    template = json.dumps(stateful_set["spec"]["template"], sort_keys=True)
    return hashlib.sha256(template.encode()).hexdigest()[:10]


def _find_revision(pod: Document) -> str:
    return str((pod["metadata"].get("labels") or {}).get(_REVISION))


def _create_pods(
    stateful_set: Document, names: Sequence[str], present: dict[str, Document]
) -> Iterator[Call]:
    """Create missing Pods: all in parallel, or each after the one before is ready, by the policy."""
    is_parallel = stateful_set["spec"].get("podManagementPolicy") == "Parallel"
    for name in names:
        pod = present.get(name)
        if pod is None:
            namespace = stateful_set["metadata"]["namespace"]
            yield create(PODS, namespace, _pod(stateful_set, name))
        if not is_parallel and (pod is None or not is_true(pod, "Ready")):
            return


def _pod(stateful_set: Document, name: str) -> Document:
    template, spec = stateful_set["spec"]["template"], stateful_set["spec"]
    given = template.get("metadata") or {}
    own = {_POD_NAME: name, _INDEX: name.rpartition("-")[2], _REVISION: _revision(stateful_set)}
    labels = {**(given.get("labels") or {}), **own}
    place = {"hostname": name, "subdomain": spec.get("serviceName", "")}
    pod: Document = {
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
    if leader_worker_set.NAME in labels:
        leader_worker_set.admit(pod)
    return pod
