"""The scheduler: the Node of a Pod, or why no Node fits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from local.jobsets.objects import (
    CHIPS,
    PODS,
    Call,
    Document,
    condition,
    count_chips,
    is_deleting,
    patch,
    patch_status,
    with_condition,
)
from local.kube.label_selectors import matches_expressions
from local.kube.placement import selects, tolerates_taints

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class Board:
    """The Nodes and their Pods during a pass of the scheduler."""

    def __init__(self, nodes: Sequence[Document], pods: Sequence[Document]) -> None:
        self.nodes = nodes
        self._placed: list[tuple[Document, Document]] = []
        self._used: Counter[str] = Counter()
        by_name = {node["metadata"]["name"]: node for node in nodes}
        for pod in pods:
            node = by_name.get(pod["spec"].get("nodeName", ""))
            if node is not None and not _has_ended(pod):
                self.put(pod, node)

    def put(self, pod: Document, node: Document) -> None:
        """Assign a Pod to a Node."""
        self._placed.append((pod, node))
        self._used[node["metadata"]["name"]] += _chips(pod)

    def find_obstacle(self, pod: Document, node: Document) -> str:
        """Why a Pod does not fit a Node, as the scheduler prints it; empty if it fits."""
        spec = pod["spec"]
        if not selects(spec, node):
            return "node(s) didn't match Pod's node affinity/selector"
        if not tolerates_taints(spec, node):
            return "node(s) had untolerated taint(s)"
        chips = ((node.get("status") or {}).get("allocatable") or {}).get(CHIPS, 0)
        free = int(chips) - self._used[node["metadata"]["name"]]
        if _chips(pod) > free:
            return f"Insufficient {CHIPS}"
        affinity = spec.get("affinity") or {}
        if not all(
            self._is_near(pod, node, term)
            for term in (affinity.get("podAffinity") or {}).get(_REQUIRED) or ()
        ):
            return "node(s) didn't match pod affinity rules"
        if any(
            self._has_neighbour(pod, node, term)
            for term in (affinity.get("podAntiAffinity") or {}).get(_REQUIRED) or ()
        ):
            return "node(s) didn't match pod anti-affinity rules"
        return ""

    def _is_near(self, pod: Document, node: Document, term: Mapping[str, Any]) -> bool:
        if self._has_neighbour(pod, node, term):
            return True
        # The first Pod with a required affinity to its own group fits any domain (documented).
        is_first = not any(_matches(other, pod, term) for other, _ in self._placed)
        has_domain = term["topologyKey"] in (node["metadata"].get("labels") or {})
        return is_first and has_domain and _matches(pod, pod, term)

    def _has_neighbour(self, pod: Document, node: Document, term: Mapping[str, Any]) -> bool:
        domain = (node["metadata"].get("labels") or {}).get(term["topologyKey"])
        return domain is not None and any(
            (there["metadata"].get("labels") or {}).get(term["topologyKey"]) == domain
            and _matches(other, pod, term)
            for other, there in self._placed
        )


def step(pods: Sequence[Document], nodes: Sequence[Document], now: datetime) -> Iterator[Call]:
    """Decide the calls of one pass over the pending Pods."""
    board = Board(nodes, pods)
    for pod in pods:
        if is_deleting(pod) or _has_ended(pod):
            continue
        if pod["spec"].get("nodeName"):
            conditions = with_condition(pod, "PodScheduled", "True", "", "", now)
            yield from patch_status(PODS, pod, {"conditions": conditions})
            continue
        obstacles: Counter[str] = Counter()
        for node in nodes:
            obstacle = board.find_obstacle(pod, node)
            if not obstacle:
                # By a change of the Pod: the embedded API has no bindings.
                yield patch(PODS, pod, {"spec": {"nodeName": node["metadata"]["name"]}})
                board.put(pod, node)
                break
            obstacles[obstacle] += 1
        else:
            yield from _leave(pod, len(nodes), obstacles, now)


def _leave(pod: Document, count: int, obstacles: Counter[str], now: datetime) -> Iterator[Call]:
    message = "no nodes available to schedule pods"
    if count:
        why = ", ".join(f"{number} {reason}" for reason, number in sorted(obstacles.items()))
        message = f"0/{count} nodes are available: {why}."
    # While only the numbers differ, the former ones stay: hundreds of Pods may wait while Nodes come and
    # go, and the scheduler does not try all of them at each change.
    known = condition(pod, "PodScheduled") or {}
    if known.get("reason") == "Unschedulable" and _words(known.get("message", "")) == _words(
        message
    ):
        return
    conditions = with_condition(pod, "PodScheduled", "False", "Unschedulable", message, now)
    yield from patch_status(PODS, pod, {"conditions": conditions})


def _words(message: str) -> str:
    return re.sub(r"\d+", "", message)


def _matches(other: Document, pod: Document, term: Mapping[str, Any]) -> bool:
    """Whether a term of ``pod`` selects ``other``; an empty namespace selector selects all."""
    is_seen = (
        "namespaceSelector" in term
        or other["metadata"]["namespace"] == pod["metadata"]["namespace"]
    )
    selector = term.get("labelSelector") or {}
    labels = other["metadata"].get("labels") or {}
    return (
        is_seen
        and all(
            labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()
        )
        and matches_expressions(selector.get("matchExpressions") or (), labels)
    )


def _chips(pod: Document) -> int:
    """The chips that a Pod needs: its containers' and sidecars', or more for an init container with the
    sidecars before it.

    https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
    """
    most = sidecars = 0
    for container in pod["spec"].get("initContainers") or ():
        most = max(most, sidecars + count_chips(container))
        sidecars += count_chips(container) * (container.get("restartPolicy") == "Always")
    return max(most, sidecars + sum(map(count_chips, pod["spec"]["containers"])))


def _has_ended(pod: Document) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
