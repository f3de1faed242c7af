"""The tables of the reference pages `relay.md` and `metrics.md`, from the code.

``python -m relay.reference <file>`` writes those of a page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from relay.metrics import DESCRIPTIONS, LABELS
from relay.settings import VARIABLES


def render_settings() -> str:
    """The environment variables, as a Markdown table."""
    rows = (
        (f"`{variable.name}`", _default(variable.default), variable.meaning)
        for variable in VARIABLES.values()
    )
    return _render_table(("Variable", "Default", "Meaning"), rows)


def render_metrics() -> str:
    """The metrics, as a Markdown table."""
    rows = (
        (f"`{one.name}`", one.type, ", ".join(f"`{label}`" for label in one.labels), one.meaning)
        for one in DESCRIPTIONS
    )
    return _render_table(("Metric", "Type", "Labels", "Meaning"), rows)


def render_labels() -> str:
    """The values of the metrics' labels, as a Markdown table."""
    rows = (
        (f"`{label}`", f"`{value}`", meaning)
        for label, values in LABELS.items()
        for value, meaning in values.items()
    )
    return _render_table(("Label", "Value", "Meaning"), rows)


_END = "<!-- end -->"

PAGES = {
    "relay.md": {"settings": render_settings},
    "metrics.md": {"metrics": render_metrics, "labels": render_labels},
}
"""The tables of each page."""


def refresh(page: str, text: str) -> str:
    """The text of a page with its tables as they are now.

    A table stands between ``<!-- <name> from the code -->`` and ``<!-- end -->``. Raises
    `ValueError` when one has no place.
    """
    for name, render in PAGES[page].items():
        start = text.index(begin := f"<!-- {name} from the code -->\n") + len(begin)
        text = text[:start] + render() + text[text.index(_END, start) :]
    return text


def _default(default: str | None) -> str:
    if default is None:
        return "required"
    return f"`{default}`" if default else ""


def _render_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(refresh(document.name, document.read_text()))
