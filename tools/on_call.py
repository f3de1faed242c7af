"""Run the commands of docs/on-call.md with ``make local`` and write their output into the page.

`EXPECTED` has a pattern for the output of each command; a test runs the commands again and compares. A
command that only reads is repeated until its output matches.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.harness import ROOT
from tools.first_slice import Run, Step, open_terminal, parse_page, render_page

PAGE = ROOT / "docs" / "on-call.md"
WITHIN_S = 150.0
_PLUGIN = "-c 'from replay.__main__ import run_plugin; run_plugin()'"
_POLL_S = 1.0


@dataclass(frozen=True)
class Expected:
    """A pattern that must match the output of a command, as it is or with its lines joined."""

    command: str
    output: str

    def matches(self, output: str) -> bool:
        """True if the output of a command matches."""
        joined = " ".join(output.split())
        return any(re.search(self.output, text, re.MULTILINE) for text in (output, joined))


EXPECTED = (
    Expected(
        "kubectl tng explain default/training",
        r"^default/training has not been Ready for \S+ \(InsufficientCapacity\): The zone has no",
    ),
    Expected("kubectl tng resync default/training", r"^default/training +Resync +tpu-functions-"),
    Expected("kubectl wait", r"condition met"),
    Expected("kubectl tng timeline default/training | head", r"^- InsufficientCapacity, "),
    Expected("kubectl wait", r"condition met"),
    Expected(
        "kubectl tng explain default/experiments",
        r"^default/experiments has not been Ready for \S+ \(Preempted\):",
    ),
    Expected("kubectl tng timeline default/experiments --output json", r"^VM \w+: preempted$"),
    Expected("kubectl tng timeline default/experiments --price", r"At 2 per chip-hour: \d"),
    Expected(
        "kubectl tng timeline default/experiments --why",
        r"observed: 4 Nodes read: .* decided, as this version does: \w+ \(Ready: Preempted\)",
    ),
    Expected("kubectl wait", r"condition met"),
    Expected(
        "kubectl tng timeline default/training --output json", r"^insert begins\ninsert ended$"
    ),
    Expected(
        "kubectl tng explain default/training",
        r"\(Provisioning\): create_resources has work and was not triggered\.",
    ),
    Expected("kubectl tng audit-log default/training --since 5m --dry-run", r"\(not published\)"),
    Expected("kubectl tng audit-log default/training --since 5m", r"\d{10}"),
    Expected("kubectl wait", r"condition met"),
    Expected(
        "kubectl tng dead-letters list",
        r"label_node +10\s+version 7 is not known; it must be 1",
    ),
    Expected("kubectl tng dead-letters replay", r"1 dead letter cannot be replayed"),
    Expected("kubectl tng dead-letters drop", r"^Dropped 1 dead letter\.$"),
    Expected("kubectl tng dead-letters list", r"^There are no dead letters\.$"),
)
"""In the order of the page. Other commands may have any output."""


class UnexpectedError(Exception):
    """The output of a command does not match."""


def play_page(text: str, run: Run, print_line: Callable[[str], None]) -> list[Step]:
    """Run all commands of the page; return them with their outputs. Raises `UnexpectedError`."""
    waiting = list(EXPECTED)
    played = []
    for step in parse_page(text):
        print_line(f"$ {step.command}")
        expected = waiting[0] if waiting and step.command.startswith(waiting[0].command) else None
        played.append(_play(step, run, expected))
        if expected is not None:
            waiting.pop(0)
        print_line(played[-1].output)
    if waiting:
        raise UnexpectedError(
            f"the page lacks the command {waiting[0].command!r}, or has it at another position"
        )
    return played


def _play(step: Step, run: Run, expected: Expected | None) -> Step:
    """Run a command; repeat a command that only reads until its output matches."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        output = run(step.command)
        if expected is None or expected.matches(output):
            return replace(step, output=output)
        if not _is_read(step) or time.monotonic() > deadline:
            raise UnexpectedError(
                f"$ {step.command}\n{output}\n\ndoes not match {expected.output!r}"
            )
        time.sleep(_POLL_S)


def _is_read(step: Step) -> bool:
    pattern = r"kubectl tng (explain|timeline|dead-letters list)|kubectl tng .* --dry-run"
    return re.match(pattern, step.command) is not None


@contextmanager
def open_tool_terminal(folder: Path, kubectl: str) -> Iterator[Run]:
    """A shell with ``make local``, 80 columns wide, in which the tool is a kubectl plugin."""
    with open_terminal(folder, kubectl, "--port", "0") as run:
        for name, arguments in (("kubectl-tng", _PLUGIN), ("python", "")):
            program = folder / "bin" / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
            program.chmod(0o755)
        run("COLUMNS=80")
        for line in run('cat "$(dirname "$KUBECONFIG")/tool.env"').splitlines():
            run(line.removeprefix("export "))
        yield run


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page again. Returns the exit code."""
    argparse.ArgumentParser(prog="python -m tools.on_call", description=__doc__).parse_args(
        arguments
    )
    text = PAGE.read_text()
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        print("kubectl is not installed.")
        return 1
    with tempfile.TemporaryDirectory() as folder, open_tool_terminal(Path(folder), kubectl) as run:
        steps = play_page(text, run, lambda line: print(line, flush=True))
    PAGE.write_text(render_page(text, steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
