"""What a kubelet may do: the Node authorizer, and NodeRestriction behind it.

A Node's own identity (``system:node:<name>`` in ``system:nodes``) reaches its own Node, its own
Lease and the Pods that are bound to it, and nothing that would let it draw others' work to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from local.kube import errors
from local.kube.requests import RequestInfo
from local.kube.store import Store
from local.kube.writing import Attributes

LEASE_NAMESPACE = "kube-node-lease"
_READ = frozenset({"get", "list", "watch"})
_NODE_RULES: Mapping[tuple[str, str], frozenset[str]] = {
    ("", "nodes"): frozenset({"create", "get", "list", "watch", "update", "patch"}),
    ("", "nodes/status"): frozenset({"update", "patch"}),
    ("", "events"): frozenset({"create", "update", "patch"}),
    ("", "services"): _READ,
    ("", "pods"): _READ | {"create", "delete"},
    ("", "pods/status"): frozenset({"update", "patch"}),
    ("", "secrets"): _READ,
    ("", "configmaps"): _READ,
    ("certificates.k8s.io", "certificatesigningrequests"): frozenset(
        {"create", "get", "list", "watch"}
    ),
    ("coordination.k8s.io", "leases"): frozenset({"get", "create", "update", "patch", "delete"}),
}
"""The rules of ClusterRole ``system:node`` for the kinds that are served here."""

_ALLOWED_LABELS = frozenset(
    {
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
    }
)
_ALLOWED_LABEL_DOMAINS = ("kubelet.kubernetes.io", "node.kubernetes.io")
_KUBERNETES_DOMAINS = ("kubernetes.io", "k8s.io")


class NodeAuthorizer:
    """Allows a kubelet what `_NODE_RULES` say of its own objects; RBAC may allow more."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find_refusal(self, node: str, info: RequestInfo) -> str | None:
        """Why the kubelet of ``node`` may not do this, or ``None`` if it may.

        An empty string says no more than that nothing allows it.
        """
        allowed = _NODE_RULES.get((info.group, info.full_resource), frozenset())
        if info.verb not in allowed:
            return ""
        check = _OWN_OBJECTS.get(info.resource)
        return None if check is None else check(self._store, node, info)


def _own_node(store: Store, node: str, info: RequestInfo) -> str | None:
    del store
    if info.verb not in _READ or info.name == node:
        return None
    if info.name:
        return f"node '{node}' cannot read '{info.name}', only its own Node object"
    return f"node '{node}' cannot read all nodes, only its own Node object"


def _own_lease(store: Store, node: str, info: RequestInfo) -> str | None:
    del store
    if info.namespace != LEASE_NAMESPACE:
        return f'can only access leases in the "{LEASE_NAMESPACE}" system namespace'
    if info.verb != "create" and info.name != node:
        return "can only access node lease with the same name as the requesting node"
    return None


def _own_reference(store: Store, node: str, info: RequestInfo) -> str | None:
    """Secrets and ConfigMaps: only those that a Pod on the node refers to."""
    refers = (
        f'"{info.name}"' in record.raw.decode()
        for record in store.records("pods", info.namespace)
        if record.document["spec"].get("nodeName") == node
    )
    if info.name and any(refers):
        return None
    return f"no relationship found between node '{node}' and this object"


_OWN_OBJECTS: dict[str, Callable[[Store, str, RequestInfo], str | None]] = {
    "nodes": _own_node,
    "leases": _own_lease,
    "secrets": _own_reference,
    "configmaps": _own_reference,
}


# -- NodeRestriction -------------------------------------------------------------------------------


def restrict_nodes(attributes: Attributes) -> None:
    """The admission plugin NodeRestriction. Raises 403."""
    node, resource = attributes.user.node_name, attributes.kind.resource
    find_denial = _RESTRICTIONS.get(resource)
    denial = find_denial(node, attributes) if node and find_denial is not None else None
    if denial is not None:
        raise errors.forbidden(resource, attributes.document["metadata"]["name"], denial)


def _deny_node(node: str, attributes: Attributes) -> str | None:
    meta, old = attributes.document["metadata"], attributes.old
    before = {} if old is None else old["metadata"]
    labels = ", ".join(name for name in _changed_labels(meta, before) if not may_label(name))
    if meta["name"] != node:
        return f'node "{node}" is not allowed to modify node "{meta["name"]}"'
    if labels and old is None:
        return f'node "{node}" is not allowed to set the following labels: {labels}'
    if labels:
        return f"is not allowed to modify labels: {labels}"
    if old is not None and _taints(attributes.document) != _taints(old):
        return f'node "{node}" is not allowed to modify taints'
    if old is not None and meta.get("ownerReferences") != before.get("ownerReferences"):
        return f'node "{node}" is not allowed to modify ownerReferences'
    return None


def _taints(document: Mapping[str, Any]) -> Any:
    return document.get("spec", {}).get("taints") or []


def _changed_labels(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    before, after = old.get("labels") or {}, new.get("labels") or {}
    return sorted(key for key in {*before, *after} if before.get(key) != after.get(key))


def may_label(label: str) -> bool:
    """Whether a kubelet may set this label on its own Node (documented with NodeRestriction)."""
    if label in _ALLOWED_LABELS:
        return True
    domain = label.partition("/")[0] if "/" in label else ""
    if _within(domain, ("node-restriction.kubernetes.io",)):
        return False
    return _within(domain, _ALLOWED_LABEL_DOMAINS) or not _within(domain, _KUBERNETES_DOMAINS)


def _within(domain: str, parents: Iterable[str]) -> bool:
    return any(domain == parent or domain.endswith(f".{parent}") for parent in parents)


def _deny_lease(node: str, attributes: Attributes) -> str | None:
    meta = attributes.document["metadata"]
    if meta.get("namespace") != LEASE_NAMESPACE:
        return f'can only access leases in the "{LEASE_NAMESPACE}" system namespace'
    if meta["name"] != node:
        return "can only access node lease with the same name as the requesting node"
    return None


def _deny_pod(node: str, attributes: Attributes) -> str | None:
    annotations = attributes.document["metadata"].get("annotations", {})
    creates = attributes.operation == "CREATE"
    if creates and "kubernetes.io/config.mirror" not in annotations:
        return f'node "{node}" can only create mirror pods'
    if attributes.document.get("spec", {}).get("nodeName") != node:
        verb = attributes.operation.lower()
        return f'node "{node}" can only {verb} pods with spec.nodeName set to itself'
    return None


_RESTRICTIONS: dict[str, Callable[[str, Attributes], str | None]] = {
    "nodes": _deny_node,
    "leases.coordination.k8s.io": _deny_lease,
    "pods": _deny_pod,
}
