"""Record the messages of a topic, a JSON object a line; parse them and find the topic of each.

A line is one of: a message of this system's own, an entry of the audit log (as ``gcloud logging
read`` gives it), a Pub/Sub message (``data`` in base64 or as an object, with ``attributes``), or a
Pub/Sub message in an envelope, as a push request or ``gcloud pubsub subscriptions pull`` has it. So
dead letters can be read as they are pulled.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from replay.dependencies import Dependencies
from replay.publications import Publication
from replay.subscriptions import Pulled
from shared.base.names import topic_id
from shared.base.timestamps import render_time
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
class ReplayRules:
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


def record(deps: Dependencies, step: str, duration: timedelta, limit: int) -> Iterator[str]:
    """The lines of the messages to a step's topic, up to a time and a number.

    The step also receives them: the tool creates a subscription, which receives copies, and deletes it
    at the end. Raises `CallError`.
    """
    topic = topic_id(deps.settings.topic_prefix, step)
    name = f"{topic}-recording-{deps.random_bytes(4).hex()}"
    end, number = deps.monotonic() + duration.total_seconds(), 0
    with deps.subscriptions.open(topic, name) as subscription:
        while number < limit and deps.monotonic() < end:
            for pulled in deps.subscriptions.pull(subscription):
                deps.subscriptions.acknowledge(subscription, [pulled.ack_id])
                if number < limit:
                    number += 1
                    yield render_line(step, pulled)


def render_line(step: str, pulled: Pulled) -> str:
    """A message as `read_line` reads it."""
    data = _parse_object(pulled.data)
    document = {
        "step": step,
        "messageId": pulled.message_id,
        "publishTime": render_time(pulled.published),
        "attributes": dict(pulled.attributes),
        "data": base64.b64encode(pulled.data).decode() if data is None else data,
    }
    return json.dumps(document, separators=(",", ":"))


def read_recording(lines: Iterable[bytes], rules: ReplayRules) -> Recording:
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


def read_line(number: int, line: bytes, rules: ReplayRules) -> Found:
    """The messages of a line, or why it triggers no step. Raises `PoisonError`, naming the line."""
    name = f"of line {number}"
    return _read(_unwrap(line, name), name, number, rules)


def read_message(message: Mapping[str, Any], name: str, rules: ReplayRules) -> Found:
    """The same of a Pub/Sub message: ``data`` in base64, ``attributes``, ``publishTime``."""
    return _read(_unwrap_message(message, "", "", name), name, 0, rules)


def _read(recorded: _Recorded, name: str, number: int, rules: ReplayRules) -> Found:
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
    data, about = base64.b64decode(recorded.data), ""
    match trigger:
        case LogTrigger(event):
            about = event.name
        case ObjectTrigger(message):
            about = f"{message.namespace}/{message.name}"
            if trigger.is_resync:
                data = replace(message, at=rules.now).encode()
    # Without what Pub/Sub has written on a dead letter: with it, the message would remain one.
    attributes = {
        key: value for key, value in recorded.attributes.items() if not key.startswith(_OF_PUBSUB)
    }
    return tuple(
        Publication(step, data, attributes, about, trigger.cause, number) for step in steps
    )


def _unwrap(line: bytes, name: str) -> _Recorded:
    """Parse a line. The decoder validates it, also one that is not JSON."""
    document = _parse_object(line) or {}
    step = str(document.get("step") or "")
    message = document.get("message")
    if isinstance(message, dict):
        subscription = str(document.get("subscription") or "").rsplit("/", 1)[-1]
        return _unwrap_message(message, step, subscription, name)
    if "data" in document:
        return _unwrap_message(document, step, "", name)
    # Of this system's own attributes, the cause is known without the cluster.
    cause = document.get("cause")
    attributes = {"cause": cause} if isinstance(cause, str) else {}
    return _Recorded(base64.b64encode(line).decode(), attributes, step=step)


def _parse_object(text: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _unwrap_message(
    message: Mapping[str, Any], step: str, subscription: str, name: str
) -> _Recorded:
    data, attributes = message.get("data"), message.get("attributes") or {}
    if isinstance(data, dict):
        data = base64.b64encode(json.dumps(data).encode()).decode()
    elif isinstance(data, str):
        data = data.translate(_FROM_URL_SAFE)
    if not isinstance(attributes, dict) or not all(
        isinstance(text, str) for text in attributes.values()
    ):
        raise PoisonError(f"message {name}: 'attributes' must be a map from text to text")
    return _Recorded(
        data,
        attributes,
        published=message.get("publishTime") or message.get("publish_time"),
        step=step or attributes.get("step", ""),
        subscription=attributes.get(DEAD_LETTER_SOURCE) or subscription,
    )


def _steps_of(
    trigger: Trigger, recorded: _Recorded, rules: ReplayRules, name: str
) -> tuple[str, ...]:
    """The steps of a line: an audit log entry's triggered steps, or a message's own step."""
    able = find_steps(trigger, routes.ROUTES)
    if isinstance(trigger, LogTrigger):
        return able
    # A subscription has the name of its topic.
    steps = {topic_id(rules.topic_prefix, step): step for step in routes.ROUTES}
    source = steps.get(recorded.subscription, "")
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
