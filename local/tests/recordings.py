"""Recorded answers, which are compared with those of the stand-ins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "shared" / "conformance" / "recordings"


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all leaves of a document, including empty objects and lists."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from flatten(inner, f"{path}.{index}")
    else:
        yield path, value
