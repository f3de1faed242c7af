"""Figures of the runs at scale: stored in ``figures.json``, shown in `docs/scale.md`.

A run stores its figures with the date and the machine. ``make pages`` writes the tables of
the page.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import psutil

from tools.pages.markdown import render_table

Value = str | int | float

KEEP = "SCALE_KEEP"
"""With this environment variable, which ``make scale`` sets, figures are stored."""
STORED = Path(__file__).with_name("figures.json")
_ROOT = Path(__file__).parents[2]


def report(run: str, figures: Mapping[str, Value], print_figure: Callable[[str], None]) -> None:
    """Print a run's figures after the tests; store them if `KEEP` is set."""
    for name, value in figures.items():
        print_figure(f"{run}: {name}: {value}")
    if os.environ.get(KEEP):
        store(run, figures)


def store(run: str, figures: Mapping[str, Value], stored: Path = STORED) -> None:
    """Store a run's figures in place of its previous ones."""
    known = load(stored)
    known[run] = {"taken": _where_and_when(), **figures}
    stored.write_text(json.dumps(known, indent=2, sort_keys=False) + "\n")


def load(stored: Path = STORED) -> dict[str, dict[str, Value]]:
    """Load the stored figures, by run."""
    found: dict[str, dict[str, Value]] = json.loads(stored.read_text()) if stored.exists() else {}
    return found


def render_parts(stored: Path = STORED) -> dict[str, str]:
    """Render the table of each run for `docs/scale.md`, by its name there."""
    return {f"figures of {run}": render(figures) for run, figures in load(stored).items()}


def render(figures: Mapping[str, Value]) -> str:
    """A run's figures as a Markdown table, in the order in which they were taken."""
    rows = [(name, _text(value)) for name, value in figures.items() if name != "taken"]
    table = render_table(("what", "figure"), rows)
    return f"{table}\n{figures['taken']}.\n"


PRODUCT = ("functions", "shared", "relay", "webhook", "main.py", "requirements.txt")


def describe_run() -> str:
    """The last commit of the product that is measured, and the day."""

    def run(*command: str) -> str:
        done = subprocess.run(["git", *command, "--", *PRODUCT], cwd=_ROOT, stdout=-1, check=False)
        return done.stdout.decode().strip()

    changes = " with changes" if run("status", "--porcelain") else ""
    commit = run("log", "-1", "--format=%h", "--abbrev=10")
    return f"commit {commit or 'unknown'}{changes}, {datetime.now(UTC):%Y-%m-%d}"


def _text(value: Value) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _where_and_when() -> str:
    cores = os.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    machine = f"{cores} cores ({platform.machine()}), {memory:.0f} GiB, Python"
    return f"Taken at {describe_run()}, on {machine} {platform.python_version()}"
