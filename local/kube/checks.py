"""Single checks of single values: what each keyword of a schema demands, in go-openapi's words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from local.kube import errors
from local.kube.cel import matches
from local.kube.errors import FieldError
from local.kube.formats import FORMATS

Check = Callable[[Any, str], FieldError | None]
"""From a value and its path to what is wrong with it."""

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
    "string": frozenset({"string"}),
    "boolean": frozenset({"boolean"}),
    "integer": frozenset({"integer"}),
    "number": frozenset({"integer", "number"}),
    "array": frozenset({"array"}),
    "object": frozenset({"object"}),
}


def type_name(value: Any) -> str:
    """The JSON Schema name of a value's type."""
    return _TYPE_NAMES[type(value)]


def _limit(
    holds: Callable[[Any, Any], bool], words: str, shown: Callable[[Any], Any]
) -> Callable[[Any], Check]:
    def of(limit: Any) -> Check:
        def check(value: Any, path: str) -> FieldError | None:
            if holds(value, limit):
                return None
            return errors.invalid_value(path, shown(value), f"{path} in body {words} {limit}")

        return check

    return of


def _same(value: Any) -> Any:
    return value


def _sized(words: str, unit: str) -> Callable[[Any], Check]:
    def of(limit: int) -> Check:
        def check(value: Any, path: str) -> FieldError | None:
            if len(value) >= limit:
                return None
            shown = value if isinstance(value, str) else len(value)
            why = f"{path} in body should {words} at least {limit} {unit}"
            return errors.invalid_value(path, shown, why)

        return check

    return of


def _max_length(limit: int) -> Check:
    return lambda value, path: errors.too_long(path, limit) if len(value) > limit else None


def _max_count(limit: int) -> Check:
    return lambda value, path: (
        errors.too_many(path, len(value), limit) if len(value) > limit else None
    )


def _pattern(pattern: str) -> Check:
    return lambda value, path: (
        None
        if matches(pattern, value)
        else errors.invalid_value(path, value, f"{path} in body should match '{pattern}'")
    )


def _format(name: str) -> Check:
    holds = FORMATS[name]
    if name in ("int32", "int64"):
        return lambda value, path: (
            None
            if holds(value)
            else errors.invalid_somewhere(
                f"Checked value must be of type integer with format {name} in {path}"
            )
        )
    return lambda value, path: (
        None
        if holds(value)
        else FieldError(
            "FieldValueTypeInvalid",
            path,
            f"Invalid value: {errors.render_value(value)}: "
            f"{path} in body must be of type {name}: {errors.render_value(value)}",
        )
    )


def _enum(values: list[Any]) -> Check:
    return lambda value, path: (
        None if value in values else errors.not_supported(path, value, values)
    )


_CHECKS: dict[str, tuple[str, Callable[[Any], Check]]] = {
    "minLength": ("string", _sized("be", "chars long")),
    "maxLength": ("string", _max_length),
    "pattern": ("string", _pattern),
    "minItems": ("array", _sized("have", "items")),
    "maxItems": ("array", _max_count),
    "minProperties": ("object", _sized("have", "properties")),
    "maxProperties": ("object", _max_count),
    "multipleOf": ("number", _limit(lambda v, m: v % m == 0, "should be a multiple of", _same)),
}
"""Keyword to the type that it speaks of and the maker of its check."""

_BOUNDS: dict[tuple[str, bool], Callable[[Any], Check]] = {
    ("minimum", False): _limit(lambda v, m: v >= m, "should be greater than or equal to", _same),
    ("minimum", True): _limit(lambda v, m: v > m, "should be greater than", _same),
    ("maximum", False): _limit(lambda v, m: v <= m, "should be less than or equal to", _same),
    ("maximum", True): _limit(lambda v, m: v < m, "should be less than", _same),
}


def checks_of(source: Mapping[str, Any]) -> Iterator[tuple[frozenset[str], Check]]:
    """The checks that one node of a schema asks for, each with the types that it is for."""
    for keyword, (type_, make) in _CHECKS.items():
        if keyword in source:
            yield ACCEPTED[type_], make(source[keyword])
    for keyword, flag in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if keyword in source:
            make = _BOUNDS[keyword, bool(source.get(flag, False))]
            yield ACCEPTED["number"], make(source[keyword])
    if source.get("format") in FORMATS:
        yield ACCEPTED[source.get("type", "string")], _format(source["format"])
    if "enum" in source:
        yield frozenset(_TYPE_NAMES.values()), _enum(list(source["enum"]))
