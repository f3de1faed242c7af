"""The filter language of subscriptions: about attributes only, documented in full by the service.

filter     = term {"AND" term} | term {"OR" term}      (mixing them needs parentheses)
term       = ["NOT" | "-"] (comparison | "(" filter ")")
comparison = "attributes:" KEY | "attributes." KEY ("=" | "!=") STRING
           | "hasPrefix(attributes." KEY "," STRING ")"
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

Predicate = Callable[[Mapping[str, str]], bool]

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[A-Za-z0-9_]+(?:-[A-Za-z0-9_]+)*|!=|[-=:.,()])')


class FilterError(ValueError):
    """Not a filter; the message has what was expected and where."""


def parse(text: str) -> Predicate:
    """A filter as a function of a message's attributes; the empty filter matches everything.

    Raises `FilterError`.
    """
    if not text.strip():
        return _everything
    parser = _Parser(text)
    predicate = parser.disjunction_or_conjunction()
    parser.expect("", "the end of the filter")
    return predicate


def _everything(_: Mapping[str, str]) -> bool:
    return True


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[int, str]] = []
        self._index = 0
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                at = len(text) - len(text[at:].lstrip())
                raise FilterError(f"unexpected {text[at]!r} at {at + 1}")
            self._tokens.append((match.start(1), match[1]))
            at = match.end()
        self._tokens.append((len(text), ""))

    def disjunction_or_conjunction(self) -> Predicate:
        terms = [self._term()]
        word = self._peek()
        if word not in ("AND", "OR"):
            return terms[0]
        while self._take(word):
            terms.append(self._term())
        if self._peek() in ("AND", "OR"):
            raise self._error(f"only {word} (AND and OR need parentheses between them)")
        combine = all if word == "AND" else any
        return lambda attributes: combine(term(attributes) for term in terms)

    def expect(self, token: str, name: str = "") -> None:
        if not self._take(token) and not (token == "" and self._peek() == ""):
            raise self._error(name or repr(token))

    def _term(self) -> Predicate:
        if self._take("NOT") or self._take("-"):
            negated = self._term()
            return lambda attributes: not negated(attributes)
        if self._take("("):
            inner = self.disjunction_or_conjunction()
            self.expect(")")
            return inner
        if self._take("hasPrefix"):
            return self._has_prefix()
        self.expect("attributes", "attributes, hasPrefix, NOT or (")
        return self._comparison()

    def _has_prefix(self) -> Predicate:
        self.expect("(")
        self.expect("attributes")
        self.expect(".")
        key = self._key()
        self.expect(",")
        prefix = self._string()
        self.expect(")")
        return lambda attributes: attributes.get(key, "").startswith(prefix) and key in attributes

    def _comparison(self) -> Predicate:
        if self._take(":"):
            present = self._key()
            return lambda attributes: present in attributes
        self.expect(".", "'.' or ':'")
        key = self._key()
        if self._take("!="):
            value = self._string()
            # Not documented: whether a message without the key matches. Here it does.
            return lambda attributes: attributes.get(key) != value
        self.expect("=", "'=' or '!='")
        value = self._string()
        return lambda attributes: attributes.get(key) == value

    def _key(self) -> str:
        token = self._peek()
        if not token or not (token[0] == '"' or token[0].isalnum() or token[0] == "_"):
            raise self._error("the key of an attribute")
        self._index += 1
        return _unquote(token) if token[0] == '"' else token

    def _string(self) -> str:
        token = self._peek()
        if not token.startswith('"'):
            raise self._error("a string in double quotes")
        self._index += 1
        return _unquote(token)

    def _peek(self) -> str:
        return self._tokens[self._index][1]

    def _take(self, token: str) -> bool:
        if token == "" or self._peek() != token:
            return False
        self._index += 1
        return True

    def _error(self, expected: str) -> FilterError:
        at, token = self._tokens[self._index]
        found = repr(token) if token else "the end"
        return FilterError(f"expected {expected} at {at + 1}, found {found}")


def _unquote(token: str) -> str:
    try:
        return str(json.loads(token))
    except ValueError as error:
        raise FilterError(f"{token} is no string: {error}") from error
