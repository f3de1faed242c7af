"""LeaderWorkerSet's controller and webhook: the StatefulSets of the leaders and of each group's workers.

Written from the source of LeaderWorkerSet 0.9.0; a test compares it with the real one. Not simulated:
Services, TPU variables, subgroups, volumes, RecreateGroupAfterStart. Workers of a group of the old
revision are created from the new template, because the old one is not kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from math import ceil, floor
from typing import Any

from local.jobsets.objects import (
    LEADER_WORKER_SETS,
    PODS,
    STATEFUL_SETS,
    Call,
    Document,
    controlled_by,
    count_chips,
    create,
    delete,
    is_deleting,
    is_true,
    patch,
    patch_status,
    with_condition,
)

PREFIX = "leaderworkerset.sigs.k8s.io"
NAME, SIZE = f"{PREFIX}/name", f"{PREFIX}/size"
GROUP_INDEX, WORKER_INDEX = f"{PREFIX}/group-index", f"{PREFIX}/worker-index"
GROUP_KEY, LEADER_NAME = f"{PREFIX}/group-key", f"{PREFIX}/leader-name"
REVISION = f"{PREFIX}/template-revision-hash"
EXCLUSIVE = f"{PREFIX}/exclusive-topology"
_REPLICAS = f"{PREFIX}/replicas"
_SUBDOMAIN_POLICY = f"{PREFIX}/subdomainPolicy"
_HAS_TPU_LEADER = f"{PREFIX}/leader-requests-tpus"
_UNIQUE = "UniquePerReplica"


def step(
    lws: Document,
    sets: Sequence[Document],
    pods: Sequence[Document],
    nodes: Mapping[str, Document],
    now: datetime,
) -> Iterator[Call]:
    """Decide the next calls. ``sets`` and ``pods`` are all of the namespace that have its name."""
    metadata, spec = lws["metadata"], lws["spec"]
    if is_deleting(lws):
        return
    template = json.dumps([spec["leaderWorkerTemplate"], spec["networkConfig"]], sort_keys=True)
    revision = hashlib.sha256(template.encode()).hexdigest()[:10]
    by_name = {one["metadata"]["name"]: one for one in sets}
    leaders = by_name.get(metadata["name"])
    if leaders is None:
        wanted = _leaders(lws, revision, int(spec["replicas"]), _partition(lws))
        yield create(STATEFUL_SETS, metadata["namespace"], wanted)
        return
    if is_deleting(leaders):
        return
    there = {one["metadata"]["name"]: one for one in pods}
    count = int(leaders["spec"]["replicas"])
    states = [
        _state(
            there.get(name), by_name.get(name), int(spec["leaderWorkerTemplate"]["size"]), revision
        )
        for name in (f"{metadata['name']}-{index}" for index in range(count))
    ]
    partition, replicas = _roll(lws, leaders, states, revision)
    partition = max(partition, _partition(lws))
    wanted = _leaders(lws, revision, replicas, partition)
    old = {"metadata": leaders["metadata"], "spec": leaders["spec"]}
    if not _contains(old, {"metadata": wanted["metadata"], "spec": wanted["spec"]}):
        change = {"metadata": {key: wanted["metadata"][key] for key in ("labels", "annotations")}}
        yield patch(STATEFUL_SETS, leaders, {**change, "spec": wanted["spec"]})
    for pod in pods:
        yield from _restart(lws, pod, there, by_name)
        if pod["metadata"]["labels"][WORKER_INDEX] == "0":
            yield from _create_workers(lws, pod, by_name, nodes)
    yield from _report(lws, leaders, states, now)


def find_key(item: Document) -> tuple[str, str]:
    """The namespace and name of the LeaderWorkerSet of an object; no name if it has none."""
    metadata = item["metadata"]
    return metadata["namespace"], (metadata.get("labels") or {}).get(NAME, "")


def admit(pod: Document) -> None:
    """Change a new Pod as LeaderWorkerSet's webhook does."""
    metadata, spec = pod["metadata"], pod["spec"]
    labels, annotations = metadata["labels"], metadata["annotations"]
    if labels.get(WORKER_INDEX) != "0":
        labels[WORKER_INDEX] = metadata["name"].rpartition("-")[2]
        return
    labels[GROUP_INDEX] = metadata["name"].rpartition("-")[2]
    if annotations.get(_SUBDOMAIN_POLICY) == _UNIQUE:
        spec["subdomain"] = metadata["name"]
    path = f"{metadata['namespace']}/{metadata['name']}"
    labels[GROUP_KEY] = hashlib.sha1(path.encode(), usedforsecurity=False).hexdigest()
    if EXCLUSIVE in annotations:
        own = {"key": GROUP_KEY, "operator": "In", "values": [labels[GROUP_KEY]]}
        others = [{"key": GROUP_KEY, "operator": "Exists"}, {**own, "operator": "NotIn"}]
        affinity = spec.setdefault("affinity", {})
        for kind, expressions in (("podAffinity", [own]), ("podAntiAffinity", others)):
            terms = affinity.setdefault(kind, {}).setdefault(
                "requiredDuringSchedulingIgnoredDuringExecution", []
            )
            selector = {"matchExpressions": expressions}
            terms.append({"labelSelector": selector, "topologyKey": annotations[EXCLUSIVE]})


