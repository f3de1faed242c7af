"""A program of this project as a person starts it, and what is left of it afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.harness import ROOT


class Program:
    """``python -m <module>`` with its temporary files under ``folder``, which marks its children."""

    def __init__(self, folder: Path, module: str, *arguments: str, root: Path = ROOT) -> None:
        self._folder = folder
        self._path = folder / "output"
        (folder / "tmp").mkdir(parents=True)
        with self._path.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=root,
                env={**os.environ, "TMPDIR": str(folder / "tmp"), "PYTHONUNBUFFERED": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What it has written so far."""
        return self._path.read_text()

    def until(self, condition: Callable[[], bool], within_s: float) -> None:
        """Wait; fails when it takes longer, or the program ends before."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def until_it_says(self, text: str, within_s: float = 60.0) -> None:
        """Wait for a text in its output."""
        self.until(lambda: text in self.output, within_s)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """End it as a terminal or an init system does; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=30)

    def children(self) -> list[psutil.Process]:
        """All processes that carry its mark, itself apart."""
        return [
            process
            for process in psutil.process_iter()
            if process.pid != self.process.pid and self._bears_mark(process)
        ]

    def files(self) -> list[Path]:
        """What is left of its temporary files."""
        return list((self._folder / "tmp").iterdir())

    def _bears_mark(self, process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            said = [*process.cmdline(), *process.environ().values()]
            return any(str(self._folder) in text for text in said)
        return False


@contextmanager
def running(folder: Path, module: str, *arguments: str, root: Path = ROOT) -> Iterator[Program]:
    """A program that is ended with the block, if it has not ended before."""
    program = Program(folder, module, *arguments, root=root)
    try:
        yield program
    finally:
        if program.process.poll() is None:
            program.stop()
