"""The table of questions in `docs/test-cloud.md`, from the code: ``python -m tests.cloud.reference``."""

from __future__ import annotations

from pathlib import Path

from tests.cloud.questions import QUESTIONS, Question

PAGE = Path(__file__).parents[2] / "docs" / "test-cloud.md"
_BEGIN, _END = "<!-- questions from the code -->\n", "<!-- end -->"


def refresh(text: str) -> str:
    """The page with the questions as they are now. Raises `ValueError` without a place."""
    start = text.index(_BEGIN) + len(_BEGIN)
    return text[:start] + _render() + text[text.index(_END, start) :]


def _render() -> str:
    rows = "".join(map(_render_row, QUESTIONS))
    return f"| question | what is asked | makes | not known in |\n| --- | --- | --- | --- |\n{rows}"


def _render_row(question: Question) -> str:
    needs = f" Only with `{question.needs}`." if question.needs else ""
    link = question.cites.removeprefix("docs/")
    title = Path(link.partition("#")[0]).stem.replace("-", " ")
    cells = (f"`{question.id}`", question.asks + needs, question.makes, f"[{title}]({link})")
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(refresh(PAGE.read_text()))
