"""`make setup`: how far it is, and what the package index said when it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from infra.set_up import count_packages, find_causes, report_progress
from tests.harness import ROOT


def test_progress_is_a_line_for_some_packages_and_every_error() -> None:
    lines = [f"Collecting package-{n}==1.0 (from -r x)\n" for n in range(40)]
    lines += ["  Downloading x.whl (3 kB)\n", "Collecting package-0==1.0 (from y)\n"]
    lines += ["Installing collected packages: a, b\n", "ERROR: No matching distribution found\n"]
    assert list(report_progress(lines, 41)) == [
        "  20 of 41 packages found",
        "  40 of 41 packages found",
        "  installing them, which takes as long again",
        "ERROR: No matching distribution found",
    ]


def test_packages_are_counted_by_their_pins() -> None:
    pinned = "# why\na==1\nb-c==2 ; python_version > '3'\n    # via a==1\n-r other.txt\n"
    assert count_packages(pinned) == 2


@pytest.mark.parametrize(
    "line, cause",
    [
        (
            "2026 Could not fetch URL https://index/x/: 403 Client Error: Forbidden - skipping",
            "Could not fetch URL https://index/x/: 403 Client Error: Forbidden - skipping",
        ),
        (
            "  WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnection'",
            "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnection'",
        ),
        ("2026 Looking in indexes", None),
    ],
)
def test_what_the_index_answered_is_found_in_pips_log(line: str, cause: str | None) -> None:
    assert find_causes(f"{line}\n{line}\n") == ([cause] if cause else [])


def test_an_index_that_cannot_be_reached_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("no-such-package==1.0\n")
    found = subprocess.run(
        [sys.executable, ROOT / "infra" / "set_up.py", tmp_path / "venv", "requirements.txt"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert "packages to install: 1," in found.stdout
    assert "the package index: " in found.stdout
    assert "127.0.0.1" in found.stdout
    assert found.stderr == ""
