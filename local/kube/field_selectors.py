"""Field selectors, in the string form of a query parameter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from local.kube import errors

_TERM = re.compile(r"\s*(?P<path>[^=!,]+?)\s*(?P<op>==|=|!=)(?P<value>(?:\\.|[^\\=,])*)(?:,|\Z)")
_OF_ALL = ("metadata.name", "metadata.namespace")


@dataclass(frozen=True)
class FieldSelector:
    """Terms of path, value and whether they are to be equal; all must hold."""

    terms: tuple[tuple[str, str, bool], ...] = ()

    def matches(self, document: Mapping[str, Any]) -> bool:
        """Whether an object is selected; a missing field counts as the empty string."""
        return all(
            (read_field(document, path) == value) is equal for path, value, equal in self.terms
        )


@lru_cache(maxsize=4096)
def parse_field_selector(text: str, known: tuple[str, ...]) -> FieldSelector:
    """A selector over ``known`` fields and the name and namespace that all have. Raises 400."""
    terms, at = [], 0
    while at < len(text):
        found = _TERM.match(text, at)
        if found is None:
            raise errors.bad_request(f"invalid field selector {text!r}: cannot parse {text[at:]!r}")
        if found["path"] not in (*known, *_OF_ALL):
            raise errors.bad_request(f"field label not supported: {found['path']}")
        terms.append((found["path"], re.sub(r"\\(.)", r"\1", found["value"]), found["op"] != "!="))
        at = found.end()
    return FieldSelector(tuple(terms))


_FLAGS = frozenset({"spec.unschedulable", "spec.hostNetwork"})


def read_field(document: Mapping[str, Any], path: str) -> str:
    """A field in the form that selectors compare: text, ``true``, ``false`` or empty."""
    value: Any = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or path in _FLAGS:
        return "true" if value else "false"
    return "" if value is None else str(value)
