"""The tables and drawings in `docs/reference/resource-lifecycle.md`, from the lifecycle table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from itertools import combinations

from shared.node_groups.lifecycle import (
    ANY_OPERATION,
    ANY_PRESENCE,
    ANY_STATE,
    RETRY_AFTER,
    SURELY_ABSENT_AFTER,
    TABLE,
    YOUNG,
    Goal,
    Guard,
    OperationState,
    Presence,
    ResourceAction,
    ResourceRow,
    find_row,
)
from shared.node_groups.status import State
from tools.pages import markdown

_HEADS = ("", "State", "Found", "Operation", "Guards", "Next", "Action", "Because", "Error")


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.0f} s"


MEANINGS: Mapping[Guard, str] = {
    Guard.PAUSED: "the group has the annotation `tpu-functions.dev/paused`",
    Guard.COMPLETE: "`status.completedAt` is set",
    Guard.BLOCKED: "creation: of the MIG, while policy or template is not `Ready`. "
    "Tear-down: of policy and template, until the MIG is `Gone`",
    Guard.EXTERNAL: "the spec names an instance template",
    Guard.LOST: "the group has the finalizer, and its status has no entry",
    Guard.YOUNG: f"`since` is less than {_seconds(YOUNG)} ago, and the message is not redelivered",
    Guard.TOO_EARLY: "the trigger is not a resync; in creation, `since` is also less than "
    f"{_seconds(RETRY_AFTER)} ago",
    Guard.NO_INTENT: "the entry has no `since`",
    Guard.OLD: f"`since` is {_seconds(SURELY_ABSENT_AFTER)} or longer ago",
    Guard.KNOWN: "the entry has a `uri`: the resource was found to be ours before",
    Guard.REPAIR: "it is the MIG, and the group is not being deleted",
}
"""When each guard holds."""

Situation = tuple[State, Presence, OperationState, frozenset[Guard]]


def list_situations(goal: Goal) -> Iterator[Situation]:
    """Every combination of values that the goal's rows can tell apart."""
    guards = [guard for guard in Guard if any(guard in row.guards for row in rows_of(goal))]
    sets = [frozenset(some) for n in range(len(guards) + 1) for some in combinations(guards, n)]
    for state in State:
        for presence in Presence:
            for operation in OperationState:
                for some in sets:
                    yield state, presence, operation, some


def rows_of(goal: Goal) -> list[ResourceRow]:
    """The goal's part of the table."""
    return [row for row in TABLE if row.goal is goal]


def render_guards() -> str:
    """The guards as a Markdown table."""
    return markdown.render_table(("Guard", "Holds if"), MEANINGS.items())


def render_table(goal: Goal) -> str:
    """The goal's rows as a Markdown table."""
    rows = (
        (
            str(number),
            _choice(row.states, ANY_STATE),
            _choice(row.presence, ANY_PRESENCE),
            _choice(row.operations, ANY_OPERATION),
            " and ".join(row.guards),
            f"`{row.next}`" if row.next is not None else "same",
            str(row.action),
            row.because,
            row.failure or "",
        )
        for number, row in enumerate(rows_of(goal), 1)
    )
    return markdown.render_table(_HEADS, rows)


def _choice(chosen: tuple[StrEnum, ...], every: tuple[StrEnum, ...]) -> str:
    if chosen == every:
        return "any"
    words = [f"`{value}`" if isinstance(value, State) else str(value) for value in every]
    left = [word for word, value in zip(words, every, strict=True) if value not in chosen]
    if len(left) == 1 and len(every) > len(chosen) > 2:
        return f"any but {left[0]}"
    return ", ".join(word for word in words if word not in left)


def render_diagram(goal: Goal) -> str:
    """The changes of state as a Mermaid drawing, each with its action and rows."""
    numbers = {id(row): number for number, row in enumerate(rows_of(goal), 1)}
    changes: dict[tuple[State, State, ResourceAction], set[int]] = defaultdict(set)
    for situation in list_situations(goal):
        row = find_row(goal, *situation)
        if row.next is not None and row.next is not situation[0]:
            changes[situation[0], row.next, row.action].add(numbers[id(row)])
    states = list(State)
    arrows = "".join(
        f"    {start} --> {end}: {_label(action, numbers)}\n"
        for (start, end, action), numbers in sorted(
            changes.items(), key=lambda change: [states.index(change[0][0]), min(change[1])]
        )
    )
    return f"```mermaid\nstateDiagram-v2\n{arrows}```\n"


def _label(action: ResourceAction, rows: set[int]) -> str:
    numbers = ", ".join(map(str, sorted(rows)))
    calls = action in (ResourceAction.INSERT, ResourceAction.DELETE)
    return f"{action} ({numbers})" if calls else f"({numbers})"


def render() -> dict[str, str]:
    """Render the page's parts by name."""
    return {
        "guards": render_guards(),
        "creation drawn": render_diagram(Goal.CREATE),
        "creation": render_table(Goal.CREATE),
        "tear-down drawn": render_diagram(Goal.TEAR_DOWN),
        "tear-down": render_table(Goal.TEAR_DOWN),
    }