def _leaders(lws: Document, revision: str, replicas: int, partition: int) -> Document:
    metadata, spec = lws["metadata"], lws["spec"]
    template = spec["leaderWorkerTemplate"]
    pod = deepcopy(template.get("leaderTemplate") or template["workerTemplate"])
    labels = {WORKER_INDEX: "0", NAME: metadata["name"], REVISION: revision}
    annotations = {SIZE: str(template["size"])}
    annotations |= _exclusive(lws)
    if _is_unique(lws):
        annotations[_SUBDOMAIN_POLICY] = _UNIQUE
    at_once = max(1, _limit(lws, "maxUnavailable") + _limit(lws, "maxSurge"))
    return {
        "apiVersion": "apps/v1",
        "kind": STATEFUL_SETS,
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": {NAME: metadata["name"], REVISION: revision},
            "annotations": {_REPLICAS: str(spec["replicas"])},
            "ownerReferences": controlled_by(LEADER_WORKER_SETS, lws),
        },
        "spec": {
            "serviceName": metadata["name"],
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {NAME: metadata["name"], WORKER_INDEX: "0"}},
            "template": _with(pod, labels, annotations),
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": at_once, "partition": partition},
            },
        },
    }


def _create_workers(
    lws: Document, leader: Document, sets: Mapping[str, Document], nodes: Mapping[str, Document]
) -> Iterator[Call]:
    metadata, template = leader["metadata"], lws["spec"]["leaderWorkerTemplate"]
    size, name = int(template["size"]), lws["metadata"]["name"]
    is_early = lws["spec"]["startupPolicy"] == "LeaderReady" and not is_true(leader, "Ready")
    if is_deleting(leader) or size == 1 or is_early or metadata["name"] in sets:
        return
    pod, topology = deepcopy(template["workerTemplate"]), _exclusive(lws).get(EXCLUSIVE)
    if topology:
        node = nodes.get(leader["spec"].get("nodeName", ""), {"metadata": {}})
        domain = (node["metadata"].get("labels") or {}).get(topology)
        if domain is None:
            return
        pod["spec"].setdefault("nodeSelector", {})[topology] = domain
    labels = {key: metadata["labels"][key] for key in (GROUP_INDEX, GROUP_KEY, REVISION)}
    labels[NAME] = name
    annotations = {SIZE: str(size), LEADER_NAME: metadata["name"], **_exclusive(lws)}
    if any(count_chips(one) for one in leader["spec"]["containers"]):
        annotations[_HAS_TPU_LEADER] = "true"
    selector = {key: value for key, value in labels.items() if key != REVISION}
    body = {
        "apiVersion": "apps/v1",
        "kind": STATEFUL_SETS,
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": labels,
            "ownerReferences": controlled_by(PODS, leader),
        },
        "spec": {
            "serviceName": metadata["name"] if _is_unique(lws) else name,
            "replicas": size - 1,
            "podManagementPolicy": "Parallel",
            "ordinals": {"start": 1},
            "selector": {"matchLabels": selector},
            "template": _with(pod, labels, annotations),
        },
    }
    yield create(STATEFUL_SETS, metadata["namespace"], body)


def _restart(
    lws: Document, pod: Document, pods: Mapping[str, Document], sets: Mapping[str, Document]
) -> Iterator[Call]:
    """Delete the leader, and so the group, if a Pod of it is being deleted."""
    policy = lws["spec"]["leaderWorkerTemplate"]["restartPolicy"]
    if policy != "RecreateGroupOnPodRestart" or not is_deleting(pod):
        return
    name = pod["metadata"]["annotations"].get(LEADER_NAME)
    leader = pods.get(name) if name else None
    workers = sets.get(name) if name else None
    if leader is None or workers is None or is_deleting(leader):
        return
    is_current = _owner(pod) == workers["metadata"]["uid"] and (
        _owner(workers) == leader["metadata"]["uid"]
    )
    if is_current and _revision(pod) == _revision(leader):
        yield delete(PODS, leader, propagationPolicy="Foreground")


