"""What the page shows, as JSON has it: sections by name. Pure: nothing is read here."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from replay.listing import IDLE, POOL_NOT_READY, POOL_READY, UNSAID, Table
from shared.base.reasons import DELETIONS, PROGRESS
from shared.base.timestamps import render_time

Sections = Mapping[str, Any]
"""Parts of the page. A part that has not changed is not sent again."""
_WAITING, _TROUBLE, _PROGRESS, _DELETING, _READY = (
    "waiting",
    "trouble",
    "progress",
    "deleting",
    "ready",
)
_ORDER = (_TROUBLE, _WAITING, _PROGRESS, _DELETING, _READY)
_VIEWS = {"slices": ("slice", "SLICE"), "waiting": ("pod", "POD")}
"""The view of a row's object, and the column with its name."""


class Lines(tuple[str, ...]):
    """A section of many lines, of which the last change: only these are sent."""


def build_overview(tables: list[Table], price: float | None, now: datetime) -> dict[str, Any]:
    """The sections of all slices, what waits and classes. ``price``: of a chip-hour, if it is known."""
    sections: dict[str, Any] = {"readAt": render_time(now)}
    rows = {table.name: [_build_row(table, *row, price) for row in table.rows] for table in tables}
    for table in tables:
        head = [*table.head, "COST/H"] if table.name == "slices" and price else list(table.head)
        found = sorted(rows[table.name], key=lambda row: _ORDER.index(row["state"]))
        sections[table.name] = {"head": head, "rows": found, "error": table.error}
    slices = rows.get("slices", [])
    sections["summary"] = {
        "slices": len(slices),
        "ready": sum(row["state"] == _READY for row in slices),
        "waiting": len(rows.get("waiting", [])),
        "chips": [sum(row["chips"][i] for row in slices) for i in (0, 1)],
        "idle": sum(row["chips"][0] for row in slices if row["words"].startswith(IDLE)),
        "cost": price and _render_cost(sum(row["chips"][0] for row in slices), price),
    }
    return sections


def _build_row(table: Table, cells: tuple[str, ...], words: str, price: float | None) -> Any:
    """A row, its state in a word, its chips (running, all), and where its name leads."""
    named = dict(zip(table.head, cells, strict=True))
    kind, column = _VIEWS.get(table.name, ("", table.head[0]))
    key = "/".join(filter(None, (kind, named.get("NAMESPACE", ""), named[column])))
    running, _, wanted = named.get("CHIPS", "").partition("/")
    chips = [int(one) if one.isdecimal() else 0 for one in (running, wanted)]
    shown = list(cells)
    if table.name == "slices" and price:
        shown.append(_render_cost(chips[0], price) if wanted else "-")
    is_pool = named.get("REASON") in (POOL_READY, POOL_NOT_READY)
    state = _classify(named) if table.name == "slices" else _WAITING
    return {
        "key": key,
        "link": key if kind and not is_pool else "",
        "column": table.head.index(column),
        "cells": shown,
        "words": "Open it: its page says why." if words.endswith(UNSAID) else words,
        "state": state,
        "chips": chips,
    }


def _classify(named: Mapping[str, str]) -> str:
    """The state of a slice, by Ready and its reason."""
    reason = named["REASON"]
    if reason == "Deleting" or reason in DELETIONS:
        return _DELETING
    if named["READY"] == "True":
        return _READY
    return _PROGRESS if reason in PROGRESS or reason == "-" else _TROUBLE


def _render_cost(chips: int, price: float) -> str:
    return f"{chips * price:,.2f}"


def find_changes(sent: Sections, sections: Sections) -> dict[str, Any]:
    """What a tab that has received ``sent`` lacks."""
    changes: dict[str, Any] = {}
    for name, value in sections.items():
        before = sent.get(name)
        if name in sent and (before is value or before == value):
            continue
        changes[name] = value
        if isinstance(value, Lines):
            known = before if isinstance(before, Lines) else ()
            pairs = enumerate(zip(known, value, strict=False))
            shorter = min(len(known), len(value))
            start = next((at for at, (old, new) in pairs if old != new), shorter)
            changes[name] = {"from": start, "lines": value[start:]}
    return changes
