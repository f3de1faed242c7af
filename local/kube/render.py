"""Renders objects and lists as JSON and as Tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from local.base.clock import Clock
from local.kube import errors
from local.kube.cells import CELLS, NONE, render_age
from local.kube.formats import parse_time
from local.kube.jsonpath import compile_path, render_results
from local.kube.kinds import Column, Document, Kind
from local.kube.store import Record, encode

_META_VERSION = "meta.k8s.io/v1"
_JSON_TYPES = ("application/json", "application/*", "*/*")


@lru_cache(maxsize=256)
def wants_table(accept: str) -> bool:
    """Whether the first supported entry of an Accept header is a Table, not plain JSON.

    Raises 406 if it has no supported entry.
    """
    for wish in accept.split(",") if accept else ("*/*",):
        media_type, *parameters = (part.strip() for part in wish.split(";"))
        wanted = dict(part.partition("=")[::2] for part in parameters)
        form = wanted.get("as", "")
        if media_type in _JSON_TYPES and (not form or (form, wanted.get("v")) == ("Table", "v1")):
            return bool(form)
    raise errors.not_acceptable()


@dataclass(frozen=True)
class View:
    """Renders the objects of a kind in the form that a client accepts.

    ``include`` is the query's ``includeObject``: the part of the object in each row of a Table.
    """

    kind: Kind
    as_table: bool
    include: str
    clock: Clock

    def one(self, record: Record) -> bytes:
        """Render one object."""
        if self.as_table:
            meta = {"resourceVersion": record.metadata.get("resourceVersion", "")}
            return encode(self._table([record], meta))
        return record.raw

    def page(self, records: list[Record], meta: Document) -> bytes:
        """Render a list. The metadata of a list of custom resources has an empty token, too."""
        if self.as_table:
            return encode(self._table(records, meta))
        items = map(self.one if self.kind.custom else self._bare, records)
        meta = {"continue": "", **meta} if self.kind.custom else meta
        kind = f"{self.kind.kind}List"
        head = encode({"kind": kind, "apiVersion": self.kind.api_version, "metadata": meta})
        return b'%s,"items":[%s]}' % (head[:-1], b",".join(items))

    def events(self) -> Callable[[Record], bytes]:
        """A function that renders the events of a watch. Only the first Table has column definitions."""
        if not self.as_table:
            return self.one
        has_columns = False

        def render(record: Record) -> bytes:
            nonlocal has_columns
            meta = {"resourceVersion": record.metadata["resourceVersion"]}
            table = self._table([record], meta, columns=not has_columns)
            has_columns = True
            return encode(table)

        return render

    def bookmark(self, revision: int, ends_initial: bool) -> Document:
        """Render the object of a BOOKMARK event, which may end the initial events."""
        meta: Document = {"resourceVersion": str(revision)}
        if ends_initial:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        return {"kind": self.kind.kind, "apiVersion": self.kind.api_version, "metadata": meta}

    def _bare(self, record: Record) -> bytes:
        """Render an item of a built-in list: Go omits its apiVersion and kind."""
        head = encode({"apiVersion": self.kind.api_version, "kind": self.kind.kind})
        return b"{" + record.raw[len(head) :]

    # -- tables -----------------------------------------------------------------------------------

    def _table(
        self, records: Iterable[Record], meta: Document, *, columns: bool = True
    ) -> Document:
        described = [dataclasses.asdict(one) for one in self.kind.columns]
        shown = [{name: one[name] for name in one if name != "cell"} for one in described]
        return {
            "kind": "Table",
            "apiVersion": _META_VERSION,
            "metadata": meta,
            "columnDefinitions": shown if columns else None,
            "rows": [self._row(record) for record in records],
        }

    def _row(self, record: Record) -> Document:
        now = self.clock.now()
        cells = [cell_of(column, record.document, now) for column in self.kind.columns]
        if not self.kind.custom:
            nothing = [NONE if column.priority else "" for column in self.kind.columns]
            cells = [
                blank if cell is None else cell for cell, blank in zip(cells, nothing, strict=True)
            ]
        whole = self.include == "Object"
        return {"cells": cells, "object": record.document if whole else _partial(record.metadata)}


def _partial(meta: Mapping[str, Any]) -> Document:
    return {"kind": "PartialObjectMetadata", "apiVersion": _META_VERSION, "metadata": meta}


def cell_of(column: Column, document: Document, now: datetime) -> Any:
    """The content of one cell; ``None`` if it is empty."""
    if column.cell.startswith("="):
        return CELLS[column.cell[1:]](document, now)
    found = compile_path(column.cell)(document)
    if not found or found[0] is None:
        return None
    if column.type == "date":
        return _render_date(found[0], now)
    # Of several values, an API server shows the first (seen with 1.36).
    return render_results(found[:1]) if column.type == "string" else found[0]


def _render_date(value: Any, now: datetime) -> str:
    try:
        return render_age(now - parse_time(str(value)))
    except ValueError:
        return "<invalid>"
