"""The imports of a module's source."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def imported_modules(code: str) -> Iterator[str]:
    """Yield the dotted name of each imported module, or of what is imported from a module."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
