"""A control plane of one's own with the product's manifests applied, shared by many stories."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from local.http import Request, Response
from local.world import SYSTEM_NAMESPACE, identity
from tests.control_plane.plane import ControlPlane
from tests.real.bridge.connections import Caller, Connections, trusting
from tests.real.bridge.mirror import Mirror
from tests.real.bridge.rest import name_of, token_of, unrest

Document = dict[str, Any]
MIRRORED = {
    "nodes": "/api/v1/nodes",
    "tpunodegroups": "/apis/tpu.google.com/v1alpha1/tpunodegroups",
    "secrets": "/api/v1/namespaces/kube-system/secrets",
    "configmaps": "/api/v1/namespaces/kube-public/configmaps",
    "certificatesigningrequests": "/apis/certificates.k8s.io/v1/certificatesigningrequests",
    "namespaces": "/api/v1/namespaces",
}
"""The collections whose changes are waited for, by the plural of their kind."""

PATIENCE_S = 60.0
_POLL_S = 0.01
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_PLACES_OF_ROLES = {"cluster": _RBAC, "": f"{_RBAC}/namespaces/kube-system"}
_CANARIES = "/apis/canaries.tpu-functions.dev/v1/namespaces/default/canaries"
_PLURALS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
}
_RESTORED = ("CustomResourceDefinition", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


class Installation:
    """The cluster between stories: its callers, its mirrors, and how it is made clean again."""

    def __init__(
        self, plane: ControlPlane, manifests: Sequence[Mapping[str, Any]], accounts: Iterable[str]
    ) -> None:
        """``accounts`` are the ServiceAccounts that steps and relay go by."""
        self.plane = plane
        self.news = threading.Condition()
        self.connections = Connections(plane.server)
        self.is_altered = False
        """Whether a story has changed roles or definitions of the installation."""
        self.admin = self._administrator()
        self._manifests = [dict(manifest) for manifest in manifests]
        self._serial = 0
        self._apply(self._manifests)
        tls = trusting(plane.ca_pem)
        self.accounts = {
            name: Caller(identity(name).name, tls, self._token(name)) for name in accounts
        }
        self._lay_canary()
        self.await_definitions()
        self.await_roles()
        self._await_policies()
        self._namespaces = {name_of(it) for it in self._items("/api/v1/namespaces")}
        self._definitions = {name_of(it) for it in self._items(_CRDS)}
        self.mirrors = {
            plural: Mirror(plane.server, self._administrator(), path, self.news)
            for plural, path in MIRRORED.items()
        }

    def close(self) -> None:
        """End the mirrors; the control plane is somebody else's to stop."""
        for mirror in self.mirrors.values():
            mirror.end()
        self.connections.close()

    def _administrator(self) -> Caller:
        token = self.plane.headers().get("Authorization", "").removeprefix("Bearer ")
        return Caller("admin", self.plane.administrator(), token)

    def ask(self, method: str, path: str, body: Any = None, content_type: str = "") -> Response:
        """Ask as the administrator, unrecorded."""
        headers = {"accept": "application/json", "content-type": content_type or "application/json"}
        raw = None if body is None else json.dumps(body)
        request = Request.of(method, path, headers=headers, body=raw)
        return self.connections.send(self.admin, request)

    def demand(self, method: str, path: str, body: Any = None, content_type: str = "") -> Document:
        """Ask as the administrator for what must be granted."""
        answer = self.ask(method, path, body, content_type)
        assert answer.status < 300, f"{method} {path}: {answer.status} {answer.body[:500]!r}"
        document: Document = answer.json()
        return document

    # -- rest -------------------------------------------------------------------------------------

    def unrest(self) -> list[str]:
        """What the controllers have still to do; to be asked with ``news`` held."""
        objects = {plural: mirror.objects.values() for plural, mirror in self.mirrors.items()}
        return list(unrest(objects))

    def changes(self) -> int:
        """A number that grows with every change that the mirrors see."""
        with self.news:
            return sum(mirror.changes for mirror in self.mirrors.values())

    def await_news(
        self,
        missing: Callable[[], Sequence[str]],
        meanwhile: Callable[[], None] = lambda: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Wait for changes until nothing is missing; ``meanwhile`` is done about once a second."""
        deadline = time.monotonic() + patience_s
        while True:
            with self.news:
                if self.news.wait_for(lambda: not missing(), timeout=1.0):
                    return
                words = "; ".join(missing())
            assert time.monotonic() < deadline, f"not at rest after {patience_s:.0f} s: {words}"
            meanwhile()

    def await_token(self, token: str) -> None:
        """Wait until the API server's authenticator knows a bootstrap token."""
        caller = Caller("bootstrapper", self.accounts["relay"].tls, token)

        def is_known() -> bool:
            return self.connections.send(caller, Request.of("GET", "/version")).status != 401

        poll(is_known, f"the authenticator about token {token.partition('.')[0]}")
        self.connections.forget(caller)

    def await_roles(self) -> None:
        """Wait until the authorizer knows all roles and bindings that have been written.

        It learns of each kind in the order of writing: when it knows what is written here, it knows
        what was written before.
        """
        self._serial += 1
        name = f"canary-{self._serial}"
        for prefix, path in _PLACES_OF_ROLES.items():
            role, binding = _canary_role(name, prefix), _canary_binding(name, prefix)
            self.demand("POST", f"{path}/{prefix}roles", role)
            self.demand("POST", f"{path}/{prefix}rolebindings", binding)
        for prefix in _PLACES_OF_ROLES:
            self._await_access(name, prefix)
        for prefix, path in _PLACES_OF_ROLES.items():
            self.demand("DELETE", f"{path}/{prefix}rolebindings/{name}")
            self.demand("DELETE", f"{path}/{prefix}roles/{name}")

    def _await_access(self, user: str, prefix: str) -> None:
        attributes = {
            "verb": "get",
            "group": f"{prefix}canaries",
            "resource": "canaries",
            "namespace": "kube-system",
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes},
        }
        poll(
            lambda: bool(self.demand("POST", _REVIEWS, review)["status"]["allowed"]),
            "the authorizer",
        )

    def await_definitions(self) -> None:
        """Wait until custom resources are served as the definitions that have been written say.

        As for roles: a definition written later is in force here.
        """
        self._serial += 1
        path = f"{_CRDS}/canaries.canaries.tpu-functions.dev"
        change = {"spec": {"versions": [_canary_version(self._serial)]}}
        self.demand("PATCH", path, change, "application/merge-patch+json")
        canary = {
            "apiVersion": "canaries.tpu-functions.dev/v1",
            "kind": "Canary",
            "metadata": {"name": "canary"},
            "serial": self._serial,
        }
        poll(
            lambda: self.ask("POST", f"{_CANARIES}?dryRun=All", canary).status == 201,
            "the handler of custom resources",
        )
        for definition in self._items(_CRDS):
            self._await_served(_resources(definition))

    def _await_served(self, path: str) -> None:
        poll(lambda: self.ask("GET", path).status == 200, path)

    def _await_policies(self) -> None:
        """Wait until the admission policies refuse what they are for."""
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "bootstrap-token-canary"},
        }
        path = "/api/v1/namespaces/kube-system/secrets"
        poll(
            lambda: self._is_refused("inject-token", "POST", path, secret), "the policy of Secrets"
        )
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "canary"}}
        self.demand("POST", "/api/v1/nodes", node)
        path = "/api/v1/nodes/canary"
        change = {"metadata": {"labels": {"canary": ""}}}
        poll(lambda: self._is_refused("label-node", "PATCH", path, change), "the policy of Nodes")
        self.demand("DELETE", path)

    def _is_refused(self, account: str, method: str, path: str, body: Document) -> bool:
        kind = "application/json" if method == "POST" else "application/merge-patch+json"
        request = Request.of(
            method, f"{path}?dryRun=All", headers={"content-type": kind}, body=json.dumps(body)
        )
        answer = self.connections.send(self.accounts[account], request)
        return b"ValidatingAdmissionPolicy" in answer.body

    # -- between stories --------------------------------------------------------------------------

    def clean(self) -> None:
        """Leave nothing of a story before: no group, Node, token, request, namespace, Event."""
        self._drop_groups()
        for node in self._items(MIRRORED["nodes"]):
            self.ask("DELETE", f"{MIRRORED['nodes']}/{name_of(node)}")
        for path in (
            _LEASES,
            f"{MIRRORED['secrets']}?fieldSelector=type=bootstrap.kubernetes.io/token",
            MIRRORED["certificatesigningrequests"],
            "/api/v1/namespaces/default/events",
            "/api/v1/namespaces/kube-system/pods?gracePeriodSeconds=0",
        ):
            self.demand("DELETE", path)
        for namespace in self._items("/api/v1/namespaces"):
            if name_of(namespace) not in self._namespaces:
                self.ask("DELETE", f"/api/v1/namespaces/{name_of(namespace)}")
        if self.is_altered:
            self._restore()
        self.await_news(self._remains)

    def _drop_groups(self) -> None:
        for group in self._items(MIRRORED["tpunodegroups"]):
            metadata = group["metadata"]
            path = (
                f"/apis/tpu.google.com/v1alpha1/namespaces/{metadata['namespace']}"
                f"/tpunodegroups/{metadata['name']}"
            )
            self.ask("DELETE", path)
            free = {"metadata": {"finalizers": None}}
            self.ask("PATCH", path, free, "application/merge-patch+json")

    def _restore(self) -> None:
        for definition in self._items(_CRDS):
            if name_of(definition) not in self._definitions:
                self.demand("DELETE", f"{_CRDS}/{name_of(definition)}")
        self._apply([it for it in self._manifests if it["kind"] in _RESTORED])
        self.await_definitions()
        self.await_roles()
        self.is_altered = False

    def _remains(self) -> list[str]:
        left = [
            f"{plural} {name_of(each)}"
            for plural in ("nodes", "tpunodegroups", "certificatesigningrequests")
            for each in self.mirrors[plural].objects.values()
        ]
        tokens = [it for it in self.mirrors["secrets"].objects.values() if token_of(it)]
        return [*left, *map(name_of, tokens), *self.unrest()]

    def _items(self, path: str) -> list[Document]:
        items: list[Document] = self.demand("GET", path)["items"]
        return items

    def _apply(self, manifests: Iterable[Mapping[str, Any]]) -> None:
        """Server-side, so that it can be said again."""
        for manifest in manifests:
            path = f"{_collection(manifest)}/{manifest['metadata']['name']}"
            query = "fieldManager=installation&force=true"
            kind = "application/apply-patch+yaml"
            self.demand("PATCH", f"{path}?{query}", manifest, kind)

    def _token(self, account: str) -> str:
        path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/{account}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 6 * 3600},
        }
        token: str = self.demand("POST", path, request)["status"]["token"]
        return token

    def _lay_canary(self) -> None:
        names = {"kind": "Canary", "plural": "canaries", "singular": "canary"}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "canaries.canaries.tpu-functions.dev"},
            "spec": {
                "group": "canaries.tpu-functions.dev",
                "scope": "Namespaced",
                "names": names,
                "versions": [_canary_version(0)],
            },
        }
        self._apply([definition])


