"""Run the commands of docs/on-call.md on a ``make local`` and write their output into the page.

This module has what each output must contain; a test runs the commands again and compares. A command
that only reads is repeated until its output contains it.
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

from tests.first_slice import Run, Step, open_terminal, parse_page, render_page
from tests.harness import ROOT

PAGE = ROOT / "docs" / "on-call.md"
WITHIN_S = 150.0
_PLUGIN = "-c 'from replay.__main__ import run_plugin; run_plugin()'"
_POLL_S = 1.0


@dataclass(frozen=True)
class Expected:
    """What a command must say, as an expression that is found in its output, folded or not."""

    command: str
    output: str

    def is_in(self, said: str) -> bool:
        """Whether a command has said it."""
        unfolded = " ".join(said.split())
        return any(re.search(self.output, text, re.MULTILINE) for text in (said, unfolded))


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
    Expected("kubectl tng explain default/training", r"\(Provisioning\)"),
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
"""In the order of the page; commands that are not here must only succeed."""


class UnexpectedError(Exception):
    """A command does not say what it must."""


def play_page(text: str, run: Run, tell: Callable[[str], None]) -> list[Step]:
    """Run all commands of the page; what they said. Raises `UnexpectedError`."""
    waiting = list(EXPECTED)
    played = []
    for step in parse_page(text):
        tell(f"$ {step.command}")
        expected = waiting[0] if waiting and step.command.startswith(waiting[0].command) else None
        played.append(_play(step, run, expected))
        if expected is not None:
            waiting.pop(0)
        tell(played[-1].output)
    if waiting:
        raise UnexpectedError(f"the page has no {waiting[0].command!r} at its place")
    return played


def _play(step: Step, run: Run, expected: Expected | None) -> Step:
    """Run a command; one that only looks until it says what it must."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        said = run(step.command)
        if expected is None or expected.is_in(said):
            return replace(step, output=said)
        if not _only_looks(step) or time.monotonic() > deadline:
            raise UnexpectedError(f"$ {step.command}\n{said}\n\ndoes not say {expected.output!r}")
        time.sleep(_POLL_S)


def _only_looks(step: Step) -> bool:
    words = r"kubectl tng (explain|timeline|dead-letters list)|kubectl tng .* --dry-run"
    return re.match(words, step.command) is not None


@contextmanager
def open_desk(folder: Path, kubectl: str) -> Iterator[Run]:
    """A terminal beside a ``make local``, 80 columns wide, with the tool as kubectl's plugin."""
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
    argparse.ArgumentParser(prog="python -m tests.on_call", description=__doc__).parse_args(
        arguments
    )
    text = PAGE.read_text()
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        print("There is no kubectl here.")
        return 1
    with tempfile.TemporaryDirectory() as folder, open_desk(Path(folder), kubectl) as run:
        steps = play_page(text, run, lambda said: print(said, flush=True))
    PAGE.write_text(render_page(text, steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
