"""Translation between the server's real times and the story's virtual ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

Document = dict[str, Any]
_CREATED, _DELETED = "creationTimestamp", "deletionTimestamp"


class Times:
    """The creation and deletion times of objects in real and virtual time, by uid.

    Objects that were not created in this story keep their real times, which are before it.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._known: dict[tuple[str, str], tuple[str, str]] = {}

    def created(self, document: Document) -> None:
        """Record the server's answer to a creation."""
        for metadata in _metadata(document):
            self._record(metadata, _CREATED)

    def to_virtual(self, document: Document) -> None:
        """Replace real times by virtual ones in an object, a list or a table of the server."""
        for metadata in _metadata(document):
            self._record(metadata, _DELETED)
            self._put(metadata, 0)

    def to_real(self, document: Document) -> None:
        """Replace virtual times by real ones in a request to the server."""
        for metadata in _metadata(document):
            self._put(metadata, 1)

    def _record(self, metadata: Document, field: str) -> None:
        key = (metadata.get("uid", ""), field)
        if metadata.get(field) and key not in self._known:
            self._known[key] = (f"{self._now():%Y-%m-%dT%H:%M:%SZ}", metadata[field])

    def _put(self, metadata: Document, index: int) -> None:
        for field in (_CREATED, _DELETED):
            known = self._known.get((metadata.get("uid", ""), field))
            if known is not None and metadata.get(field):
                metadata[field] = known[index]


def _metadata(document: Document) -> Iterator[Document]:
    objects = [document, *(document.get("items") or ())]
    objects += [row["object"] for row in document.get("rows") or () if row.get("object")]
    for each in objects:
        metadata = each.get("metadata")
        if isinstance(metadata, dict) and "uid" in metadata:
            yield metadata
