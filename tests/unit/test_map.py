"""The map in docs/how-it-works.md: each file and folder that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-it-works.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:relay|functions|shared|infra|main)[\w/.]*(?:\.py|/))`", PAGE)))


@pytest.mark.parametrize("name", NAMED)
def test_what_the_map_names_is_there(name: str) -> None:
    assert (ROOT / name).exists()


def test_the_map_names_each_room_of_shared() -> None:
    rooms = {f"shared/{path.name}/" for path in (ROOT / "shared").iterdir() if path.is_dir()}
    assert rooms - {"shared/__pycache__/"} <= set(NAMED)
