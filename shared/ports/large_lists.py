"""A bound on the memory of a process that handles several messages about large slices at once.

While a list of 2,304 Nodes or VMs is read and parsed, it takes about 150 MB; what is kept of it takes a
tenth (`docs/scale.md`). So a process reads one such list at a time. Lists of small slices do not wait.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shared.ports.errors import OutOfTimeError

LARGE = 128
"""A list of more Nodes or VMs is large."""
LOCK = threading.Lock()


@contextmanager
def one_at_a_time(hosts: int, remaining_s: Callable[[], float]) -> Iterator[None]:
    """A context in which no other thread reads a large list, if ``hosts`` are that many. Raises
    `OutOfTimeError` if another one takes too long."""
    if hosts <= LARGE:
        yield
        return
    if not LOCK.acquire(timeout=remaining_s()):
        raise OutOfTimeError("another message of this process reads a large list")
    try:
        yield
    finally:
        LOCK.release()
