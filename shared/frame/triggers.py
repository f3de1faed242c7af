"""What wakes a step: a push envelope becomes an `Occasion`.

Two kinds of message come in (docs/how-it-works.md): our own (`Message`, from the relay, the sweep,
a step, the replay tool) and a Cloud Logging entry as a log sink publishes it. An occasion says
where to look and why; it never says what to do.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from shared.base.names import KIND
from shared.base.timestamps import parse_time

MESSAGE_VERSION = 1
MAX_NAMES = 100
"""Names of Nodes or VMs in one message; more names make more messages."""
BATCH = 20
"""VMs in one message to ``inject_token``: each costs a few calls, and an invocation has 30 seconds."""
SWEEP_KIND = "Sweep"
"""What the Scheduler publishes every minute: ``{"version": 1, "kind": "Sweep"}``."""
POD_KIND, JOBSET_KIND, SLICE_KIND = "Pod", "JobSet", "Slice"
"""What the messages to the steps of JobSets are about; a slice goes by its JobSet's namespace."""
_KINDS = (KIND, POD_KIND, JOBSET_KIND, SLICE_KIND)
_KINDS_OF = {
    "provision_slice": frozenset({POD_KIND, SWEEP_KIND}),
    "release_slice": frozenset({JOBSET_KIND, SLICE_KIND, SWEEP_KIND}),
    "sweep": frozenset({SWEEP_KIND}),
}
_OF_GROUPS = frozenset({KIND})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VERSION_PREFIX = re.compile(r"^(v1|beta|alpha)\.")
_RESOURCE_NAME = re.compile(r"^tng-.*-[0-9a-f]{8}$")
_VM_NAME = re.compile(r"^tng-.*-[0-9a-f]{8}-[a-z0-9]{4}$")
_SLICE_NAME = re.compile(r"^[a-z0-9][-a-z0-9]*-[0-9a-f]{16}$")
_PATH = re.compile(
    r"^projects/(?P<project>[^/]+)/"
    r"(?:global|(?:zones|regions)/(?P<location>[^/]+))/"
    r"(?:instances|instanceTemplates|instanceGroupManagers|resourcePolicies)/(?P<name>[^/]+)$"
)


class Cause(StrEnum):
    """Why somebody should look: a word for the log. Only ``Sync`` is treated apart."""

    ADDED = "Added"
    UNSCHEDULABLE = "Unschedulable"
    COMPLETED = "Completed"
    FAILED = "Failed"
    GONE = "Gone"
    SPEC_CHANGED = "SpecChanged"
    METADATA_CHANGED = "MetadataChanged"
    DELETING = "Deleting"
    NODES_CHANGED = "NodesChanged"
    SYNC = "Sync"
    VMS_NEED_TOKENS = "VMsNeedTokens"
    FORWARDED = "Forwarded"


@dataclass(frozen=True)
class Message:
    """An occasion to look at one object, a TPUNodeGroup if nothing else is said, as this system
    publishes it.

    ``nodes`` and ``vms`` are names (at most `MAX_NAMES` together), ``at`` is when the sender saw
    what it tells of.
    """

    namespace: str
    name: str
    uid: str
    cause: Cause
    at: datetime
    nodes: tuple[str, ...] = field(default=())
    vms: tuple[str, ...] = field(default=())
    kind: str = KIND

    def encode(self) -> bytes:
        """The message's data, in JSON."""
        document: dict[str, Any] = {
            "version": MESSAGE_VERSION,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "cause": str(self.cause),
            "at": self.at.isoformat().replace("+00:00", "Z"),
        }
        if self.nodes:
            document["nodes"] = list(self.nodes)
        if self.vms:
            document["vms"] = list(self.vms)
        return json.dumps(document, separators=(",", ":")).encode()

    def attributes(self, cluster: str) -> dict[str, str]:
        """The message's attributes: enough for a person to filter by."""
        return {"cluster": cluster, "cause": str(self.cause)}


