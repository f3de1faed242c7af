"""The table in `docs/reference/reasons.md`: ``python -m shared.base.reference <file>`` renders it."""

from __future__ import annotations

import sys
from pathlib import Path

from shared.base.errors import REASONS

_BEGIN, _END = "<!-- reasons from the code -->\n", "<!-- end -->"


def render_reasons() -> str:
    """The reasons of ``Ready=False``, as a Markdown table."""
    rows = "".join(f"| `{reason}` | {meaning} |\n" for reason, meaning in REASONS.items())
    return f"| Reason | What it means, and what to do |\n| --- | --- |\n{rows}"


def refresh(text: str) -> str:
    """The document with its table as it is now. Raises `ValueError` without a place for it."""
    start = text.index(_BEGIN) + len(_BEGIN)
    return text[:start] + render_reasons() + text[text.index(_END, start) :]


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(refresh(document.read_text()))
