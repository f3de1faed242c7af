"""The notes of a release, which are a section of CHANGELOG.md."""

import re

UNRELEASED = "Unreleased"


def find_section(changelog: str, name: str) -> str | None:
    """Return the text below the heading ``## [name]`` or ``## [name] - DATE``, or None."""
    heading = rf"^## \[{re.escape(name)}\](?: - \d{{4}}-\d\d-\d\d)?[ ]*$"
    found = re.search(rf"{heading}\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else None


def point_links_to(text: str, base: str) -> str:
    """Return the text with links to files below ``base``: the notes are not in the repository."""
    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", rf"]({base}/\1)", text)