def _state(
    leader: Document | None, workers: Document | None, size: int, revision: str
) -> tuple[bool, bool]:
    """Whether a group is ready, and whether it is of this revision."""
    if leader is None or (size > 1 and workers is None):
        return False, False
    status = (workers or {}).get("status") or {}
    has_workers = workers is None or status.get("availableReplicas", 0) == size - 1
    is_ready = is_true(leader, "Ready") and not is_deleting(leader) and has_workers
    each = [leader, *([workers] if workers else [])]
    return is_ready, all(_revision(one) == revision for one in each)


def _roll(
    lws: Document, leaders: Document, states: Sequence[tuple[bool, bool]], revision: str
) -> tuple[int, int]:
    """The partition and the replicas of the leaders' StatefulSet."""
    wanted, count = int(lws["spec"]["replicas"]), int(leaders["spec"]["replicas"])
    surge, unavailable = min(wanted, _limit(lws, "maxSurge")), _limit(lws, "maxUnavailable")
    partition = int(leaders["spec"]["updateStrategy"]["rollingUpdate"]["partition"])
    if _revision(leaders) != revision:
        if count < wanted:
            return count, wanted
        return min(wanted, count), wanted + min(surge, max(0, wanted - unavailable))
    if (partition == 0 and count == wanted) or count < wanted:
        return partition, wanted
    bad = sum(states[index] != (True, True) for index in range(wanted))
    replicas = wanted + (max(0, bad - unavailable) if bad <= surge else surge)
    if leaders["metadata"]["annotations"][_REPLICAS] != str(wanted):
        return min(partition, wanted + surge), replicas
    ready = next((n for n, one in enumerate(reversed(states)) if one != (True, True)), count)
    step = unavailable + surge - (wanted + surge - count)
    first = max(0, count - ready - step)
    after = first + sum(not is_ready for is_ready, _ in states[:first])
    for index in range(min(after, count - 1), first - 1, -1):
        is_ready, is_updated = states[index]
        if is_ready and not is_updated:
            break
        after = index
    return min(after, partition), replicas


def _partition(lws: Document) -> int:
    """The first group that a rolling update replaces."""
    return int(lws["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]["partition"])


def _report(
    lws: Document, leaders: Document, states: Sequence[tuple[bool, bool]], now: datetime
) -> Iterator[Call]:
    wanted = int(lws["spec"]["replicas"])
    first = _partition(lws)
    is_available = len(states) >= wanted and all(
        is_ready and (is_updated or index < first)
        for index, (is_ready, is_updated) in enumerate(states[:wanted])
    )
    kind, reason = (
        ("Available", "AllGroupsReady") if is_available else ("Progressing", "GroupsProgressing")
    )
    other = "Progressing" if is_available else "Available"
    conditions = with_condition(lws, kind, "True", reason, "", now)
    before = [one for one in conditions if one["type"] == other]
    if before:
        held = {**lws, "status": {"conditions": conditions}}
        conditions = with_condition(held, other, "False", before[0].get("reason", ""), "", now)
    status = {
        "replicas": (leaders.get("status") or {}).get("replicas", 0),
        "readyReplicas": sum(is_ready for is_ready, _ in states),
        "updatedReplicas": sum(is_updated for _, is_updated in states),
        "observedGeneration": lws["metadata"].get("generation", 1),
        "conditions": conditions,
    }
    yield from patch_status(LEADER_WORKER_SETS, lws, status)


def _with(pod: Document, labels: Document, annotations: Document) -> Document:
    given = pod.get("metadata") or {}
    pod["metadata"] = {
        **given,
        "labels": {**(given.get("labels") or {}), **labels},
        "annotations": {**(given.get("annotations") or {}), **annotations},
    }
    return pod


def _exclusive(lws: Document) -> Document:
    topology = (lws["metadata"].get("annotations") or {}).get(EXCLUSIVE)
    return {EXCLUSIVE: topology} if topology else {}


def _is_unique(lws: Document) -> bool:
    return bool(lws["spec"]["networkConfig"].get("subdomainPolicy") == _UNIQUE)


def _limit(lws: Document, name: str) -> int:
    value: Any = lws["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"][name]
    if isinstance(value, int):
        return value
    share = int(value.removesuffix("%")) / 100 * int(lws["spec"]["replicas"])
    return ceil(share) if name == "maxSurge" else floor(share)


def _revision(item: Document) -> str:
    return str((item["metadata"].get("labels") or {}).get(REVISION))


def _owner(item: Document) -> str:
    return next((one["uid"] for one in item["metadata"].get("ownerReferences") or ()), "")


def _contains(found: Any, wanted: Any) -> bool:
    """Whether an object has all fields that are wanted; the API server adds defaults."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            _contains(found.get(key), value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return len(found or ()) == len(wanted) and all(map(_contains, found, wanted))
    return bool(found == wanted)
