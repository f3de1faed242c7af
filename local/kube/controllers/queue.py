"""The base of all controllers: a work queue on the clock, and access to objects."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

from local.base.clock import Clock
from local.kube import errors
from local.kube.kinds import Document
from local.kube.resources import Resources
from local.kube.store import Key, Record
from local.kube.users import User
from local.kube.writing import Write

T = TypeVar("T", bound=Hashable)


class WorkQueue(Generic[T]):
    """A queue of keys, without duplicates, in the order in which they were added.

    ``work`` is called by the clock, never inside the call that adds a key.
    """

    def __init__(self, clock: Clock, work: Callable[[T], None]) -> None:
        self._clock = clock
        self._work = work
        self._keys: dict[T, None] = {}
        self._due = False

    def add(self, key: T) -> None:
        """Add a key."""
        self._keys[key] = None
        if not self._due:
            self._due = True
            self._clock.call_later(0, self._drain)

    def _drain(self) -> None:
        self._due = False
        keys, self._keys = self._keys, {}
        for key in keys:
            self._work(key)


class Cluster:
    """A controller's access to objects."""

    def __init__(self, resources: Resources, user: User) -> None:
        self._resources = resources
        self._user = user
        self.store = resources.store
        self.catalogue = resources.catalogue

    def find(self, resource: str, key: Key) -> Record | None:
        """Find an object."""
        return self.store.find(resource, key)

    def create(self, resource: str, namespace: str, document: Document) -> None:
        """Create an object. Does nothing if it exists."""
        try:
            self._resources.create(self._write(resource), namespace, document)
        except errors.ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    def modify(
        self,
        resource: str,
        key: Key,
        change: Callable[[Document], None],
        subresource: str = "",
    ) -> None:
        """Change the current version of an object. Does nothing if it does not exist."""
        record = self.find(resource, key)
        if record is None:
            return
        document = record.copy()
        change(document)
        self._resources.replace(self._write(resource, subresource), record, document)

    def remove_finalizer(self, resource: str, key: Key, finalizer: str) -> None:
        """Remove a finalizer from an object's metadata."""

        def change(document: Document) -> None:
            meta = document["metadata"]
            meta["finalizers"] = [one for one in meta.get("finalizers", ()) if one != finalizer]

        self.modify(resource, key, change)

    def _write(self, resource: str, subresource: str = "") -> Write:
        return Write(self.catalogue[resource], self._user, subresource)

    def delete(self, resource: str, key: Key, options: Mapping[str, Any] | None = None) -> None:
        """Delete an object. Does nothing if it does not exist or a precondition is false."""
        try:
            self._resources.delete(self.catalogue[resource], key, self._user, options)
        except errors.ApiError as error:
            if error.reason not in ("NotFound", "Conflict"):
                raise
