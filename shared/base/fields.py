"""The valid values of a manifest's fields, declared like a schema.

A field checks a value and yields `Violation`s, each with its path. None raises: any JSON value can be
checked. The attributes of a field are public: tools/pages/crd.py renders the schema of a
CustomResourceDefinition from them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

_MAX_INT32 = 2**31 - 1
_MOST_SHOWN = 60
_YES = frozenset({"true", "yes", "on", "1", "t", "y"})


def is_yes(text: str) -> bool:
    """Whether a text means true, in any spelling."""
    return text.strip().lower() in _YES


@dataclass(frozen=True)
class Violation:
    """An invalid field: its path, and what is invalid or what would be valid."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class Field(Protocol):
    """The valid values of a field. ``description`` is for the users' documentation."""

    @property
    def description(self) -> str: ...

    def check(self, path: str, value: Any) -> Iterator[Violation]:
        """All violations of ``value`` at ``path``."""


@dataclass(frozen=True)
class Must:
    """A condition of a text, and the message for a text that does not meet it.

    The API server makes the same test: by a schema's ``pattern``, or by ``cel``, of which the field is
    ``self``. Without either only the functions make it. ``message_of`` is a message with a place, %s,
    for the invalid text, which is ``cel_text`` in CEL.
    """

    message: str
    holds: Callable[[str], object]
    pattern: str = ""
    cel: str = ""
    message_of: str = ""
    cel_text: str = ""

    def find_violation(self, path: str, text: str) -> Violation | None:
        """The violation of a text that does not meet the condition."""
        if self.holds(text):
            return None
        if self.message_of:
            return Violation(path, self.message_of % text)
        return Violation(path, f"{self.message}, not {show(text)}")


def match(pattern: str, message: str) -> Must:
    """A text must match a pattern as a whole. The API server's message has the pattern."""
    return Must(message, re.compile(pattern).fullmatch, pattern=f"^{pattern}$")


def match_cel(pattern: str, message: str) -> Must:
    """A text must match a pattern as a whole; the API server has the same message."""
    return Must(message, re.compile(pattern).fullmatch, cel=f"self.{matches(pattern)}")


def match_keys(pattern: str, message: str) -> Must:
    """Each key of a map must match a pattern as a whole."""
    return Must(message, re.compile(pattern).fullmatch, cel=f"self.all(k, k.{matches(pattern)})")


def matches(pattern: str) -> str:
    """The call in CEL that matches a text with a pattern as a whole; choices are in parentheses."""
    escaped = pattern.replace("\\", "\\\\")
    return f"matches('^{escaped}$')"


class Text:
    """Text with a length limit; of its patterns only the first that does not match is reported."""

    def __init__(
        self, description: str, *musts: Must, least: int = 0, most: int, default: str = ""
    ) -> None:
        self.description, self.musts, self.default = description, musts, default
        self.least, self.most = least, most

    def check(self, path: str, value: Any) -> Iterator[Violation]:
        if not isinstance(value, str):
            yield Violation(path, f"must be text, not {show(value)}")
        elif len(value) < self.least:
            yield Violation(path, "must not be empty")
        elif len(value) > self.most:
            yield Violation(path, f"has {len(value)} characters; {self.most} are allowed")
        else:
            found = (must.find_violation(path, value) for must in self.musts)
            yield from islice(filter(None, found), 1)


@dataclass(frozen=True)
class OneOf:
    """One of a few words."""

    description: str
    words: tuple[str, ...]
    default: str = ""

    def check(self, path: str, value: Any) -> Iterator[Violation]:
        if not isinstance(value, str) or value not in self.words:
            yield Violation(path, f"must be {' or '.join(self.words)}, not {show(value)}")


@dataclass(frozen=True)
class Number:
    """A whole number within bounds."""

    description: str
    least: int
    most: int = _MAX_INT32

    def check(self, path: str, value: Any) -> Iterator[Violation]:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not self.least <= value <= self.most:
            bounds = f"from {self.least} to {self.most}"
            yield Violation(path, f"must be a whole number {bounds}, not {show(value)}")


@dataclass(frozen=True)
class Items:
    """A list of items of one kind. No two items may agree in all of ``keys``."""

    description: str
    item: Field
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
        seen: list[tuple[Any, ...]] = []
        for index, item in enumerate(value):
            if not self.keys or not isinstance(item, Mapping):
                continue
            identity = tuple(item.get(key) for key in self.keys)
            if identity in seen:
                text = f"is there twice: {' and '.join(self.keys)} must differ"
                yield Violation(f"{path}[{index}]", text)
            seen.append(identity)


@dataclass(frozen=True)
class Entries:
    """A map with at most ``most`` entries. Violations of keys are reported at the map itself."""

    description: str
    value: Field
    most: int
    keys: tuple[Must, ...]

    def check(self, path: str, value: Any) -> Iterator[Violation]:
        if not isinstance(value, Mapping):
            yield Violation(path, f"must be an object, not {show(value)}")
            return
        if len(value) > self.most:
            yield Violation(path, f"has {len(value)} entries; {self.most} are allowed")
        for must in self.keys:
            found = (must.find_violation(path, key) for key in value)
            yield from islice(filter(None, found), 1)
        for key, entry in value.items():
            yield from self.value.check(f"{path}.{key}", entry)


@dataclass(frozen=True)
class Record:
    """An object with fields of its own; other fields are ignored, and ``null`` counts as absent."""

    description: str
    fields: Mapping[str, Field]
    required: tuple[str, ...] = ()

    def check(self, path: str, value: Any) -> Iterator[Violation]:
        if not isinstance(value, Mapping):
            yield Violation(path, f"must be an object, not {show(value)}")
            return
        for name, field in self.fields.items():
            if value.get(name) is not None:
                yield from field.check(f"{path}.{name}", value[name])
            elif name in self.required:
                yield Violation(f"{path}.{name}", "is required")


def any_of(words: Iterable[str]) -> str:
    """The words as a choice, for a message: ``a, b or c``."""
    *rest, last = words
    return f"{', '.join(rest)} or {last}" if rest else last


def count(number: int, noun: str) -> str:
    """A number with its noun: ``1 line``, ``2 lines``."""
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def show(value: Any) -> str:
    """A value for a message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
