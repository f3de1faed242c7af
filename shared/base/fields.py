"""What a field of a manifest may hold, as rules that can be put together like a schema.

A rule checks a value and yields `Violation`s, each with its path. No
rule raises: any JSON value can be checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

_MOST_SHOWN = 60
_YES = frozenset({"true", "yes", "on", "1", "t", "y"})


def is_yes(text: str) -> bool:
    """Whether a person has written true, in any spelling."""
    return text.strip().lower() in _YES


@dataclass(frozen=True)
class Violation:
    """What is wrong with a field, and what would be right."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class Rule(Protocol):
    """What a field may hold."""

    def check(self, path: str, value: Any) -> Iterator[Violation]:
        """All violations of ``value`` at ``path``."""


@dataclass(frozen=True)
class Must:
    """What a text has to be like: a test, and the words for a person whose text fails it."""

    holds: Callable[[str], object]
    words: str


def match(pattern: str, words: str) -> Must:
    """A text must match a pattern as a whole."""
    return Must(re.compile(pattern).fullmatch, words)


class Text:
    """Text with a length limit; of its patterns only the first that does not match is reported."""

    def __init__(self, *musts: Must, least: int = 0, most: int) -> None:
        self._musts = musts
        self._least, self._most = least, most

    def check(self, path: str, value: Any) -> Iterator[Violation]:
        if not isinstance(value, str):
            yield Violation(path, f"must be text, not {show(value)}")
        elif len(value) < self._least:
            yield Violation(path, "must not be empty")
        elif len(value) > self._most:
            yield Violation(path, f"has {len(value)} characters; {self._most} are allowed")
        else:
            yield from self._failures(path, value)

    def _failures(self, path: str, value: str) -> Iterator[Violation]:
        failed = next((must for must in self._musts if not must.holds(value)), None)
        if failed is not None:
            yield Violation(path, f"{failed.words}, not {show(value)}")


@dataclass(frozen=True)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]

    def check(self, path: str, value: Any) -> Iterator[Violation]:
        if not isinstance(value, str) or value not in self.words:
            yield Violation(path, f"must be {' or '.join(self.words)}, not {show(value)}")


@dataclass(frozen=True)
class Number:
    """A whole number within bounds."""

    least: int
    most: int

    def check(self, path: str, value: Any) -> Iterator[Violation]:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not self.least <= value <= self.most:
            bounds = f"from {self.least} to {self.most}"
            yield Violation(path, f"must be a whole number {bounds}, not {show(value)}")


@dataclass(frozen=True)
class Items:
    """A list of so many items of one rule; items that agree in all of ``keys`` are twins."""

    item: Rule
    most: int
    least: int = 0
    keys: tuple[str, ...] = ()

    def check(self, path: str, value: Any) -> Iterator[Violation]:
        if not isinstance(value, list):
            yield Violation(path, f"must be a list, not {show(value)}")
            return
        if not self.least <= len(value) <= self.most:
            yield Violation(path, f"must have {self.least} to {self.most} items, not {len(value)}")
        for index, item in enumerate(value):
            yield from self.item.check(f"{path}[{index}]", item)
        yield from self._twins(path, value)

    def _twins(self, path: str, items: list[Any]) -> Iterator[Violation]:
        seen: list[tuple[Any, ...]] = []
        for index, item in enumerate(items):
            if not self.keys or not isinstance(item, Mapping):
                continue
            identity = tuple(item.get(key) for key in self.keys)
            if identity in seen:
                text = f"is there twice: {' and '.join(self.keys)} must differ"
                yield Violation(f"{path}[{index}]", text)
            seen.append(identity)


@dataclass(frozen=True)
class Entries:
    """A map of so many entries. Problems of keys are reported at the map itself."""

    value: Rule
    most: int
    keys: tuple[Must, ...]

    def check(self, path: str, value: Any) -> Iterator[Violation]:
        if not isinstance(value, Mapping):
            yield Violation(path, f"must be an object, not {show(value)}")
            return
        if len(value) > self.most:
            yield Violation(path, f"has {len(value)} entries; {self.most} are allowed")
        for must in self.keys:
            wrong = next((key for key in value if not must.holds(key)), None)
            if wrong is not None:
                yield Violation(path, f"{must.words}, not {show(wrong)}")
        for key, entry in value.items():
            yield from self.value.check(f"{path}.{key}", entry)


@dataclass(frozen=True)
class Record:
    """An object with fields of its own; other fields are ignored, and ``null`` counts as absent."""

    fields: Mapping[str, Rule]
    required: tuple[str, ...] = ()

    def check(self, path: str, value: Any) -> Iterator[Violation]:
        if not isinstance(value, Mapping):
            yield Violation(path, f"must be an object, not {show(value)}")
            return
        for name, rule in self.fields.items():
            if value.get(name) is not None:
                yield from rule.check(f"{path}.{name}", value[name])
            elif name in self.required:
                yield Violation(f"{path}.{name}", "is required")


def any_of(words: Iterable[str]) -> str:
    """A choice for a message: ``a, b or c``."""
    *rest, last = words
    return f"{', '.join(rest)} or {last}" if rest else last


def show(value: Any) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
