"""The messages that the relay, the sweep, the steps and kubectl tng publish.

A message names an object and a cause, never a command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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
_LABEL, _SUBDOMAIN, _SEGMENT = "a DNS label", "a DNS subdomain", "printable and without '/' and '%'"
_UID = re.compile(r"[-.:\w]{0,128}", re.ASCII)
_MAX_CAUSE = 63


class PoisonError(Exception):
    """A message that can never be decoded. The text has its id and what would be valid."""


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
    nodes: tuple[str, ...] = field(default=())
    vms: tuple[str, ...] = field(default=())
    kind: str = KIND
    requests: tuple[str, ...] = field(default=())

    def encode(self) -> bytes:
        """The message's data, in JSON."""
        if self.kind == SIGNING_REQUEST_KIND:
            return self._encode_requests()
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

    def _encode_requests(self) -> bytes:
        document = {
            "version": MESSAGE_VERSION,
            "kind": self.kind,
            "requests": list(self.requests),
            "cause": str(self.cause),
            "at": self.at.isoformat().replace("+00:00", "Z"),
        }
        return json.dumps(document, separators=(",", ":")).encode()

    def attributes(self, cluster: str) -> dict[str, str]:
        """The message's attributes, by which operators can filter."""
        return {"cluster": cluster, "cause": str(self.cause)}


def parse_message(document: Mapping[str, Any], message_id: str, at: datetime | None) -> Message:
    """Parse a message from its JSON. ``at`` is its time, if it has one. Raises `PoisonError`."""
    if at is None:
        raise PoisonError(f"message {message_id}: 'at' must be an RFC 3339 time")
    kind, cause = str(document["kind"]), parse_cause(document)
    known = cause in set(Cause)
    if kind == SIGNING_REQUEST_KIND:
        requests = _names(document, "requests", is_path_segment, _SEGMENT, message_id)
        return message_about_requests(Cause(cause) if known else Cause.FORWARDED, at, requests)
    return Message(
        namespace=_name(document, "namespace", is_dns_label, _LABEL, message_id),
        name=_name(document, "name", is_dns_subdomain, _SUBDOMAIN, message_id),
        uid=_uid(document, message_id),
        cause=Cause(cause) if known else Cause.FORWARDED,
        at=at,
        nodes=_names(document, "nodes", is_dns_subdomain, _SUBDOMAIN, message_id),
        vms=_names(document, "vms", is_dns_label, _LABEL, message_id),
        kind=kind,
    )


def message_about_requests(cause: Cause, at: datetime, requests: Iterable[str]) -> Message:
    """A message about CertificateSigningRequests."""
    return Message("", "", "", cause, at, kind=SIGNING_REQUEST_KIND, requests=tuple(requests))


def parse_cause(document: Mapping[str, Any]) -> str:
    """The cause in a message's JSON, known or unknown."""
    return str(document.get("cause") or "")[:_MAX_CAUSE]


def _name(
    document: Mapping[str, Any],
    field_name: str,
    is_right: Callable[[object], bool],
    must_be: str,
    message_id: str,
) -> str:
    value = document.get(field_name)
    if not is_right(value):
        raise PoisonError(
            f"message {message_id}: {field_name!r} must be {must_be}, not {show(value)}"
        )
    return str(value)


def _uid(document: Mapping[str, Any], message_id: str) -> str:
    value = document.get("uid") or ""
    if not isinstance(value, str) or not _UID.fullmatch(value):
        raise PoisonError(f"message {message_id}: 'uid' must be an object's uid, not {show(value)}")
    return value


def _names(
    document: Mapping[str, Any],
    field_name: str,
    is_right: Callable[[object], bool],
    must_be: str,
    message_id: str,
) -> tuple[str, ...]:
    value = document.get(field_name, [])
    if not isinstance(value, list) or len(value) > MAX_NAMES:
        raise PoisonError(
            f"message {message_id}: {field_name!r} must be a list of at most {MAX_NAMES} names"
        )
    for entry in value:
        if not is_right(entry):
            raise PoisonError(
                f"message {message_id}: each of {field_name!r} must be {must_be}, not {show(entry)}"
            )
    return tuple(value)
