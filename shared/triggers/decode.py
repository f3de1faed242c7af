"""Decode a push request into a `Trigger`.

Two kinds of messages arrive (docs/how-it-works.md): this system's own (`message`), and entries of the
audit log that a log sink publishes (`audit_log`). A trigger names an object and a cause, never a
command.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from shared.base.fields import show
from shared.base.names import JOBSET_KIND, KIND, SIGNING_REQUEST_KIND
from shared.base.timestamps import LONG_AGO, guess_time
from shared.triggers.audit_log import LogEvent, find_steps, parse_entry
from shared.triggers.message import (
    MESSAGE_VERSION,
    POD_KIND,
    SLICE_KIND,
    SWEEP_KIND,
    Cause,
    Message,
    PoisonError,
    parse_cause,
    parse_message,
)

_KINDS_OF = {
    "approve_join": frozenset({SIGNING_REQUEST_KIND}),
    "provision_slice": frozenset({POD_KIND, SWEEP_KIND}),
    "release_slice": frozenset({JOBSET_KIND, SLICE_KIND, SWEEP_KIND}),
    "sweep": frozenset({SWEEP_KIND}),
    "report_leaks": frozenset({SWEEP_KIND}),
}
_OF_GROUPS = frozenset({KIND})


@dataclass(frozen=True)
class Trigger:
    """An object and a cause, from a message of this system or an entry of the audit log.

    ``message`` is ``None`` for an entry of the audit log, and for a message of the sweep that names no
    object: then ``event`` is ``None``, too.
    """

    cause: str
    at: datetime
    message: Message | None = None
    event: LogEvent | None = None
    is_redelivered: bool = False
    """An earlier delivery was not acknowledged: its invocation may have been interrupted."""

    @property
    def is_resync(self) -> bool:
        return self.message is not None and self.message.cause is Cause.RESYNC

    @property
    def kind(self) -> str:
        """The kind of the message's object; empty for an entry of the audit log."""
        if self.message is not None:
            return self.message.kind
        return SWEEP_KIND if self.event is None else ""

    def is_for(self, step: str) -> bool:
        """Whether it triggers this step."""
        if self.event is not None:
            return step in find_steps(self.event)
        return self.kind in _KINDS_OF.get(step, _OF_GROUPS)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of Nodes that have changed or, with the cause Continued, that are left."""
        return self.message.nodes if self.message else ()

    @property
    def vms(self) -> tuple[str, ...]:
        """Names of VMs that the message or the entry is about."""
        if self.event is not None:
            return (self.event.name,) if self.event.concerns_vm else ()
        return self.message.vms if self.message else ()


@dataclass(frozen=True)
class Delivery:
    """A decoded push request. ``attempt`` is 0 if Pub/Sub does not count the attempts.

    ``trigger`` is ``None`` for an entry that triggers no step; ``note`` then says why.
    """

    message_id: str
    attempt: int
    published: datetime | None
    trigger: Trigger | None
    note: str = ""


def decode(body: bytes) -> Delivery:
    """Decode the body of a push request. Raises `PoisonError`."""
    envelope = _json(body, "the push request")
    message = envelope.get("message")
    if not isinstance(message, dict):
        raise PoisonError("the push request has no 'message'; it must be a Pub/Sub push envelope")
    message_id = _message_id(message)
    published = guess_time(message.get("publishTime") or message.get("publish_time"))
    data = _data(message, message_id)
    document = _json(data, f"message {message_id}")
    attempt = envelope.get("deliveryAttempt")
    attempt = max(0, attempt) if isinstance(attempt, int) else 0
    trigger, note = _read_trigger(document, message_id, published)
    if trigger is not None and attempt > 1:
        trigger = replace(trigger, is_redelivered=True)
    return Delivery(message_id, attempt, published, trigger, note)


def find_message_id(body: bytes) -> str:
    """The message id in a push request's body, which may be invalid; ``unknown`` if it has none."""
    try:
        message = _json(body, "the push request").get("message")
    except PoisonError:
        message = None
    return _message_id(message) if isinstance(message, dict) else "unknown"


def _message_id(message: Mapping[str, Any]) -> str:
    return str(message.get("messageId") or message.get("message_id") or "unknown")


def _json(raw: bytes, what: str) -> dict[str, Any]:
    try:
        document = json.loads(raw)
        # An escape in JSON can encode a lone surrogate, which cannot be encoded in UTF-8.
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise PoisonError(f"{what} has a lone surrogate in it; it must be Unicode") from error
    except (ValueError, RecursionError) as error:
        raise PoisonError(f"{what} is not JSON: {error}; it must be a JSON object") from error
    if not isinstance(document, dict):
        raise PoisonError(f"{what} is {type(document).__name__}; it must be a JSON object")
    return document


def _data(message: dict[str, Any], message_id: str) -> bytes:
    try:
        return base64.b64decode(message.get("data") or "", validate=True)
    except (ValueError, TypeError) as error:
        raise PoisonError(f"message {message_id}: 'data' is not base64: {error}") from error


def _read_trigger(
    document: dict[str, Any], message_id: str, published: datetime | None
) -> tuple[Trigger | None, str]:
    if "protoPayload" in document or "logName" in document:
        return _from_entry(document, message_id)
    return _from_message(document, message_id, published), ""


def _from_entry(entry: dict[str, Any], message_id: str) -> tuple[Trigger | None, str]:
    event, note = parse_entry(entry, message_id)
    if event is None:
        return None, note
    at = guess_time(entry.get("timestamp")) or LONG_AGO
    return Trigger(event.method, at, event=event), ""


def _from_message(document: dict[str, Any], message_id: str, published: datetime | None) -> Trigger:
    version = document.get("version")
    if version != MESSAGE_VERSION:
        raise PoisonError(
            f"message {message_id}: version {show(version)} is not known; it must be {MESSAGE_VERSION}"
        )
    at = guess_time(document.get("at")) or published
    if document.get("kind") == SWEEP_KIND:
        return Trigger(SWEEP_KIND, at or LONG_AGO)
    message = parse_message(document, message_id, at)
    return Trigger(parse_cause(document), message.at, message=message)
