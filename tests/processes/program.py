"""A program of this project in its own process, and a check of what it leaves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import psutil

from tests.support.harness import ROOT

TIMEOUT_S = 240.0
"""Ends a program that hangs. It is not a limit for slow programs, but lower than pytest's time limit."""


class Program:
    """``python -m <module>``. Its temporary files are in ``folder``, by which its children are found."""

    def __init__(
        self,
        folder: Path,
        module: str,
        *arguments: str,
        root: Path = ROOT,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._folder = folder
        self._path = folder / "output"
        (folder / "tmp").mkdir(parents=True)
        with self._path.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=root,
                env={
                    **os.environ,
                    "TMPDIR": str(folder / "tmp"),
                    "PYTHONUNBUFFERED": "1",
                    **environment,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """The output so far."""
        return self._path.read_text()

    def until(self, condition: Callable[[], bool], within_s: float = TIMEOUT_S) -> None:
        """Wait until the condition is true; fail after the timeout, or if the program ends."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def wait_for_output(self, text: str, within_s: float = TIMEOUT_S) -> None:
        """Wait until the output contains a text."""
        self.until(lambda: text in self.output, within_s)

    def stop(self, number: signal.Signals = signal.SIGINT, within_s: float = TIMEOUT_S) -> int:
        """Send a signal and wait until the program ends; return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=within_s)

    def children(self) -> list[psutil.Process]:
        """List the other processes that have the folder in their command line or environment."""
        return [
            process
            for process in psutil.process_iter()
            if process.pid != self.process.pid and self._is_child(process)
        ]

    def until_alone(self, within_s: float = TIMEOUT_S) -> None:
        """Wait until no child is left after the program has ended."""
        deadline = time.monotonic() + within_s
        while self.children():
            assert time.monotonic() < deadline, self.children()
            time.sleep(0.05)

    def files(self) -> list[Path]:
        """List the remaining temporary files."""
        return list((self._folder / "tmp").iterdir())

    def _is_child(self, process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            texts = [*process.cmdline(), *process.environ().values()]
            return any(str(self._folder) in text for text in texts)
        return False


@contextmanager
def running(folder: Path, module: str, *arguments: str, root: Path = ROOT) -> Iterator[Program]:
    """A program that is stopped at the end of the block if it still runs."""
    program = Program(folder, module, *arguments, root=root)
    try:
        yield program
    finally:
        if program.process.poll() is None:
            program.stop()


class Local:
    """A running ``make local``, used with kubectl."""

    def __init__(self, program: Program, kubectl: str = "kubectl") -> None:
        program.wait_for_output(STARTED)
        self.program = program
        self.kubeconfig = Path(_find(r"^export KUBECONFIG=(\S+)$", program))
        self.compute_url = _find(r"^Compute Engine +(\S+)", program)
        self._kubectl = kubectl

    def kubectl(self, *arguments: str, standard_input: str = "", code: int = 0) -> str:
        """Run kubectl; return its output."""
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
"""The end of the output of ``make local`` when it is ready."""


def _find(pattern: str, program: Program) -> str:
    found = re.search(pattern, program.output, re.MULTILINE)
    assert found, program.output
    return found[1]
