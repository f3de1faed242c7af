"""The pages about JobSets name each setting and the Events without a prefix."""

from __future__ import annotations

import re
from pathlib import Path

from tools.pages.slice_lifecycle import list_templates

ROOT = Path(__file__).parents[3]
PAGES = "".join(
    (ROOT / "docs" / name).read_text() for name in ("jobsets.md", "reference/jobset-slices.md")
)


def test_a_page_names_the_events_without_a_prefix() -> None:
    names = {event.reason for event in list_templates() if not event.has_prefix}
    assert names == {"SlicePaused", "SliceLimitReached", "CandidateRefused", "CandidatesRefused"}
    assert {name for name in names if f"`{name}`" not in PAGES} == set()


def test_a_page_names_each_setting() -> None:
    settings = (ROOT / "shared" / "settings.py").read_text()
    names = set(re.findall(r'"(JOBSET_[A-Z_]+)"', settings))
    assert {name for name in names if name not in PAGES} == set()
