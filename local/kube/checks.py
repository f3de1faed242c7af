"""The check of each keyword of a schema, for one value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from local.kube import errors
from local.kube.cel import matches
from local.kube.errors import FieldError
from local.kube.formats import has_format

Check = Callable[[Any, str], FieldError | None]
"""Takes a value and its path; returns the violation, or ``None``."""
Violation = Callable[[str, Any, Any], FieldError]
"""Takes a path, a value and the limit that it exceeds; returns the violation."""

_TYPE_NAMES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
ACCEPTED: dict[str, frozenset[str]] = {
    **{name: frozenset({name}) for name in ("string", "boolean", "integer", "array", "object")},
    "number": frozenset({"integer", "number"}),
}


def type_name(value: Any) -> str:
    """The JSON Schema name of a value's type."""
    return _TYPE_NAMES[type(value)]


def _with_message(words: str) -> Violation:
    def violation(path: str, value: Any, limit: Any) -> FieldError:
        shown = len(value) if isinstance(value, list | dict) else value
        return errors.invalid_value(path, shown, f"{path} in body {words.format(limit)}")

    return violation


def _too_long(path: str, _: Any, limit: int) -> FieldError:
    return errors.too_long(path, limit)


def _too_many(path: str, value: Any, limit: int) -> FieldError:
    return errors.too_many(path, len(value), limit)


_CHECKS: dict[str, tuple[str, Callable[[Any, Any], bool], Violation]] = {
    "minLength": (
        "string",
        lambda v, n: len(v) >= n,
        _with_message("should be at least {} chars long"),
    ),
    "maxLength": ("string", lambda v, n: len(v) <= n, _too_long),
    "pattern": (
        "string",
        lambda v, pattern: matches(pattern, v),
        _with_message("should match '{}'"),
    ),
    "minItems": (
        "array",
        lambda v, n: len(v) >= n,
        _with_message("should have at least {} items"),
    ),
    "maxItems": ("array", lambda v, n: len(v) <= n, _too_many),
    "minProperties": (
        "object",
        lambda v, n: len(v) >= n,
        _with_message("should have at least {} properties"),
    ),
    "maxProperties": ("object", lambda v, n: len(v) <= n, _too_many),
    "minimum": (
        "number",
        lambda v, n: v >= n,
        _with_message("should be greater than or equal to {}"),
    ),
    "maximum": (
        "number",
        lambda v, n: v <= n,
        _with_message("should be less than or equal to {}"),
    ),
}
"""Keyword to the type that it applies to, the condition that a value must meet, and the violation."""


def checks_of(source: Mapping[str, Any]) -> Iterator[tuple[frozenset[str], Check]]:
    """The checks of one node of a schema, each with the types that it applies to."""
    for keyword, (type_, holds, violation) in _CHECKS.items():
        if keyword == "pattern" and keyword in source:
            matches(source[keyword], "")  # raises CelError for an invalid regular expression
        if keyword in source:
            yield ACCEPTED[type_], _limit(source[keyword], holds, violation)
    if "format" in source:
        yield ACCEPTED[source.get("type", "string")], _format(source["format"])
    if "enum" in source:
        yield frozenset(_TYPE_NAMES.values()), _enum(list(source["enum"]))


def _limit(limit: Any, holds: Callable[[Any, Any], bool], violation: Violation) -> Check:
    return lambda value, path: None if holds(value, limit) else violation(path, value, limit)


def _format(name: str) -> Check:
    def check(value: Any, path: str) -> FieldError | None:
        shown = errors.render_value(value)
        why = f"Invalid value: {shown}: {path} in body must be of type {name}: {shown}"
        found = FieldError("FieldValueTypeInvalid", path, why)
        return None if has_format(name, value) else found

    return check


def _enum(values: list[Any]) -> Check:
    return lambda value, path: (
        None if value in values else errors.not_supported(path, value, values)
    )
