"""The pages that are rendered from the code: ``make pages`` writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.pages import __main__ as pages
from tools.pages.markdown import ROOT, render_table, replace_parts

SAMPLE = "# Page\n<!-- rendered by make pages: a -->\n{}<!-- end -->\nText\n"


@pytest.mark.parametrize("page", pages.PAGES)
def test_a_page_is_up_to_date(page: str) -> None:
    assert (ROOT / page).read_text() == pages.render(page), "run make pages"


def test_a_table_has_a_line_below_its_head() -> None:
    assert render_table(("A", "B"), [("1", "2")]) == "| A | B |\n| --- | --- |\n| 1 | 2 |\n"


@pytest.mark.parametrize("page", ["# Page", SAMPLE.partition("<!-- end")[0]])
def test_a_page_without_the_comments_around_a_part_is_an_error(page: str) -> None:
    with pytest.raises(ValueError, match="the page has no lines '<!-- rendered by make pages: a"):
        replace_parts(page, {"a": "new\n"})


def test_a_page_that_differs_is_named_and_then_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "PAGES", {"a.md": lambda: {"a": "new\n"}, "b.md": lambda: "b\n"})
    (tmp_path / "a.md").write_text(SAMPLE.format("old\n"))
    (tmp_path / "b.md").write_text("b\n")

    assert pages.main(["--check"]) == 1
    assert capsys.readouterr().err == "a.md is out of date: run make pages\n"
    assert (tmp_path / "a.md").read_text() == SAMPLE.format("old\n")

    assert pages.main([]) == 0
    assert capsys.readouterr().out == "a.md\n"
    assert (tmp_path / "a.md").read_text() == SAMPLE.format("new\n")
    assert pages.main(["--check"]) == 0
