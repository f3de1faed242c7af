"""Node lifecycle: missing heartbeats, and the taints that follow from a Node's conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from local.base.clock import Clock, Timer
from local.kube.controllers.queue import Cluster, WorkQueue
from local.kube.formats import parse_time, render_time
from local.kube.kinds import Document
from local.kube.node_authorizer import LEASE_NAMESPACE
from local.kube.resources import Resources
from local.kube.store import Change, Record
from local.kube.users import controller

LEASES = "leases.coordination.k8s.io"
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_CONDITION_TAINTS = {
    ("Ready", "False"): NOT_READY,
    ("Ready", "Unknown"): UNREACHABLE,
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
}
_STARTUP_GRACE = timedelta(seconds=60)
"""The time that a Node has for its first heartbeat."""
_EVICTING = frozenset({NOT_READY, UNREACHABLE})
_OWN_TAINTS = frozenset({*_CONDITION_TAINTS.values(), UNSCHEDULABLE})
_WATCHED_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


class NodeLifecycleController:
    """Watches heartbeats, sets conditions to Unknown, and sets taints by conditions.

    A heartbeat is a renewed Lease or a Ready condition with a new heartbeat time. After ``grace_s``
    without one, conditions become Unknown.
    """

    def __init__(self, resources: Resources, clock: Clock, grace_s: float) -> None:
        self._cluster = Cluster(resources, controller("node-controller"))
        self._clock = clock
        self._grace = timedelta(seconds=grace_s)
        self._heard: dict[str, datetime] = {}
        self._timers: dict[str, Timer] = {}
        self._queue: WorkQueue[str] = WorkQueue(clock, self._reconcile)
        resources.store.listen(self._follow_node, "nodes")
        resources.store.listen(self._follow_lease, LEASES)

    def _follow_node(self, change: Change) -> None:
        name = change.record.key[1]
        if change.type == "DELETED":
            self._heard.pop(name, None)
            self._cancel(name)
            return
        if change.previous is None or _heartbeat(change.previous) != _heartbeat(change.record):
            self._heard[name] = self._clock.now()
        self._queue.add(name)

    def _follow_lease(self, change: Change) -> None:
        namespace, name = change.record.key
        renewed = change.previous is None or _renewed(change.previous) != _renewed(change.record)
        if namespace == LEASE_NAMESPACE and change.type != "DELETED" and renewed:
            self._heard[name] = self._clock.now()

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _reconcile(self, name: str) -> None:
        record = self._cluster.find("nodes", ("", name))
        if record is None:
            return
        now = self._clock.now()
        if _ready(record) != "Unknown":
            self._check_heartbeat(record, name, now)
        self._cluster.modify("nodes", record.key, lambda node: set_taints(node, now))

    def _check_heartbeat(self, record: Record, name: str, now: datetime) -> None:
        if _ready(record):
            silent_at = self._heard.get(name, now) + self._grace
        else:
            silent_at = parse_time(record.metadata["creationTimestamp"]) + _STARTUP_GRACE
        if silent_at <= now:
            self._cluster.modify("nodes", record.key, lambda node: set_unknown(node, now), "status")
            return
        self._cancel(name)
        self._timers[name] = self._clock.call_later(
            (silent_at - now).total_seconds(), lambda: self._queue.add(name)
        )


def _conditions(document: Mapping[str, Any]) -> list[Document]:
    return list((document.get("status") or {}).get("conditions") or ())


def _ready_condition(record: Record) -> Mapping[str, Any]:
    return next((one for one in _conditions(record.document) if one["type"] == "Ready"), {})


def _ready(record: Record) -> str:
    return str(_ready_condition(record).get("status", ""))


def _heartbeat(record: Record) -> tuple[Any, Any]:
    condition = _ready_condition(record)
    return condition.get("lastHeartbeatTime"), condition.get("status")


def _renewed(record: Record) -> Any:
    return (record.document.get("spec") or {}).get("renewTime")


def set_unknown(node: Document, now: datetime) -> None:
    """Set the conditions of a Node without heartbeats to Unknown."""
    known = {one["type"]: one for one in _conditions(node)}
    others = [one for one in _conditions(node) if one["type"] not in _WATCHED_CONDITIONS]
    unknown = [_unknown(type_, known.get(type_), node, now) for type_ in _WATCHED_CONDITIONS]
    node["status"] = {**(node.get("status") or {}), "conditions": [*others, *unknown]}


def _unknown(type_: str, known: Document | None, node: Document, now: datetime) -> Document:
    if known is None:
        return {
            "type": type_,
            "status": "Unknown",
            "reason": "NodeStatusNeverUpdated",
            "message": "Kubelet never posted node status.",
            "lastHeartbeatTime": node["metadata"]["creationTimestamp"],
            "lastTransitionTime": render_time(now),
        }
    return {
        **known,
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.",
        "lastTransitionTime": render_time(now),
    }


def set_taints(node: Document, now: datetime) -> None:
    """Set the taints that this controller owns by the conditions and ``unschedulable``."""
    spec = node.get("spec") or {}
    present = spec.get("taints") or []
    wanted = list(_wanted_taints(node))
    remaining = [
        taint
        for taint in present
        if taint["key"] not in _OWN_TAINTS or (taint["key"], taint["effect"]) in wanted
    ]
    existing = {(taint["key"], taint["effect"]) for taint in remaining}
    new = [_taint(key, effect, now) for key, effect in wanted if (key, effect) not in existing]
    if remaining + new != present:
        node["spec"] = {**spec, "taints": remaining + new}


def _wanted_taints(node: Document) -> Iterator[tuple[str, str]]:
    conditions = _conditions(node)
    keys = [
        _CONDITION_TAINTS[one["type"], one["status"]]
        for one in conditions
        if (one["type"], one["status"]) in _CONDITION_TAINTS
    ]
    if not any(one["type"] == "Ready" for one in conditions):
        yield NOT_READY, "NoSchedule"
    for key in keys:
        yield key, "NoSchedule"
        if key in _EVICTING:
            yield key, "NoExecute"
    if (node.get("spec") or {}).get("unschedulable"):
        yield UNSCHEDULABLE, "NoSchedule"


def _taint(key: str, effect: str, now: datetime) -> Document:
    taint = {"key": key, "effect": effect}
    timed = effect == "NoExecute" or key == UNSCHEDULABLE
    return {**taint, "timeAdded": render_time(now)} if timed else taint