@dataclass(frozen=True)
class LogEvent:
    """What an audit log entry says: ``method`` without its API version, ``name`` the resource's.

    ``location`` is the zone or region (empty: global), of a node pool its cluster's. ``has_failed`` is
    set when the operation ended badly. ``words`` is what the entry itself says of the cause, for a
    person. ``cluster`` is a node pool's.
    """

    method: str
    project: str
    location: str
    name: str
    has_failed: bool = False
    words: str = ""
    cluster: str = ""

    @property
    def concerns_vm(self) -> bool:
        return self.method.startswith("compute.instances.")

    @property
    def resource_name(self) -> str:
        """The name that the group's resources bear: a VM's name without its random end."""
        return self.name.rsplit("-", 1)[0] if self.concerns_vm else self.name


@dataclass(frozen=True)
class Occasion:
    """Where to look, and why: from a message of ours or from an entry of the audit log."""

    cause: str
    at: datetime
    message: Message | None = None
    event: LogEvent | None = None

    @property
    def is_sync(self) -> bool:
        return self.message is not None and self.message.cause is Cause.SYNC

    @property
    def kind(self) -> str:
        """What a message is about; empty for an entry of the audit log."""
        if self.message is not None:
            return self.message.kind
        return SWEEP_KIND if self.event is None else ""

    def is_for(self, step: str) -> bool:
        """Whether a step has anything to do with it."""
        if self.event is not None:
            return step in find_steps(self.event)
        return self.kind in _KINDS_OF.get(step, _OF_GROUPS)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of Nodes that have changed."""
        return self.message.nodes if self.message else ()

    @property
    def vms(self) -> tuple[str, ...]:
        """Names of VMs that something has happened to."""
        if self.event is not None:
            return (self.event.name,) if self.event.concerns_vm else ()
        return self.message.vms if self.message else ()


@dataclass(frozen=True)
class Delivery:
    """One push: what it says, and what Pub/Sub says about it. ``attempt`` is 0 when not given.

    ``occasion`` is ``None`` for an entry that wakes nobody; ``note`` then says why.
    """

    message_id: str
    attempt: int
    published: datetime | None
    occasion: Occasion | None
    note: str = ""


class PoisonError(Exception):
    """A message that can never be understood; the text names its id and what would be right."""


def decode(body: bytes) -> Delivery:
    """Read a push request's body. Raises `PoisonError`."""
    envelope = _json(body, "the push request")
    message = envelope.get("message")
    if not isinstance(message, dict):
        raise PoisonError("the push request has no 'message'; it must be a Pub/Sub push envelope")
    message_id = _message_id(message)
    published = _find_time(message.get("publishTime") or message.get("publish_time"))
    data = _data(message, message_id)
    document = _json(data, f"message {message_id}")
    attempt = envelope.get("deliveryAttempt")
    occasion, note = _occasion(document, message_id, published)
    return Delivery(
        message_id, attempt if isinstance(attempt, int) else 0, published, occasion, note
    )


def find_message_id(body: bytes) -> str:
    """The id in a push request's body, whatever else is wrong with it; ``unknown`` if it has none."""
    try:
        message = _json(body, "the push request").get("message")
    except PoisonError:
        message = None
    return _message_id(message) if isinstance(message, dict) else "unknown"


def _message_id(message: dict[str, Any]) -> str:
    return str(message.get("messageId") or message.get("message_id") or "unknown")


def _json(raw: bytes, what: str) -> dict[str, Any]:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise PoisonError(f"{what} is no JSON: {error}; it must be a JSON object") from error
    if not isinstance(document, dict):
        raise PoisonError(f"{what} is {type(document).__name__}; it must be a JSON object")
    return document


def _data(message: dict[str, Any], message_id: str) -> bytes:
    try:
        return base64.b64decode(message.get("data") or "", validate=True)
    except (ValueError, TypeError) as error:
        raise PoisonError(f"message {message_id}: 'data' is no base64: {error}") from error


