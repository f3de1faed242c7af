"""Computed cells of Tables, as ``kubectl get`` prints them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from local.kube.formats import parse_time
from local.kube.kinds import Document

Cell = Callable[[Document, datetime], Any]

_MINUTE_S, _HOUR_S, _DAY_S, _YEAR_S = 60, 3600, 86400, 365 * 86400
_ROLE_PREFIX = "node-role.kubernetes.io/"
NONE, UNKNOWN = "<none>", "<unknown>"


def render_age(age: timedelta) -> str:
    """Render a duration: ``5m``, ``3h20m``, ``2d`` (with the rounding of k8s.io/apimachinery)."""
    seconds = int(age.total_seconds())
    if seconds < 0:
        return "0s" if seconds >= -1 else "<invalid>"
    for below, unit, rest, units in _AGES:
        if seconds < below:
            whole, left = divmod(seconds, unit)
            part = left // rest if rest else 0
            return f"{whole}{units[0]}{part}{units[1]}" if part else f"{whole}{units[0]}"
    return f"{seconds // _YEAR_S}y"


_AGES = (
    (2 * _MINUTE_S, 1, 0, "s"),
    (10 * _MINUTE_S, _MINUTE_S, 1, "ms"),
    (3 * _HOUR_S, _MINUTE_S, 0, "m"),
    (8 * _HOUR_S, _HOUR_S, _MINUTE_S, "hm"),
    (2 * _DAY_S, _HOUR_S, 0, "h"),
    (8 * _DAY_S, _DAY_S, _HOUR_S, "dh"),
    (2 * _YEAR_S, _DAY_S, 0, "d"),
    (8 * _YEAR_S, _YEAR_S, _DAY_S, "yd"),
)
"""The upper limit in seconds, the unit, the unit of the remainder (0: none), and their letters."""


def _since(text: str | None, now: datetime) -> str:
    return render_age(now - parse_time(text)) if text else UNKNOWN


def _status(document: Document) -> Mapping[str, Any]:
    status: Mapping[str, Any] = document.get("status") or {}
    return status


def _conditions(document: Document) -> dict[str, str]:
    return {one["type"]: one["status"] for one in _status(document).get("conditions") or ()}


def _data_count(document: Document, _: datetime) -> int:
    return len(document.get("data") or {}) + len(document.get("binaryData") or {})


def _role_ref(document: Document, _: datetime) -> str:
    return f"{document['roleRef']['kind']}/{document['roleRef']['name']}"


def _node_status(document: Document, _: datetime) -> str:
    ready = {None: "Unknown", "True": "Ready"}
    words = [ready.get(_conditions(document).get("Ready"), "NotReady")]
    if document.get("spec", {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(document: Document, _: datetime) -> str:
    labels = document["metadata"].get("labels") or {}
    roles = {label.removeprefix(_ROLE_PREFIX) for label in labels if label.startswith(_ROLE_PREFIX)}
    return ",".join(sorted(roles)) or NONE


def _pod_ready(document: Document, _: datetime) -> str:
    statuses = _status(document).get("containerStatuses", ())
    ready = sum(1 for one in statuses if one.get("ready"))
    return f"{ready}/{len(document['spec'].get('containers', ()))}"


def _pod_status(document: Document, _: datetime) -> str:
    if "deletionTimestamp" in document["metadata"]:
        return "Terminating"
    status = _status(document)
    states = (one.get("state") or {} for one in status.get("containerStatuses") or ())
    ended = [state["terminated"].get("reason") for state in states if state.get("terminated")]
    return str(next(filter(None, ended), status.get("reason") or status.get("phase") or ""))


def _pod_restarts(document: Document, _: datetime) -> str:
    statuses = _status(document).get("containerStatuses", ())
    return str(sum(one.get("restartCount", 0) for one in statuses))


def _event_last_seen(document: Document, now: datetime) -> str:
    last = (document.get("series") or {}).get("lastObservedTime")
    return _since(last or document.get("lastTimestamp") or document.get("eventTime"), now)


def _event_object(document: Document, _: datetime) -> str:
    about = document.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _csr_condition(document: Document, _: datetime) -> str:
    types = _conditions(document)
    decided: list[str] = [one for one in ("Denied", "Approved", "Failed") if one in types]
    words = decided or ["Pending"]
    if _status(document).get("certificate"):
        words.append("Issued")
    return ",".join(words)


def _csr_duration(document: Document, _: datetime) -> str:
    seconds = document["spec"].get("expirationSeconds")
    return render_age(timedelta(seconds=seconds)) if seconds else NONE


def _replicas_ready(document: Document, _: datetime) -> str:
    return f"{_status(document).get('readyReplicas', 0)}/{document['spec'].get('replicas', 1)}"


def _job_status(document: Document, _: datetime) -> str:
    conditions = _conditions(document)
    ended = (kind for kind in ("Complete", "Failed") if conditions.get(kind) == "True")
    if "deletionTimestamp" in document["metadata"]:
        return "Terminating"
    return next(ended, "Suspended" if document["spec"].get("suspend") else "Running")


def _job_completions(document: Document, _: datetime) -> str:
    return f"{_status(document).get('succeeded', 0)}/{document['spec'].get('completions', 1)}"


def _job_duration(document: Document, now: datetime) -> str:
    status = _status(document)
    if "startTime" not in status:
        return ""
    ended = parse_time(status["completionTime"]) if "completionTime" in status else now
    return _since(status["startTime"], ended)


CELLS: dict[str, Cell] = {
    "data_count": _data_count,
    "role_ref": _role_ref,
    "node_status": _node_status,
    "node_roles": _node_roles,
    "pod_ready": _pod_ready,
    "pod_status": _pod_status,
    "pod_restarts": _pod_restarts,
    "event_last_seen": _event_last_seen,
    "event_object": _event_object,
    "csr_condition": _csr_condition,
    "csr_duration": _csr_duration,
    "replicas_ready": _replicas_ready,
    "job_status": _job_status,
    "job_completions": _job_completions,
    "job_duration": _job_duration,
}
"""The functions that rows of ``builtin.yaml`` name as ``=name``."""
