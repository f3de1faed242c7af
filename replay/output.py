"""Results on stdout, as tables for people or JSON for programs; everything else on stderr."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any

from functions.report_leaks.leaks import render_message
from functions.report_leaks.observe import ObservedLeaks
from replay import decisions, explain, explain_jobset, timeline_text
from replay.explain import Explanation, StepExplanation
from replay.explain_jobset import JobSetExplanation
from replay.leaks import render_commands
from replay.publications import Sent
from replay.text import printable, render_age
from replay.timeline import Timeline
from replay.timeline import to_document as timeline_document
from shared.base.names import is_dns_subdomain, topic_id
from shared.base.reasons import find_entry

_WIDE = 100_000
"""Columns of an output that is not a terminal: nothing is folded."""
_NARROWEST = 40
_INDENT = "    "
NOT_PUBLISHED = "(not published)"
_STYLES = {"True": "green", "False": "red", "Unknown": "yellow"}


class Format(StrEnum):
    """The output format."""

    TABLE = "table"
    JSON = "json"


def print_sent(sent: Sequence[Sent], topic_prefix: str, form: Format) -> None:
    """What was published, or would be."""
    topics = [topic_id(topic_prefix, one.publication.step) for one in sent]
    if form is Format.JSON:
        print_json(
            [
                {
                    "line": one.publication.line or None,
                    "about": one.publication.about,
                    "cause": one.publication.cause,
                    "step": one.publication.step,
                    "topic": topic,
                    "attributes": dict(one.publication.attributes),
                    "message": json.loads(one.publication.data),
                    "messageId": one.message_id or None,
                }
                for one, topic in zip(sent, topics, strict=True)
            ]
        )
    elif sent:
        head: tuple[str, ...] = ("ABOUT", "CAUSE", "TOPIC", "MESSAGE ID")
        rows: list[tuple[str, ...]] = [
            (one.publication.about, one.publication.cause, topic, one.message_id or NOT_PUBLISHED)
            for one, topic in zip(sent, topics, strict=True)
        ]
        if any(one.publication.line for one in sent):
            head = ("LINE", *head)
            rows = [(str(one.publication.line), *row) for one, row in zip(sent, rows, strict=True)]
        print_table(head, rows)


def print_explanation(explanation: Explanation, form: Format) -> None:
    """Why a group is as it is: the cause, the conditions, what each step would do."""
    if form is Format.JSON:
        print_json(explain.to_document(explanation))
        return
    for paragraph in _describe_readiness(explanation):
        print_paragraph(paragraph)
    _print_conditions(explanation)
    _print_answers(explanation.steps)


def print_jobset_explanation(explanation: JobSetExplanation, form: Format) -> None:
    """What delays a JobSet's slices, and what both steps would do about them."""
    if form is Format.JSON:
        print_json(explain_jobset.to_document(explanation))
        return
    print_paragraph(explanation.cause)
    for group in explanation.groups:
        print_paragraph(f"To see whether the slice is Ready: kubectl tng explain {group}")
    _print_answers(explanation.steps)


def print_timeline(timeline: Timeline, price: float | None, form: Format) -> None:
    """A slice's timeline."""
    if form is Format.JSON:
        print_json(timeline_document(timeline, price))
        return
    for paragraph in timeline_text.render_summary(timeline, price):
        print_paragraph(paragraph, "  " if paragraph.startswith("- ") else "", "")
    print()
    width = max((len(moment.who) for moment in timeline.moments), default=0)
    for moment in timeline_text.join_moments(timeline.moments):
        first = f"{moment.at:%H:%M:%S}  {moment.who:<{width}}  "
        why = f"  [{moment.why}]" if moment.why else ""
        print_paragraph(f"{moment.what}{why}", " " * len(first), first)
        for paragraph in decisions.render(moment.decision) if moment.decision else ():
            print_paragraph(paragraph, " " * (len(first) + 2))


def print_leaks(observed: ObservedLeaks, form: Format) -> None:
    """Leaked slices and Nodes, and the commands that delete them, each on a line."""
    described = [
        (f"{render_message(leak)} To delete them, run in this order:", list(render_commands(leak)))
        for leak in observed.leaks
    ]
    if observed.nodes:
        deletions = [f"kubectl delete node {n}" for n in filter(is_dns_subdomain, observed.nodes)]
        message = "No TPUNodeGroup has these Nodes. When their VMs are gone, delete them:"
        described.append((message, deletions))
    if form is Format.JSON:
        print_json([{"message": message, "commands": commands} for message, commands in described])
        return
    for message, commands in described:
        print_paragraph(message)
        print("\n".join(f"{_INDENT}{command}" for command in commands))