def poll(holds: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Ask again and again until something holds that nobody tells of."""
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, f"after {patience_s:.0f} s still not ready: {what}"
        time.sleep(_POLL_S)


def _canary_version(serial: int) -> Document:
    number = {"type": "integer", "minimum": serial, "maximum": serial}
    schema = {"type": "object", "properties": {"serial": number}}
    return {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }


def _canary_role(name: str, prefix: str) -> Document:
    rule = {"apiGroups": [f"{prefix}canaries"], "resources": ["canaries"], "verbs": ["get"]}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{prefix.capitalize()}Role",
        "metadata": {"name": name},
        "rules": [rule],
    }


def _canary_binding(name: str, prefix: str) -> Document:
    group = "rbac.authorization.k8s.io"
    kind = f"{prefix.capitalize()}Role"
    return {
        "apiVersion": f"{group}/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": kind, "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": name}],
    }


def _resources(definition: Document) -> str:
    """The path of a definition's resources, in all namespaces."""
    spec = definition["spec"]
    version = next(it["name"] for it in spec["versions"] if it["served"])
    return f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"


def _collection(manifest: Mapping[str, Any]) -> str:
    version, kind = manifest["apiVersion"], manifest["kind"]
    prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = manifest["metadata"].get("namespace")
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{prefix}{scope}/{_PLURALS.get(kind, kind.lower() + 's')}"
