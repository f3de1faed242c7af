"""The table of reasons in `docs/reference/reasons.md`."""

from __future__ import annotations

from shared.base.reasons import ORDER, REASONS, find_entry
from tools.pages.markdown import render_table


def render() -> dict[str, str]:
    """Render the reasons of ``Ready=False``, and their order in errors of an API."""
    rows = (
        (f"[`{reason}`](../{find_entry(reason).removeprefix('docs/')})", meaning)
        for reason, meaning in REASONS.items()
    )
    return {
        "reasons": render_table(("Reason", "What it means, and what to do"), rows),
        "order": ", ".join(f"`{reason}`" for reason in ORDER) + "\n",
    }
