"""The part of Cloud Logging's query language that filters of log sinks use.

    query      = term {[join] term}          join: AND, nothing (a new line, for instance), or OR
    term       = {"NOT" | "-"} ("(" query ")" | log_id("ID") | comparison)
    comparison = FIELD operator value | FIELD operator "(" value {join value} ")" | FIELD ":*"
    operator   = "=" | "!=" | ":" | "=~" | "!~" | ">" | ">=" | "<" | "<="
    FIELD      = names joined by dots, a name of other than letters, digits and _ in double quotes

As documented: keywords are upper case; ``=`` and ``:`` (contains) ignore case; ``=~`` is
a regular expression found anywhere in the text, and is case-sensitive; a comparison with a field that is
missing from the payload or from labels is false, whatever the operator, so its ``NOT`` is true; a
field of the entry itself that is missing has its default.

Stricter than Logging: AND and OR must not be mixed without parentheses (Logging binds OR tighter, which
readers do not expect), words without a field are refused, and so are escapes other than of a quote
or a backslash.
"""

from __future__ import annotations

import operator as op
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

Entry = Mapping[str, Any]
Query = Callable[[Entry], bool]
_Test = Callable[[Any], bool]
_Combine = Callable[[Iterator[bool]], bool]
_T = TypeVar("_T")

MAX_CHARACTERS = 20_000

SEVERITIES = (
    "DEFAULT",
    "DEBUG",
    "INFO",
    "NOTICE",
    "WARNING",
    "ERROR",
    "CRITICAL",
    "ALERT",
    "EMERGENCY",
)
_DEFAULTS: Mapping[tuple[str, ...], Any] = {
    ("severity",): "DEFAULT",
    ("logName",): "",
    ("insertId",): "",
    ("resource", "type"): "",
    ("operation", "id"): "",
    ("operation", "producer"): "",
    ("operation", "first"): False,
    ("operation", "last"): False,
}
_TIMES = (("timestamp",), ("receiveTimestamp",))
_ORDERINGS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": op.gt,
    ">=": op.ge,
    "<": op.lt,
    "<=": op.le,
}
_OPERATORS = ("=", "!=", ":", "=~", "!~", *_ORDERINGS)
_TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*"|[A-Za-z0-9_]+(?:-[A-Za-z0-9_]+)*|[!<>]=|=~|!~|--|[-=:<>().*]'
)
_ESCAPE = re.compile(r"\\(.)")
_NOT_RE2 = re.compile(r"\(\?(?!:|i\)|P<)|\\[1-9]|[*+?}]\+")
"""Python's syntax that RE2 does not have: lookaround, back references, possessive quantifiers."""


class QueryError(ValueError):
    """Not a query; the message has the position and what was expected there."""


def parse(text: str) -> Query:
    """A query as a function of a log entry in its JSON form. Raises `QueryError`."""
    if len(text) > MAX_CHARACTERS:
        raise QueryError(f"the query has {len(text)} characters of {MAX_CHARACTERS} allowed")
    parser = _Parser(text)
    query = parser.query()
    parser.expect("", "AND, OR or the end")
    return query


@dataclass(frozen=True)
class _Token:
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        return repr(self.text) if self.text else "the end"


def _tokens(text: str) -> Iterator[_Token]:
    for line, content in enumerate(text.split("\n"), start=1):
        at = len(content) - len(content.lstrip())
        while at < len(content):
            match = _TOKEN.match(content, at)
            if match is None:
                raise QueryError(f"line {line}, column {at + 1}: unexpected {content[at]!r}")
            yield _Token(match[0], line, at + 1)
            at = match.end()
            at += len(content[at:]) - len(content[at:].lstrip())
    yield _Token("", line, len(content) + 1)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._index = 0

    def query(self) -> Query:
        terms, combine = self._joined(self._term)
        if len(terms) == 1:
            return terms[0]
        return lambda entry: combine(term(entry) for term in terms)

    def expect(self, text: str, name: str = "") -> None:
        if self._peek.text != text:
            raise self._error(name or repr(text))
        self._index += bool(text)

    def _joined(self, read: Callable[[], _T]) -> tuple[list[_T], _Combine]:
        """Parse one or more terms with ``read``, joined by AND or OR."""
        items, joins = [read()], set()
        while self._peek.text not in ("", ")"):
            join = "OR" if self._peek.text == "OR" else "AND"
            joins.add(join)
            if len(joins) > 1:
                raise self._error("parentheses where AND and OR meet")
            self._take(join)
            items.append(read())
        return items, any if "OR" in joins else all

    def _term(self) -> Query:
        if self._take("NOT") or self._take("-"):
            negated = self._term()
            return lambda entry: not negated(entry)
        if self._take("("):
            inner = self.query()
            self.expect(")")
            return inner
        if self._peek.text == "log_id":
            return self._log_id()
        return self._comparison()

    def _log_id(self) -> Query:
        self._index += 1
        self.expect("(")
        if not self._peek.text.startswith('"'):
            raise self._error("a log's id in double quotes")
        ending = "/logs/" + quote(self._value(), safe="")
        self.expect(")")
        return lambda entry: str(entry.get("logName", "")).endswith(ending)

    def _comparison(self) -> Query:
        path = self._field()
        operator = self._peek.text
        if operator not in _OPERATORS:
            raise self._error("one of " + " ".join(_OPERATORS))
        self._index += 1
        test = self._tests(path, operator)
        return lambda entry: any(test(value) for value in _values(entry, path))

    def _tests(self, path: tuple[str, ...], operator: str) -> _Test:
        if not self._take("("):
            return self._test(path, operator)
        tests, combine = self._joined(lambda: self._test(path, operator))
        self.expect(")")
        return lambda value: combine(test(value) for test in tests)

    def _test(self, path: tuple[str, ...], operator: str) -> _Test:
        if operator == ":" and self._take("*"):
            return lambda value: value is not None
        at, expected = self._peek, self._value()
        try:
            return _make_test(path, operator, expected)
        except ValueError as error:
            raise QueryError(f"line {at.line}, column {at.column}: {error}") from error

    def _field(self) -> tuple[str, ...]:
        names = [self._name()]
        while self._take("."):
            names.append(self._name())
        return tuple(names)

    def _name(self) -> str:
        text = self._peek.text
        if not text or text in ("AND", "OR", "NOT") or not _is_value(text):
            raise self._error("a field")
        return self._value()

    def _value(self) -> str:
        token = self._peek
        if not _is_value(token.text):
            raise self._error("a word, or a text in double quotes")
        self._index += 1
        return _unquote(token) if token.text.startswith('"') else token.text

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._index]

    def _take(self, text: str) -> bool:
        taken = self._peek.text == text
        self._index += taken
        return taken

    def _error(self, expected: str) -> QueryError:
        token = self._peek
        return QueryError(
            f"line {token.line}, column {token.column}: expected {expected}, found {token}"
        )


