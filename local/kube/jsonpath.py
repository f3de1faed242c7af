"""The JSONPath subset of printer columns: members, indexes, ``[*]`` and equality filters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

Step = Callable[[Any], Iterator[Any]]

_TOKENS = re.compile(
    r"""
    \.?\[\?\(\s*@(?P<filter>[^=!\s]+)\s*(?P<op>==|!=)\s*(?P<wanted>"[^"]*"|'[^']*'|[^)\s]+)\s*\)\]
  | \.?\[(?P<index>-?\d+)\]
  | \.?\[(?P<every>\*)\]
  | \.?\[(?P<quoted>'[^']*'|"[^"]*")\]
  | \.(?P<all>\*)
  | \.(?P<name>(?:\\.|[^.\[\]\\])+)
    """,
    re.VERBOSE,
)


@lru_cache(maxsize=1024)
def compile_path(path: str) -> Callable[[Any], list[Any]]:
    """A function from a document to all that the path finds. Raises `ValueError`."""
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
        return _filter(found["filter"], found["op"], found["wanted"])
    if found["index"] is not None:
        return _index(int(found["index"]))
    if found["every"] or found["all"]:
        return _every
    name = found["quoted"][1:-1] if found["quoted"] else re.sub(r"\\(.)", r"\1", found["name"])
    return _member(name)


def _member(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict) and name in value:
            yield value[name]

    return step


def _index(index: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= index < len(value):
            yield value[index]

    return step


def _every(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()


def _filter(path: str, op: str, literal: str) -> Step:
    find = compile_path(path)
    quoted = literal[0] in "\"'"
    wanted = literal[1:-1] if quoted else _literal(literal)

    def step(value: Any) -> Iterator[Any]:
        for item in value if isinstance(value, list) else ():
            found = find(item)
            if (bool(found) and found[0] == wanted) is (op == "=="):
                yield item

    return step


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def render_results(values: list[Any]) -> str:
    """What is printed for what a path has found."""
    return " ".join(value if isinstance(value, str) else _render(value) for value in values)


def _render(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
