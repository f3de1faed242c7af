"""Objects by kind and name, with one version counter and a history of changes.

The counterpart of etcd and its watch cache. A stored `Record` never changes: clients receive its ``raw``
form, its ``document`` is read-only, and a change of an object starts from `Record.copy`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from local.kube import errors
from local.kube.kinds import Document

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped kinds) and name."""


def encode(document: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(frozen=True)
class Record:
    """One version of one object."""

    document: Document
    raw: bytes
    revision: int

    @classmethod
    def of(cls, document: Document, revision: int) -> Record:
        """The record of a document at a revision, which becomes its ``resourceVersion``."""
        metadata = {**document["metadata"], "resourceVersion": str(revision)}
        head = {"apiVersion": document["apiVersion"], "kind": document["kind"]}
        ordered = {**head, "metadata": metadata, **_without(document, _HEAD)}
        return cls(ordered, encode(ordered), revision)

    @classmethod
    def unstored(cls, document: Document) -> Record:
        """The record of a document that a dry run would store: it has no version."""
        record = cls.of(document, 0)
        metadata = _without(record.document["metadata"], frozenset({"resourceVersion"}))
        shown = {**record.document, "metadata": metadata}
        return cls(shown, encode(shown), 0)

    def copy(self) -> Document:
        """A deep copy of the document."""
        document: Document = json.loads(self.raw)
        return document

    @property
    def metadata(self) -> Mapping[str, Any]:
        metadata: Mapping[str, Any] = self.document["metadata"]
        return metadata

    @property
    def key(self) -> Key:
        return self.metadata.get("namespace", ""), self.metadata["name"]


_HEAD = frozenset({"apiVersion", "kind", "metadata"})


def _without(document: Document, names: frozenset[str]) -> Document:
    return {name: value for name, value in document.items() if name not in names}


@dataclass(frozen=True)
class Change:
    """One change of a collection. For DELETED, ``record`` is the last state, at the deletion's
    revision. ``previous`` is the record before the change, ``None`` for ADDED."""

    type: str
    resource: str
    record: Record
    previous: Record | None

    @property
    def revision(self) -> int:
        return self.record.revision


Listener = Callable[[Change], None]
Snapshot = Mapping[str, Mapping[Key, Record]]


class _Collection:
    def __init__(self, floor: int) -> None:
        self.records: dict[Key, Record] = {}
        self.history: deque[Change] = deque()
        self.floor = floor
        self.changed_at = 0
        self._sorted: list[Key] | None = None

    def put(self, key: Key, record: Record) -> None:
        if key not in self.records:
            self._sorted = None
        self.records[key] = record
        self.changed_at = record.revision

    def pop(self, key: Key, revision: int) -> None:
        del self.records[key]
        self._sorted = None
        self.changed_at = revision

    def remember(self, change: Change, limit: int) -> None:
        self.history.append(change)
        if len(self.history) > limit:
            self.floor = self.history.popleft().revision

    def keys(self) -> list[Key]:
        if self._sorted is None:
            self._sorted = sorted(self.records)
        return self._sorted


class Store:
    """All collections. ``history`` is the number of changes of each that watches can read."""

    def __init__(self, history: int) -> None:
        self.revision = 0
        self._history = history
        self._floor = 0
        self._collections: dict[str, _Collection] = {}
        self._listeners: dict[str, list[Listener]] = {}
        self._queue: deque[Change] = deque()
        self._notifying = False

    def _collection(self, resource: str) -> _Collection:
        if resource not in self._collections:
            self._collections[resource] = _Collection(self._floor)
        return self._collections[resource]

    def find(self, resource: str, key: Key) -> Record | None:
        """Find the current version of an object."""
        collection = self._collections.get(resource)
        return None if collection is None else collection.records.get(key)

    def records(self, resource: str, namespace: str = "") -> list[Record]:
        """The current versions, sorted by key; of one namespace if it is given."""
        collection = self._collection(resource)
        keys = collection.keys()
        if namespace:
            return [collection.records[key] for key in keys if key[0] == namespace]
        return [collection.records[key] for key in keys]

    def changed_at(self, resource: str) -> int:
        """The revision of the last change to a collection."""
        return self._collection(resource).changed_at

    def put(self, resource: str, document: Document) -> Record:
        """Create or replace an object, and notify the listeners."""
        self.revision += 1
        record = Record.of(document, self.revision)
        collection = self._collection(resource)
        previous = collection.records.get(record.key)
        collection.put(record.key, record)
        self._publish(
            Change("MODIFIED" if previous else "ADDED", resource, record, previous), collection
        )
        return record

    def remove(self, resource: str, key: Key, final: Document) -> Record:
        """Remove an object, and notify the listeners; watches report ``final`` as its last state."""
        self.revision += 1
        record = Record.of(final, self.revision)
        collection = self._collection(resource)
        previous = collection.records[key]
        collection.pop(key, self.revision)
        self._publish(Change("DELETED", resource, record, previous), collection)
        return record

    def drop_collection(self, resource: str) -> None:
        """Remove a collection and its history, when its CRD is deleted."""
        self._collections.pop(resource, None)

    def since(self, resource: str, revision: int) -> list[Change]:
        """The changes after a revision. Raises 410 if the history does not have all of them."""
        collection = self._collection(resource)
        if revision < collection.floor:
            raise errors.Expired(revision, collection.floor)
        return [change for change in collection.history if change.revision > revision]

    def records_at(self, resource: str, revision: int, namespace: str = "") -> list[Record]:
        """The versions at a revision. Raises 410 if it is older than the history."""
        records = dict(self._collection(resource).records)
        for change in reversed(self.since(resource, revision)):
            if change.previous is None:
                records.pop(change.record.key, None)
            else:
                records[change.record.key] = change.previous
        return [records[key] for key in sorted(records) if namespace in ("", key[0])]

    def compact(self) -> None:
        """Discard the history; the current objects remain."""
        self._floor = self.revision
        for collection in self._collections.values():
            collection.history.clear()
            collection.floor = self.revision

    def snapshot(self) -> Snapshot:
        """All objects of this moment."""
        return {name: dict(one.records) for name, one in self._collections.items()}

    def restore(self, snapshot: Snapshot) -> None:
        """Make all objects those of a snapshot again, in new revisions."""
        for resource, collection in tuple(self._collections.items()):
            old = snapshot.get(resource, {})
            for key in collection.records.keys() - old.keys():
                self.remove(resource, key, collection.records[key].copy())
            for key, record in old.items():
                if collection.records.get(key) is not record:
                    self.put(resource, record.copy())

    # -- listeners --------------------------------------------------------------------------------

    def listen(self, listener: Listener, resource: str = "") -> Callable[[], None]:
        """Call ``listener`` after each change of one collection, or of all. Returns a function that
        ends this.

        Listeners are called in the order of the changes, also for changes that a listener makes.
        """
        listeners = self._listeners.setdefault(resource, [])
        listeners.append(listener)
        return lambda: listeners.remove(listener)

    def _publish(self, change: Change, collection: _Collection) -> None:
        collection.remember(change, self._history)
        self._queue.append(change)
        if self._notifying:
            return
        self._notifying = True
        try:
            while self._queue:
                self._notify(self._queue.popleft())
        finally:
            self._notifying = False

    def _notify(self, change: Change) -> None:
        for resource in (change.resource, ""):
            for listener in tuple(self._listeners.get(resource, ())):
                listener(change)
