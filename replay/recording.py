"""Parse recorded messages, a JSON object a line, and find the topic of each.

A line is one of: a message of this system's own, an entry of the audit log (as ``gcloud logging
read`` gives it), a Pub/Sub message (``data`` in base64 or as an object, with ``attributes``), or a
Pub/Sub message in an envelope, as a push request or ``gcloud pubsub subscriptions pull`` has it. So
dead letters can be read as they are pulled.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from replay.publications import Publication
from shared.base.names import topic_id
from shared.triggers import routes
from shared.triggers.decode import decode
from shared.triggers.message import PoisonError
from shared.triggers.route import find_steps
from shared.triggers.trigger import LogTrigger, ObjectTrigger, TimeTrigger, Trigger

DEAD_LETTER_SOURCE = "CloudPubSubDeadLetterSourceSubscription"
"""On a dead letter: the id of its original subscription."""
_OF_PUBSUB = ("CloudPubSubDeadLetter", "goog")
"""Beginnings of attributes that Pub/Sub writes itself; it takes none that begins with "goog"."""
_FROM_URL_SAFE = str.maketrans("-_", "+/")
"""The library under gcloud writes bytes in base64's other alphabet (seen in its source)."""


@dataclass(frozen=True)
class Rules:
    """What is not in the file: the step of the command line, the topic prefix, the time."""

    step: str | None
    topic_prefix: str
    now: datetime


Found = tuple[Publication, ...] | str
"""The messages to publish, or why there are none."""


@dataclass(frozen=True)
class Recording:
    """A file. ``wrong``: the errors of invalid lines; ``left_out``: why a line triggers no step."""

    publications: tuple[Publication, ...]
    wrong: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class _Recorded:
    """A line without its wrapping. ``step`` is the one it names itself, ``subscription`` an id."""

    data: Any
    attributes: Mapping[str, str]
    published: Any = None
    step: str = ""
    subscription: str = ""


def read_recording(lines: Iterable[bytes], rules: Rules) -> Recording:
    """Read all lines; an empty line is only counted."""
    publications: list[Publication] = []
    wrong: list[str] = []
    left_out: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = read_line(number, line, rules)
        except PoisonError as error:
            wrong.append(str(error))
            continue
        if isinstance(found, str):
            left_out.append(found)
        else:
            publications += found
    return Recording(tuple(publications), tuple(wrong), tuple(left_out))


def read_line(number: int, line: bytes, rules: Rules) -> Found:
    """The messages of a line, or why it triggers no step. Raises `PoisonError`, naming the line."""
    name = f"of line {number}"
    return _read(_unwrap(line, name), name, number, rules)


def read_message(message: Mapping[str, Any], name: str, rules: Rules) -> Found:
    """The same of a Pub/Sub message: ``data`` in base64, ``attributes``, ``publishTime``."""
    return _read(_unwrap_message(message, "", "", name), name, 0, rules)


def _read(recorded: _Recorded, name: str, number: int, rules: Rules) -> Found:
    envelope = {
        "message": {"data": recorded.data, "messageId": name, "publishTime": recorded.published}
    }
    delivery = decode(json.dumps(envelope).encode(), routes.ROUTES)
    trigger = delivery.trigger
    if trigger is None:
        return f"the message {name} triggers no step: {delivery.note}"
    steps = _steps_of(trigger, recorded, rules, name)
    if not steps:
        return f"the message {name} triggers no step: {trigger.cause}"
    data, about = base64.b64decode(recorded.data), _about(trigger)
    if isinstance(trigger, ObjectTrigger) and trigger.is_resync:
        data = replace(trigger.message, at=rules.now).encode()
    attributes = _without_pubsub(recorded.attributes)
    return tuple(
        Publication(step, data, attributes, about, trigger.cause, number) for step in steps
    )


def _unwrap(line: bytes, name: str) -> _Recorded:
    """Whether a line is a message without a wrapping. The decoder validates it."""
    document = _find_object(line)
    message = document.get("message")
    if isinstance(message, dict):
        subscription = str(document.get("subscription") or "").rsplit("/", 1)[-1]
        return _unwrap_message(message, str(document.get("step") or ""), subscription, name)
    if "data" in document:
        return _unwrap_message(document, str(document.get("step") or ""), "", name)
    data = base64.b64encode(line).decode()
    return _Recorded(data, _own_attributes(document), step=str(document.get("step") or ""))


def _find_object(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _unwrap_message(
    message: Mapping[str, Any], step: str, subscription: str, name: str
) -> _Recorded:
    data, attributes = message.get("data"), message.get("attributes") or {}
    if isinstance(data, dict):
        data = base64.b64encode(json.dumps(data).encode()).decode()
    elif isinstance(data, str):
        data = data.translate(_FROM_URL_SAFE)
    if not _is_text_map(attributes):
        raise PoisonError(f"message {name}: 'attributes' must be a map from text to text")
    return _Recorded(
        data,
        attributes,
        published=message.get("publishTime") or message.get("publish_time"),
        step=step or attributes.get("step", ""),
        subscription=attributes.get(DEAD_LETTER_SOURCE) or subscription,
    )


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _own_attributes(document: Mapping[str, Any]) -> dict[str, str]:
    """The attributes of this system's messages that are known without the cluster."""
    cause = document.get("cause")
    return {"cause": cause} if isinstance(cause, str) else {}


def _steps_of(trigger: Trigger, recorded: _Recorded, rules: Rules, name: str) -> tuple[str, ...]:
    """The steps of a line: an audit log entry's triggered steps, or a message's own step."""
    able = find_steps(trigger, routes.ROUTES)
    if isinstance(trigger, LogTrigger):
        return able
    source = _step_of_subscription(recorded.subscription, rules.topic_prefix)
    if isinstance(trigger, TimeTrigger):
        step = recorded.step or source
        return (step if step in able else routes.SWEEP,)
    choices = ", ".join(able)
    step = rules.step or recorded.step
    if step and step not in able:
        raise PoisonError(
            f"message {name}: step {step!r} does not accept messages about a {trigger.message.kind}; "
            f"it must be one of {choices}"
        )
    if len(able) == 1:
        return able
    if not step and not source:
        raise PoisonError(
            f"message {name}: its step is unknown; name it with --step or with a field 'step', or "
            f"keep the attribute {DEAD_LETTER_SOURCE}. The step must be one of {choices}"
        )
    return (step or source,)


def _step_of_subscription(subscription: str, topic_prefix: str) -> str:
    """Find the step of a subscription: it has the name of its topic."""
    steps = {topic_id(topic_prefix, step): step for step in routes.ROUTES}
    return steps.get(subscription, "")


def _about(trigger: Trigger) -> str:
    match trigger:
        case LogTrigger(event):
            return event.name
        case ObjectTrigger(message):
            return f"{message.namespace}/{message.name}"
    return ""


def _without_pubsub(attributes: Mapping[str, str]) -> dict[str, str]:
    """Remove the attributes of a dead letter: otherwise the message would remain one."""
    return {key: value for key, value in attributes.items() if not key.startswith(_OF_PUBSUB)}
