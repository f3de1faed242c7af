"""Subprocesses that are restarted when they end, with exponential backoff."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from local.base.events import Observe, SubprocessEnded
from local.run.processes import Process, Processes

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
SETTLED_S = 60.0
"""A subprocess that has run this long is restarted after the first pause again."""
READY_WITHIN_S = 60.0
_LINES_SHOWN = 3
"""The last lines of a subprocess that are shown; the log file has all."""


@dataclass(frozen=True)
class Subprocess:
    """A command to keep running; ``probe`` is a URL that answers under 500 once it serves."""

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    probe: str


class Subprocesses:
    """Keeps subprocesses running until `stop`."""

    def __init__(self, processes: Processes, directory: Path, observe: Observe) -> None:
        """``directory`` is the working directory."""
        self._processes = processes
        self._directory = directory
        self._observe = observe
        self._running: dict[str, Process] = {}
        self._restarts: list[asyncio.Task[None]] = []

    async def start(self, subprocesses: Sequence[Subprocess]) -> None:
        """Start all and wait until they serve. Raises `ProcessError` if one does not."""
        for subprocess in subprocesses:
            await self._start(subprocess)
        await asyncio.gather(
            *(
                self[subprocess.name].ready(subprocess.probe, within_s=READY_WITHIN_S)
                for subprocess in subprocesses
            )
        )
        self._restarts = [
            asyncio.create_task(self._keep_running(subprocess)) for subprocess in subprocesses
        ]

    def __getitem__(self, name: str) -> Process:
        """The latest process of this name."""
        return self._running[name]

    async def stop(self) -> None:
        """End all without restarts."""
        for restart in self._restarts:
            restart.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)
        await asyncio.gather(*(process.stop() for process in self._running.values()))

    async def _start(self, subprocess: Subprocess) -> None:
        self._running[subprocess.name] = await self._processes.start(
            subprocess.name,
            subprocess.argv,
            environment=subprocess.environment,
            directory=self._directory,
        )

    async def _keep_running(self, subprocess: Subprocess) -> None:
        clock = asyncio.get_running_loop().time
        pause_s = FIRST_PAUSE_S
        while True:
            began = clock()
            process = self[subprocess.name]
            await process.wait()
            await self._processes.stop(process)
            if clock() - began > SETTLED_S:
                pause_s = FIRST_PAUSE_S
            last_lines = tuple(process.tail)[-_LINES_SHOWN:]
            self._observe(
                SubprocessEnded(subprocess.name, process.describe_exit(), pause_s, last_lines)
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            await self._start(subprocess)
