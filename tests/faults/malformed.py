"""Messages with fields of any type, and what may follow from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from shared.frame.step import MAX_ATTEMPTS
from shared.triggers.message import POD_KIND, SLICE_KIND, SWEEP_KIND

ANSWERS = {204, 400, 503}
JUNK: list[Any] = [
    *(None, True, 0, -1, 2**70, 1.5, "", [], {}, [[]], [None], {"": None}),
    *("\ud800", "a\udfffb", "a\x00b", "a\nb", "ü", "..", ".", "/", "a/b", "a.b", "%2e%2e", "a?b#c"),
    *("x" * 300, "-a", "A", "a b", ["a/b"], ["\ud800"], ["."], ["n"] * 101, [1], "9999-12-31T23:59:59Z"),
    *("0001-01-01T00:00:00+14:00", "2026-11-20T10:00:00", "Resync", POD_KIND, SLICE_KIND, SWEEP_KIND),
]  # fmt: skip


def list_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """The fields and items of a document, each as its holder and its key."""
    if not isinstance(value, dict | list):
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        yield from list_places(part)


def slow() -> Callable[[], float]:
    """A clock on which a call takes longer than an invocation may."""
    ticks = iter(range(0, 10**9, 40))
    return lambda: float(next(ticks))


def redelivered(body: bytes) -> bytes:
    """The same request as Pub/Sub delivers it the last time, if it has the number of the attempt."""
    envelope = json.loads(body)
    if isinstance(envelope.get("deliveryAttempt"), int) and envelope["deliveryAttempt"] > 0:
        envelope["deliveryAttempt"] = MAX_ATTEMPTS
    return json.dumps(envelope).encode()
