"""Field selectors, in the string form of a query parameter."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from local.kube import errors
from local.kube.kinds import Document

_TERM = re.compile(r"\s*(?P<path>[^=!,]+?)\s*(?P<op>==|=|!=)(?P<value>(?:\\.|[^\\=,])*)(?:,|\Z)")
_OF_ALL = ("metadata.name", "metadata.namespace")


@lru_cache(maxsize=4096)
def parse_field_selector(text: str, known: tuple[str, ...]) -> Callable[[Document], bool]:
    """Parse a selector of ``known`` fields, name and namespace into a function of an object.

    Raises 400. A missing field counts as the empty string.
    """
    terms: list[tuple[str, str, bool]] = []
    at = 0
    while at < len(text):
        found = _TERM.match(text, at)
        if found is None:
            raise errors.bad_request(f"invalid field selector {text!r}: cannot parse {text[at:]!r}")
        if found["path"] not in (*known, *_OF_ALL):
            raise errors.bad_request(f"field label not supported: {found['path']}")
        terms.append((found["path"], re.sub(r"\\(.)", r"\1", found["value"]), found["op"] != "!="))
        at = found.end()
    return lambda document: all(
        (read_field(document, path) == value) is equal for path, value, equal in terms
    )


_FLAGS = frozenset({"spec.unschedulable", "spec.hostNetwork"})
_SOURCE = "source"
"""Of an Event: its component, in the old field or the new one."""


def read_field(document: Document, path: str) -> str:
    """The value of a field as selectors compare it: text, ``true``, ``false`` or empty."""
    value: Any = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if path == _SOURCE:
        component = value.get("component") if isinstance(value, Mapping) else ""
        return str(component or document.get("reportingComponent") or "")
    if isinstance(value, bool) or path in _FLAGS:
        return "true" if value else "false"
    return "" if value is None else str(value)
