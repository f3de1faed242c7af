"""The map in docs/how-it-works.md: each file and folder that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-it-works.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:relay|functions|shared|infra|main)[\w/.]*(?:\.py|/))`", PAGE)))


@pytest.mark.parametrize("name", NAMED)
def test_each_path_on_the_map_exists(name: str) -> None:
    assert (ROOT / name).exists()


def test_the_map_names_each_package_of_shared() -> None:
    packages = {f"shared/{path.name}/" for path in (ROOT / "shared").iterdir() if path.is_dir()}
    assert packages - {"shared/__pycache__/"} <= set(NAMED)
