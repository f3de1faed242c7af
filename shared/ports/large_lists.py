"""A bound on the memory of a process: while a large list is read, it takes ten times as much as what is
kept of it, so a process reads one at a time (`docs/scale.md`)."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shared.ports.errors import OutOfTimeError

LARGE = 128
"""A list of more Nodes or VMs is large."""
LOCK = threading.Lock()


@contextmanager
def one_at_a_time(hosts: int, remaining_s: Callable[[], float]) -> Iterator[None]:
    """A context in which no other thread reads a list of more than `LARGE`. Raises `OutOfTimeError`."""
    if hosts <= LARGE:
        yield
        return
    if not LOCK.acquire(timeout=remaining_s()):
        raise OutOfTimeError("another message of this process reads a large list")
    try:
        yield
    finally:
        LOCK.release()
