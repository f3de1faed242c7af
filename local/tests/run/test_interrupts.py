"""No process remains, no matter how and when the parent ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import IO

import psutil
import pytest

from local.tests.run.family import parse_family, wait_until_gone

pytestmark = pytest.mark.processes

CHILDREN = 3


class Parent:
    """A process that starts three children, each with its own child."""

    def __init__(self, mode: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "local.tests.run.family", mode],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.lines: list[str] = []

    def read_until(self, text: str, times: int = 1) -> None:
        """Read the output until these text appear for the n-th time."""
        while sum(text in line for line in self.lines) < times:
            line = self._output.readline()
            assert line, f"it ended without printing {text!r}: {self.lines}"
            self.lines.append(line.strip())

    def descendants(self) -> list[int]:
        return [one.pid for one in psutil.Process(self.process.pid).children(recursive=True)]

    def end(self) -> int:
        """Wait for the end, and return the exit code."""
        self.lines += [line.strip() for line in self._output]
        return self.process.wait(timeout=30)

    @property
    def families(self) -> list[int]:
        """The pids that children and grandchildren printed."""
        return [pid for line in self.lines for pid in parse_family(line)]

    @property
    def _output(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout


@pytest.fixture
def parent(request: pytest.FixtureRequest) -> Iterator[Parent]:
    parent = Parent(getattr(request, "param", "gentle"))
    yield parent
    parent.process.kill()
    parent.process.wait()
    assert parent.process.stdout is not None
    parent.process.stdout.close()


MOMENTS = [("entered", 1), ("started", 1), ("family", 1), ("family", CHILDREN)]


@pytest.mark.parametrize("text,times", MOMENTS)
def test_ctrl_c_at_any_moment_leaves_no_process(parent: Parent, text: str, times: int) -> None:
    parent.read_until(text, times)
    running = parent.descendants()
    parent.process.send_signal(signal.SIGINT)
    assert parent.end() == 130
    assert parent.lines[-1] == "bye: interrupted by SIGINT"
    wait_until_gone(running + parent.families)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_that_end_a_program_leave_no_process(parent: Parent, number: int) -> None:
    parent.read_until("family", CHILDREN)
    running = parent.descendants()
    parent.process.send_signal(number)
    assert parent.end() == 128 + number
    wait_until_gone(running + parent.families)


@pytest.mark.parametrize("parent", ["stubborn"], indirect=True)
def test_a_second_ctrl_c_does_not_wait_for_children_that_ignore_signals(parent: Parent) -> None:
    parent.read_until("family", CHILDREN)
    running = parent.descendants()
    parent.process.send_signal(signal.SIGINT)
    parent.read_until("SIGINT: stopping 3 processes (a second signal kills them)")
    parent.process.send_signal(signal.SIGINT)
    assert parent.end() == 130
    wait_until_gone(running + parent.families)


@pytest.mark.parametrize("text,times", MOMENTS)
def test_a_parent_that_is_killed_leaves_no_process(parent: Parent, text: str, times: int) -> None:
    end_by_sigkill(parent, text, times)


@pytest.mark.parametrize("parent", ["stubborn"], indirect=True)
def test_a_parent_that_is_killed_leaves_no_process_that_ignores_signals(parent: Parent) -> None:
    end_by_sigkill(parent, "family", CHILDREN)


def end_by_sigkill(parent: Parent, text: str, times: int) -> None:
    parent.read_until(text, times)
    running = parent.descendants()
    parent.process.kill()
    assert parent.end() == -signal.SIGKILL
    wait_until_gone(running + parent.families)
