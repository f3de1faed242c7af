"""A failing assert shows its values, in a helper as in a test."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

import tests
from local.tests.gce.small_cloud import GROUP, Cloud

ROOT = Path(tests.__file__).parents[1]


def _has_assert(path: Path) -> bool:
    return any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(path.read_bytes())))


def _name_module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


HELPERS = [
    _name_module(path)
    for path in sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "tools").rglob("*.py")])
    if not path.name.startswith("test_") and _has_assert(path)
]


@pytest.mark.parametrize("name", HELPERS)
def test_pytest_rewrites_the_asserts_of_a_helper(name: str) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert isinstance(spec.loader, AssertionRewritingHook)


def test_a_failing_assert_of_a_helper_shows_the_values() -> None:
    with pytest.raises(AssertionError, match="assert 404 == 200"):
        Cloud().get(GROUP)
