"""Each public class of the product has its own name, so that a search finds one class."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PRODUCT = ("functions", "shared", "relay", "replay", "webhook")


def test_a_class_name_is_unique_in_the_product() -> None:
    found: dict[str, list[str]] = {}
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in list_public_classes(path.read_text()):
                found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert len(found) > 100, "the search must find the product's classes"
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def list_public_classes(code: str) -> Iterator[str]:
    """Yield the names of all classes in ``code``, including nested ones."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
