"""Cells of Tables that take more than a path to find, as ``kubectl get`` prints them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from local.kube.formats import parse_time
from local.kube.kinds import Document

_MINUTE_S, _HOUR_S, _DAY_S, _YEAR_S = 60, 3600, 86400, 365 * 86400
_ROLE_PREFIX = "node-role.kubernetes.io/"
NONE, UNKNOWN = "<none>", "<unknown>"


def render_age(age: timedelta) -> str:
    """A duration as people read it: ``5m``, ``3h20m``, ``2d`` (k8s.io/apimachinery's rounding)."""
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
"""Up to how many seconds, the unit, the unit of the rest (0: none), and their letters."""


def _since(text: str | None, now: datetime) -> str:
    return render_age(now - parse_time(text)) if text else UNKNOWN


def _status(document: Document) -> Mapping[str, Any]:
    status: Mapping[str, Any] = document.get("status") or {}
    return status


def _age(document: Document, now: datetime) -> str:
    return _since(document["metadata"].get("creationTimestamp"), now)


def _data_count(document: Document, now: datetime) -> int:
    del now
    return len(document.get("data") or {}) + len(document.get("binaryData") or {})


def _role_ref(document: Document, now: datetime) -> str:
    del now
    return f"{document['roleRef']['kind']}/{document['roleRef']['name']}"


def _created_at(document: Document, now: datetime) -> str:
    del now
    return str(document["metadata"]["creationTimestamp"])


def _bound(kind: str) -> Cell:
    def cell(document: Document, now: datetime) -> str:
        del now
        subjects = [one for one in document.get("subjects") or () if one["kind"] == kind]
        in_namespaces = kind == "ServiceAccount"
        return ", ".join(
            f"{one.get('namespace', '')}/{one['name']}" if in_namespaces else one["name"]
            for one in subjects
        )

    return cell


# -- services and workloads ------------------------------------------------------------------------


def _spec(document: Document) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = document.get("spec") or {}
    return spec


def _labels(chosen: Mapping[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((chosen or {}).items())) or NONE


def _service_external_ip(document: Document, now: datetime) -> str:
    del now
    spec, addresses = _spec(document), list(_spec(document).get("externalIPs") or ())
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName", ""))
    balancer = _status(document).get("loadBalancer") or {}
    if spec.get("type") == "LoadBalancer":
        ingress = balancer.get("ingress") or ()
        addresses = [str(one.get("ip") or one.get("hostname")) for one in ingress] + addresses
        return ",".join(addresses) or "<pending>"
    return ",".join(addresses) or NONE


def _service_ports(document: Document, now: datetime) -> str:
    del now
    return (
        ",".join(
            f"{port['port']}{':' + str(port['nodePort']) if port.get('nodePort') else ''}"
            f"/{port.get('protocol', 'TCP')}"
            for port in _spec(document).get("ports") or ()
        )
        or NONE
    )


def _service_selector(document: Document, now: datetime) -> str:
    del now
    return _labels(_spec(document).get("selector"))


def _pod_spec(document: Document) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = document["spec"]["template"].get("spec", {})
    return spec


def _node_selector(document: Document, now: datetime) -> str:
    del now
    return _labels(_pod_spec(document).get("nodeSelector"))


def _containers(name: str) -> Cell:
    def cell(document: Document, now: datetime) -> str:
        del now
        return ",".join(one.get(name, "") for one in _pod_spec(document).get("containers") or ())

    return cell


def _selector(member: str) -> Cell:
    def cell(document: Document, now: datetime) -> str:
        del now
        return _render_selector(_spec(document).get(member) or {})

    return cell


def _render_selector(selector: Document) -> str:
    plain = sorted((selector.get("matchLabels") or {}).items())
    terms = [f"{key}={value}" for key, value in plain]
    for one in selector.get("matchExpressions") or ():
        values = f" ({','.join(one.get('values') or ())})"
        terms.append(
            {"Exists": one["key"], "DoesNotExist": f"!{one['key']}"}.get(
                one["operator"], f"{one['key']} {one['operator'].lower()}{values}"
            )
        )
    return ",".join(terms) or NONE


def _global_default(document: Document, now: datetime) -> bool:
    del now
    return bool(document.get("globalDefault"))


def _deployment_count(name: str) -> Cell:
    def cell(document: Document, now: datetime) -> int:
        del now
        return int(_status(document).get(name, 0))

    return cell


def _or_not_applicable(name: str) -> Cell:
    def cell(document: Document, now: datetime) -> str:
        del now
        return str(_spec(document).get(name, "N/A"))

    return cell


# -- admission policies ----------------------------------------------------------------------------

_UNSET = "<unset>"


def _validation_count(document: Document, now: datetime) -> int:
    del now
    return len(_spec(document).get("validations") or ())


def _param_kind(document: Document, now: datetime) -> str:
    del now
    kind = _spec(document).get("paramKind")
    return f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}" if kind else _UNSET


def _param_ref(document: Document, now: datetime) -> str:
    del now
    ref = _spec(document).get("paramRef")
    if not ref:
        return _UNSET
    return "/".join(str(ref[name]) for name in ("namespace", "name") if ref.get(name)) or "*"


# -- nodes -----------------------------------------------------------------------------------------


def _node_status(document: Document, now: datetime) -> str:
    del now
    conditions = {one["type"]: one["status"] for one in _status(document).get("conditions", ())}
    ready = {"True": "Ready", "False": "NotReady"}.get(conditions.get("Ready", ""), "NotReady")
    words = [ready if "Ready" in conditions else "Unknown"]
    if document.get("spec", {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(document: Document, now: datetime) -> str:
    del now
    labels = document["metadata"].get("labels") or {}
    roles = {label.removeprefix(_ROLE_PREFIX) for label in labels if label.startswith(_ROLE_PREFIX)}
    roles |= {value for label, value in labels.items() if label == "kubernetes.io/role" and value}
    return ",".join(sorted(roles)) or NONE


def _node_address(type_: str) -> Cell:
    def cell(document: Document, now: datetime) -> str:
        del now
        addresses = _status(document).get("addresses", ())
        return next((one["address"] for one in addresses if one["type"] == type_), NONE)

    return cell


def _node_info(name: str) -> Cell:
    def cell(document: Document, now: datetime) -> str:
        del now
        return str(_status(document).get("nodeInfo", {}).get(name) or UNKNOWN)

    return cell


# -- pods ------------------------------------------------------------------------------------------


def _pod_ready(document: Document, now: datetime) -> str:
    del now
    statuses = _status(document).get("containerStatuses", ())
    ready = sum(1 for one in statuses if one.get("ready"))
    return f"{ready}/{len(document['spec'].get('containers', ()))}"


def _pod_status(document: Document, now: datetime) -> str:
    del now
    if "deletionTimestamp" in document["metadata"]:
        return "Terminating"
    status = _status(document)
    states = (one.get("state") or {} for one in status.get("containerStatuses") or ())
    ended = [state["terminated"].get("reason") for state in states if state.get("terminated")]
    return str(next(filter(None, ended), status.get("reason") or status.get("phase") or ""))


def _pod_restarts(document: Document, now: datetime) -> str:
    del now
    statuses = _status(document).get("containerStatuses", ())
    return str(sum(one.get("restartCount", 0) for one in statuses))


def _or_none(*path: str) -> Cell:
    def cell(document: Document, now: datetime) -> str:
        del now
        value: Any = document
        for name in path:
            value = (value or {}).get(name)
        return str(value or NONE)

    return cell


# -- events ----------------------------------------------------------------------------------------


def _event_last_seen(document: Document, now: datetime) -> str:
    series = document.get("series") or {}
    last = (
        series.get("lastObservedTime") or document.get("lastTimestamp") or document.get("eventTime")
    )
    return _since(last, now)


def _event_first_seen(document: Document, now: datetime) -> str:
    return _since(document.get("firstTimestamp") or document.get("eventTime"), now)


def _event_object(document: Document, now: datetime) -> str:
    del now
    about = document.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _event_source(document: Document, now: datetime) -> str:
    del now
    source = document.get("source") or {}
    component = source.get("component") or document.get("reportingComponent") or ""
    host = source.get("host") or document.get("reportingInstance") or ""
    return f"{component}, {host}" if host else str(component)


def _event_count(document: Document, now: datetime) -> int:
    del now
    series = document.get("series") or {}
    return int(series.get("count") or document.get("count") or 1)


# -- the rest --------------------------------------------------------------------------------------


def _csr_condition(document: Document, now: datetime) -> str:
    del now
    types = {one["type"] for one in _status(document).get("conditions", ())}
    words = [type_ for type_ in ("Denied", "Approved", "Failed") if type_ in types] or ["Pending"]
    if _status(document).get("certificate"):
        words.append("Issued")
    return ",".join(words)


def _csr_duration(document: Document, now: datetime) -> str:
    del now
    seconds = document["spec"].get("expirationSeconds")
    return render_age(timedelta(seconds=seconds)) if seconds else NONE


def _deployment_ready(document: Document, now: datetime) -> str:
    del now
    wanted = document["spec"].get("replicas", 1)
    return f"{_status(document).get('readyReplicas', 0)}/{wanted}"


def _job_status(document: Document, now: datetime) -> str:
    del now
    conditions = {one["type"]: one["status"] for one in _status(document).get("conditions") or ()}
    ended = (kind for kind in ("Complete", "Failed") if conditions.get(kind) == "True")
    if "deletionTimestamp" in document["metadata"]:
        return "Terminating"
    return next(ended, "Suspended" if _spec(document).get("suspend") else "Running")


def _job_completions(document: Document, now: datetime) -> str:
    del now
    return f"{_status(document).get('succeeded', 0)}/{_spec(document).get('completions', 1)}"


def _job_duration(document: Document, now: datetime) -> str:
    status = _status(document)
    if "startTime" not in status:
        return ""
    ended = parse_time(status["completionTime"]) if "completionTime" in status else now
    return _since(status["startTime"], ended)


Cell = Callable[[Document, datetime], Any]

CELLS: dict[str, Cell] = {
    "age": _age,
    "data_count": _data_count,
    "created_at": _created_at,
    "role_ref": _role_ref,
    "bound_users": _bound("User"),
    "bound_groups": _bound("Group"),
    "bound_accounts": _bound("ServiceAccount"),
    "service_external_ip": _service_external_ip,
    "service_ports": _service_ports,
    "service_selector": _service_selector,
    "node_selector": _node_selector,
    "container_names": _containers("name"),
    "container_images": _containers("image"),
    "workload_selector": _selector("selector"),
    "pod_selector": _selector("podSelector"),
    "global_default": _global_default,
    "deployment_updated": _deployment_count("updatedReplicas"),
    "deployment_available": _deployment_count("availableReplicas"),
    "min_available": _or_not_applicable("minAvailable"),
    "max_unavailable": _or_not_applicable("maxUnavailable"),
    "validation_count": _validation_count,
    "param_kind": _param_kind,
    "param_ref": _param_ref,
    "node_status": _node_status,
    "node_roles": _node_roles,
    "node_internal_ip": _node_address("InternalIP"),
    "node_external_ip": _node_address("ExternalIP"),
    "node_os_image": _node_info("osImage"),
    "node_kernel": _node_info("kernelVersion"),
    "node_runtime": _node_info("containerRuntimeVersion"),
    "pod_ready": _pod_ready,
    "pod_status": _pod_status,
    "pod_restarts": _pod_restarts,
    "pod_ip": _or_none("status", "podIP"),
    "pod_node": _or_none("spec", "nodeName"),
    "pod_nominated": _or_none("status", "nominatedNodeName"),
    "pod_gates": _or_none("spec", "readinessGates"),
    "event_last_seen": _event_last_seen,
    "event_first_seen": _event_first_seen,
    "event_object": _event_object,
    "event_source": _event_source,
    "event_count": _event_count,
    "csr_condition": _csr_condition,
    "csr_duration": _csr_duration,
    "deployment_ready": _deployment_ready,
    "job_status": _job_status,
    "job_completions": _job_completions,
    "job_duration": _job_duration,
}
"""The functions that ``=name`` in a row of ``builtin.yaml`` stands for."""
