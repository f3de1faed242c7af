"""The tables and drawings in `docs/reference/resource-lifecycle.md`, from the code.

``python -m shared.node_groups.reference <file>`` renders them.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from itertools import combinations
from pathlib import Path

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

_END = "<!-- end -->"
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
    rows = "".join(f"| {guard} | {meaning} |\n" for guard, meaning in MEANINGS.items())
    return f"| Guard | Holds if |\n| --- | --- |\n{rows}"


def render_table(goal: Goal) -> str:
    """The goal's rows as a Markdown table."""
    lines = [_HEADS, ("---",) * len(_HEADS)]
    lines += [
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
    ]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


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


PARTS: Mapping[str, Callable[[], str]] = {
    "guards": render_guards,
    "creation drawn": lambda: render_diagram(Goal.CREATE),
    "creation": lambda: render_table(Goal.CREATE),
    "tear-down drawn": lambda: render_diagram(Goal.TEAR_DOWN),
    "tear-down": lambda: render_table(Goal.TEAR_DOWN),
}


def refresh(text: str) -> str:
    """The document with its parts as they are now. Raises `ValueError` without a place for one."""
    for name, render in PARTS.items():
        begin = f"<!-- {name}, from the code -->\n"
        start = text.index(begin) + len(begin)
        text = text[:start] + render() + text[text.index(_END, start) :]
    return text


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(refresh(document.read_text()))
