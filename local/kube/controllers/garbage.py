"""The garbage collector: deletes objects whose owners are all gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from local.base.clock import Clock
from local.kube.controllers.queue import Cluster, WorkQueue
from local.kube.kinds import Document
from local.kube.lifecycle import FOREGROUND, ORPHAN
from local.kube.resources import Resources
from local.kube.store import Change, Key, Record
from local.kube.users import controller

Item = tuple[str, Key]
"""A resource and the key of one of its objects."""


class _OwnerState(Enum):
    """The state of an owner."""

    PRESENT = "present"
    WAITING = "being deleted, waits for its dependents"
    GONE = "gone"


class GarbageCollector:
    """Cascading deletion: background, foreground and orphan."""

    def __init__(self, resources: Resources, clock: Clock) -> None:
        self._cluster = Cluster(resources, controller("generic-garbage-collector"))
        self._dependents: dict[str, set[Item]] = {}
        self._queue: WorkQueue[Item] = WorkQueue(clock, self._reconcile)
        resources.store.listen(self._follow)

    def _follow(self, change: Change) -> None:
        item = change.resource, change.record.key
        for owner in _owners(change.previous) if change.previous else ():
            self._dependents.get(owner["uid"], set()).discard(item)
        if change.type == "DELETED":
            self._queue_relatives(change.record)
            return
        for owner in _owners(change.record):
            self._dependents.setdefault(owner["uid"], set()).add(item)
        if _owners(change.record) or "deletionTimestamp" in change.record.metadata:
            self._queue.add(item)

    def _queue_relatives(self, gone: Record) -> None:
        for item in sorted(self._dependents.get(gone.metadata["uid"], ())):
            self._queue.add(item)
        for reference in _owners(gone):
            owner = self._locate(reference, gone.key[0])
            if owner is not None:
                self._queue.add(owner)

    def _locate(self, reference: Mapping[str, Any], namespace: str) -> Item | None:
        group = reference["apiVersion"].rpartition("/")[0]
        kind = self._cluster.catalogue.find_kind(group, reference["kind"])
        if kind is None:
            return None
        return kind.resource, (namespace if kind.namespaced else "", reference["name"])

    def _reconcile(self, item: Item) -> None:
        record = self._cluster.find(*item)
        if record is None:
            return
        if "deletionTimestamp" in record.metadata:
            self._finalize(item, record)
            return
        namespace = record.key[0]
        states = {one["uid"]: self._get_owner_state(one, namespace) for one in _owners(record)}
        lost = {uid for uid, state in states.items() if state is not _OwnerState.PRESENT}
        if not lost:
            return
        if len(lost) < len(states):
            self._cluster.modify(*item, lambda document: _remove_owners(document, lost))
            return
        has_dependents = bool(self._dependents.get(record.metadata["uid"]))
        is_waiting = has_dependents and _OwnerState.WAITING in states.values()
        policy = "Foreground" if is_waiting else "Background"
        preconditions = {"uid": record.metadata["uid"]}
        options = {"propagationPolicy": policy, "preconditions": preconditions}
        self._cluster.delete(*item, options)

    def _get_owner_state(self, reference: Document, namespace: str) -> _OwnerState:
        located = self._locate(reference, namespace)
        if located is None:
            return _OwnerState.PRESENT  # the kind is not served: the owner may exist
        owner = self._cluster.find(*located)
        if owner is None or owner.metadata["uid"] != reference["uid"]:
            return _OwnerState.GONE
        finalizers = owner.metadata.get("finalizers") or ()
        is_waiting = "deletionTimestamp" in owner.metadata and FOREGROUND in finalizers
        return _OwnerState.WAITING if is_waiting else _OwnerState.PRESENT

    def _finalize(self, item: Item, record: Record) -> None:
        """Execute the finalizers of the garbage collector of a deleted owner."""
        finalizers = record.metadata.get("finalizers") or ()
        uid = record.metadata["uid"]
        dependents = sorted(self._dependents.get(uid, ()))
        if ORPHAN in finalizers:
            for dependent in dependents:
                self._cluster.modify(*dependent, lambda document: _remove_owners(document, {uid}))
            self._cluster.remove_finalizer(*item, ORPHAN)
        elif FOREGROUND in finalizers:
            for dependent in dependents:
                self._queue.add(dependent)
            if not any(self._blocks(dependent, uid) for dependent in dependents):
                self._cluster.remove_finalizer(*item, FOREGROUND)

    def _blocks(self, dependent: Item, uid: str) -> bool:
        record = self._cluster.find(*dependent)
        owners = _owners(record) if record else ()
        return any(one["uid"] == uid and one.get("blockOwnerDeletion") for one in owners)


def _owners(record: Record) -> Sequence[Document]:
    return record.metadata.get("ownerReferences") or ()


def _remove_owners(document: Document, uids: set[str]) -> None:
    meta = document["metadata"]
    meta["ownerReferences"] = [
        one for one in meta.get("ownerReferences", ()) if one["uid"] not in uids
    ]
