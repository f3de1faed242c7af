"""Push requests, as Pub/Sub sends them to a step."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any


def push(document: dict[str, Any]) -> bytes:
    """The body of the first delivery of a message."""
    data = base64.b64encode(json.dumps(document).encode()).decode()
    message = {"data": data, "messageId": "1", "publishTime": datetime.now(UTC).isoformat()}
    return json.dumps({"message": message, "deliveryAttempt": 1}).encode()
