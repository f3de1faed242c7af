"""``--help`` of the programs that make calls: it shows the usage, and the program does nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from local.control_plane import __main__ as control_plane
from local.show import recording
from tests.terraform import __main__ as terraform
from tools import bench, first_slice, on_call, performance
from tools.pages import __main__ as pages

PROGRAMS: dict[str, Callable[[list[str]], int | str]] = {
    "make control-plane": control_plane.main,
    "python -m local.show.recording": recording.main,
    "python -m tools.bench": bench.main,
    "python -m tools.first_slice": first_slice.main,
    "python -m tools.on_call": on_call.main,
    "python -m tools.pages": pages.main,
    "python -m tools.performance": performance.main,
    "python -m tests.terraform": terraform.main,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_shows_the_usage_and_what_the_program_does(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        PROGRAMS[name](["--help"])
    assert raised.value.code == 0
    usage, description, *_ = capsys.readouterr().out.split("\n\n")
    assert usage.startswith(f"usage: {name}")
    assert len(description.split()) > 5


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_option_that_does_not_exist_is_rejected(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        PROGRAMS[name](["--no-such-option"])
    assert raised.value.code == 2
    assert "unrecognized arguments: --no-such-option" in capsys.readouterr().err


def test_an_unknown_section_of_the_benchmark_is_rejected_before_the_first_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as raised:
        bench.main(["cold-starts"])
    assert raised.value.code == 2
    assert (
        "no section is called cold-starts; there are cold-start, reaction"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("command", [["./deploy.sh", "--help"], ["make", "help"]])
def test_the_help_fits_into_a_terminal_of_80_columns(command: list[str]) -> None:
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) > 20
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
