"""docs/scale.md shows what the runs have measured, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scale.figures import PAGE, keep, load, refresh

SHAPE = "before\n<!-- figures: run -->\nold\n<!-- end -->\nafter\n"


def test_the_page_has_the_stored_figures() -> None:
    """``python -m tests.scale.figures`` makes it so."""
    text = PAGE.read_text()
    assert refresh(text, load()) == text


def test_a_run_replaces_the_previous_one(tmp_path: Path) -> None:
    kept = tmp_path / "figures.json"
    keep("run", {"calls": 1_234}, kept)
    keep("other", {"calls": 1}, kept)
    keep("run", {"calls": 4_321, "words": "two, three"}, kept)
    assert list(load(kept)) == ["run", "other"]
    assert "| calls | 4,321 |\n| words | two, three |\n" in refresh(
        SHAPE, {"run": load(kept)["run"]}
    )


def test_figures_without_a_table_on_the_page_are_an_error(tmp_path: Path) -> None:
    kept = tmp_path / "figures.json"
    keep("elsewhere", {"calls": 1}, kept)
    with pytest.raises(ValueError, match="substring"):
        refresh(SHAPE, load(kept))
