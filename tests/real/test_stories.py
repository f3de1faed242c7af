"""Whether every story that needs no kubelet is told on a real control plane, too."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.stories.conftest import EMBEDDED_ALONE, SLOW_ON_REAL

ROOT = Path(__file__).parents[2]


@cache
def collected(marks: str) -> frozenset[str]:
    """What pytest would run of the stories."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marks, "tests/stories"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = (line.removeprefix("tests/stories/") for line in said.splitlines() if "::" in line)
    return frozenset(names)


def told() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The stories on the embedded cluster; on a real one every day; on a real one with time."""
    everyday, others = collected("real and not slow"), collected("not real or slow")
    slow = frozenset(name for name in others if "[real" in name)
    return others - slow, everyday, slow


def test_every_story_is_told_on_the_embedded_cluster_and_on_a_real_control_plane() -> None:
    embedded, everyday, slow = told()
    assert len(everyday) > 250
    alone = {f"{module.rpartition('.')[2]}.py" for module in EMBEDDED_ALONE}
    both = {name for name in embedded if name.partition("::")[0] not in alone}
    assert {name.replace("[real", "[embedded") for name in everyday | slow} == both


def test_those_that_are_too_long_for_every_day_are_few() -> None:
    _, everyday, slow = told()
    listed = {name for name in everyday | slow if {name, name.partition("[")[0]} & SLOW_ON_REAL}
    assert listed <= slow
    assert len(listed) < len(everyday) / 10


@pytest.mark.parametrize("story", sorted(SLOW_ON_REAL))
def test_those_that_are_too_long_for_every_day_exist(story: str) -> None:
    _, _, slow = told()
    assert any(story in (name, name.partition("[")[0]) for name in slow)
