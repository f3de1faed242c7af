"""DaemonSets, as far as they go without kubelets: how many Nodes one is meant for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from local.base.clock import Clock
from local.kube.controllers.queue import Cluster, WorkQueue
from local.kube.kinds import Document
from local.kube.label_selectors import matches_expressions
from local.kube.resources import Resources
from local.kube.store import Change, Key, Record
from local.kube.users import controller

DAEMON_SETS = "daemonsets.apps"
_ALWAYS_TOLERATED = frozenset(
    f"node.kubernetes.io/{name}"
    for name in (
        "not-ready",
        "unreachable",
        "disk-pressure",
        "memory-pressure",
        "pid-pressure",
        "unschedulable",
    )
)
"""Taints that every DaemonSet's Pods tolerate (documented)."""


class DaemonSetController:
    """Counts ``desiredNumberScheduled``. It makes no Pods, so nothing is ever scheduled or ready."""

    def __init__(self, resources: Resources, clock: Clock, delay_s: float) -> None:
        self._cluster = Cluster(resources, controller("daemon-set-controller"))
        self._queue: WorkQueue[Key] = WorkQueue(clock, delay_s, self._reconcile)
        resources.store.listen(self._follow, DAEMON_SETS)
        resources.store.listen(self._follow_node, "nodes")

    def _recount(self) -> None:
        for record in self._cluster.store.records(DAEMON_SETS):
            self._queue.add(record.key)

    def _follow(self, change: Change) -> None:
        self._queue.add(change.record.key)

    def _follow_node(self, change: Change) -> None:
        if change.type != "MODIFIED" or _asked_of(change.record) != _asked_of(change.previous):
            self._recount()

    def _reconcile(self, key: Key) -> None:
        record = self._cluster.find(DAEMON_SETS, key)
        if record is None:
            return
        pod = record.document["spec"]["template"].get("spec") or {}
        nodes = [one.document for one in self._cluster.store.records("nodes")]
        count = sum(1 for node in nodes if is_meant_for(pod, node))
        generation = record.metadata["generation"]
        self._cluster.modify(
            DAEMON_SETS, key, lambda document: _count(document, count, generation), "status"
        )


def _asked_of(node: Record | None) -> object:
    """What `is_meant_for` looks at."""
    if node is None:
        return None
    return node.metadata.get("labels"), node.document.get("spec", {}).get("taints")


def _count(document: Document, desired: int, generation: int) -> None:
    status = {**(document.get("status") or {}), "desiredNumberScheduled": desired}
    document["status"] = {**status, "observedGeneration": generation}


def is_meant_for(pod: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether a DaemonSet's Pod of this spec may run on a Node."""
    return selects(pod, node) and tolerates_taints(pod, node, _ALWAYS_TOLERATED)


def selects(pod: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether a Node is one that a Pod of this spec asks for: selector, required affinity."""
    labels = node["metadata"].get("labels") or {}
    selector = pod.get("nodeSelector") or {}
    return all(labels.get(key) == value for key, value in selector.items()) and _affinity_holds(
        pod, labels, node["metadata"]["name"]
    )


def tolerates_taints(
    pod: Mapping[str, Any], node: Mapping[str, Any], always: frozenset[str] = frozenset()
) -> bool:
    """Whether a Pod of this spec tolerates a Node's taints, of which the keys ``always`` are nothing."""
    return all(
        taint["effect"] == "PreferNoSchedule"
        or taint["key"] in always
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
