"""The permissions of kubelets: the Node authorizer, and the admission plugin NodeRestriction.

A kubelet (``system:node:<name>`` in ``system:nodes``) may change its own Node and its own Lease, but no
labels and taints that would attract Pods meant for other Nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from local.kube import errors
from local.kube.requests import RequestInfo
from local.kube.writing import Attributes

LEASE_NAMESPACE = "kube-node-lease"
_READ = frozenset({"get", "list", "watch"})
_NODE_RULES: Mapping[tuple[str, str], frozenset[str]] = {
    ("", "nodes"): frozenset({"create", "get", "list", "watch", "update", "patch"}),
    ("", "nodes/status"): frozenset({"update", "patch"}),
    ("", "events"): frozenset({"create", "update", "patch"}),
    ("", "pods"): _READ,
    ("certificates.k8s.io", "certificatesigningrequests"): frozenset(
        {"create", "get", "list", "watch"}
    ),
    ("coordination.k8s.io", "leases"): frozenset({"get", "create", "update", "patch", "delete"}),
}
"""The rules of ClusterRole ``system:node`` that a kubelet without containers needs."""

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


def find_denial(node: str, info: RequestInfo) -> str | None:
    """Why the Node authorizer denies a request of the kubelet of ``node``; ``None`` if it allows it.

    Empty if it has no rule for the request. RBAC may still allow it.
    """
    if info.verb not in _NODE_RULES.get((info.group, info.full_resource), frozenset()):
        return ""
    if info.resource == "leases":
        return _find_lease_denial(
            node, info.namespace, node if info.verb == "create" else info.name
        )
    if info.resource != "nodes" or info.verb not in _READ or info.name == node:
        return None
    wanted = f"'{info.name}'" if info.name else "all nodes"
    return f"node '{node}' cannot read {wanted}, only its own Node object"


def _find_lease_denial(node: str, namespace: str, name: str) -> str | None:
    if namespace != LEASE_NAMESPACE:
        return f'can only access leases in the "{LEASE_NAMESPACE}" system namespace'
    if name != node:
        return "can only access node lease with the same name as the requesting node"
    return None


# -- NodeRestriction -------------------------------------------------------------------------------


def restrict_nodes(attributes: Attributes) -> None:
    """The admission plugin NodeRestriction. Raises 403."""
    node, resource = attributes.user.node_name, attributes.kind.resource
    meta = attributes.document["metadata"]
    denial = None
    if node and resource == "nodes":
        denial = _deny_node(node, attributes)
    elif node and resource == "leases.coordination.k8s.io":
        denial = _find_lease_denial(node, meta.get("namespace", ""), meta["name"])
    if denial is not None:
        raise errors.forbidden(resource, meta["name"], denial)


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
    """Whether a kubelet may set this label on its own Node (documented for NodeRestriction)."""
    if label in _ALLOWED_LABELS:
        return True
    domain = label.partition("/")[0] if "/" in label else ""
    if _within(domain, ("node-restriction.kubernetes.io",)):
        return False
    return _within(domain, _ALLOWED_LABEL_DOMAINS) or not _within(domain, _KUBERNETES_DOMAINS)


def _within(domain: str, parents: Iterable[str]) -> bool:
    return any(domain == parent or domain.endswith(f".{parent}") for parent in parents)
