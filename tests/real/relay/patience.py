"""Waiting for what a real cluster does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 60.0
_POLL_S = 0.2


def until(
    holds: Callable[[], bool], what: str, patience_s: float = PATIENCE_S, poll_s: float = _POLL_S
) -> None:
    """Ask again and again until something holds; ``what`` is missed when it does not."""
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, f"after {patience_s:.0f} s it is still not so: {what}"
        time.sleep(poll_s)
