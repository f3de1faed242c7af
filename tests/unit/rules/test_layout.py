"""Where tests are, and what they share: folders as in the product, helpers in modules of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.rules.imports import imported_modules

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "tests" / "unit"
REPEATS_STORIES = "tests/unit/infra/chart/test_cluster_permissions.py"
"""It runs whole tests again, to record the calls of their steps."""


def is_test_module(name: str) -> bool:
    path = ROOT / f"{name.replace('.', '/')}.py"
    return path.name.startswith("test_") and path.is_file()


@pytest.mark.parametrize("folder", ["tests", "tools"])
def test_no_module_imports_a_test_module(folder: str) -> None:
    """What two modules use is in a helper module, so that a test can be changed or removed alone."""
    found = {
        str(path.relative_to(ROOT)): sorted(filter(is_test_module, imported_modules(text)))
        for path in (ROOT / folder).rglob("*.py")
        if "test_" in (text := path.read_text())
    }
    assert {path: names for path, names in found.items() if names and path != REPEATS_STORIES} == {}


def test_an_import_of_a_test_module_is_recognized() -> None:
    code = "from tests.unit.rules import test_layout\nimport tests.unit.rules.test_layout\n"
    assert [*filter(is_test_module, imported_modules(code))] == ["tests.unit.rules.test_layout"] * 2


def test_each_folder_of_tests_is_one_of_the_product() -> None:
    folders = [
        str(path.parent.relative_to(UNIT))
        for top in ("functions", "shared", "relay", "replay", "webhook", "infra")
        for path in (UNIT / top).rglob("__init__.py")
    ]
    of_a_script = "shared/node_groups/startup"
    assert [path for path in folders if not (ROOT / path).is_dir()] == [of_a_script]
