"""A control plane with the product's manifests applied, which many stories share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from local.cloud.simulation import SYSTEM_NAMESPACE, identity
from local.control_plane.plane import ControlPlane
from tests.real.bridge.administrator import (
    CRDS,
    MERGE_PATCH,
    Administrator,
    administrator,
    open_administrator,
)
from tests.real.bridge.canaries import Canaries
from tests.real.bridge.connections import Caller, Connections, trusting
from tests.real.bridge.heartbeats import DEFAULT, Grace
from tests.real.bridge.mirror import Mirror
from tests.real.bridge.pending import name_of, pending_work
from tests.real.relay.waiting import TIMEOUT_S, until

MIRRORED = {
    "nodes": "/api/v1/nodes",
    "tpunodegroups": "/apis/tpu.google.com/v1alpha1/tpunodegroups",
    "secrets": "/api/v1/namespaces/kube-system/secrets",
    "configmaps": "/api/v1/namespaces/kube-public/configmaps",
    "certificatesigningrequests": "/apis/certificates.k8s.io/v1/certificatesigningrequests",
    "namespaces": "/api/v1/namespaces",
}
"""The mirrored collections, by the plural of their kind."""

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_RESTORED = ("CustomResourceDefinition", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


def install(
    plane: ControlPlane,
    manifests: Sequence[Mapping[str, Any]],
    accounts: Iterable[str],
    grace: Grace = DEFAULT,
) -> Installation:
    """Apply the manifests; ``accounts`` are the ServiceAccounts of steps and relay in them."""
    with open_administrator(plane) as admin:
        admin.apply(manifests)
    return Installation(plane, service_accounts(plane, accounts), manifests, grace)


def service_accounts(plane: ControlPlane, names: Iterable[str]) -> dict[str, Caller]:
    """Return the ServiceAccounts of these names with a token each."""
    tls = trusting(plane.ca_pem)
    with open_administrator(plane) as admin:
        return {
            name: Caller(identity(name).name, tls, admin.request_token(SYSTEM_NAMESPACE, name))
            for name in names
        }


class Installation:
    """The cluster of many stories: its callers, its mirrors, and its cleanup between stories."""

    def __init__(
        self,
        plane: ControlPlane,
        accounts: Mapping[str, Caller],
        manifests: Sequence[Mapping[str, Any]] = (),
        grace: Grace = DEFAULT,
    ) -> None:
        """Use an existing installation; `install` creates one.

        ``accounts`` are the users of the steps and the relay, by name with hyphens. ``manifests`` are
        applied again after a story that has changed CRDs or roles. ``grace`` is the grace period of the
        control plane.
        """
        self.plane = plane
        self.grace = grace
        self.changed = threading.Condition()
        self.connections = Connections(plane.server)
        self.admin = Administrator(self.connections, administrator(plane))
        self.canaries = Canaries(self.connections, self.admin)
        self.is_altered = False
        """Whether a story has changed roles or CRDs of the installation."""
        self._manifests = [dict(manifest) for manifest in manifests]
        self.accounts = dict(accounts)
        self.canaries.create()
        self._await_installed()
        self._namespaces = {name_of(it) for it in self.admin.items(MIRRORED["namespaces"])}
        self._secrets = {name_of(it) for it in self.admin.items(MIRRORED["secrets"])}
        self._definitions = {name_of(it) for it in self.admin.items(CRDS)}
        self.mirrors = {
            plural: Mirror(plane.server, administrator(plane), path, self.changed)
            for plural, path in MIRRORED.items()
        }

    def close(self) -> None:
        """End the mirrors; the control plane is not stopped."""
        for mirror in self.mirrors.values():
            mirror.end()
        self.connections.close()

    def _await_installed(self) -> None:
        self.canaries.await_crds()
        self.canaries.await_roles()
        self.canaries.await_policies(self.accounts["inject-token"], self.accounts["label-node"])

    # -- pending work -----------------------------------------------------------------------------

    def pending_work(self) -> list[str]:
        """Return the pending work of the controllers. The caller must hold ``changed``."""
        objects = {plural: mirror.objects.values() for plural, mirror in self.mirrors.items()}
        return list(pending_work(objects))

    def changes(self) -> int:
        """Return the number of changes that the mirrors have received."""
        with self.changed:
            return sum(mirror.changes for mirror in self.mirrors.values())

    def await_none(
        self,
        missing: Callable[[], Sequence[str]],
        meanwhile: Callable[[], None] = lambda: None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Wait for changes until no work is pending; call ``meanwhile`` about once a second."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self.changed:
                if self.changed.wait_for(lambda: not missing(), timeout=1.0):
                    return
                descriptions = "; ".join(missing())
            assert time.monotonic() < deadline, f"missing after {timeout_s:.0f} s: {descriptions}"
            meanwhile()

    def await_token(self, token: str) -> None:
        """Wait until the API server's authenticator accepts a bootstrap token."""
        self.canaries.await_token(Caller("bootstrapper", self.accounts["relay"].tls, token))

    # -- between stories --------------------------------------------------------------------------

    def clean(self) -> None:
        """Delete all groups, Nodes, tokens, requests, namespaces and Events of the last story."""
        self._delete_groups()
        for node in self.admin.items(MIRRORED["nodes"]):
            self.admin.ask("DELETE", f"{MIRRORED['nodes']}/{name_of(node)}")
        for path in (
            _LEASES,
            MIRRORED["certificatesigningrequests"],
            "/api/v1/namespaces/default/events",
            "/api/v1/namespaces/kube-system/events",
            "/api/v1/namespaces/kube-system/pods?gracePeriodSeconds=0",
        ):
            self.admin.demand("DELETE", path)
        for secret in self.admin.items(MIRRORED["secrets"]):
            if name_of(secret) not in self._secrets:
                self.admin.ask("DELETE", f"{MIRRORED['secrets']}/{name_of(secret)}")
        for namespace in self.admin.items(MIRRORED["namespaces"]):
            if name_of(namespace) not in self._namespaces:
                self.admin.ask("DELETE", f"{MIRRORED['namespaces']}/{name_of(namespace)}")
        if self.is_altered:
            self._restore()
        self.await_none(self._list_remaining)

    def _delete_groups(self) -> None:
        for group in self.admin.items(MIRRORED["tpunodegroups"]):
            metadata = group["metadata"]
            path = (
                f"/apis/tpu.google.com/v1alpha1/namespaces/{metadata['namespace']}"
                f"/tpunodegroups/{metadata['name']}"
            )
            self.admin.ask("DELETE", path)
            without_finalizers = {"metadata": {"finalizers": None}}
            self.admin.ask("PATCH", path, without_finalizers, MERGE_PATCH)

    def _restore(self) -> None:
        for definition in self.admin.items(CRDS):
            if name_of(definition) not in self._definitions:
                self._delete_definition(name_of(definition))
        self.admin.apply([it for it in self._manifests if it["kind"] in _RESTORED])
        self.canaries.await_crds()
        self.canaries.await_roles()
        self.is_altered = False

    def _delete_definition(self, name: str) -> None:
        path = f"{CRDS}/{name}"
        self.admin.ask("DELETE", path)
        until(lambda: self.admin.ask("GET", path).status == 404, f"{path} is deleted")

    def _list_remaining(self) -> list[str]:
        left = [
            f"{plural} {name_of(each)}"
            for plural in ("nodes", "tpunodegroups", "certificatesigningrequests")
            for each in self.mirrors[plural].objects.values()
        ]
        secrets = {name_of(it) for it in self.mirrors["secrets"].objects.values()}
        return [*left, *sorted(secrets - self._secrets), *self.pending_work()]
