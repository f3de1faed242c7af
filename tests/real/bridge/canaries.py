"""Tests whether roles, CRDs, policies and tokens are already in effect in the API server.

Its authorizer, its handler of custom resources, its admission and its authenticator read their objects
asynchronously, in the order of the writes. So once a canary object is in effect, all earlier writes
are in effect.
"""

from __future__ import annotations

import json

from local.base.http import Request
from tests.real.bridge.administrator import CRDS, MERGE_PATCH, Administrator, Document
from tests.real.bridge.connections import Caller, Connections
from tests.real.relay.waiting import until

_POLL_S = 0.01
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ROLE_PATHS = {"cluster": _RBAC, "": f"{_RBAC}/namespaces/kube-system"}
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_GROUP = "canaries.tpu-functions.dev"
_CANARIES = f"/apis/{_GROUP}/v1/namespaces/default/canaries"


class Canaries:
    """Objects that show what is in effect; call `create` first."""

    def __init__(self, connections: Connections, administrator: Administrator) -> None:
        self._connections = connections
        self._administrator = administrator
        self._serial = 0

    def create(self) -> None:
        """Create the CRD of the canaries."""
        names = {"kind": "Canary", "plural": "canaries", "singular": "canary"}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"canaries.{_GROUP}"},
            "spec": {
                "group": _GROUP,
                "scope": "Namespaced",
                "names": names,
                "versions": [_version(0)],
            },
        }
        self._administrator.apply([definition])

    def await_roles(self) -> None:
        """Wait until all written roles and bindings are in effect in the authorizer."""
        ask = self._administrator.demand
        self._serial += 1
        name = f"canary-{self._serial}"
        for prefix, path in _ROLE_PATHS.items():
            ask("POST", f"{path}/{prefix}roles", _role(name, prefix))
            ask("POST", f"{path}/{prefix}rolebindings", _binding(name, prefix))
        for prefix in _ROLE_PATHS:
            self._await_access(name, prefix)
        for prefix, path in _ROLE_PATHS.items():
            ask("DELETE", f"{path}/{prefix}rolebindings/{name}")
            ask("DELETE", f"{path}/{prefix}roles/{name}")

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

        def is_allowed() -> bool:
            return bool(self._administrator.demand("POST", _REVIEWS, review)["status"]["allowed"])

        until(is_allowed, "the roles are in effect", poll_s=_POLL_S)

    def await_crds(self) -> None:
        """Wait until all written CRDs are in effect."""
        administrator = self._administrator
        self._serial += 1
        change = {"spec": {"versions": [_version(self._serial)]}}
        administrator.demand("PATCH", f"{CRDS}/canaries.{_GROUP}", change, MERGE_PATCH)
        canary = {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "Canary",
            "metadata": {"name": "canary"},
            "serial": self._serial,
        }
        until(
            lambda: administrator.ask("POST", f"{_CANARIES}?dryRun=All", canary).status == 201,
            "the CRDs are in effect",
            poll_s=_POLL_S,
        )
        for definition in administrator.items(CRDS):
            # A CRD that is being deleted may never be served again.
            if "deletionTimestamp" not in definition["metadata"]:
                self._await_served(_resources(definition))

    def _await_served(self, path: str) -> None:
        ask = self._administrator.ask
        until(lambda: ask("GET", path).status == 200, f"{path} is served", poll_s=_POLL_S)

    def await_policies(self, inject_token: Caller, label_node: Caller) -> None:
        """Wait until the admission policies are in effect."""
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "bootstrap-token-canary"},
        }
        secrets = "/api/v1/namespaces/kube-system/secrets"
        self._await_denial(inject_token, "POST", secrets, secret)
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "canary"}}
        self._administrator.demand("POST", "/api/v1/nodes", node)
        change = {"metadata": {"labels": {"canary": ""}}}
        self._await_denial(label_node, "PATCH", "/api/v1/nodes/canary", change)
        self._administrator.demand("DELETE", "/api/v1/nodes/canary")

    def _await_denial(self, caller: Caller, method: str, path: str, body: Document) -> None:
        kind = "application/json" if method == "POST" else MERGE_PATCH
        raw = json.dumps(body)
        url = f"{path}?dryRun=All"
        request = Request.of(method, url, headers={"content-type": kind}, body=raw)
        until(
            lambda: b"ValidatingAdmissionPolicy" in self._connections.send(caller, request).body,
            f"a policy denies {method} {path}",
            poll_s=_POLL_S,
        )

    def await_token(self, caller: Caller) -> None:
        """Wait until the authenticator accepts a bootstrap token."""
        request = Request.of("GET", "/version")
        until(
            lambda: self._connections.send(caller, request).status != 401,
            "the authenticator accepts a token",
            poll_s=_POLL_S,
        )
        self._connections.forget(caller)


def _version(serial: int) -> Document:
    number = {"type": "integer", "minimum": serial, "maximum": serial}
    schema = {"type": "object", "properties": {"serial": number}}
    return {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }


def _role(name: str, prefix: str) -> Document:
    rule = {"apiGroups": [f"{prefix}canaries"], "resources": ["canaries"], "verbs": ["get"]}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{prefix.capitalize()}Role",
        "metadata": {"name": name},
        "rules": [rule],
    }


def _binding(name: str, prefix: str) -> Document:
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
    """Return the path of a CRD's resources in all namespaces."""
    spec = definition["spec"]
    version = next(it["name"] for it in spec["versions"] if it["served"])
    return f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
