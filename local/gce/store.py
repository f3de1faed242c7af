"""The store of the resources of a kind, with the lag of lists."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from local.gce.environment import Environment
from local.gce.operation import Operation
from local.gce.refusals import NOT_FOUND, NOT_READY
from local.gce.schema import Document


class Resource(Protocol):
    """A resource in a store.

    ``readable`` is false during the insert: the name is taken, but a get does not find it.
    ``busy`` is the operation that changes the resource now.
    """

    path: str
    id: str
    readable: bool
    busy: Operation | None

    def document(self) -> Document:
        """The resource in responses."""


R = TypeVar("R", bound=Resource)


class Store(Generic[R]):
    """All resources of one kind, by path."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._resources: dict[str, R] = {}
        self._listed_from: dict[str, datetime] = {}
        self._ghosts: list[tuple[datetime, str, Document]] = []

    def __iter__(self) -> Iterator[R]:
        return iter(tuple(self._resources.values()))

    def __len__(self) -> int:
        return len(self._resources)

    def put(self, resource: R) -> None:
        """Add a resource; lists show it after the list lag."""
        self._resources[resource.path] = resource
        self._listed_from[resource.path] = self._lagged()

    def drop(self, resource: R) -> None:
        """Remove a resource; lists show it until the list lag has passed."""
        del self._resources[resource.path]
        seen_by_lists = self._listed_from.pop(resource.path) <= self._environment.clock.now()
        until = self._lagged()
        if resource.readable and seen_by_lists and until > self._environment.clock.now():
            self._ghosts.append((until, resource.path, resource.document()))

    def find(self, path: str) -> R | None:
        """Find the resource at a path, readable or not."""
        return self._resources.get(path)

    def get(self, path: str) -> R:
        """Get the readable resource at a path. Raises `Refused` (404)."""
        resource = self._resources.get(path)
        if resource is None or not resource.readable:
            raise NOT_FOUND.refused(resource=path)
        return resource

    def get_idle(self, path: str) -> R:
        """Get a resource that no operation changes. Raises `Refused` (404, or 400 if one does)."""
        resource = self._resources.get(path)
        if resource is None:
            raise NOT_FOUND.refused(resource=path)
        if resource.busy is not None:
            raise NOT_READY.refused(resource=path)
        return resource

    def listed(self, prefix: str) -> list[Document]:
        """List the resources under ``prefix`` by name, with the list lag."""
        now = self._environment.clock.now()
        self._ghosts = [ghost for ghost in self._ghosts if ghost[0] > now]
        shown = {path: ghost for _, path, ghost in self._ghosts if path.startswith(prefix)}
        for path, resource in self._resources.items():
            if path.startswith(prefix) and resource.readable and self._listed_from[path] <= now:
                shown[path] = resource.document()
        return [shown[path] for path in sorted(shown)]

    def _lagged(self) -> datetime:
        return self._environment.clock.now() + timedelta(
            seconds=self._environment.draw(self._environment.timings.list_lag_s)
        )
