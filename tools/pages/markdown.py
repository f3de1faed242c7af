"""Tables in Markdown, and the parts of a page that are rendered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
_END = "<!-- end -->"


def render_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Render a table; no cell may contain ``|``."""
    lines = [tuple(head), *map(tuple, rows)]
    lines.insert(1, tuple("---" for _ in lines[0]))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def replace_parts(page: str, parts: Mapping[str, str]) -> str:
    """Replace what is between ``<!-- rendered by make pages: NAME -->`` and ``<!-- end -->``.

    Raises `ValueError` if the page has no such comments for a part.
    """
    for name, text in parts.items():
        begin = f"<!-- rendered by make pages: {name} -->\n"
        before, _, rest = page.partition(begin)
        _, end, after = rest.partition(_END)
        if not end:
            raise ValueError(f"the page has no lines {begin.strip()!r} and {_END!r}")
        page = f"{before}{begin}{text}{end}{after}"
    return page
