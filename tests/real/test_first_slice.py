"""docs/first-slice.md shows the real output of its commands.

``python -m tools.first_slice`` generates the page.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

from local.control_plane.binaries import find
from local.control_plane.plane import OwnControlPlane
from local.tests.real_parts import miss
from tests.real.inventory import list_everything
from tools.first_slice import PAGE, Step, mask, open_terminal, parse_page, play, render_page

real = pytest.mark.real
processes = pytest.mark.processes


@real
@processes
@pytest.mark.slow
def test_the_page_has_the_output_of_kubectl_on_a_real_control_plane(
    tmp_path: Path, own_control_plane: OwnControlPlane
) -> None:
    before = list_everything(own_control_plane)
    kubeconfig = str(own_control_plane.kubeconfig)
    _check_page(tmp_path, own_control_plane.kubectl, "--kubeconfig", kubeconfig)
    assert list_everything(own_control_plane) ^ before == set()


@real
@processes
def test_the_page_has_the_output_of_kubectl_on_the_embedded_api(tmp_path: Path) -> None:
    binaries = find(os.environ)
    if binaries is None:
        miss("there is no kubectl of the page's version here; `make control-plane` makes one")
    _check_page(tmp_path, binaries.path("kubectl"), "--port", "0")


def _check_page(folder: Path, kubectl: str, *arguments: str) -> None:
    wrong = []
    with open_terminal(folder, kubectl, *arguments) as run:
        for step in parse_page(PAGE.read_text()):
            played = play(step, run)
            wrong += list(difflib.unified_diff(mask(step), mask(played), step.command, "now"))
    assert wrong == [], "\n".join(wrong)


def test_a_page_is_rendered_as_it_was_parsed() -> None:
    text = PAGE.read_text()
    steps = parse_page(text)
    assert len(steps) > 20
    assert all(step.command for step in steps)
    assert render_page(text, steps) == text


@pytest.mark.parametrize(
    "before, after",
    [
        pytest.param("training   True  54s", "training  True  2m24s", id="ages and widths"),
        pytest.param("tng-my-slice-0123abcd-x9y8", "tng-my-slice-89abcdef-00zz", id="ids"),
        pytest.param("Since:  2026-11-21T23:57:29Z", "Since:  2026-11-22T03:57:29.5Z", id="times"),
        pytest.param("Chip Hours:  0.0\nStart:  33", "Chip Hours:  0.1\nStart:  210", id="chips"),
        pytest.param(
            "5s  Normal  Provisioned\n9s  Warning  Lost",
            "1s (x2 over 9s)  Warning  Lost\n5s  Normal  NodesJoining\n4s  Normal  Provisioned",
            id="events",
        ),
    ],
)
def test_values_that_differ_between_runs_are_masked(before: str, after: str) -> None:
    assert mask(Step("", before)) == mask(Step("", after))


@pytest.mark.parametrize(
    "before, after",
    [
        pytest.param("training  True  Ready", "training  False  Lost", id="a word"),
        pytest.param("Waiting for 1 of 2 nodes", "Waiting for 2 of 2 nodes", id="a count"),
        pytest.param("a\nb", "b\na", id="the order of lines"),
    ],
)
def test_values_that_a_reader_would_notice_are_not_masked(before: str, after: str) -> None:
    assert mask(Step("", before)) != mask(Step("", after))
