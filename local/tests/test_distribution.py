"""`pyproject.toml` names every package, and each library that they import."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

LOCAL = Path(__file__).parents[1]
CONFIG = tomllib.loads((LOCAL / "pyproject.toml").read_text())
NOT_PACKAGED = {LOCAL / "tests", LOCAL / "build", LOCAL / "simulate"}
"""`simulate` imports the product, which is in no distribution."""


def modules() -> Iterator[Path]:
    return (path for path in LOCAL.rglob("*.py") if NOT_PACKAGED.isdisjoint(path.parents))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def test_every_package_is_named() -> None:
    found = {path.parent.relative_to(LOCAL.parent) for path in modules()}
    named = CONFIG["tool"]["setuptools"]["packages"]
    assert named == sorted(".".join(folder.parts) for folder in found)


def test_every_imported_library_is_a_dependency() -> None:
    distributions = packages_distributions()
    dependencies = set(CONFIG["project"]["dependencies"])
    missing = set()
    for name in {name for path in modules() for name in imports(path)}:
        library = name.partition(".")[0]
        # Google's distributions share the package `google`.
        if library in {*sys.stdlib_module_names, "local", "google"}:
            continue
        if not {one.lower() for one in distributions[library]} & dependencies:
            missing.add(name)
    assert missing == set()
