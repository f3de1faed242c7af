"""The controllers of Deployments and ReplicaSets: Pods without an order, and rolling updates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from datetime import datetime
from math import ceil
from typing import Any

from local.jobsets.objects import (
    DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    Call,
    Document,
    controlled_by,
    create,
    delete,
    is_deleting,
    is_true,
    patch,
    patch_status,
    render,
)

_HASH = "pod-template-hash"
_DEFAULT = "25%"
"""The default of maxSurge, rounded up, and of maxUnavailable, rounded down."""


def step(deployment: Document, sets: Sequence[Document]) -> Iterator[Call]:
    """Decide the next calls of the Deployment controller."""
    if is_deleting(deployment):
        return
    spec = deployment["spec"]
    template = json.dumps(spec["template"], sort_keys=True)
    own_hash = hashlib.sha256(template.encode()).hexdigest()[:10]
    new = next((one for one in sets if one["metadata"]["labels"][_HASH] == own_hash), None)
    old = [one for one in sets if one is not new]
    if new is None:
        count = _grow(spec, 0, old) if _is_rolling(spec) or not any(map(_left, old)) else 0
        yield create(
            REPLICA_SETS, deployment["metadata"]["namespace"], _set(deployment, own_hash, count)
        )
    else:
        asked = spec.get("replicas", 1)
        count = min(asked, _count(new))
        if asked > count and (_is_rolling(spec) or not any(map(_left, old))):
            count = _grow(spec, count, old)
        yield from _scale(new, count)
    yield from _shrink(spec, new, old)
    status = {"observedGeneration": deployment["metadata"].get("generation", 1)}
    for name in ("replicas", "readyReplicas", "availableReplicas"):
        status[name] = sum(_status(one, name) for one in sets)
    status["updatedReplicas"] = _status(new, "replicas") if new else 0
    yield from patch_status(DEPLOYMENTS, deployment, status)


def step_set(replica_set: Document, pods: Sequence[Document], now: datetime) -> Iterator[Call]:
    """Decide the next calls of the ReplicaSet controller: a Pod that is being deleted does not count."""
    if is_deleting(replica_set):
        return
    ended = ("Succeeded", "Failed")
    there = [
        pod for pod in pods if not is_deleting(pod) and pod["status"].get("phase") not in ended
    ]
    # Those without a Node first, then those that are not ready, then the youngest.
    there.sort(key=lambda pod: (bool(pod["spec"].get("nodeName")), is_true(pod, "Ready")))
    surplus = len(there) - _count(replica_set)
    for pod in there[: max(0, surplus)]:
        yield delete(PODS, pod)
    for number in range(-surplus):
        seed = f"{replica_set['metadata']['uid']}/{render(now)}/{len(there) + number}"
        drawn = hashlib.sha256(seed.encode()).hexdigest()[:5]
        yield create(PODS, replica_set["metadata"]["namespace"], _pod(replica_set, drawn))
    ready = sum(is_true(pod, "Ready") for pod in there)
    status = {"replicas": len(there), "readyReplicas": ready, "availableReplicas": ready}
    yield from patch_status(REPLICA_SETS, replica_set, status)


def _grow(spec: Document, count: int, old: Sequence[Document]) -> int:
    """The replicas of the new set: those that may be beside the old ones."""
    asked = int(spec.get("replicas", 1))
    room = asked + _limit(spec, "maxSurge") - count - sum(map(_count, old))
    return min(asked, count + max(0, room))


def _shrink(spec: Document, new: Document | None, old: Sequence[Document]) -> Iterator[Call]:
    """Scale the old sets down: Pods that are not ready first, then as many as may be unavailable."""
    least = spec.get("replicas", 1) - _limit(spec, "maxUnavailable") if _is_rolling(spec) else 0
    every = [*old, *([new] if new else [])]
    not_ready = _count(new) - _status(new, "availableReplicas") if new else 0
    most = sum(map(_count, every)) - least - not_ready
    for one in old:
        unready = _count(one) - _status(one, "availableReplicas")
        spare = sum(_status(each, "availableReplicas") for each in every) - least
        down = min(_count(one), max(0, most), max(0, unready) + max(0, spare))
        most -= down
        least += down
        if down:
            yield from _scale(one, _count(one) - down)


def _scale(replica_set: Document, count: int) -> Iterator[Call]:
    if _count(replica_set) != count:
        yield patch(REPLICA_SETS, replica_set, {"spec": {"replicas": count}})


def _is_rolling(spec: Document) -> bool:
    return bool((spec.get("strategy") or {}).get("type", "RollingUpdate") == "RollingUpdate")


def _limit(spec: Document, name: str) -> int:
    if not _is_rolling(spec):
        return 0
    rolling = spec.get("strategy", {}).get("rollingUpdate") or {}
    value: Any = rolling.get(name, _DEFAULT)
    if isinstance(value, int):
        return value
    share = int(value.removesuffix("%")) / 100 * spec.get("replicas", 1)
    return ceil(share) if name == "maxSurge" else int(share)


def _count(replica_set: Document) -> int:
    return int(replica_set["spec"].get("replicas", 1))


def _status(replica_set: Document, name: str) -> int:
    return int((replica_set.get("status") or {}).get(name, 0))


def _left(replica_set: Document) -> bool:
    return bool(_count(replica_set) or _status(replica_set, "replicas"))


def _set(deployment: Document, own_hash: str, count: int) -> Document:
    metadata, spec = deployment["metadata"], deepcopy(deployment["spec"])
    template, extra = spec["template"], {_HASH: own_hash}
    given = template.get("metadata") or {}
    template["metadata"] = {**given, "labels": {**(given.get("labels") or {}), **extra}}
    selector = spec["selector"]
    labels = {**(selector.get("matchLabels") or {}), **extra}
    return {
        "apiVersion": "apps/v1",
        "kind": REPLICA_SETS,
        "metadata": {
            "name": f"{metadata['name']}-{own_hash}",
            "namespace": metadata["namespace"],
            "labels": template["metadata"]["labels"],
            "ownerReferences": controlled_by(DEPLOYMENTS, deployment),
        },
        "spec": {
            "replicas": count,
            "selector": {**selector, "matchLabels": labels},
            "template": template,
        },
    }


def _pod(replica_set: Document, drawn: str) -> Document:
    metadata, template = replica_set["metadata"], deepcopy(replica_set["spec"]["template"])
    given = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{metadata['name']}-{drawn}",
            "namespace": metadata["namespace"],
            "labels": given.get("labels") or {},
            "annotations": given.get("annotations") or {},
            "ownerReferences": controlled_by(REPLICA_SETS, replica_set),
        },
        "spec": template["spec"],
    }
