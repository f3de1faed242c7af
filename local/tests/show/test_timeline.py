"""The timeline that the demos and `make local` print: aligned columns, commands that can be pasted."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from local.show.timeline import Line, Timeline

LINE = Line(
    "create_resources",
    "training  Inserting: inserts what is missing and possible now",
    "compute.resourcePolicies.insert; 2 GCE and 9 Kubernetes calls, 34 ms",
)
MARGIN = 9 + 2 + 16 + 2


def printed(
    width: int, *, elapsed_s: float = 0.0, terminal: bool = True
) -> tuple[Timeline, io.StringIO]:
    shown = io.StringIO()
    console = Console(
        file=shown, width=width, force_terminal=terminal, color_system=None, highlight=False
    )
    clock: Iterator[float] = iter((0.0, elapsed_s))
    return Timeline(console, lambda: next(clock)), shown


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "elapsed_s, time", [(2.4, "2.4s"), (1000.0, "1000.0s"), (123456.7, "123456.7s")]
)
def test_columns_are_aligned_at_any_width_and_time(width: int, elapsed_s: float, time: str) -> None:
    timeline, shown = printed(width, elapsed_s=elapsed_s)
    timeline.print(LINE)
    first, *others = shown.getvalue().splitlines()
    assert first.startswith(f"{time:>9}  create_resources  training  Inserting")
    assert others, "the reason has its own lines at these widths"
    assert {line[:MARGIN].strip() for line in others} == {""}
    assert all(len(line.rstrip()) <= width for line in (first, *others))


def test_without_a_terminal_each_event_is_one_line() -> None:
    timeline, shown = printed(80, elapsed_s=1000.0, terminal=False)
    timeline.print(LINE)
    assert shown.getvalue() == f"  1000.0s  create_resources  {LINE.what}  [{LINE.why}]\n"


def test_a_long_row_of_a_table_is_wrapped() -> None:
    timeline, shown = printed(40)
    timeline.print_row(
        "  tear_down    6 invocations   11 calls to Compute Engine   22 to Kubernetes"
    )
    first, *others = shown.getvalue().splitlines()
    assert first.rstrip() == "  tear_down    6 invocations   11 calls"
    assert others == ["    to Compute Engine   22 to Kubernetes"]


def test_a_command_is_not_broken_in_a_narrow_terminal() -> None:
    timeline, shown = printed(20)
    timeline.print_verbatim("export KUBECONFIG=/a/path/that/is/longer/than/a/line")
    assert shown.getvalue() == "export KUBECONFIG=/a/path/that/is/longer/than/a/line\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_text_from_a_vm_cannot_control_the_terminal(terminal: bool) -> None:
    timeline, shown = printed(80, terminal=terminal)
    timeline.print(Line("VM x", "a\x1b[2Jb\u202e", "\x9b31m"))
    assert shown.getvalue().replace("\n", "").isprintable()
