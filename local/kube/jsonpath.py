"""The JSONPath subset of printer columns: members, indexes, ``[*]`` and filters for equality."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

Step = Callable[[Any], Iterator[Any]]

_TOKENS = re.compile(
    r"""
    \.?\[\?\(\s*@(?P<filter>[^=!\s]+)\s*==\s*["'](?P<wanted>[^"']*)["']\s*\)\]
  | \.?\[(?P<index>\d+|\*)\]
  | \.(?P<name>(?:\\.|[^.\[\]\\])+)
    """,
    re.VERBOSE,
)


@lru_cache(maxsize=1024)
def compile_path(path: str) -> Callable[[Any], list[Any]]:
    """Compile a path into a function that returns all values of a document. Raises `ValueError`."""
    text = path.strip().removeprefix("{").removesuffix("}")
    steps: list[Step] = []
    at = 0
    while at < len(text):
        found = _TOKENS.match(text, at)
        if found is None:
            raise ValueError(f"unrecognized JSONPath {path!r} at {text[at:]!r}")
        steps.append(_step(found))
        at = found.end()

    def find(document: Any) -> list[Any]:
        values = [document]
        for step in steps:
            values = [item for value in values for item in step(value)]
        return values

    return find


def _step(found: re.Match[str]) -> Step:
    if found["filter"] is not None:
        find = compile_path(found["filter"])
        return lambda value: (item for item in _list(value) if find(item) == [found["wanted"]])
    if found["index"] == "*":
        return lambda value: iter(_list(value))
    if found["index"] is not None:
        index = int(found["index"])
        return lambda value: iter(_list(value)[index : index + 1])
    name = re.sub(r"\\(.)", r"\1", found["name"])
    return lambda value: iter([value[name]] if isinstance(value, dict) and name in value else ())


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def render_results(values: list[Any]) -> str:
    """Render the values that a path has found."""
    return " ".join(value if isinstance(value, str) else json.dumps(value) for value in values)
