"""The objects that the stand-in watches, and its calls, as plain values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

Document = dict[str, Any]

JOBSETS, JOBS, PODS, NODES = "JobSet", "Job", "Pod", "Node"
LEADER_WORKER_SETS = "LeaderWorkerSet"
STATEFUL_SETS, DEPLOYMENTS, REPLICA_SETS = "StatefulSet", "Deployment", "ReplicaSet"
PATHS: Mapping[str, str] = {
    JOBSETS: "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
    JOBS: "/apis/batch/v1/jobs",
    PODS: "/api/v1/pods",
    NODES: "/api/v1/nodes",
    STATEFUL_SETS: "/apis/apps/v1/statefulsets",
    DEPLOYMENTS: "/apis/apps/v1/deployments",
    REPLICA_SETS: "/apis/apps/v1/replicasets",
    LEADER_WORKER_SETS: "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets",
}
"""The collections that are watched."""
_VERSIONS = {
    JOBSETS: "jobset.x-k8s.io/v1alpha2",
    JOBS: "batch/v1",
    LEADER_WORKER_SETS: "leaderworkerset.x-k8s.io/v1",
    PODS: "v1",
    **dict.fromkeys((STATEFUL_SETS, DEPLOYMENTS, REPLICA_SETS), "apps/v1"),
}

JOBSET_PREFIX = "jobset.sigs.k8s.io"
JOBSET_NAME = f"{JOBSET_PREFIX}/jobset-name"
JOB_KEY = f"{JOBSET_PREFIX}/job-key"
RESTART_ATTEMPT = f"{JOBSET_PREFIX}/restart-attempt"
EXCLUSIVE_TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"
JOB_NAME = "batch.kubernetes.io/job-name"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
CHIPS = "google.com/tpu"


@dataclass(frozen=True)
class Call:
    """A request to the API server. A ``PATCH`` is a JSON merge patch."""

    method: str
    path: str
    body: Document | None = None

    def encode(self) -> bytes:
        """The body, as it is sent."""
        return b"" if self.body is None else json.dumps(self.body).encode()


@dataclass(frozen=True)
class Later:
    """Decide again at this time."""

    at: datetime


Step = Call | Later


@dataclass
class Objects:
    """The watched objects by kind and uid."""

    by_kind: dict[str, dict[str, Document]] = field(
        default_factory=lambda: {kind: {} for kind in PATHS}
    )

    def replace(self, kind: str, items: Iterable[Document]) -> None:
        """Replace the objects of a kind by a new list."""
        self.by_kind[kind] = {item["metadata"]["uid"]: item for item in items}

    def note(self, kind: str, event: str, item: Document) -> None:
        """Apply a watch event."""
        if event == "DELETED":
            self.by_kind[kind].pop(item["metadata"]["uid"], None)
        elif event in ("ADDED", "MODIFIED"):
            self.by_kind[kind][item["metadata"]["uid"]] = item

    def all(self, kind: str) -> list[Document]:
        """The objects of a kind, the oldest first."""
        return sorted(
            self.by_kind[kind].values(),
            key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"]),
        )

    def by_owner(self, kind: str) -> dict[str, list[Document]]:
        """The objects of a kind by the uids of their controllers."""
        found: dict[str, list[Document]] = {}
        for item in self.all(kind):
            for owner in item["metadata"].get("ownerReferences") or ():
                if owner.get("controller"):
                    found.setdefault(owner["uid"], []).append(item)
        return found


def collection(kind: str, namespace: str) -> str:
    """The path of a namespace's objects of a kind."""
    root, _, plural = PATHS[kind].rpartition("/")
    return f"{root}/namespaces/{namespace}/{plural}"


def path_of(kind: str, item: Mapping[str, Any]) -> str:
    """The path of an object."""
    metadata = item["metadata"]
    return f"{collection(kind, metadata['namespace'])}/{metadata['name']}"


def create(kind: str, namespace: str, body: Document) -> Call:
    """A call that creates an object, unless it exists."""
    return Call("POST", collection(kind, namespace), body)


def delete(kind: str, item: Mapping[str, Any], **options: Any) -> Call:
    """A call that deletes the object with this uid."""
    preconditions = {"preconditions": {"uid": item["metadata"]["uid"]}}
    return Call("DELETE", path_of(kind, item), {**preconditions, **options})


def patch(kind: str, item: Mapping[str, Any], change: Document, subresource: str = "") -> Call:
    """A call that changes an object, unless it has a newer version."""
    version = {"metadata": {"resourceVersion": item["metadata"]["resourceVersion"]}}
    suffix = f"/{subresource}" if subresource else ""
    return Call("PATCH", path_of(kind, item) + suffix, {**version, **change})


def patch_status(kind: str, item: Mapping[str, Any], status: Document) -> Iterator[Call]:
    """A call that sets fields of the status, if they differ."""
    present = item.get("status") or {}
    if any(present.get(name) != value for name, value in status.items()):
        yield patch(kind, item, {"status": status}, "status")


def controlled_by(kind: str, owner: Mapping[str, Any]) -> list[Document]:
    """The owner reference of objects that the controller of this object creates."""
    metadata = owner["metadata"]
    return [
        {
            "apiVersion": _VERSIONS[kind],
            "kind": kind,
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def condition(item: Mapping[str, Any], kind: str) -> Document | None:
    """A condition of an object's status."""
    conditions: list[Document] = (item.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == kind), None)


def is_true(item: Mapping[str, Any], *kinds: str) -> bool:
    """Whether one of these conditions holds."""
    found = (condition(item, kind) for kind in kinds)
    return any(one is not None and one["status"] == "True" for one in found)


def expire(
    kind: str, item: Mapping[str, Any], ends: Sequence[str], now: datetime
) -> Iterator[Step]:
    """Delete an object that one of these conditions ended, when its ``ttlSecondsAfterFinished`` is
    over."""
    ttl_s = item["spec"].get("ttlSecondsAfterFinished")
    ended = next(filter(None, (condition(item, one) for one in ends)), None)
    if ttl_s is None or ended is None:
        return
    at = datetime.fromisoformat(ended["lastTransitionTime"]) + timedelta(seconds=ttl_s)
    if now < at:
        yield Later(at)
    else:
        yield delete(kind, item, propagationPolicy="Foreground")


def with_condition(
    item: Mapping[str, Any],
    kind: str,
    status: str,
    reason: str,
    message: str,
    now: datetime,
) -> list[Document]:
    """The conditions of an object, with this one added or replaced."""
    before = condition(item, kind)
    since = render(now)
    if before is not None and before["status"] == status:
        since = before.get("lastTransitionTime", since)
    words = {"reason": reason, "message": message}
    new = {
        "type": kind,
        "status": status,
        "lastTransitionTime": since,
        **{name: text for name, text in words.items() if text},
    }
    others = [
        one for one in (item.get("status") or {}).get("conditions") or () if one is not before
    ]
    return [*others, new]


def count_chips(container: Mapping[str, Any]) -> int:
    """The chips that a container asks for."""
    return int(((container.get("resources") or {}).get("requests") or {}).get(CHIPS, 0))


def is_deleting(item: Mapping[str, Any]) -> bool:
    """Whether an object is being deleted."""
    return "deletionTimestamp" in item["metadata"]


def render(moment: datetime) -> str:
    """Render a time like the API."""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
