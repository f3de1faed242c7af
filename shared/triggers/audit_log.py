"""Parse the audit log entries that a log sink publishes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shared.base.names import NODE_POOLS, VMS, is_dns_label
from shared.triggers.message import PoisonError

_VERSION_PREFIX = re.compile(r"^(v1|beta|alpha)\.")
_RESOURCE_NAME = re.compile(r"tng-[-a-z0-9]*-[0-9a-f]{8}")
_VM_NAME = re.compile(rf"{_RESOURCE_NAME.pattern}-[a-z0-9]{{4}}")
_SLICE_NAME = re.compile(r"[a-z0-9][-a-z0-9]*-[0-9a-f]{16}")
_PATH = re.compile(
    r"projects/(?P<project>[^/]+)/"
    r"(?:global|(?:zones|regions)/(?P<location>[^/]+))/"
    r"(?P<kind>instances|instanceTemplates|instanceGroupManagers|resourcePolicies)/(?P<name>[^/]+)"
)


@dataclass(frozen=True)
class LogEvent:
    """The end of an operation, from an audit log entry.

    ``method`` has no API version. ``name`` is the resource's, ``kind`` its collection in the API, such
    as ``instances`` or ``nodePools``. ``location`` is the zone or region (empty: global), or the
    location of a node pool's cluster. ``has_failed``: the operation has failed; ``words`` is then the
    entry's error message. ``cluster`` is a node pool's. ``operation`` is the id in the entry, which for
    Compute Engine is the operation's name (a guess from recorded entries; it only saves reads).
    """

    method: str
    project: str
    location: str
    name: str
    kind: str
    has_failed: bool = False
    words: str = ""
    cluster: str = ""
    operation: str = ""

    @property
    def concerns_vm(self) -> bool:
        return self.kind == VMS

    @property
    def resource_name(self) -> str:
        """The name of the group's resources: a VM's name without its random suffix."""
        return self.name.rsplit("-", 1)[0] if self.concerns_vm else self.name

    @property
    def has_managed_name(self) -> bool:
        """Whether the name has the form of those that this system gives to such resources."""
        form = {VMS: _VM_NAME, NODE_POOLS: _SLICE_NAME}.get(self.kind, _RESOURCE_NAME)
        return form.fullmatch(self.name) is not None and is_dns_label(self.name)


def parse_entry(entry: Mapping[str, Any]) -> tuple[LogEvent | None, str]:
    """Parse an entry; ``None`` and a note if it triggers no step. Raises `PoisonError`."""
    payload, operation = _part(entry, "protoPayload"), _part(entry, "operation")
    service, method = payload.get("serviceName"), str(payload.get("methodName") or "")
    read = _SERVICES.get(str(service))
    if read is None:
        return None, f"an entry of {service or 'no service'}"
    method = _VERSION_PREFIX.sub("", method)
    if not operation.get("last"):
        return None, f"{method}: not the end of an operation"
    labels = _part(_part(entry, "resource"), "labels")
    event = read(method, str(payload.get("resourceName") or ""), labels)
    if event is None:
        return None, f"{method}: no resource that has steps"
    status = _part(payload, "status")
    code = status.get("code")
    words = str(status.get("message") or (f"error code {code}" if code else ""))
    id_ = str(operation.get("id") or "")
    return replace(event, has_failed=bool(code), words=words, operation=id_), ""


def _read_compute(method: str, resource: str, labels: Mapping[str, Any]) -> LogEvent | None:
    path = _PATH.fullmatch(resource)
    if path is None:
        return None
    project = str(labels.get("project_id") or path["project"])
    return LogEvent(method, project, path["location"] or "", path["name"], path["kind"])


def _read_container(method: str, _resource: str, labels: Mapping[str, Any]) -> LogEvent | None:
    """Read the labels of ``gke_nodepool``: the format of the resource's name is not documented."""
    known = _NODE_POOL_METHODS.get(method.rpartition(".")[2])
    names = ("project_id", "location", "nodepool_name", "cluster_name")
    project, location, pool, cluster = (str(labels.get(name) or "") for name in names)
    if known is None or not (location and pool and cluster):
        return None
    return LogEvent(known, project, location, pool, NODE_POOLS, cluster=cluster)


_NODE_POOL_METHODS = {
    "CreateNodePool": "container.nodePools.create",
    "DeleteNodePool": "container.nodePools.delete",
    "UpdateNodePool": "container.nodePools.update",
}
_SERVICES = {"compute.googleapis.com": _read_compute, "container.googleapis.com": _read_container}


def _part(holder: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object inside an entry; empty if it is absent."""
    part = holder.get(name) or {}
    if not isinstance(part, dict):
        raise PoisonError(f"{name!r} is {type(part).__name__}; in a LogEntry it is an object")
    return part