def _find_time(text: Any) -> datetime | None:
    try:
        return parse_time(text) if text else None
    except (ValueError, TypeError, OverflowError):
        return None


def _occasion(
    document: dict[str, Any], message_id: str, published: datetime | None
) -> tuple[Occasion | None, str]:
    if "protoPayload" in document or "logName" in document:
        return _read_log_entry(document, message_id)
    return _read_message(document, message_id, published), ""


def _read_message(
    document: dict[str, Any], message_id: str, published: datetime | None
) -> Occasion:
    version, kind = document.get("version"), document.get("kind")
    if version != MESSAGE_VERSION:
        raise PoisonError(
            f"message {message_id}: version {version!r} is not known; it must be {MESSAGE_VERSION}"
        )
    at = _find_time(document.get("at")) or published
    if kind == SWEEP_KIND:
        return Occasion(SWEEP_KIND, at or _EPOCH)
    if kind not in _KINDS:
        kinds = f"{', '.join(_KINDS)} or {SWEEP_KIND}"
        raise PoisonError(f"message {message_id}: kind {kind!r} is not known; it must be {kinds}")
    if at is None:
        raise PoisonError(f"message {message_id}: 'at' must be an RFC 3339 time")
    fields = {name: _text(document, name, message_id) for name in ("namespace", "name")}
    cause = str(document.get("cause") or "")
    known = cause in set(Cause)
    message = Message(
        **fields,
        uid=str(document.get("uid") or ""),
        cause=Cause(cause) if known else Cause.FORWARDED,
        at=at,
        nodes=_names(document, "nodes", message_id),
        vms=_names(document, "vms", message_id),
        kind=kind,
    )
    return Occasion(cause, at, message=message)


