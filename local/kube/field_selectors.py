"""Field selectors, in the string form of a query parameter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from local.kube import errors

_TERM = re.compile(r"(?P<path>[^=!,]+)(?P<op>==|=|!=)(?P<value>.*)")
_UNESCAPED = re.compile(r"(?:\\.|[^\\=,])*(?P<found>[=,])")
_OF_ALL = ("metadata.name", "metadata.namespace")


@dataclass(frozen=True)
class FieldTerm:
    """One term of a field selector."""

    path: str
    value: str
    equal: bool


@dataclass(frozen=True)
class FieldSelector:
    """All terms must hold; an empty selector matches everything."""

    terms: tuple[FieldTerm, ...] = ()

    def matches(self, document: Mapping[str, Any]) -> bool:
        """Whether an object is selected; a missing field counts as the empty string."""
        return all(
            (read_field(document, term.path) == term.value) is term.equal for term in self.terms
        )

    @property
    def name(self) -> str:
        """The one name that ``metadata.name=`` asks for, or the empty string."""
        for term in self.terms:
            if term.path == "metadata.name" and term.equal:
                return term.value
        return ""


@lru_cache(maxsize=4096)
def parse_field_selector(text: str, known: tuple[str, ...], *, own: bool) -> FieldSelector:
    """A selector over ``known`` fields and the name and namespace that all have. Raises 400.

    ``own``: the kind has its say on what can be selected, not only the rule for all.
    """
    terms = []
    for part in filter(None, re.split(r"(?<!\\),", text)):
        found = _TERM.fullmatch(part.strip())
        if found is None:
            raise errors.bad_request(
                f"invalid selector: '{text}'; can't understand '{part.strip()}'"
            )
        path = found["path"].strip()
        unescaped = _UNESCAPED.match(found["value"])
        if unescaped is not None:
            code = ord(unescaped["found"])
            raise errors.bad_request(
                f"invalid field selector: unescaped character in value: {code}"
            )
        if path not in known and path not in _OF_ALL:
            raise errors.bad_request(_unknown(path, own=own))
        value = re.sub(r"\\(.)", r"\1", found["value"])
        terms.append(FieldTerm(path, value, found["op"] != "!="))
    return FieldSelector(tuple(terms))


def _unknown(path: str, *, own: bool) -> str:
    if own:
        return f"field label not supported: {path}"
    return f'"{path}" is not a known field selector: only "metadata.name", "metadata.namespace"'


_FLAGS = frozenset({"spec.unschedulable", "spec.hostNetwork"})


def read_field(document: Mapping[str, Any], path: str) -> str:
    """A field in the form that selectors compare: text, ``true``, ``false`` or empty."""
    value: Any = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if path in _FLAGS:
        return "true" if value else "false"
    if path == "source" and isinstance(value, Mapping):
        return str(value.get("component", ""))
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
