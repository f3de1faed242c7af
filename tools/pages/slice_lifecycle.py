"""The tables and the diagram in `docs/reference/slice-lifecycle.md`, from the lifecycle table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from shared.slices.create_or_release import (
    COLUMNS,
    CREATED,
    CREATION_REFUSED,
    CREATION_RETRIED,
    DELETED,
    DELETION_REFUSED,
    DELETION_RETRIED,
    NOT_CREATED,
    NOT_DELETED,
    PHASES,
    QUEUED,
    ROWS,
    WITHOUT_LEADER,
    EventTemplate,
    Phase,
    Row,
    SliceAction,
    SliceTrigger,
)
from tools.pages.markdown import render_table

_CONDITIONS = {
    "is_as_asked": ("as the Pod asks", "not as the Pod asks"),
    "is_in_use": ("in use", "not in use"),
    "is_paused": ("paused", "not paused"),
    "is_full": ("at a limit", "below the limits"),
    "is_unfit": ("unfit", "not unfit"),
    "is_rebuild_due": ("rebuild due", "rebuild not due"),
    "is_exhausted": ("no candidate may be asked", "a candidate may be asked"),
    "is_next_due": ("another candidate is due", "no other candidate is due"),
}
_TABLES = {
    "## For a Pod that waits: `provision_slice`": {SliceTrigger.POD, SliceTrigger.POD_RESYNC},
    "## For the slice itself: `release_slice`": {SliceTrigger.SLICE},
}
BESIDES_THE_TABLE: dict[EventTemplate, str] = {
    CREATED: "The operation that creates a node pool has ended.",
    NOT_CREATED: "The same, with an error.",
    CREATION_REFUSED: "The Pod asks for an impossible slice, or the call that creates it is rejected.",
    WITHOUT_LEADER: "Another Pod than the first has waited for a quarter of an hour.",
    QUEUED: "The call is rejected because too many slices are changing.",
    DELETED: "The operation that deletes a node pool has ended.",
    NOT_DELETED: "The same, with an error.",
    DELETION_REFUSED: "A call that releases or replaces it is rejected, or its Pods cannot be read.",
    CREATION_RETRIED: "The Pod has waited for ten minutes, and a call has had a transient error.",
    DELETION_RETRIED: "No JobSet has needed it for ten minutes, and a call has had a transient error.",
}
"""Events that no row has: about failed calls and the ends of operations."""
TRANSITIONS: tuple[tuple[Phase, Phase, str], ...] = (
    (Phase.PROVISIONING, Phase.READY, "its Nodes are ready"),
    (Phase.PROVISIONING, Phase.RECOVERING, "no capacity, quota or permission"),
    (Phase.PROVISIONING, Phase.UNCREATED, "the provider has failed"),
    (Phase.PROVISIONING, Phase.LOST, "a resource is deleted"),
    (Phase.RECOVERING, Phase.PROVISIONING, "the provider retries"),
    (Phase.READY, Phase.RECOVERING, "a host fails"),
    (Phase.RECOVERING, Phase.READY, "the host is back"),
    (Phase.RECOVERING, Phase.DEGRADED, "a host is lost for good"),
    (Phase.DEGRADED, Phase.LOST, "no Node is ready"),
    (Phase.DELETING, Phase.ABSENT, "deleted"),
)
"""Transitions by the provider and the cloud, not by a step, for the diagram."""
_HEAD = ("trigger", "slice", "its JobSet", "conditions", "outcome", "action", "Event")


def render() -> dict[str, str]:
    """The diagram, the phases, the table of each step, and the other Events, as Markdown."""
    parts = [_render_diagram(), _render_phases()]
    parts += [f"{heading}\n\n{_render_rows(triggers)}" for heading, triggers in _TABLES.items()]
    return {"lifecycle": "\n".join(["", *parts, _render_other_events(), ""])}


def list_templates() -> Iterable[EventTemplate]:
    """All Events about slices."""
    rows = (event for row in ROWS for event in (row.event, row.if_gone) if event is not None)
    return dict.fromkeys([*rows, *BESIDES_THE_TABLE])


def _render_diagram() -> str:
    lines = (f"    {source} --> {target}: {label}\n" for source, target, label in _list_arrows())
    return f"```mermaid\nstateDiagram-v2\n{''.join(lines)}```\n"


def _list_arrows() -> Iterator[tuple[str, str, str]]:
    labels: dict[tuple[Phase, Phase], list[str]] = {}
    for source, target, label in [*_list_actions(), *TRANSITIONS]:
        known = labels.setdefault((source, target), [])
        if label not in known:
            known.append(label)
    for (source, target), words in labels.items():
        yield _point(source), _point(target), ", ".join(words)


def _list_actions() -> Iterator[tuple[Phase, Phase, str]]:
    """The arrows that steps cause, by outcome; to remove a release deadline changes no phase."""
    targets = {SliceAction.CREATE: Phase.PROVISIONING, SliceAction.DELETE: Phase.DELETING}
    for row in ROWS:
        for phase in _order("phase", row.cells["phase"]) if "phase" in row.cells else ():
            if row.action in targets:
                yield phase, targets[row.action], row.outcome
            elif row.action is SliceAction.SET_DEADLINE:
                yield phase, phase, row.outcome


def _point(phase: Phase) -> str:
    return "[*]" if phase is Phase.ABSENT else str(phase)


def _order(column: str, values: Iterable[Any]) -> list[Any]:
    return sorted(values, key=COLUMNS[column].index)


def _render_phases() -> str:
    return render_table(("slice", "meaning"), PHASES.items())


def _render_rows(triggers: set[SliceTrigger]) -> str:
    rows = [_render_row(row) for row in ROWS if row.cells["trigger"] & triggers]
    return render_table(_HEAD, rows)


def _render_row(row: Row) -> tuple[str, ...]:
    return (
        _list("trigger", row),
        _list("phase", row),
        _list("need", row),
        ", ".join(_list_conditions(row)),
        f"`{row.outcome}`",
        row.action,
        _render_events(row),
    )


def _list(column: str, row: Row) -> str:
    values = row.cells.get(column)
    if values is None:
        return "any"
    return ", ".join(_order(column, values))


def _list_conditions(row: Row) -> Iterator[str]:
    if "deadline" in row.cells:
        yield f"deadline {' or '.join(_order('deadline', row.cells['deadline']))}"
    for name, (if_true, if_false) in _CONDITIONS.items():
        if name in row.cells:
            yield if_true if True in row.cells[name] else if_false


def _render_events(row: Row) -> str:
    events = [_render_event(row.event)] if row.event else []
    if row.if_gone:
        events.append(f"if it is gone: {_render_event(row.if_gone)}")
    return "; ".join(events)


def _render_event(event: EventTemplate) -> str:
    kind = " (Warning)" if event.is_warning else ""
    return f"`{event.reason}`{kind}: {event.message}"


def _render_other_events() -> str:
    rows = ((_render_event(event), when) for event, when in BESIDES_THE_TABLE.items())
    return "## Other Events\n\n" + render_table(("Event", "when"), rows)
