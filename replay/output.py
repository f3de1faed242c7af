"""Results on stdout, as tables for people or JSON for programs; everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from replay import explain_jobset
from replay.explain import Answer, Explanation, to_document
from replay.explain_jobset import JobSetExplanation
from replay.publications import Sent
from shared.base.names import topic_id
from shared.base.reasons import find_entry
from shared.node_groups.status import Condition, Type

_WIDE = 100_000
"""Columns of an output that is no terminal: nothing is folded there."""
_STYLES = {"True": "green", "False": "red", "Unknown": "yellow"}


class Format(StrEnum):
    """How results are written."""

    TABLE = "table"
    JSON = "json"


def print_sent(sent: Sequence[Sent], topic_prefix: str, form: Format) -> None:
    """What was published, or would be."""
    if form is Format.JSON:
        print_json([_sent_document(one, topic_prefix) for one in sent])
    elif sent:
        _print_sent_table(sent, topic_prefix)


def print_explanation(explanation: Explanation, form: Format) -> None:
    """Why a group is as it is, and what each step would do."""
    if form is Format.JSON:
        print_json(to_document(explanation))
        return
    print_lines(_headlines(explanation))
    conditions = explanation.known.conditions
    if conditions:
        print_lines([""])
        rows = (_condition_row(kind, one, explanation.now) for kind, one in conditions.items())
        print_table(("CONDITION", "STATUS", "REASON", "FOR", "MESSAGE"), rows)
    print_lines([""])
    rows = (row for answer in explanation.steps for row in _answer_rows(answer))
    print_table(("STEP", "SWEEP WAKES IT", "OUTCOME", "WHAT IT WOULD DO"), rows)


def print_jobset_explanation(explanation: JobSetExplanation, form: Format) -> None:
    """What both steps would do about a JobSet's slices."""
    if form is Format.JSON:
        print_json(explain_jobset.to_document(explanation))
        return
    print_lines([f"JobSet {explanation.namespace}/{explanation.name} {explanation.state}"])
    if not explanation.steps:
        print_lines(["No Pod of it waits for a slice, and it has none"])
        return
    print_lines([""])
    rows = (
        (row[0], answer.about if row[0] else "", *row[1:])
        for answer in explanation.steps
        for row in _answer_rows(answer)
    )
    print_table(("STEP", "ABOUT", "SWEEP WAKES IT", "OUTCOME", "WHAT IT WOULD DO"), rows)


def say(text: str) -> None:
    """A message to the person, on stderr."""
    for line in text.splitlines():
        print(printable(line), file=sys.stderr)


def print_json(document: Any) -> None:
    """A JSON document, indented."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def print_lines(lines: Iterable[str]) -> None:
    """Lines of text."""
    for line in lines:
        print(printable(line))


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table in kubectl's manner; on a terminal the last column is folded to fit."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    is_terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if is_terminal else _WIDE, highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for name in head:
        table.add_column(name, no_wrap=name != head[-1], overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell), style=_STYLES.get(cell, "")) for cell in row))
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        print(line.rstrip())


def printable(text: str) -> str:
    """Text that cannot move the cursor or colour a terminal: it may be anybody's words."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def render_age(age: timedelta) -> str:
    """A duration in its largest unit, as kubectl has it: ``45s``, ``12m``, ``3h``, ``5d``."""
    seconds = max(0, int(age.total_seconds()))
    units = ((86400, "d"), (3600, "h"), (60, "m"))
    return next(
        (f"{seconds // size}{unit}" for size, unit in units if seconds >= size), f"{seconds}s"
    )


def _print_sent_table(sent: Sequence[Sent], topic_prefix: str) -> None:
    of_file = any(one.publication.line for one in sent)
    head = (*(("LINE",) if of_file else ()), "ABOUT", "CAUSE", "TOPIC", "MESSAGE ID")
    print_table(head, (_sent_row(one, topic_prefix, of_file=of_file) for one in sent))


def _sent_document(sent: Sent, topic_prefix: str) -> dict[str, Any]:
    publication = sent.publication
    return {
        "line": publication.line or None,
        "about": publication.about,
        "cause": publication.cause,
        "step": publication.step,
        "topic": topic_id(topic_prefix, publication.step),
        "attributes": dict(publication.attributes),
        "message": json.loads(publication.data),
        "messageId": sent.message_id or None,
    }


def _sent_row(sent: Sent, topic_prefix: str, *, of_file: bool) -> tuple[str, ...]:
    publication = sent.publication
    return (
        *((str(publication.line),) if of_file else ()),
        publication.about,
        publication.cause,
        topic_id(topic_prefix, publication.step),
        sent.message_id or "(not published)",
    )


def _headlines(explanation: Explanation) -> Iterator[str]:
    group, ready = explanation.group, explanation.ready
    if ready is None:
        yield f"{group.key}: no step has written its status yet"
    else:
        word = "is ready" if ready.is_true else f"is not ready: {ready.reason}"
        yield f"{group.key} {word}, for {render_age(explanation.now - ready.since)}"
        yield f"  {ready.message}"
        if explanation.meaning not in ready.message:
            yield f"  {explanation.meaning}"
        if entry := find_entry(ready.reason):
            yield f"  How to look, and what to do: {entry}"
    if group.deleting is not None:
        yield f"Being deleted, for {render_age(explanation.now - group.deleting)}"
    yield f"Sweep: {_sweep_words(explanation)}"


def _sweep_words(explanation: Explanation) -> str:
    found = explanation.sweep
    state = "settled, looked at once an hour" if found.is_settled else "not settled"
    due = "; due in this minute" if found.is_due else ""
    inboxes = ", ".join(found.inboxes) or "no inbox"
    return f"{state}{due}; next SYNC {_when(found.next_look, explanation.now)}, to {inboxes}"


def _when(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return "not within an hour (is your clock right?)"
    return f"at {moment:%H:%M} UTC, in {render_age(moment - now)}"


def _condition_row(kind: Type, condition: Condition, now: datetime) -> tuple[str, ...]:
    age = render_age(now - condition.since)
    return str(kind), condition.status, condition.reason, age, condition.message


def _answer_rows(answer: Answer) -> Iterator[tuple[str, ...]]:
    """A row for each action; the step's name stands in the first."""
    notes = (f"({answer.note})",) if answer.note else ()
    said = (*answer.actions, *notes) or ("nothing",)
    yield answer.step, "yes" if answer.is_woken else "no", answer.outcome, said[0]
    for line in said[1:]:
        yield "", "", "", line
