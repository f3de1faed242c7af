"""Figures of the runs at scale: kept in ``figures.json``, shown in `docs/scale.md`.

A run keeps its figures with the day and the machine. ``python -m tests.scale.figures`` writes the
tables of the page anew from what is kept; no figure there is written by hand.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import psutil

Value = str | int | float

KEEP = "SCALE_KEEP"
"""An environment variable: ``make scale`` sets it."""
KEPT = Path(__file__).with_name("figures.json")
PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
_END = "<!-- end -->"


def tell(run: str, figures: Mapping[str, Value], print_figure: Callable[[str], None]) -> None:
    """Show a run's figures after the tests; keep them, too, where `KEEP` asks for it."""
    for name, value in figures.items():
        print_figure(f"{run}: {name}: {value}")
    if os.environ.get(KEEP):
        keep(run, figures)


def keep(run: str, figures: Mapping[str, Value], kept: Path = KEPT) -> None:
    """Keep a run's figures in the place of those it had before."""
    known = load(kept)
    known[run] = {"taken": _where_and_when(), **figures}
    kept.write_text(json.dumps(known, indent=2, sort_keys=False) + "\n")


def load(kept: Path = KEPT) -> dict[str, dict[str, Value]]:
    """All that is kept, by run."""
    found: dict[str, dict[str, Value]] = json.loads(kept.read_text()) if kept.exists() else {}
    return found


def refresh(page: str, kept: Mapping[str, Mapping[str, Value]]) -> str:
    """The page with its tables as the figures are.

    A run's table stands between ``<!-- figures: RUN -->`` and ``<!-- end -->``. Raises `ValueError`
    for a run that has no place.
    """
    for run, figures in kept.items():
        start = page.index(begin := f"<!-- figures: {run} -->\n") + len(begin)
        page = page[:start] + render(figures) + page[page.index(_END, start) :]
    return page


def render(figures: Mapping[str, Value]) -> str:
    """A run's figures as a Markdown table, in the order in which they were taken."""
    rows = [(name, _text(value)) for name, value in figures.items() if name != "taken"]
    lines = [("what", "figure"), ("---", "---:"), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{table}\n{figures['taken']}.\n"


def _text(value: Value) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _where_and_when() -> str:
    cores = os.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    machine = f"{cores} cores ({platform.machine()}), {memory:.0f} GiB, Python"
    return f"Taken {datetime.now(UTC):%Y-%m-%d} on {machine} {platform.python_version()}"


if __name__ == "__main__":
    PAGE.write_text(refresh(PAGE.read_text(), load()))
    sys.stdout.write(f"{PAGE}\n")
