"""The messages that the relay, the sweep, the steps and kubectl tng publish.

A message names an object and a cause, never a command.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from shared.base.fields import show
from shared.base.names import (
    KIND,
    SIGNING_REQUEST_KIND,
    is_dns_label,
    is_dns_subdomain,
    is_path_segment,
)

MESSAGE_VERSION = 1
MAX_NAMES = 100
"""The limit of names of Nodes or VMs in one message; more names need more messages."""
BATCH = 20
"""VMs in one message to ``inject_token``, requests in one to ``approve_join``. Each costs a few calls,
and an observation has 30 seconds."""
SWEEP_KIND = "Sweep"
"""The kind of a message that names no object. Cloud Scheduler publishes one to the sweep each minute:
``{"version": 1, "kind": "Sweep"}``. The sweep publishes one to each step that lists its objects
itself."""
POD_KIND, SLICE_KIND = "Pod", "Slice"
"""Kinds of messages to the steps of JobSets. A message about a slice has its JobSet's namespace."""
REQUEST_KIND = "ProvisioningRequest"
_LABEL, _SUBDOMAIN, _SEGMENT = "a DNS label", "a DNS subdomain", "printable and without '/' and '%'"
_UID = re.compile(r"[-.:\w]{0,128}", re.ASCII)
_MAX_CAUSE = 63


class PoisonError(Exception):
    """A message that can never be decoded. The text says what would be valid."""


class Cause(StrEnum):
    """Why a message was published. Only some causes change decisions, such as ``Resync``."""

    ADDED = "Added"
    UNSCHEDULABLE = "Unschedulable"
    COMPLETED = "Completed"
    FAILED = "Failed"
    GONE = "Gone"
    SPEC_CHANGED = "SpecChanged"
    METADATA_CHANGED = "MetadataChanged"
    DELETING = "Deleting"
    NODES_CHANGED = "NodesChanged"
    RESYNC = "Resync"
    VMS_NEED_TOKENS = "VMsNeedTokens"
    JOIN_REQUESTED = "JoinRequested"
    JOIN_NOT_APPROVED = "JoinNotApproved"
    JOIN_DENIED = "JoinDenied"
    FORWARDED = "Forwarded"
    CONTINUED = "Continued"
    SWEEP = "Sweep"


@dataclass(frozen=True)
class Message:
    """A message of this system about one object, by default a TPUNodeGroup.

    ``nodes`` and ``vms`` are names, at most `MAX_NAMES` together. ``at`` is when the sender observed the
    cause. A message about CertificateSigningRequests has only their names, in ``requests``: they have no
    namespace.
    """

    namespace: str
    name: str
    uid: str
    cause: Cause
    at: datetime
    nodes: tuple[str, ...] = ()
    vms: tuple[str, ...] = ()
    kind: str = KIND
    requests: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """The message's data, in JSON."""
        named: dict[str, Any] = {"namespace": self.namespace, "name": self.name, "uid": self.uid}
        if self.kind == SIGNING_REQUEST_KIND:
            named = {"requests": list(self.requests)}
        document = {
            "version": MESSAGE_VERSION,
            "kind": self.kind,
            **named,
            "cause": str(self.cause),
            "at": self.at.isoformat().replace("+00:00", "Z"),
        }
        if self.nodes:
            document["nodes"] = list(self.nodes)
        if self.vms:
            document["vms"] = list(self.vms)
        return json.dumps(document, separators=(",", ":")).encode()

    def attributes(self, cluster: str) -> dict[str, str]:
        """The message's attributes, by which operators can filter."""
        return {"cluster": cluster, "cause": str(self.cause)}


def parse_message(document: Mapping[str, Any], at: datetime | None) -> Message:
    """Parse a message from its JSON. ``at`` is its time, if it has one. Raises `PoisonError`."""
    if at is None:
        raise PoisonError("'at' must be an RFC 3339 time")
    kind, cause = str(document["kind"]), parse_cause(document)
    known = Cause(cause) if cause in set(Cause) else Cause.FORWARDED
    if kind == SIGNING_REQUEST_KIND:
        requests = _parse_names(document, "requests", is_path_segment, _SEGMENT)
        return message_about_requests(known, at, requests)
    namespace, name = document.get("namespace"), document.get("name")
    uid = document.get("uid") or ""
    if not is_dns_label(namespace):
        raise PoisonError(f"'namespace' must be {_LABEL}, not {show(namespace)}")
    if not is_dns_subdomain(name):
        raise PoisonError(f"'name' must be {_SUBDOMAIN}, not {show(name)}")
    if not isinstance(uid, str) or not _UID.fullmatch(uid):
        raise PoisonError(f"'uid' must be an object's uid, not {show(uid)}")
    return Message(
        namespace=str(namespace),
        name=str(name),
        uid=uid,
        cause=known,
        at=at,
        nodes=_parse_names(document, "nodes", is_dns_subdomain, _SUBDOMAIN),
        vms=_parse_names(document, "vms", is_dns_label, _LABEL),
        kind=kind,
    )


def message_about_requests(cause: Cause, at: datetime, requests: Iterable[str]) -> Message:
    """A message about CertificateSigningRequests."""
    return Message("", "", "", cause, at, kind=SIGNING_REQUEST_KIND, requests=tuple(requests))


def parse_cause(document: Mapping[str, Any]) -> str:
    """The cause in a message's JSON, known or unknown."""
    return str(document.get("cause") or "")[:_MAX_CAUSE]


def _parse_names(
    document: Mapping[str, Any], field: str, is_valid: Callable[[object], bool], must_be: str
) -> tuple[str, ...]:
    value = document.get(field, [])
    if not isinstance(value, list) or len(value) > MAX_NAMES:
        raise PoisonError(f"{field!r} must be a list of at most {MAX_NAMES} names")
    for entry in value:
        if not is_valid(entry):
            raise PoisonError(f"each of {field!r} must be {must_be}, not {show(entry)}")
    return tuple(value)
