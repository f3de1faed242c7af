"""The tables of the reference pages `relay.md` and `metrics.md`."""

from __future__ import annotations

from relay.metrics import DESCRIPTIONS, LABELS
from relay.settings import VARIABLES
from tools.pages.markdown import render_table


def render_settings() -> dict[str, str]:
    """The environment variables."""
    rows = (
        (f"`{variable.name}`", _default(variable.default), variable.meaning)
        for variable in VARIABLES.values()
    )
    return {"settings": render_table(("Variable", "Default", "Meaning"), rows)}


def render_metrics() -> dict[str, str]:
    """The metrics, and the values of their labels."""
    metrics = (
        (f"`{one.name}`", one.type, ", ".join(f"`{label}`" for label in one.labels), one.meaning)
        for one in DESCRIPTIONS
    )
    labels = (
        (f"`{label}`", f"`{value}`", meaning)
        for label, values in LABELS.items()
        for value, meaning in values.items()
    )
    return {
        "metrics": render_table(("Metric", "Type", "Labels", "Meaning"), metrics),
        "labels": render_table(("Label", "Value", "Meaning"), labels),
    }


def _default(default: str | None) -> str:
    if default is None:
        return "required"
    return f"`{default}`" if default else ""
