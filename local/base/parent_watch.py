"""A process that ends the subprocesses of its parent when the parent has ended, even by SIGKILL.

When the parent ends, the kernel closes its end of a pipe; the parent watch reads the other end. A
subprocess writes its process group to the pipe before it executes its command, so no subprocess is
missed. This needs only pipes and process groups, and ends grandchildren too (PR_SET_PDEATHSIG does
not).

Run as a script, by path, so that nothing else is imported:

    parent_watch.py watch               reads ``+<group>`` and ``-<group>`` lines until its input ends
    parent_watch.py exec FD ARGV...     writes ``+<own group>`` to FD, closes it and becomes ARGV
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable

GRACE_S = 1.0
WATCH = (sys.executable, "-I", "-S", __file__, "watch")
"""The command that watches."""
_POLL_S = 0.02


def exec_command(pipe: int) -> tuple[str, ...]:
    """The prefix of a command that must not outlive the parent; the command inherits ``pipe``."""
    return (sys.executable, "-I", "-S", __file__, "exec", str(pipe))


def watch(lines: Iterable[str]) -> None:
    """Track groups until ``lines`` end, then end them: SIGTERM, after a grace period SIGKILL."""
    groups: set[int] = set()
    for line in lines:
        change = groups.add if line[0] == "+" else groups.discard
        change(int(line[1:]))
    deadline = time.monotonic() + GRACE_S
    left = _signal_groups(groups, signal.SIGTERM)
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = _signal_groups(left, 0)
    _signal_groups(left, signal.SIGKILL)


def become(pipe: int, argv: list[str]) -> None:
    """Register with the parent watch, then execute ``argv``. Raises `OSError`."""
    os.write(pipe, f"+{os.getpid()}\n".encode())
    os.close(pipe)
    os.execvp(argv[0], argv)


def _signal_groups(groups: set[int], number: int) -> set[int]:
    """Signal each group (0 only checks); returns those that exist."""
    return {group for group in groups if signal_group(group, number)}


def signal_group(group: int, number: int) -> bool:
    """Signal all processes of a group; ``False`` when there are none."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        # macOS returns EPERM for a group that has only zombies.
        return False
    return True


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        watch(sys.stdin)
    else:
        become(int(sys.argv[2]), sys.argv[3:])
