"""Figures of runs are stored, and rendered for docs/scale.md."""

from __future__ import annotations

from pathlib import Path

from tools.scale.figures import load, render_parts, store


def test_a_run_replaces_the_previous_one(tmp_path: Path) -> None:
    stored = tmp_path / "figures.json"
    store("run", {"calls": 1_234}, stored)
    store("other", {"calls": 1}, stored)
    store("run", {"calls": 4_321, "text": "two, three"}, stored)
    assert list(load(stored)) == ["run", "other"]
    part = render_parts(stored)["figures of run"]
    assert "| calls | 4,321 |\n| text | two, three |\n" in part
