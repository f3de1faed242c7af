"""The dashboard has only fields that Grafana knows, and those that it requires.

The fields of ``tests/data/grafana-schema.json`` are those of the npm package @grafana/schema 13.2.3
(``dist/types/raw``), which Grafana generates from its own schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.docs.pages import ROOT

SCHEMA: dict[str, dict[str, str]] = json.loads(
    (ROOT / "tests" / "data" / "grafana-schema.json").read_text()
)
DASHBOARD = json.loads((ROOT / "infra" / "monitoring" / "dashboard.json").read_text())
TYPES: dict[str, type] = {"string": str, "number": int, "boolean": bool}
DEFAULTED = {"stat", "timeseries"}
"""Options of panels have defaults for what is required of them."""


def list_violations(kind: str, found: dict[str, Any], where: str) -> Iterator[str]:
    """The violations in an object of a kind of the schema, and in those within it."""
    fields = SCHEMA[kind]
    for name, value in found.items():
        if name not in fields:
            yield f"{where}.{name} is no field of {kind}"
            continue
        text = fields[name].removeprefix("required ").removeprefix("common.")
        if text in TYPES and not isinstance(value, TYPES[text]):
            yield f"{where}.{name} must be {text}"
        item = text.removeprefix("Array<").removesuffix(">")
        if item == "(Panel | RowPanel)":
            for number, panel in enumerate(value):
                of_panel = "RowPanel" if panel["type"] == "row" else "Panel"
                yield from list_violations(of_panel, panel, f"{where}.{name}[{number}]")
        elif text in SCHEMA:
            yield from list_violations(text, value, f"{where}.{name}")
        elif item != text and item in SCHEMA:
            for number, one in enumerate(value):
                yield from list_violations(item, one, f"{where}.{name}[{number}]")
    if kind in DEFAULTED:
        return
    for name, text in fields.items():
        if text.startswith("required") and name not in found:
            yield f"{where} lacks {name}"


def list_of_dashboard(dashboard: dict[str, Any]) -> list[str]:
    """The violations of a dashboard, also where the schema says only ``Record`` or ``{``."""
    found = list(list_violations("Dashboard", dashboard, "dashboard"))
    for number, variable in enumerate(dashboard["templating"]["list"]):
        found += list_violations("VariableModel", variable, f"variable[{number}]")
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            continue
        name = f"panel {panel['title']}"
        found += list_violations(panel["type"], panel["options"], f"{name}: options")
        custom = panel["fieldConfig"]["defaults"].get("custom", {})
        found += list_violations("GraphFieldConfig", custom, f"{name}: custom")
    return found


def test_the_dashboard_has_the_fields_of_grafanas_schema() -> None:
    assert list_of_dashboard(DASHBOARD) == []


@pytest.mark.parametrize(
    "path, value, violation",
    [
        (("titel",), "x", "dashboard.titel is no field of Dashboard"),
        (("version",), "1", "dashboard.version must be number"),
        (("panels", 1, "gridPos"), {"h": 1, "w": 1, "x": 0}, "dashboard.panels[1].gridPos lacks y"),
        (
            ("templating", "list", 1, "multy"),
            True,
            "variable[1].multy is no field of VariableModel",
        ),
        (
            ("panels", 1, "options", "colour"),
            "x",
            "panel Ready: options.colour is no field of stat",
        ),
    ],
    ids=["unknown field", "type", "missing", "variable", "options"],
)
def test_a_violation_is_found(path: tuple[Any, ...], value: object, violation: str) -> None:
    dashboard = json.loads(json.dumps(DASHBOARD))
    place = dashboard
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert list_of_dashboard(dashboard) == [violation]
