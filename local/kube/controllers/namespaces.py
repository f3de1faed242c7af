"""Namespaces: create the objects of a new one, delete the objects of a deleted one."""

from __future__ import annotations

from local.base.clock import Clock
from local.kube.certificates import CertificateAuthority
from local.kube.controllers.queue import Cluster, WorkQueue
from local.kube.kinds import Document
from local.kube.resources import Resources
from local.kube.store import Change
from local.kube.users import controller

_FINALIZER = "kubernetes"
ROOT_CA_CONFIG_MAP = "kube-root-ca.crt"
_ABOUT_ROOT_CA = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal "
    "endpoints such as the internal service IP or kubernetes.default.svc. No other usage is "
    "guaranteed across distributions of Kubernetes clusters."
)


class NamespaceController:
    """The namespace, serviceaccount and root-ca-certificate-publisher controllers in one."""

    def __init__(self, resources: Resources, clock: Clock, ca: CertificateAuthority) -> None:
        self._cluster = Cluster(resources, controller("namespace-controller"))
        self._ca = ca
        self._queue: WorkQueue[str] = WorkQueue(clock, self._reconcile)
        resources.store.listen(self._follow)

    def _follow(self, change: Change) -> None:
        if change.resource == "namespaces":
            self._queue.add(change.record.key[1])
        elif change.type == "DELETED" and self._is_terminating(change.record.key[0]):
            self._queue.add(change.record.key[0])

    def _is_terminating(self, name: str) -> bool:
        namespace = self._cluster.find("namespaces", ("", name))
        return namespace is not None and "deletionTimestamp" in namespace.metadata

    def _reconcile(self, name: str) -> None:
        namespace = self._cluster.find("namespaces", ("", name))
        if namespace is None:
            return
        if "deletionTimestamp" not in namespace.metadata:
            self._create_defaults(name)
        elif not self._delete_objects(name):
            self._cluster.modify("namespaces", ("", name), _finalize, "finalize")

    def _create_defaults(self, name: str) -> None:
        account = {"metadata": {"name": "default"}}
        self._cluster.create("serviceaccounts", name, account)
        about = {"kubernetes.io/description": _ABOUT_ROOT_CA}
        meta = {"name": ROOT_CA_CONFIG_MAP, "annotations": about}
        root = {"metadata": meta, "data": {"ca.crt": self._ca.certificate_pem}}
        self._cluster.create("configmaps", name, root)

    def _delete_objects(self, name: str) -> bool:
        """Delete the objects of a namespace; returns whether some still exist because of finalizers."""
        left = False
        for kind in self._cluster.catalogue:
            if not kind.namespaced:
                continue
            for record in self._cluster.store.records(kind.resource, name):
                if "deletionTimestamp" not in record.metadata:
                    self._cluster.delete(kind.resource, record.key)
                left = left or self._cluster.find(kind.resource, record.key) is not None
        return left


def _finalize(document: Document) -> None:
    others = [one for one in document["spec"].get("finalizers", ()) if one != _FINALIZER]
    document["spec"] = {"finalizers": others}
