"""The pages of the documentation, and the anchors of their headings."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "infra").rglob("*.md"),
        *(ROOT / "local").rglob("*.md"),
    ]
)
_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def list_anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings; a second equal heading has ``-1``."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    counts: Counter[str] = Counter()
    anchors = set()
    for heading in headings:
        anchor = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        anchors.add(f"{anchor}-{counts[anchor]}" if counts[anchor] else anchor)
        counts[anchor] += 1
    return anchors
