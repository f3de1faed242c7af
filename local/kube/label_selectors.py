"""Label selectors in the string form of a query parameter, as k8s.io/apimachinery reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from local.kube import errors
from local.kube.metadata import key_faults, label_value_faults

Labels = Mapping[str, str]
Requirement = Callable[[Labels], bool]

_TOKEN = re.compile(r"\s*(?P<text>==|!=|[=!(),<>]|[^\s=!(),<>]+|\Z)")
_SYMBOLS = frozenset({"==", "!=", "=", "!", "(", ")", ",", "<", ">", ""})
_IDENTIFIER_WORDS = "found '%s', expected: identifier"


@dataclass(frozen=True)
class Selector:
    """All requirements must hold; an empty selector matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Labels | None) -> bool:
        """Whether an object with these labels is selected."""
        return all(requirement(labels or {}) for requirement in self.requirements)


@lru_cache(maxsize=1024)
def parse_label_selector(text: str) -> Selector:
    """A selector from ``a=b,c!=d,e in (f,g),h notin (i),j,!k``. Raises 400."""
    try:
        return Selector(tuple(_Parser(text).parse()))
    except _SyntaxError as error:
        raise errors.bad_request(str(error)) from error


class _SyntaxError(ValueError):
    """A selector that cannot be read; the message says where."""


class _Parser:
    """Reads one selector, token by token. The empty token stands for the end."""

    def __init__(self, text: str) -> None:
        self._tokens = [found["text"] for found in _TOKEN.finditer(text)]
        self._at = 0

    def parse(self) -> Iterator[Requirement]:
        while self._next:
            if self._next in _SYMBOLS - {"!"}:
                raise _SyntaxError(
                    f"found '{self._next}', expected: !, identifier, or 'end of string'"
                )
            try:
                yield self._requirement()
            except _SyntaxError as error:
                raise _SyntaxError(f"unable to parse requirement: {error}") from error
            self._separator()

    @property
    def _next(self) -> str:
        return self._tokens[min(self._at, len(self._tokens) - 1)]

    def _take(self) -> str:
        token = self._next
        self._at += 1
        return token

    def _separator(self) -> None:
        token = self._take()
        if token not in (",", ""):
            raise _SyntaxError(f"found '{token}', expected: ',' or 'end of string'")
        if token and self._next in _SYMBOLS - {"!"}:
            raise _SyntaxError(f"found '{self._next}', expected: identifier after ','")

    def _requirement(self) -> Requirement:
        absent = self._next == "!"
        if absent:
            self._take()
        key = self._take()
        if key in _SYMBOLS:
            raise _SyntaxError(_IDENTIFIER_WORDS % key)
        _refuse(errors.NOWHERE, key, key_faults(key))
        if absent:
            return lambda labels: key not in labels
        if self._next in ("", ","):
            return lambda labels: key in labels
        operator = self._take()
        if operator not in _OPERATORS:
            raise _SyntaxError(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
        values = self._values() if operator in ("in", "notin") else (self._value(),)
        _check_values(key, operator, values)
        holds = _OPERATORS[operator]
        return lambda labels: holds(labels, key, values)

    def _value(self) -> str:
        if self._next in ("", ","):
            return ""
        value = self._take()
        if value in _SYMBOLS:
            raise _SyntaxError(_IDENTIFIER_WORDS % value)
        return value

    def _values(self) -> tuple[str, ...]:
        opening = self._take()
        if opening != "(":
            raise _SyntaxError(f"found '{opening}' expected: '('")
        values = [""]
        while (token := self._take()) != ")":
            if token == ",":
                values.append("")
            elif token in _SYMBOLS:
                raise _SyntaxError(f"found '{token}', expected: ',', or identifier")
            elif values[-1]:
                raise _SyntaxError(f"found '{token}', expected: ',' or ')'")
            else:
                values[-1] = token
        return tuple(values)


def _refuse(field: str, value: str, faults: list[str]) -> None:
    if faults:
        raise _SyntaxError(errors.invalid_value(field, value, "; ".join(faults)))


def _check_values(key: str, operator: str, values: tuple[str, ...]) -> None:
    for index, value in enumerate(values):
        if operator in ("<", ">") and not value.lstrip("-").isdecimal():
            why = "for 'Gt', 'Lt' operators, the value must be an integer"
            _refuse(f"values[{index}]", value, [why])
        _refuse(f"values[{index}][{key}]", value, label_value_faults(value))


Holds = Callable[[Labels, str, tuple[str, ...]], bool]


def _within(labels: Labels, key: str, values: tuple[str, ...]) -> bool:
    return labels.get(key) in values


def _without(labels: Labels, key: str, values: tuple[str, ...]) -> bool:
    return labels.get(key) not in values


def _beyond(labels: Labels, key: str, values: tuple[str, ...]) -> bool:
    return _is_number(labels.get(key)) and int(labels[key]) > int(values[0])


def _below(labels: Labels, key: str, values: tuple[str, ...]) -> bool:
    return _is_number(labels.get(key)) and int(labels[key]) < int(values[0])


def _is_number(text: str | None) -> bool:
    return text is not None and text.lstrip("-").isdecimal()


_OPERATORS: dict[str, Holds] = {
    "in": _within,
    "=": _within,
    "==": _within,
    "notin": _without,
    "!=": _without,
    ">": _beyond,
    "<": _below,
}
_EXPRESSIONS: dict[str, Holds] = {
    "In": _within,
    "NotIn": _without,
    "Exists": lambda labels, key, _: key in labels,
    "DoesNotExist": lambda labels, key, _: key not in labels,
    "Gt": _beyond,
    "Lt": _below,
}


def matches_expressions(expressions: Iterable[Mapping[str, Any]], labels: Labels) -> bool:
    """Whether labels fulfil all ``matchExpressions`` (of selectors and of node affinity)."""
    return all(
        _EXPRESSIONS[one["operator"]](labels, one["key"], tuple(one.get("values", ())))
        for one in expressions
    )
