"""The table of what triggers each step in `docs/how-it-works.md`, from the table of routes."""

from __future__ import annotations

from collections.abc import Iterator

from shared.triggers.message import SWEEP_KIND
from shared.triggers.route import Ends, Result, Route
from shared.triggers.routes import ROUTES
from tools.pages.markdown import render_table

_HEAD = ("step", "messages, with their causes", "ends of operations, in the audit log")


def render() -> dict[str, str]:
    """The table."""
    rows = (
        (f"`{step}`", "; ".join(_list_messages(route)), "; ".join(map(_describe, route.ends)))
        for step, route in ROUTES.items()
    )
    return {"triggers": render_table(_HEAD, rows)}


def _list_messages(route: Route) -> Iterator[str]:
    for kind, causes in route.causes.items():
        about = "without an object" if kind == SWEEP_KIND else f"about a {kind}"
        yield f"{about}: {', '.join(f'`{cause}`' for cause in causes)}"


def _describe(ends: Ends) -> str:
    result = "" if ends.result is Result.ANY else f" ({ends.result.value})"
    return f"`{ends.resource}`: {', '.join(ends.verbs)}{result}"
