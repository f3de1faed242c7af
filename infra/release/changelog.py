"""The notes of a release, which are a section of CHANGELOG.md."""

from __future__ import annotations

import re

UNRELEASED = "Unreleased"


def find_section(changelog: str, name: str) -> str | None:
    """The text below the heading ``## [name]``, with or without a date; None without that heading."""
    heading = rf"^## \[{re.escape(name)}\](?: - \d{{4}}-\d\d-\d\d)?[ ]*$"
    found = re.search(rf"{heading}\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else None


def point_links_to(text: str, base: str) -> str:
    """The text with links to files of the repository below ``base``: the notes stand elsewhere."""
    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", rf"]({base}/\1)", text)
