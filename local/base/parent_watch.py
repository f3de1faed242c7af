"""The process that outlives its parent just long enough to end the parent's children.

Whatever happens to the parent, a SIGKILL included, the kernel closes its end of a pipe; the parent watch
reads the other end. Children write themselves down there before they become what they shall be, so
there is no moment at which one runs and is not known. Works wherever there are pipes and process
groups, and reaches grandchildren too (a death signal asked of the kernel does neither).

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
    """What precedes a command whose process group is ended with the parent; it inherits ``pipe``."""
    return (sys.executable, "-I", "-S", __file__, "exec", str(pipe))


def watch(lines: Iterable[str]) -> None:
    """Note groups until ``lines`` end, then end those groups: SIGTERM, and SIGKILL if need be."""
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
    """Make this process known to the parent watch and replace it by ``argv``. Raises `OSError`."""
    os.write(pipe, f"+{os.getpid()}\n".encode())
    os.close(pipe)
    os.execvp(argv[0], argv)


def _signal_groups(groups: set[int], number: int) -> set[int]:
    """Signal each group (0 only asks); returns those that were there."""
    return {group for group in groups if signal_group(group, number)}


def signal_group(group: int, number: int) -> bool:
    """Signal all processes of a group; ``False`` when there are none."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        # macOS says EPERM of a group that has only zombies left.
        return False
    return True


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        watch(sys.stdin)
    else:
        become(int(sys.argv[2]), sys.argv[3:])
