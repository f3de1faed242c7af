"""The table of questions in `docs/test-cloud.md`."""

from __future__ import annotations

import os
from pathlib import Path

from tools.cloud.questions import QUESTIONS, Question
from tools.pages.markdown import render_table


def render() -> dict[str, str]:
    """Render the table."""
    head = ("id", "question", "creates", "documented in")
    return {"questions": render_table(head, map(_render_row, QUESTIONS))}


def _render_row(question: Question) -> tuple[str, ...]:
    needs = f" Only with `{question.required_option}`." if question.required_option else ""
    link = os.path.relpath(question.documented_in, "docs")
    title = Path(link.partition("#")[0]).stem.replace("-", " ")
    return (f"`{question.id}`", question.text + needs, question.creates, f"[{title}]({link})")
