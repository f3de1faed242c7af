"""The table of routes: each step has one row, and its name is written there alone."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import main
from shared.triggers.message import Cause
from shared.triggers.routes import ROUTES

ROOT = Path(main.__file__).parent
OTHER_MEANINGS = {
    ("replay/explain.py", "sweep"),  # a field of the JSON output
    ("shared/settings.py", "approve_join"),  # a value of JOIN_APPROVAL
    ("shared/triggers/routes.py", *ROUTES),
}


def test_each_step_is_a_folder_and_an_entry_point() -> None:
    folders = {path.parent.name for path in (ROOT / "functions").glob("*/__init__.py")}
    assert folders == ROUTES.keys()
    for step in ROUTES:
        assert import_module(f"functions.{step}").STEP.name == step
        assert callable(getattr(main, step))


def test_each_cause_triggers_a_step() -> None:
    causes = [
        cause for route in ROUTES.values() for listed in route.causes.values() for cause in listed
    ]
    assert {*causes} == {*Cause}


def test_the_name_of_a_step_is_written_in_the_table_alone() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "main.py", "functions", "shared", "relay", "replay", "webhook"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = {
        (name, step)
        for name in listed.stdout.split()
        if name.endswith(".py")
        for step in list_steps_in(ROOT / name)
    }
    allowed = {(name, step) for name, *steps in OTHER_MEANINGS for step in steps}
    assert found == allowed


def list_steps_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and node.value in ROUTES:
            yield str(node.value)
