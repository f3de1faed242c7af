"""The garbage collector: what is owned goes when its last owner has gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from local.base.clock import Clock
from local.kube.controllers.queue import Cluster, WorkQueue
from local.kube.kinds import Document
from local.kube.resources import FOREGROUND, ORPHAN, Resources
from local.kube.store import Change, Key, Record
from local.kube.users import controller

Item = tuple[str, Key]
"""A resource and the key of one of its objects."""


@dataclass(frozen=True)
class _Owners:
    """The owner references of an object, by what has become of the owners."""

    solid: list[Document]
    waiting: list[Document]
    dangling: list[Document]


class GarbageCollector:
    """Cascading deletion: background, foreground and orphan."""

    def __init__(self, resources: Resources, clock: Clock) -> None:
        self._cluster = Cluster(resources, controller("generic-garbage-collector"))
        self._dependents: dict[str, set[Item]] = {}
        self._queue: WorkQueue[Item] = WorkQueue(clock, self._reconcile)
        resources.store.listen(self._follow)

    def _follow(self, change: Change) -> None:
        item = change.resource, change.record.key
        if change.previous is not None:
            for uid in _owner_uids(change.previous):
                self._dependents.get(uid, set()).discard(item)
        if change.type == "DELETED":
            self._wake_family(change.record)
            return
        self._note(item, change.record)
        if _owner_uids(change.record) or "deletionTimestamp" in change.record.metadata:
            self._queue.add(item)

    def _note(self, item: Item, record: Record) -> None:
        for uid in _owner_uids(record):
            self._dependents.setdefault(uid, set()).add(item)

    def _wake_family(self, gone: Record) -> None:
        for item in sorted(self._dependents.get(gone.metadata["uid"], ())):
            self._queue.add(item)
        for reference in gone.metadata.get("ownerReferences") or ():
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
            self._finish(item, record)
            return
        owners = self._sort_owners(record)
        if owners.solid and (owners.waiting or owners.dangling):
            lost = {one["uid"] for one in (*owners.waiting, *owners.dangling)}
            self._cluster.modify(*item, lambda document: _disown(document, lost))
        elif not owners.solid and (owners.waiting or owners.dangling):
            policy = "Foreground" if owners.waiting else "Background"
            options = {
                "propagationPolicy": policy,
                "preconditions": {"uid": record.metadata["uid"]},
            }
            self._cluster.delete(*item, options)

    def _sort_owners(self, record: Record) -> _Owners:
        owners = _Owners([], [], [])
        for reference in record.metadata.get("ownerReferences") or ():
            self._place(reference, record.key[0], owners).append(reference)
        return owners

    def _place(self, reference: Document, namespace: str, owners: _Owners) -> list[Document]:
        located = self._locate(reference, namespace)
        if located is None:
            return owners.solid  # a kind that is not served: nobody can say that the owner is gone
        owner = self._cluster.find(*located)
        if owner is None or owner.metadata["uid"] != reference["uid"]:
            return owners.dangling
        finalizers = owner.metadata.get("finalizers") or ()
        is_waiting = "deletionTimestamp" in owner.metadata and FOREGROUND in finalizers
        return owners.waiting if is_waiting else owners.solid

    def _finish(self, item: Item, record: Record) -> None:
        """Do what the finalizers of a deleted owner ask of the collector."""
        finalizers = record.metadata.get("finalizers") or ()
        uid = record.metadata["uid"]
        dependents = sorted(self._dependents.get(uid, ()))
        if ORPHAN in finalizers:
            for dependent in dependents:
                self._cluster.modify(*dependent, lambda document: _disown(document, {uid}))
            self._cluster.modify(*item, lambda document: _unfinalize(document, ORPHAN))
        elif FOREGROUND in finalizers:
            for dependent in dependents:
                self._queue.add(dependent)
            if not any(self._blocks(dependent, uid) for dependent in dependents):
                self._cluster.modify(*item, lambda document: _unfinalize(document, FOREGROUND))

    def _blocks(self, dependent: Item, uid: str) -> bool:
        record = self._cluster.find(*dependent)
        references = (record.metadata.get("ownerReferences") or ()) if record else ()
        return any(one["uid"] == uid and one.get("blockOwnerDeletion") for one in references)


def _owner_uids(record: Record) -> list[str]:
    return [one["uid"] for one in record.metadata.get("ownerReferences") or ()]


def _disown(document: Document, uids: set[str]) -> None:
    meta = document["metadata"]
    meta["ownerReferences"] = [
        one for one in meta.get("ownerReferences", ()) if one["uid"] not in uids
    ]


def _unfinalize(document: Document, finalizer: str) -> None:
    meta = document["metadata"]
    meta["finalizers"] = [one for one in meta.get("finalizers", ()) if one != finalizer]
