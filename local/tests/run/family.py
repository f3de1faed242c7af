"""Programs for the tests: a child with its own child, and a parent that starts it."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress

import psutil

from local.run.processes import GRACE_S, Interrupted, Processes

ENDLESS_S = 3600.0
"""Longer than any test: stubborn children are killed before."""
_GRANDCHILD = "import signal; {ignore}print(flush=True); signal.pause()"
_CHILD = """
import signal, subprocess, sys
{ignore}
grandchild = subprocess.Popen(
    [sys.executable, "-S", "-c", {grandchild!r}], stdout=subprocess.PIPE
)
grandchild.stdout.readline()
print("family", __import__("os").getpid(), grandchild.pid, flush=True)
signal.pause()
"""
_IGNORE = "signal.signal(signal.SIGTERM, signal.SIG_IGN); "


def child(*, stubborn: bool = False) -> list[str]:
    """Return a command that starts another process, prints both pids and waits for a signal.

    Both processes ignore SIGTERM if they are ``stubborn``.
    """
    ignore = _IGNORE if stubborn else ""
    grandchild = _GRANDCHILD.format(ignore=ignore)
    return [sys.executable, "-S", "-c", _CHILD.format(ignore=ignore, grandchild=grandchild)]


def parse_family(line: str) -> list[int]:
    """Return the pids in the line that `child` prints."""
    return [int(word) for word in line.partition("family ")[2].split()]


def is_gone(pid: int) -> bool:
    """Whether no process runs with this pid. A zombie does not run."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def wait_until_gone(pids: list[int], within_s: float = 10.0) -> None:
    """Wait for the end of processes that are not our children. Fails if one remains."""
    deadline = time.monotonic() + within_s
    for pid in pids:
        while not is_gone(pid):
            assert time.monotonic() < deadline, f"process {pid} still runs"
            with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
                psutil.Process(pid).wait(timeout=0.05)


async def _parent(mode: str) -> None:
    print("begun", flush=True)
    grace_s = ENDLESS_S if mode == "stubborn" else GRACE_S
    async with Processes(
        on_line=lambda line: print(line, flush=True), grace_s=grace_s
    ) as processes:
        print("entered", flush=True)
        for number in range(3):
            await processes.start(f"child-{number}", child(stubborn=mode == "stubborn"))
        print("started", flush=True)
        await processes.until_one_ends()


if __name__ == "__main__":
    try:
        asyncio.run(_parent(sys.argv[1]))
    except Interrupted as interruption:
        print(f"bye: {interruption}", flush=True)
        sys.exit(interruption.exit_code)
