"""The body of a push request, as the service sends it (wrapped, the default)."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

from local.pubsub.model import Message


def render_time(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, as in ``2021-02-26T19:13:55.749Z``."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def render_envelope(message: Message, subscription: str, attempt: int | None) -> dict[str, Any]:
    """The envelope; ``attempt`` is `None` for a subscription without a dead-letter policy.

    The service writes ids and times in both spellings. Empty data is omitted, as in JSON from protocol
    buffers (assumed).
    """
    published = render_time(message.publish_time)
    body: dict[str, Any] = {
        "attributes": dict(message.attributes),
        "messageId": message.id,
        "message_id": message.id,
        "publishTime": published,
        "publish_time": published,
    }
    if message.data:
        body["data"] = base64.b64encode(message.data).decode()
    if not message.attributes:
        del body["attributes"]
    envelope: dict[str, Any] = {"message": body, "subscription": subscription}
    if attempt is not None:
        envelope["deliveryAttempt"] = attempt
    return envelope