def _is_value(text: str) -> bool:
    return text[:1].isalnum() or text[:1] in ('"', "_")


def _unquote(token: _Token) -> str:
    def unescape(match: re.Match[str]) -> str:
        if match[1] not in '"\\':
            column = token.column + 1 + match.start()
            raise QueryError(
                f'line {token.line}, column {column}: expected \\" or \\\\, found {match[0]!r} '
                "(a dot in an expression can be written [.])"
            )
        return match[1]

    return _ESCAPE.sub(unescape, token.text[1:-1])


def _values(entry: Entry, path: tuple[str, ...]) -> list[Any]:
    """The values at a path: none, one, or several if a list is on the path."""
    found: list[Any] = [entry]
    for name in path:
        found = [value[name] for value in found if isinstance(value, Mapping) and name in value]
        found = [
            item for value in found for item in (value if isinstance(value, list) else [value])
        ]
    if not found and path in _DEFAULTS:
        return [_DEFAULTS[path]]
    return found


def _make_test(path: tuple[str, ...], operator: str, expected: str) -> _Test:
    """Raises `ValueError` for a value that the operator cannot be used with."""
    if operator in ("=~", "!~"):
        return _regex_test(operator, expected)
    if path == ("severity",):
        return _severity_test(operator, expected)
    if path in _TIMES:
        return _time_test(operator, expected)
    if operator in _ORDERINGS:
        return _number_test(operator, expected)
    if operator == ":":
        return lambda value: _has(value, expected)
    wanted = operator == "="
    return lambda value: _equals(value, expected) is wanted


def _regex_test(operator: str, pattern: str) -> _Test:
    foreign = _NOT_RE2.search(pattern)
    if foreign:
        raise ValueError(f"RE2 does not know {foreign[0]!r}")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error
    wanted = operator == "=~"
    return lambda value: isinstance(value, str) and bool(compiled.search(value)) is wanted


def _severity_test(operator: str, expected: str) -> _Test:
    if expected.upper() not in SEVERITIES:
        raise ValueError(f"{expected!r} is none of the severities " + ", ".join(SEVERITIES))
    compare = {**_ORDERINGS, "=": op.eq, ":": op.eq, "!=": op.ne}[operator]
    rank = SEVERITIES.index(expected.upper())
    return lambda value: value in SEVERITIES and compare(SEVERITIES.index(value), rank)


def _time_test(operator: str, expected: str) -> _Test:
    compare = {**_ORDERINGS, "=": op.eq, "!=": op.ne}.get(operator)
    if compare is None:
        raise ValueError(f"a time can be compared, not be searched by {operator!r}")
    moment = _time(expected)
    return lambda value: isinstance(value, str) and compare(_time(value), moment)


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no RFC 3339 time") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _number_test(operator: str, expected: str) -> _Test:
    compare, number = _ORDERINGS[operator], _number(expected)
    return lambda value: isinstance(value, int | float) and compare(value, number)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(
            f"only numbers, severities and times have an order, not {text!r}"
        ) from error


def _equals(value: Any, expected: str) -> bool:
    if isinstance(value, bool):
        return str(value).lower() == expected.lower()
    if isinstance(value, int | float):
        return str(value) == expected
    return isinstance(value, str) and value.lower() == expected.lower()


def _has(value: Any, expected: str) -> bool:
    if isinstance(value, str):
        return expected.lower() in value.lower()
    if isinstance(value, Mapping):
        return expected in value
    return _equals(value, expected)
