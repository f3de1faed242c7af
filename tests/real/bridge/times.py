"""Between the server's times, which are real, and the story's, which are virtual."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

Document = dict[str, Any]
_CREATED, _DELETED = "creationTimestamp", "deletionTimestamp"


class Times:
    """By uid, when an object was created and when its deletion was seen, in both times.

    Objects that were not created in this story keep their real times, which lie before it.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._known: dict[tuple[str, str], tuple[str, str]] = {}

    def created(self, document: Document) -> None:
        """This is the answer to a creation, as the server gave it."""
        for metadata in _metadata(document):
            self._note(metadata, _CREATED)

    def to_virtual(self, document: Document) -> None:
        """Put virtual times into what the server has said: an object, a list or a table."""
        for metadata in _metadata(document):
            self._note(metadata, _DELETED)
            self._put(metadata, 0)

    def to_real(self, document: Document) -> None:
        """Put the server's own times back into what is sent to it."""
        for metadata in _metadata(document):
            self._put(metadata, 1)

    def _note(self, metadata: Document, field: str) -> None:
        key = (metadata.get("uid", ""), field)
        if metadata.get(field) and key not in self._known:
            self._known[key] = (f"{self._now():%Y-%m-%dT%H:%M:%SZ}", metadata[field])

    def _put(self, metadata: Document, which: int) -> None:
        for field in (_CREATED, _DELETED):
            known = self._known.get((metadata.get("uid", ""), field))
            if known is not None and metadata.get(field):
                metadata[field] = known[which]


def _metadata(document: Document) -> Iterator[Document]:
    objects = [document, *(document.get("items") or ())]
    objects += [row["object"] for row in document.get("rows") or () if row.get("object")]
    for each in objects:
        metadata = each.get("metadata")
        if isinstance(metadata, dict) and "uid" in metadata:
            yield metadata
