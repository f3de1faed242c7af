"""The page about JobSets names what can be told and set."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "jobsets.md").read_text()
STEPS = [
    (ROOT / "functions" / f"{step}.py").read_text() for step in ("provision_slice", "release_slice")
]


def test_the_page_has_each_event_and_no_other() -> None:
    rows = set(re.findall(r"^\| `([A-Z][A-Za-z]+)` \|", PAGE, re.MULTILINE))
    text = "".join(STEPS)
    told = set(re.findall(r"event_prefix\}([A-Z][A-Za-z]+)", text))
    told |= set(re.findall(r'"((?:Creation|Deletion)[A-Z][a-z]+)"', text))
    assert rows == told


def test_the_page_has_each_setting() -> None:
    settings = (ROOT / "shared" / "frame" / "settings.py").read_text()
    names = set(re.findall(r'"(JOBSET_[A-Z_]+)"', settings))
    assert {name for name in names if name not in PAGE} == set()
