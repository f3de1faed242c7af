"""Waiting for changes in a real cluster."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 60.0
_POLL_S = 0.2


def until(
    condition: Callable[[], bool],
    what: str,
    patience_s: float = PATIENCE_S,
    poll_s: float = _POLL_S,
) -> None:
    """Poll until a condition is true; fail with ``what`` if it is not in time."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"not true after {patience_s:.0f} s: {what}"
        time.sleep(poll_s)
