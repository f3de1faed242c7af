"""Reading of JSON documents of any shape: a field that is absent or of another type reads as empty."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Document = Mapping[str, Any]


def read_mapping(holder: Document, key: str) -> Document:
    """The mapping in a field."""
    value = holder.get(key)
    return value if isinstance(value, Mapping) else {}


def read_list(holder: Document, key: str) -> list[Any]:
    """The list in a field."""
    value = holder.get(key)
    return value if isinstance(value, list) else []


def read_mappings(holder: Document, key: str) -> Iterator[Document]:
    """The mappings among the items of a list."""
    return (one for one in read_list(holder, key) if isinstance(one, Mapping))


def read_text(holder: Document, key: str) -> str:
    """The text in a field."""
    value = holder.get(key)
    return value if isinstance(value, str) else ""


def read_texts(holder: Document, key: str) -> dict[str, str]:
    """The entries of a mapping whose values are text, such as labels."""
    return {name: one for name, one in read_mapping(holder, key).items() if isinstance(one, str)}


def read_number(holder: Document, key: str) -> int:
    """The whole number in a field."""
    value = holder.get(key)
    return value if isinstance(value, int) else 0


def without_empty(document: Document) -> dict[str, Any]:
    """The fields that have a value: no empty text, mapping or list, no zero, no ``null``."""
    return {key: value for key, value in document.items() if value}
