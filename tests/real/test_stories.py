"""Every story that needs no kubelet also runs on a real control plane."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.stories.conftest import EMBEDDED_ONLY, FAST_ON_REAL

ROOT = Path(__file__).parents[2]
COLLECT = """
import pytest

class Printer:
    def pytest_collection_finish(self, session):
        for item in session.items:
            marks = {mark.name for mark in item.iter_markers()}
            print("story", item.nodeid, *sorted(marks & {"real", "slow"}), sep="\\t")

raise SystemExit(pytest.main(["--collect-only", "-qq", "tests/stories"], plugins=[Printer()]))
"""


@cache
def marks_of_cases() -> dict[str, frozenset[str]]:
    """Return the marks ``real`` and ``slow`` of each case of a story."""
    command = [sys.executable, "-c", COLLECT]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [line.split("\t") for line in output.splitlines() if line.startswith("story\t")]
    return {name.removeprefix("tests/stories/"): frozenset(marks) for _, name, *marks in lines}


def cases(*marks: str) -> set[str]:
    """Return the cases with exactly these marks."""
    return {name for name, found in marks_of_cases().items() if found == set(marks)}


def name_of(case: str) -> str:
    """Return a story's name, without its case."""
    return case.partition("[")[0]


def runs_on_both(case: str) -> bool:
    """Return whether the story does not need the embedded cluster."""
    module = case.partition(".py::")[0]
    return f"tests.stories.{module}" not in EMBEDDED_ONLY


def test_every_story_runs_on_the_embedded_cluster_and_on_a_real_control_plane() -> None:
    both = set(filter(runs_on_both, cases() | cases("slow")))
    real = cases("real") | cases("real", "slow")
    assert {name.replace("[real", "[embedded") for name in real} == both


def test_the_daily_run_on_a_real_control_plane_has_one_case_of_each_listed_story() -> None:
    assert sorted(map(name_of, cases("real"))) == sorted(FAST_ON_REAL)
