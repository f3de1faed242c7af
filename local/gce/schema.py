"""Strict parsing of request bodies: unknown fields, wrong types and unknown enum values are refused.

The shapes are those of google-cloud-compute (``fields.json``, made by `local.gce.generate`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from local.gce.refusals import MALFORMED_JSON, UNKNOWN_FIELD, WRONG_VALUE, Refused

Document = dict[str, Any]

_SHAPES: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("fields.json").read_text())


def parse_body(raw: bytes, message: str) -> Document:
    """Parse a body as the message of that name. Raises `Refused`."""
    try:
        body = json.loads(raw or b"{}")
    except ValueError as error:
        raise MALFORMED_JSON.refused() from error
    if not isinstance(body, dict):
        raise MALFORMED_JSON.refused()
    _check_message(body, message, "resource")
    return body


def _check_message(value: Any, message: str, path: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(value, message, path)
    shape = _SHAPES[message]
    for name, inner in value.items():
        kind = shape.get(name)
        if kind is None:
            raise UNKNOWN_FIELD.refused(name=name, parent=path)
        if inner is not None:
            _check(inner, kind, f"{path}.{name}")


def _check(value: Any, kind: str, path: str) -> None:
    if kind.startswith("[]"):
        _check_list(value, kind[2:], path)
    elif kind.startswith("{}"):
        _check_map(value, kind[2:], path)
    elif kind[0].isupper():
        _check_message(value, kind, path)
    elif kind.startswith("enum:"):
        if value not in kind[5:].split("|"):
            raise _wrong(value, "enum", path)
    elif not _SCALARS[kind](value):
        raise _wrong(value, kind, path)


def _check_list(value: Any, kind: str, path: str) -> None:
    if not isinstance(value, list):
        raise _wrong(value, "list", path)
    for index, item in enumerate(value):
        _check(item, kind, f"{path}[{index}]")


def _check_map(value: Any, kind: str, path: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(value, "map", path)
    for key, item in value.items():
        _check(item, kind, f"{path}.{key}")


def _is_integer(value: Any) -> bool:
    if isinstance(value, str):
        return value.removeprefix("-").isdecimal()
    return isinstance(value, int) and not isinstance(value, bool)


_SCALARS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int32": _is_integer,
    "int64": _is_integer,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


def _wrong(value: Any, kind: str, path: str) -> Refused:
    return WRONG_VALUE.refused(field=path, kind=kind, value=json.dumps(value)[:80])
