"""The Python examples in the documentation run as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_docs import PAGES, ROOT

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
        env={**os.environ, "PYTHONPATH": str(ROOT)},
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


def test_an_example_with_an_unknown_argument_fails(tmp_path: Path) -> None:
    (example,) = (text for _, text in EXAMPLES if "options=ClusterOptions()" in text)
    done = run(example.replace("options=", "dials="), tmp_path)
    assert done.returncode != 0
    assert "dials" in done.stderr
