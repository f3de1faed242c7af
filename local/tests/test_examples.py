"""The Python examples in the pages of the stand-ins run as printed, and links stay inside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LOCAL = Path(__file__).parents[1]
PAGES = sorted(LOCAL.rglob("*.md"))
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PAGES_WITH_EXAMPLES = {
    "embedded-kubernetes.md",
    "embedded-pubsub.md",
    "simulated-compute-engine.md",
    "simulated-container-engine.md",
}


def list_examples() -> Iterator[tuple[str, str]]:
    """The Python blocks of all pages, each with the name of its page."""
    for page in PAGES:
        for block in _BLOCK.findall(page.read_text()):
            yield page.name, block


EXAMPLES = tuple(list_examples())


def run(example: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run an example in a folder; input() returns immediately, so a server stops after its start."""
    return subprocess.run(
        [sys.executable, "-c", example],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(LOCAL.parent)},
        input="\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("page, example", EXAMPLES, ids=[page for page, _ in EXAMPLES])
def test_a_python_example_runs_as_printed(page: str, example: str, tmp_path: Path) -> None:
    done = run(example, tmp_path)
    assert done.returncode == 0, f"{page}: {done.stderr}"
    for printed in re.findall(r"print\(.*\)  # (\S.*)$", example, re.MULTILINE):
        assert printed in done.stdout.splitlines()


def test_each_page_of_a_simulated_service_has_an_example() -> None:
    assert {page for page, _ in EXAMPLES} >= _PAGES_WITH_EXAMPLES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_leads_to_a_file_of_the_stand_ins(page: Path) -> None:
    for link in re.findall(
        r"\]\(([^)\s#:]+)[^)\s:]*\)", re.sub(r"`[^`\n]+`", "", page.read_text())
    ):
        target = (page.parent / link).resolve()
        assert target.exists(), link
        assert target.is_relative_to(LOCAL), link


def test_an_example_with_an_unknown_argument_fails(tmp_path: Path) -> None:
    (example,) = (text for _, text in EXAMPLES if "options=ClusterOptions()" in text)
    done = run(example.replace("options=", "dials="), tmp_path)
    assert done.returncode != 0
    assert "dials" in done.stderr