def _text(document: dict[str, Any], name: str, message_id: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value or "/" in value:
        raise PoisonError(f"message {message_id}: {name!r} must be a name, not {value!r}")
    return value


def _names(document: dict[str, Any], name: str, message_id: str) -> tuple[str, ...]:
    value = document.get(name, [])
    right = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    if not right or len(value) > MAX_NAMES:
        raise PoisonError(
            f"message {message_id}: {name!r} must be a list of at most {MAX_NAMES} names"
        )
    return tuple(value)


# An audit entry's way to a step. What is not here wakes nobody: reads, setMetadata and setLabels
# (our own writes, or none of our business), disks, other services.
_WAKES = {
    "compute.resourcePolicies.insert": "create_resources",
    "compute.instanceTemplates.insert": "create_resources",
    "compute.regionInstanceTemplates.insert": "create_resources",
    "compute.instanceGroupManagers.insert": "create_resources",
    "compute.instanceGroupManagers.patch": "create_resources",
    "compute.instanceGroupManagers.update": "create_resources",
    "compute.instanceGroupManagers.resize": "create_resources",
    "compute.instanceGroupManagers.setInstanceTemplate": "create_resources",
    "compute.instanceGroupManagers.deleteInstances": "create_resources",
    "compute.instanceGroupManagers.recreateInstances": "create_resources",
    "compute.resourcePolicies.delete": "tear_down",
    "compute.instanceTemplates.delete": "tear_down",
    "compute.regionInstanceTemplates.delete": "tear_down",
    "compute.instanceGroupManagers.delete": "tear_down",
    "compute.instances.insert": "inject_token",
    "compute.instances.start": "inject_token",
    "compute.instances.reset": "inject_token",
    "compute.instances.automaticRestart": "inject_token",
    "compute.instances.stop": "label_node",
    "compute.instances.delete": "label_node",
    "compute.instances.preempted": "label_node",
    "compute.instances.hostError": "label_node",
    "compute.instances.terminateOnHostMaintenance": "label_node",
    "compute.instances.guestTerminate": "label_node",
    "compute.instances.instanceManagerHaltForRestart": "label_node",
    "compute.instances.repair.recreateInstance": "label_node",
}
_WAKES_WHEN_FAILED = {
    "compute.instances.insert": "create_resources",
    "compute.instances.start": "label_node",
    "compute.instances.reset": "label_node",
}


_NODE_POOL_WAKES = {
    "container.nodePools.create": ("provision_slice", "release_slice"),
    "container.nodePools.delete": ("provision_slice", "release_slice"),
}
_NODE_POOL_WAKES_WHEN_FAILED = {"container.nodePools.update": ("release_slice",)}


def find_steps(event: LogEvent) -> tuple[str, ...]:
    """The steps that an entry wakes: none, one, or both that see to a node pool's end."""
    if event.method in _NODE_POOL_METHODS.values():
        if not _SLICE_NAME.match(event.name):
            return ()
        failed = _NODE_POOL_WAKES_WHEN_FAILED if event.has_failed else {}
        return {**_NODE_POOL_WAKES, **failed}.get(event.method, ())
    name = _VM_NAME if event.concerns_vm else _RESOURCE_NAME
    if not name.match(event.name):
        return ()
    wakes = (event.has_failed and _WAKES_WHEN_FAILED.get(event.method)) or _WAKES.get(event.method)
    return (wakes,) if wakes else ()


def _read_log_entry(entry: dict[str, Any], message_id: str) -> tuple[Occasion | None, str]:
    payload = _part(entry, "protoPayload", message_id)
    operation = _part(entry, "operation", message_id)
    service, method = payload.get("serviceName"), str(payload.get("methodName") or "")
    read = _SERVICES.get(str(service))
    if read is None:
        return None, f"an entry of {service or 'no service'}"
    method = _VERSION_PREFIX.sub("", method)
    if not operation.get("last"):
        return None, f"{method}: not the end of an operation"
    resource = _part(entry, "resource", message_id)
    labels = _part(resource, "labels", message_id)
    event = read(method, str(payload.get("resourceName") or ""), labels)
    if event is None:
        return None, f"{method}: no resource that has steps"
    status = _part(payload, "status", message_id)
    event = replace(
        event, has_failed=bool(status.get("code")), words=str(status.get("message") or "")
    )
    at = _find_time(entry.get("timestamp")) or _EPOCH
    return Occasion(event.method, at, event=event), ""


def _read_compute(method: str, resource: str, labels: Mapping[str, Any]) -> LogEvent | None:
    path = _PATH.match(resource)
    if path is None:
        return None
    project = str(labels.get("project_id") or path["project"])
    return LogEvent(method, project, path["location"] or "", path["name"])


def _read_container(method: str, _resource: str, labels: Mapping[str, Any]) -> LogEvent | None:
    """By the labels of ``gke_nodepool``: what stands in the resource's name is not documented."""
    known = _NODE_POOL_METHODS.get(method.rpartition(".")[2])
    names = ("project_id", "location", "nodepool_name", "cluster_name")
    project, location, pool, cluster = (str(labels.get(name) or "") for name in names)
    if known is None or not (location and pool and cluster):
        return None
    return LogEvent(known, project, location, pool, cluster=cluster)


_NODE_POOL_METHODS = {
    "CreateNodePool": "container.nodePools.create",
    "DeleteNodePool": "container.nodePools.delete",
    "UpdateNodePool": "container.nodePools.update",
}
_SERVICES = {
    "compute.googleapis.com": _read_compute,
    "container.googleapis.com": _read_container,
}


def _part(holder: dict[str, Any], name: str, message_id: str) -> dict[str, Any]:
    """An object inside an entry; absent reads as empty."""
    part = holder.get(name) or {}
    if not isinstance(part, dict):
        raise PoisonError(
            f"message {message_id}: {name!r} is {type(part).__name__}; in a LogEntry it is an object"
        )
    return part
