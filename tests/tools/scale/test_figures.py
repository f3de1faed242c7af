"""Figures of runs are stored, and rendered for docs/scale.md."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.harness import ROOT
from tools.scale.figures import load, render_parts, store


def test_a_run_replaces_the_previous_one(tmp_path: Path) -> None:
    stored = tmp_path / "figures.json"
    store("run", {"calls": 1_234}, stored)
    store("other", {"calls": 1}, stored)
    store("run", {"calls": 4_321, "text": "two, three"}, stored)
    assert list(load(stored)) == ["run", "other"]
    part = render_parts(stored)["figures of run"]
    assert "| calls | 4,321 |\n| text | two, three |\n" in part


def test_the_text_of_the_page_has_what_follows_from_the_stored_figures() -> None:
    text = " ".join((ROOT / "docs" / "scale.md").read_text().split())
    fleet, slice_of_512 = load()["fleet"], load()["slice"]

    def sum_invocations(phase: str) -> int:
        rows = [str(value) for name, value in slice_of_512.items() if name.startswith(f"{phase}: ")]
        return sum(int(found) for row in rows for found in re.findall(r"(\d+) invocations", row))

    minutes = int(fleet["created together: minutes until all are Ready"])
    calls, invocations = (
        int(fleet[f"created: {what}"]) for what in ("calls to the API server", "invocations")
    )
    a_second = [round(count / minutes / 60) for count in (calls, invocations)]
    for words in (
        f"the run below: {1_000 / minutes:.0f} of one or two",
        f"A thousand slices together make {a_second[0]} (the run below)",
        f"{calls:,} calls in {minutes} minutes are {a_second[0]} a second",
        f"A thousand slices together make {a_second[1]} |",
        f"{invocations:,} in {minutes} minutes are {a_second[1]} a second",
        f"512 hosts need {sum_invocations('to Ready')} messages until Ready, "
        f"{sum_invocations('all preempted')} when all are preempted, and "
        f"{sum_invocations('to gone')} until they are gone",
    ):
        assert words in text
