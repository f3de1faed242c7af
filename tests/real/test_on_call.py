"""docs/on-call.md: a stockout, a preemption, lost messages and a dead letter, resolved with the tool.

``python -m tools.on_call`` generates the page.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from local.tests.real_parts import miss
from tools.first_slice import parse_page, render_page
from tools.on_call import EXPECTED, PAGE, open_tool_terminal, play_page


@pytest.mark.real
@pytest.mark.processes
def test_each_fault_is_found_explained_and_resolved(tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        miss("there is no kubectl here")
    with open_tool_terminal(tmp_path, kubectl) as run:
        play_page(PAGE.read_text(), run, print)


def test_the_page_shows_the_expected_output_of_each_command() -> None:
    shown = iter(parse_page(PAGE.read_text()))
    for expected in EXPECTED:
        step = next(one for one in shown if one.command.startswith(expected.command))
        assert expected.matches(step.output), step.command


def test_the_page_fits_a_terminal_of_80_columns() -> None:
    steps = parse_page(PAGE.read_text())
    tool = [step for step in steps if step.command.startswith("kubectl tng")]
    assert len(tool) > 12
    long = [line for step in tool for line in step.output.splitlines() if len(line) > 80]
    assert long == []


def test_a_page_is_rendered_as_it_was_parsed() -> None:
    text = PAGE.read_text()
    assert render_page(text, parse_page(text)) == text
