"""Decode a push request into a `Trigger`.

Two kinds of messages arrive (docs/how-it-works.md): this system's own (`message`), and entries of the
audit log that a log sink publishes (`audit_log`).
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from shared.base.fields import any_of, show
from shared.base.timestamps import LONG_AGO, guess_time
from shared.triggers.audit_log import parse_entry
from shared.triggers.message import (
    MESSAGE_VERSION,
    SWEEP_KIND,
    PoisonError,
    parse_cause,
    parse_message,
)
from shared.triggers.route import Routes, list_kinds
from shared.triggers.trigger import LogTrigger, ObjectTrigger, TimeTrigger, Trigger


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


def decode(body: bytes, routes: Routes) -> Delivery:
    """Decode the body of a push request. Raises `PoisonError`, also for a kind without a route."""
    envelope = _parse_object(body, "the push request")
    message = envelope.get("message")
    if not isinstance(message, dict):
        raise PoisonError("the push request has no 'message'; it must be a Pub/Sub push envelope")
    message_id = _get_message_id(message)
    published = guess_time(message.get("publishTime") or message.get("publish_time"))
    attempt = envelope.get("deliveryAttempt")
    attempt = max(0, attempt) if isinstance(attempt, int) else 0
    try:
        data = base64.b64decode(message.get("data") or "", validate=True)
    except (ValueError, TypeError) as error:
        raise PoisonError(f"message {message_id}: 'data' is not base64: {error}") from error
    document = _parse_object(data, f"message {message_id}")
    trigger: Trigger | None
    try:
        if "protoPayload" in document or "logName" in document:
            event, note = parse_entry(document)
            at = guess_time(document.get("timestamp")) or LONG_AGO
            trigger = (
                None if event is None else LogTrigger(event, at, is_first_attempt=attempt == 1)
            )
        else:
            trigger, note = _parse_own(document, published, routes), ""
    except PoisonError as error:
        raise PoisonError(f"message {message_id}: {error}") from error
    if trigger is not None and attempt > 1:
        trigger = replace(trigger, is_redelivered=True)
    return Delivery(message_id, attempt, published, trigger, note)


def find_message_id(body: bytes) -> str:
    """The message id in a push request's body, which may be invalid; ``unknown`` if it has none."""
    try:
        message = _parse_object(body, "the push request").get("message")
    except PoisonError:
        message = None
    return _get_message_id(message) if isinstance(message, dict) else "unknown"


def _get_message_id(message: Mapping[str, Any]) -> str:
    return str(message.get("messageId") or message.get("message_id") or "unknown")


def _parse_object(raw: bytes, what: str) -> dict[str, Any]:
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


def _parse_own(document: dict[str, Any], published: datetime | None, routes: Routes) -> Trigger:
    """The trigger of a message of this system."""
    version = document.get("version")
    if version != MESSAGE_VERSION:
        raise PoisonError(f"version {show(version)} is not known; it must be {MESSAGE_VERSION}")
    kind, kinds = document.get("kind"), list_kinds(routes)
    if kind not in kinds:
        raise PoisonError(f"kind {show(kind)} is not known; it must be {any_of(kinds)}")
    at = guess_time(document.get("at")) or published
    if kind == SWEEP_KIND:
        return TimeTrigger(at or LONG_AGO)
    message, cause = parse_message(document, at), parse_cause(document)
    return ObjectTrigger(message, unknown_cause=None if cause == message.cause else cause)
