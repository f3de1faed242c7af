"""Waiting for changes in a real cluster."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMEOUT_S = 60.0
_POLL_S = 0.2


def until(
    condition: Callable[[], bool],
    description: str,
    timeout_s: float = TIMEOUT_S,
    poll_s: float = _POLL_S,
) -> None:
    """Poll until a condition is true; fail with ``description`` after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not true after {timeout_s:.0f} s: {description}"
        time.sleep(poll_s)
