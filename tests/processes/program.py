"""A program of this project as a person starts it, and what is left of it afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.harness import ROOT

TIMEOUT_S = 240.0
"""Ends what hangs. It is no limit for what is slow, and lower only than pytest's own."""


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

    def until(self, condition: Callable[[], bool], within_s: float = TIMEOUT_S) -> None:
        """Wait; fails when it takes longer, or the program ends before."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def until_it_says(self, text: str, within_s: float = TIMEOUT_S) -> None:
        """Wait for a text in its output."""
        self.until(lambda: text in self.output, within_s)

    def stop(self, number: signal.Signals = signal.SIGINT, within_s: float = TIMEOUT_S) -> int:
        """End it as a terminal or an init system does; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=within_s)

    def children(self) -> list[psutil.Process]:
        """All processes that carry its mark, itself apart."""
        return [
            process
            for process in psutil.process_iter()
            if process.pid != self.process.pid and self._bears_mark(process)
        ]

    def until_alone(self, within_s: float = TIMEOUT_S) -> None:
        """Wait until nothing is left of its children, itself being dead."""
        deadline = time.monotonic() + within_s
        while self.children():
            assert time.monotonic() < deadline, self.children()
            time.sleep(0.05)

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


class Local:
    """A ``make local`` that is up, as somebody with kubectl uses it."""

    def __init__(self, program: Program, kubectl: str = "kubectl") -> None:
        program.until_it_says(STARTED)
        self.program = program
        self.kubeconfig = Path(_find(r"^export KUBECONFIG=(\S+)$", program))
        self.compute_url = _find(r"^Compute Engine +(\S+)", program)
        self._kubectl = kubectl

    def kubectl(self, *arguments: str, standard_input: str = "", code: int = 0) -> str:
        """What kubectl says."""
        done = subprocess.run(
            [self._kubectl, *arguments],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            cwd=ROOT,
            input=standard_input,
            capture_output=True,
            text=True,
            timeout=360,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


STARTED = "Ctrl-C stops it."
"""The end of what ``make local`` says when it is up."""


def _find(pattern: str, program: Program) -> str:
    found = re.search(pattern, program.output, re.MULTILINE)
    assert found, program.output
    return found[1]
