"""Record the messages that are published to a step's topic, a line for each."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from replay.subscriptions import Pulled
from replay.ways import Ways
from shared.base.names import topic_id
from shared.base.timestamps import render_time


def record(ways: Ways, step: str, duration: timedelta, limit: int) -> Iterator[str]:
    """The lines of the messages to a step's topic, up to a time and a number.

    The step gets its messages all the same: a subscription of our own gets copies, and is deleted at
    the end. Raises `CallError`.
    """
    topic = topic_id(ways.settings.topic_prefix, step)
    name = f"{topic}-recording-{ways.random_bytes(4).hex()}"
    end, number = ways.monotonic() + duration.total_seconds(), 0
    with ways.subscriptions.open(topic, name) as subscription:
        while number < limit and ways.monotonic() < end:
            for pulled in ways.subscriptions.pull(subscription):
                ways.subscriptions.acknowledge(subscription, [pulled.ack_id])
                if number < limit:
                    number += 1
                    yield render_line(step, pulled)


def render_line(step: str, pulled: Pulled) -> str:
    """A message as `replay.recording` reads it."""
    document = {
        "step": step,
        "messageId": pulled.message_id,
        "publishTime": render_time(pulled.published),
        "attributes": dict(pulled.attributes),
        "data": _data(pulled.data),
    }
    return json.dumps(document, separators=(",", ":"))


def _data(raw: bytes) -> Any:
    try:
        document = json.loads(raw)
    except ValueError:
        document = None
    return document if isinstance(document, dict) else base64.b64encode(raw).decode()
