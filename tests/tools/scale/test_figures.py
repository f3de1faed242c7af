"""docs/scale.md shows exactly the stored figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.scale.figures import PAGE, load, refresh, store

SAMPLE_PAGE = "before\n<!-- figures: run -->\nold\n<!-- end -->\nafter\n"


def test_the_page_has_the_stored_figures() -> None:
    """``python -m tools.scale.figures`` updates the page."""
    text = PAGE.read_text()
    assert refresh(text, load()) == text


def test_a_run_replaces_the_previous_one(tmp_path: Path) -> None:
    stored = tmp_path / "figures.json"
    store("run", {"calls": 1_234}, stored)
    store("other", {"calls": 1}, stored)
    store("run", {"calls": 4_321, "text": "two, three"}, stored)
    assert list(load(stored)) == ["run", "other"]
    assert "| calls | 4,321 |\n| text | two, three |\n" in refresh(
        SAMPLE_PAGE, {"run": load(stored)["run"]}
    )


def test_figures_without_a_table_on_the_page_are_an_error(tmp_path: Path) -> None:
    stored = tmp_path / "figures.json"
    store("elsewhere", {"calls": 1}, stored)
    with pytest.raises(ValueError, match="substring"):
        refresh(SAMPLE_PAGE, load(stored))
