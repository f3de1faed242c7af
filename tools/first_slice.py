"""Run the commands of docs/first-slice.md with ``make local`` and write their output into the page.

Each ``console`` block of the page has commands after ``$``, each followed by its output. The commands
run on a real control plane, which ``make control-plane`` builds. A test runs them again and compares.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from local.__main__ import DEFAULT_PORTS
from local.control_plane import plane
from local.control_plane.binaries import find
from replay.__main__ import LATE
from tests.processes.program import Local, running
from tests.support.harness import ROOT

PAGE = ROOT / "docs" / "first-slice.md"
COMMAND_WITHIN_S = 310.0
STABLE_WITHIN_S = 30.0
_QUIET_S = 5.0
_POLL_S = 0.5

Run = Callable[[str], str]
"""Runs a command in a shell, as a reader of the page does; returns its output."""


@dataclass(frozen=True)
class Step:
    """A command of the page, and its output there."""

    command: str
    output: str = ""

    @property
    def is_read(self) -> bool:
        """True if the command only reads, so that it can be repeated until its output is stable."""
        return (
            re.match(r"kubectl (get|describe|events)|curl -s \S+/state", self.command) is not None
        )


_BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.DOTALL | re.MULTILINE)


def parse_page(text: str) -> list[Step]:
    """List the commands of all ``console`` blocks, in order."""
    return [step for block in _BLOCK.findall(text) for step in _parse_block(block)]


def _parse_block(block: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command = re.match(r"(.*\\\n)*.*", part)
        assert command is not None, part
        yield Step(command[0], part[command.end() + 1 :])


def render_page(text: str, steps: Sequence[Step]) -> str:
    """The page with new outputs of the same commands."""
    left = iter(steps)

    def render_block(match: re.Match[str]) -> str:
        shown = [next(left) for _ in _parse_block(match[0])]
        return "".join(f"$ {step.command}\n{step.output}" for step in shown)

    return _BLOCK.sub(render_block, text)


_VARIABLE = (
    (r"\b(tng-[a-z0-9-]+?)-[0-9a-f]{8}(-[a-z0-9]{4})?(?![a-z0-9-])", r"\1-HASH"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (r"\b(\d+[hms])+\b", "AGE"),
    (r"AGE \(x\d+ over AGE\)", "AGE"),
    (r"(Start: +)\d+", r"\1SECONDS"),
    (r"\b\d+\.\d\b", "HOURS"),
    (r"-{3,}", "---"),
    (r" {2,}", "  "),
)


def mask(step: Step) -> list[str]:
    """The lines that must be equal in each run: without ids, times, unusable chips and column widths.

    Events are sorted, because two of them may have either order. NodesJoining is omitted, because it
    does not occur if both VMs join at the same time.
    """
    text = step.output
    for pattern, placeholder in _VARIABLE:
        text = re.sub(pattern, placeholder, text)
    lines = [line.rstrip() for line in text.splitlines() if "NodesJoining" not in line]
    is_event = re.compile(r"^( +)?(AGE|Normal|Warning)  ")
    return [line for line in lines if not is_event.match(line)] + sorted(
        line for line in lines if is_event.match(line)
    )


def play(step: Step, run: Run) -> Step:
    """Run a command; repeat a command that only reads until its output is the expected one, for a
    limited time."""
    deadline = time.monotonic() + STABLE_WITHIN_S
    played = replace(step, output=run(step.command))
    while step.is_read and mask(played) != mask(step) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        played = replace(step, output=run(step.command))
    return played


def record(step: Step, run: Run) -> Step:
    """Run a command; repeat a command that only reads until its output is stable for some seconds."""
    recorded = replace(step, output=run(step.command))
    since = time.monotonic()
    while step.is_read and time.monotonic() - since < _QUIET_S:
        time.sleep(_POLL_S)
        again = replace(step, output=run(step.command))
        if mask(again) != mask(recorded):
            since = time.monotonic()
        recorded = again
    return recorded


@contextmanager
def open_terminal(folder: Path, kubectl: str, *arguments: str) -> Iterator[Run]:
    """Start ``make local`` with these arguments and free ports; yield a shell to run commands.

    The shell keeps variables. In commands, the default port of the simulated Compute Engine is replaced.
    """
    ports = ("--compute-port", "0", "--pubsub-port", "0")
    with running(folder / "local", "local", *ports, *arguments) as program:
        local = Local(program)
        bin_ = folder / "bin"
        bin_.mkdir()
        (bin_ / "kubectl").symlink_to(kubectl)
        environment = {
            "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "KUBECONFIG": str(local.kubeconfig),
        }
        port = local.compute_url.rpartition(":")[2]

        def run(command: str) -> str:
            variable = re.match(r"(\w+)=", command)
            after = f'; printf %s "${variable[1]}"' if variable else ""
            output = _run(
                command.replace(f":{DEFAULT_PORTS.compute}/", f":{port}/") + after, environment
            )
            if variable:
                environment[variable[1]] = output
                return ""
            return output if not output or output.endswith("\n") else f"{output}\n"

        yield run


def _run(command: str, environment: Mapping[str, str]) -> str:
    return subprocess.run(
        ["bash", "-c", command],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_WITHIN_S,
        check=False,
    ).stdout.replace(f"{LATE}\n", "")  # on a slow machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page again. Returns the exit code."""
    argparse.ArgumentParser(prog="python -m tools.first_slice", description=__doc__).parse_args(
        arguments
    )
    binaries = find(os.environ)
    if binaries is None:
        print("There is no real control plane here: run `make control-plane`.")
        return 1
    text = PAGE.read_text()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(plane.start(binaries))
        arguments = ("--kubeconfig", str(cluster.kubeconfig))
        run = stack.enter_context(open_terminal(folder, cluster.kubectl, *arguments))
        steps = []
        for step in parse_page(text):
            print(f"$ {step.command}", flush=True)
            steps.append(record(step, run))
            print(steps[-1].output, end="", flush=True)
    PAGE.write_text(render_page(text, steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
