"""The map in docs/how-it-works.md: all that it names exists, and it names each folder."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from shared.frame.plan import Plan

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-it-works.md").read_text()
PATH = re.compile(r"`((?:relay|functions|shared|webhook|infra|main)[\w/.]*(?:\.py|/))`")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|") and PATH.search(line)]


@pytest.mark.parametrize("name", sorted(set(PATH.findall(PAGE))))
def test_each_path_on_the_map_exists(name: str) -> None:
    assert (ROOT / name).exists()


def test_a_file_without_a_folder_is_in_a_folder_of_its_row() -> None:
    for row in ROWS:
        folders = [ROOT / name for name in PATH.findall(row) if name.endswith("/")]
        for name in re.findall(r"`(\w+\.(?:py|sh))`", row):
            found = [path for folder in folders for path in folder.glob(f"**/{name}")]
            assert found or (ROOT / name).exists(), (name, row)


@pytest.mark.parametrize("top", ["functions", "shared"])
def test_the_map_names_each_folder(top: str) -> None:
    folders = {
        f"{path.parent.relative_to(ROOT)}/" for path in (ROOT / top).rglob("*/__init__.py")
    } - {f"{top}/"}
    assert len(folders) > 8
    assert folders <= set(PATH.findall(PAGE))


def test_the_page_explains_each_phase_of_a_plan_in_the_order_of_execution() -> None:
    (table,) = re.findall(r"(?s)\| phase \|.*?\n\n", PAGE)
    phases = re.findall(r"(?m)^\| `(\w+)` \|", table)
    assert phases == re.findall(r"(?m)^ +- ``(\w+)``", Plan.__doc__ or "")
    assert {*phases} < {field.name for field in fields(Plan)}
