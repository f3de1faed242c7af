"""The example in docs/simulate.md is what `make simulate` prints, and the page names what there is."""

from __future__ import annotations

import re
import shlex

import pytest

from local.simulate import command
from local.simulate.script import FORMS
from tests.support.harness import ROOT

PAGE = (ROOT / "docs" / "simulate.md").read_text()


def test_the_example_prints_what_the_page_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = re.search(r'^COLUMNS=80 make simulate ARGS="(.*)"$', PAGE, re.MULTILINE)
    assert found is not None
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(ROOT)
    assert command.main(shlex.split(found[1])) == 0
    output, begin = capsys.readouterr().out, 0
    (_, example) = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for part in filter(None, re.split(r"^\.\.\.\n", example, flags=re.MULTILINE)):
        begin = output.index(part, begin)
    assert output.endswith(part)
    assert max(map(len, output.splitlines())) <= 80


def test_the_page_has_the_script_of_the_example() -> None:
    script = (ROOT / "examples" / "v6e-4x4-spot.faults").read_text()
    (shown, _) = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert script.endswith(shown)


def test_the_page_has_each_line_of_a_script() -> None:
    lines = (f"{verb} {form}" for verb, (forms, _) in FORMS.items() for form in forms)
    assert [line for line in lines if f"`{line}`" not in PAGE] == []
