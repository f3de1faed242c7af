"""CustomResourceDefinitions: a deleted one is removed after its objects."""

from __future__ import annotations

from local.base.clock import Clock
from local.kube.controllers.queue import Cluster, WorkQueue
from local.kube.crds import CLEANUP_FINALIZER, CRD_RESOURCE
from local.kube.resources import Resources
from local.kube.store import Change
from local.kube.users import controller


class DefinitionController:
    """Deletes the objects of a deleted definition, then removes the definition's finalizer."""

    def __init__(self, resources: Resources, clock: Clock) -> None:
        self._cluster = Cluster(resources, controller("crd-finalizer"))
        self._queue: WorkQueue[str] = WorkQueue(clock, self._reconcile)
        resources.store.listen(self._follow)

    def _follow(self, change: Change) -> None:
        if change.resource == CRD_RESOURCE:
            self._queue.add(change.record.key[1])
        elif change.type == "DELETED":
            self._queue.add(change.resource)

    def _reconcile(self, resource: str) -> None:
        definition = self._cluster.find(CRD_RESOURCE, ("", resource))
        if definition is None or "deletionTimestamp" not in definition.metadata:
            return
        for record in self._cluster.store.records(resource):
            self._cluster.delete(resource, record.key)
        if not self._cluster.store.records(resource):
            self._cluster.remove_finalizer(CRD_RESOURCE, definition.key, CLEANUP_FINALIZER)
