"""The Nodes on which a Pod may run: selector, required affinity, taints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from local.kube.label_selectors import matches_expressions


def selects(pod: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether a Node matches the selector and the required affinity of a Pod's spec."""
    labels = node["metadata"].get("labels") or {}
    selector = pod.get("nodeSelector") or {}
    return all(labels.get(key) == value for key, value in selector.items()) and _affinity_holds(
        pod, labels, node["metadata"]["name"]
    )


def tolerates_taints(pod: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether a Pod's spec tolerates a Node's taints."""
    return all(
        taint["effect"] == "PreferNoSchedule"
        or any(_tolerates(one, taint) for one in pod.get("tolerations") or ())
        for taint in node.get("spec", {}).get("taints") or ()
    )


def _affinity_holds(pod: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(
        matches_expressions(term.get("matchExpressions") or (), labels)
        and matches_expressions(term.get("matchFields") or (), {"metadata.name": name})
        for term in required.get("nodeSelectorTerms") or ()
    )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")
