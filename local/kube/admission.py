"""Admission plugins besides NodeRestriction."""

from __future__ import annotations

from local.kube.writing import Attributes

_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def taint_new_nodes(attributes: Attributes) -> None:
    """TaintNodesByCondition: a new Node takes no Pods before it is known to be ready."""
    if attributes.kind.resource != "nodes" or attributes.operation != "CREATE":
        return
    spec = attributes.document.get("spec") or {}
    taints = spec.get("taints") or []
    if not any(taint.get("key") == _NOT_READY["key"] for taint in taints):
        attributes.document["spec"] = {**spec, "taints": [*taints, dict(_NOT_READY)]}
