"""Generates two parts of the reference page. Run ``python -m local.gke.generate``."""

from __future__ import annotations

from pathlib import Path

from local.gce import generate
from local.gke.refusals import CATALOGUE
from local.gke.simulator import FAULTS

PAGE = Path(__file__).parents[1] / "docs" / "simulated-container-engine.md"


def with_tables(page: str) -> str:
    """The reference page with its generated parts replaced."""
    return generate.with_tables(page, FAULTS, CATALOGUE)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
