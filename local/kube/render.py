"""Objects and lists on their way out: as JSON, as Tables, as metadata only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from local.base.clock import Clock
from local.kube import errors
from local.kube.cells import CELLS, render_age
from local.kube.formats import parse_time
from local.kube.jsonpath import compile_path, render_results
from local.kube.kinds import Column, Document, Kind, Version
from local.kube.store import Record, encode

_META_VERSION = "meta.k8s.io/v1"
_JSON_TYPES = ("application/json", "application/*", "*/*")
SERVED = ("application/json",)


@lru_cache(maxsize=256)
def negotiate(accept: str) -> str:
    """The form that an Accept header asks for: ``""`` (plain), ``Table``, ``Partial...``.

    Protobuf is passed over for what stands behind it in the header. Raises 406.
    """
    if not accept:
        return ""
    for wish in accept.split(","):
        media_type, *parameters = (part.strip() for part in wish.split(";"))
        if media_type not in _JSON_TYPES:
            continue
        wanted = dict(part.partition("=")[::2] for part in parameters)
        form = wanted.get("as", "")
        if not form or (form in _FORMS and wanted.get("v") == "v1"):
            return form
    raise errors.not_acceptable(SERVED)


_FORMS = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")


@dataclass(frozen=True)
class Page:
    """A list to be rendered: what there is of it, at which revision, and where to go on."""

    records: list[Record]
    revision: int
    token: str = ""
    remaining: int | None = None

    def metadata(self, *, custom: bool = False) -> Document:
        """The ListMeta; of custom resources, with a token even if it is empty."""
        meta: Document = {"resourceVersion": str(self.revision)}
        if self.token or custom:
            meta["continue"] = self.token
        if self.remaining is not None:
            meta["remainingItemCount"] = self.remaining
        return meta


@dataclass(frozen=True)
class View:
    """How a client wants to see objects of one version of a kind.

    ``form`` comes from `negotiate`, ``include`` is the query's ``includeObject``.
    """

    kind: Kind
    version: Version
    form: str
    include: str
    clock: Clock

    def one(self, record: Record) -> bytes:
        """An object by itself."""
        if self.form == "Table":
            meta = {"resourceVersion": record.metadata.get("resourceVersion", "")}
            return encode(self._table([record], meta))
        if self.form == "PartialObjectMetadataList":
            kind = "unstructured.Unstructured" if self.kind.custom else self._go_kind
            raise errors.not_acceptable_form(
                f"you requested PartialObjectMetadataList, but the requested object is not a list "
                f"(*{kind})"
            )
        if self.form:
            return encode(_partial(record))
        return self._plain(record)

    @property
    def _go_kind(self) -> str:
        return f"{self.version.name}.{self.kind.kind}"

    def page(self, page: Page) -> bytes:
        """A list."""
        if self.form == "Table":
            return encode(self._table(page.records, page.metadata()))
        if self.form == "PartialObjectMetadata":
            listed = "unstructured.Unstructured" if self.kind.custom else self._go_kind
            raise errors.not_acceptable_form(
                f"you requested PartialObjectMetadata, but the requested object is a list "
                f"(*{listed}List)"
            )
        if self.form:
            return self._list(
                "PartialObjectMetadataList",
                _META_VERSION,
                page,
                (encode(_partial(record)) for record in page.records),
            )
        version = self.kind.api_version(self.version.name)
        items = map(self._plain if self.kind.custom else self._bare, page.records)
        return self._list(f"{self.kind.kind}List", version, page, items)

    def events(self) -> Callable[[Record], bytes]:
        """A function for a watch; of Tables, only the first holds the column definitions."""
        if self.form != "Table":
            return self.one
        told = False

        def render(record: Record) -> bytes:
            nonlocal told
            meta = {"resourceVersion": record.metadata["resourceVersion"]}
            table = self._table([record], meta, columns=not told)
            told = True
            return encode(table)

        return render

    def bookmark(self, revision: int, annotations: Mapping[str, str]) -> Document:
        """The object of a BOOKMARK event."""
        meta: Document = {"resourceVersion": str(revision)}
        if annotations:
            meta["annotations"] = dict(annotations)
        partial = {"kind": "PartialObjectMetadata", "apiVersion": _META_VERSION, "metadata": meta}
        if self.form == "Table":
            cells = ["", *(None for _ in self.version.columns[1:])]
            return {
                **_TABLE,
                "metadata": {"resourceVersion": str(revision)},
                "columnDefinitions": None,
                "rows": [{"cells": cells, "object": partial}],
            }
        if self.form:
            return partial
        version = self.kind.api_version(self.version.name)
        return {"kind": self.kind.kind, "apiVersion": version, "metadata": meta}

    def _list(self, kind: str, version: str, page: Page, items: Iterable[bytes]) -> bytes:
        custom = self.kind.custom and not self.form
        meta = page.metadata(custom=custom)
        head = encode({"kind": kind, "apiVersion": version, "metadata": meta})
        return b'%s,"items":[%s]}' % (head[:-1], b",".join(items))

    def _head(self, version: str) -> bytes:
        return encode({"apiVersion": version, "kind": self.kind.kind})[:-1]

    def _plain(self, record: Record) -> bytes:
        if self.version.name == self.kind.storage:
            return record.raw
        stored = self._head(self.kind.api_version(self.kind.storage))
        return self._head(self.kind.api_version(self.version.name)) + record.raw[len(stored) :]

    def _bare(self, record: Record) -> bytes:
        """As an item of a built-in list: without apiVersion and kind, as Go leaves them out."""
        stored = self._head(self.kind.api_version(self.kind.storage))
        return b"{" + record.raw[len(stored) + 1 :]

    # -- tables -----------------------------------------------------------------------------------

    def _table(
        self, records: Iterable[Record], meta: Document, *, columns: bool = True
    ) -> Document:
        return {
            **_TABLE,
            "metadata": meta,
            "columnDefinitions": [_define(one) for one in self.version.columns]
            if columns
            else None,
            "rows": [self._row(record) for record in records],
        }

    def _row(self, record: Record) -> Document:
        now = self.clock.now()
        cells = [cell_of(column, record.document, now) for column in self.version.columns]
        if not self.kind.custom:
            cells = ["" if cell is None else cell for cell in cells]
        if self.include == "None":
            return {"cells": cells}
        shown = record.document if self.include == "Object" else _partial(record)
        return {"cells": cells, "object": shown}


_TABLE = {"kind": "Table", "apiVersion": _META_VERSION}


def _partial(record: Record) -> Document:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": _META_VERSION,
        "metadata": record.metadata,
    }


def _define(column: Column) -> Document:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    }


def cell_of(column: Column, document: Document, now: datetime) -> Any:
    """The content of one cell; ``None`` where there is nothing to show."""
    if column.cell.startswith("="):
        return CELLS[column.cell[1:]](document, now)
    found = compile_path(column.cell)(document)
    if not found or found[0] is None:
        return None
    if column.type == "date":
        return _render_date(found[0], now)
    return render_results(found) if column.type == "string" else found[0]


def _render_date(value: Any, now: datetime) -> str:
    try:
        return render_age(now - parse_time(str(value)))
    except ValueError:
        return "<invalid>"
