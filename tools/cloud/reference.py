"""Generate the table of questions in `docs/test-cloud.md`: ``python -m tools.cloud.reference``."""

from __future__ import annotations

import os
from pathlib import Path

from tools.cloud.questions import QUESTIONS, Question

PAGE = Path(__file__).parents[2] / "docs" / "test-cloud.md"
_BEGIN, _END = "<!-- questions from the code -->\n", "<!-- end -->"


def refresh(text: str) -> str:
    """Return the page with the current questions. Raises `ValueError` if it has no marker."""
    start = text.index(_BEGIN) + len(_BEGIN)
    return text[:start] + _render() + text[text.index(_END, start) :]


def _render() -> str:
    rows = "".join(map(_render_row, QUESTIONS))
    return f"| id | question | creates | documented in |\n| --- | --- | --- | --- |\n{rows}"


def _render_row(question: Question) -> str:
    needs = f" Only with `{question.required_option}`." if question.required_option else ""
    link = os.path.relpath(question.documented_in, "docs")
    title = Path(link.partition("#")[0]).stem.replace("-", " ")
    cells = (f"`{question.id}`", question.text + needs, question.creates, f"[{title}]({link})")
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(refresh(PAGE.read_text()))