def print_paragraph(text: str, indent: str = "", first: str | None = None) -> None:
    """Text that is wrapped to the terminal; where there is none, one line. Empty text is nothing."""
    if not text:
        return
    lines = textwrap.wrap(
        printable(text),
        find_width(),
        initial_indent=printable(indent if first is None else first),
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    print("\n".join(lines))


def find_width() -> int:
    """Columns of the terminal, or of COLUMNS where it is set; without either nothing is wrapped."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return max(_NARROWEST, shutil.get_terminal_size().columns)
    return _WIDE


def say(text: str) -> None:
    """Print a message to the user on stderr, on one line."""
    print(printable(text), file=sys.stderr)


def print_json(document: Any) -> None:
    """A JSON document, indented."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    text = text.encode("utf-8", "replace").decode()  # a log may hold half a surrogate pair
    # JSON itself escapes only some of the characters that control a terminal.
    print("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table like kubectl's; if the terminal is too narrow, cells are folded."""
    for line in _render_table(head, rows, find_width()):
        print(line)


def render_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, one for each row however long it is, coloured on a terminal."""
    return _render_table(head, rows, _WIDE)


def _render_table(head: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> list[str]:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    is_terminal = sys.stdout.isatty()  # whatever FORCE_COLOR says
    console = Console(file=sys.stdout, width=width, highlight=False, force_terminal=is_terminal)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell), style=_STYLES.get(cell, "")) for cell in row))
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def _describe_readiness(explanation: Explanation) -> Iterator[str]:
    group, ready = explanation.group, explanation.ready
    if ready is None:
        yield f"{group.key} is not Ready: no step has written its status yet."
    elif ready.is_true:
        age = render_age(explanation.now - ready.since)
        yield f"{group.key} has been Ready for {age}: {ready.message}"
    else:
        age = render_age(explanation.now - ready.since)
        cause, _, rest = explanation.meaning.partition(". ")
        cause = f"{cause.rstrip('.')}."
        yield f"{group.key} has not been Ready for {age} ({ready.reason}): {cause}"
        yield ready.message.replace(f"{cause} ", "", 1)
        if explanation.meaning not in ready.message:
            yield rest
        if entry := find_entry(ready.reason):
            yield f"What to check and what to do: {entry}"
    if group.deleting is not None:
        yield f"The group is being deleted, for {render_age(explanation.now - group.deleting)}."
    yield _describe_sweep(explanation)


def _print_conditions(explanation: Explanation) -> None:
    """A row for each condition; under one that is not True its message, unless that is Ready's."""
    conditions = explanation.known.conditions
    said = explanation.ready.message if explanation.ready is not None else ""
    if not conditions:
        return
    rows = [
        (str(kind), one.status, one.reason, render_age(explanation.now - one.since))
        for kind, one in conditions.items()
    ]
    head, *lines = render_rows(("CONDITION", "STATUS", "REASON", "FOR"), rows)
    print(f"\n{head}")
    for line, condition in zip(lines, conditions.values(), strict=True):
        print(line)
        if not condition.is_true and condition.message not in ("", said):
            print_paragraph(condition.message, _INDENT)


def _print_answers(answers: Sequence[StepExplanation]) -> None:
    """A row for each step, and for each object that it answers about; under it the actions."""
    if not answers:
        return
    about = ("ABOUT",) if any(answer.about for answer in answers) else ()
    rows = [
        (
            answer.step,
            *((answer.about,) if about else ()),
            "yes" if answer.is_triggered else "no",
            answer.outcome,
        )
        for answer in answers
    ]
    head, *lines = render_rows(("STEP", *about, "BY SWEEP", "OUTCOME"), rows)
    print(f"\n{head}")
    for line, answer in zip(lines, answers, strict=True):
        print(line)
        for action in answer.actions:
            print_paragraph(action, f"{_INDENT}  ", f"{_INDENT}- ")
        if answer.note:
            print_paragraph(answer.note, _INDENT)


def _describe_sweep(explanation: Explanation) -> str:
    found, moment = explanation.sweep, explanation.sweep.next_resync
    if moment is None:
        when = "not within an hour (check your clock)"
    else:
        when = f"at {moment:%H:%M} UTC (in {render_age(moment - explanation.now)})"
    state = "The group is settled" if found.is_settled else "The group is not settled"
    resync = "a resync is due now, the next one is" if found.is_due else "the next resync is"
    return f"{state}: {resync} {when}, to {', '.join(found.topics) or 'no step'}."
