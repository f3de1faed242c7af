"""Results on stdout, as tables for people or JSON for programs; everything else on stderr."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TextIO

from replay.text import find_time_of, printable, render_age
from shared.base.names import topic_id
from shared.base.reasons import find_advice

if TYPE_CHECKING:  # each verb imports what it shows
    from replay.explain import Explanation, StepExplanation
    from replay.explain_unit import UnitExplanation
    from replay.listing import Table
    from replay.publications import Sent

_WIDE = 100_000
"""Columns of an output that is not a terminal: nothing is folded."""
_NARROWEST = 40
INDENT = "    "
CONDITIONS_HEAD = ("CONDITION", "STATUS", "REASON", "FOR")
NOT_PUBLISHED = "(not published)"
_GAP = "   "
_BOLD = 1
_STYLES = {"True": 32, "False": 31, "Unknown": 33}
"""ANSI codes: green, red, yellow."""
_BREAKS = re.compile("(?<=[/,])")
_EVENT = re.compile(r"\b(event \w+): (.+)")
MAX_EVENTS = 5


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
        print_rows(head, [(row, ()) for row in rows])


def print_explanation(explanation: Explanation, form: Format) -> None:
    """Why a group is as it is: the cause, the conditions, the Events, what each step would do."""
    from replay import explain

    if form is Format.JSON:
        print_json(explain.to_document(explanation))
        return
    said = ""
    for paragraph in explain.summarize(explanation):
        print_paragraph(paragraph)
        said += f"{paragraph} "
    rows: list[Any] = list(list_conditions(explanation, said))
    said += " ".join(message for _, (message,) in rows)
    print_rows(CONDITIONS_HEAD, rows, "\n")
    rows = []
    for event in explanation.events[:MAX_EVENTS]:
        reason = str(event.get("reason"))
        message = _unsaid(str(event.get("message", "")), said + find_advice(reason))
        age = f"{render_age(explanation.now - find_time_of(event))} ago"
        rows.append(((reason, age, str(event.get("count") or 1)), (message,)))
        said += f"{message} "
    print_rows(("EVENT", "LAST", "TIMES"), rows, "\n")
    print_paragraph(explanation.events_error)
    due = [one for one in explanation.steps if one.is_due]
    due = [one for one in due if one.actions or _unsaid(one.note, said)]
    _print_answers(due, ("STEP", "BY SWEEP"), said)
    if explanation.steps and not due:
        print("\nThe steps would change nothing now.")


def list_conditions(explanation: Explanation, said: str) -> Iterator[tuple[list[str], list[str]]]:
    """The cells of each condition, and of what it says the sentences that were not ``said``."""
    for kind, one in explanation.known.conditions.items():
        message = "" if one.is_true else _unsaid(one.message, said + find_advice(one.reason))
        age = render_age(explanation.now - one.since)
        yield [str(kind), one.status, str(one.reason), age], [message]
        said += f"{message} "


def print_unit_explanation(explanation: UnitExplanation, form: Format) -> None:
    """What delays a workload's slices, or why a Pod gets one or none, and what the steps would do."""
    from replay import explain_unit

    if form is Format.JSON:
        print_json(explain_unit.to_document(explanation))
        return
    print_paragraph(explanation.cause)
    if explanation.of_class:
        print_paragraph(explanation.of_class["summary"])
        found = (one.values() for one in explanation.of_class["candidates"])
        rows = (((candidate, state), (words,)) for candidate, state, words in found)
        print_rows(("CANDIDATE", "STATE"), rows, "\n")
    for group in explanation.groups:
        print_paragraph(f"To see whether the slice is Ready: kubectl tng explain {group}")
    _print_answers(explanation.steps, ("STEP", "BY SWEEP", "ABOUT", "OUTCOME"), explanation.cause)


def print_tables(tables: list[Table], form: Format, place: str) -> None:
    """What `get` lists. An empty table is not printed; what could not be listed is said."""
    from replay import listing

    for table in tables:
        if table.error:
            say(f"{table.name}: {table.error}")
    if form is Format.JSON:
        print_json(listing.to_document(tables))
        return
    before = ""
    for table in filter(lambda one: one.rows, tables):
        print_rows(table.head, [(cells, (words,)) for cells, words in table.rows], before)
        before = "\n"
    if not any(table.rows or table.error for table in tables[:2]):  # classes are of all namespaces
        say(f"There are no slices{place}, and nothing waits for one.")


class _Wrapper(textwrap.TextWrapper):
    """Breaks no name and no address: another word that is too long for a line is broken after a slash or
    a comma."""

    def _split(self, text: str) -> list[str]:
        width = self.width - len(self.subsequent_indent)
        parts = (
            _BREAKS.split(word) if len(word) > width and "://" not in word else [word]
            for word in super()._split(text)
        )
        return [part for split in parts for part in split]


def print_paragraph(
    text: str, indent: str = "", first: str | None = None, file: TextIO | None = None
) -> None:
    """Text that is wrapped to the terminal; where there is none, one line. Empty text is nothing."""
    if not text:
        return
    wrapper = _Wrapper(
        find_width(),
        initial_indent=printable(indent if first is None else first),
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    print(wrapper.fill(printable(text)), file=file)


def find_width() -> int:
    """Columns of the terminal, or of COLUMNS where it is set; without either nothing is wrapped."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return max(_NARROWEST, shutil.get_terminal_size().columns)
    return _WIDE


def say(text: str) -> None:
    """Print a message to the user on stderr, on one line, in the place of a progress line."""
    show_progress("")
    print(printable(text), file=sys.stderr)


def print_note(text: str) -> None:
    """What an answer lacks, on stderr, wrapped as the answer is."""
    show_progress("")
    print_paragraph(text, file=sys.stderr)


def show_progress(what: str) -> None:
    """How far a command is, on one line of a terminal, in the place of what it showed before. Empty: the
    line is empty again."""
    if sys.stderr.isatty():
        most = shutil.get_terminal_size().columns - len(" ...") - 1
        line = f"{printable(what)[:most]} ..." if what else ""
        print(f"\r\x1b[K{line}\r", end="", file=sys.stderr, flush=True)


def print_json(document: Any) -> None:
    """A JSON document, indented."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    text = text.encode("utf-8", "replace").decode()  # a log may hold half a surrogate pair
    # JSON itself escapes only some of the characters that control a terminal.
    print("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def print_rows(
    head: Sequence[str], rows: Iterable[tuple[Sequence[str], Iterable[str]]], before: str = ""
) -> None:
    """A table like kubectl's, with paragraphs under each row; nothing if there are no rows.

    A row that is too wide for the terminal continues on the next line, below the heads if there is room.
    If most are, all continue at the same column.
    """
    lines: list[Any] = [(list(map(printable, cells)), details) for cells, details in rows]
    starts = list(_place_columns(head, [cells for cells, _ in lines]))
    for number, (cells, details) in enumerate([(head, ()), *lines] if lines else ()):
        line, used = "" if number else before, 0
        for column, (cell, (start, is_next)) in enumerate(zip(cells, starts, strict=True)):
            at = max(start, used + len(_GAP)) if used else start
            if is_next or (used and at + len(cell) > find_width()):
                line, used, rest = f"{line}\n", 0, len(_GAP.join(cells[column:]))
                at = max(len(INDENT), min(start, find_width() - rest))
            painted = _paint(cell, _BOLD if number == 0 else _STYLES.get(cell))
            line, used = f"{line}{' ' * (at - used)}{painted}", at + len(cell)
        print(line)
        for text in details:
            is_item = text.startswith("- ")
            print_paragraph(text, f"{INDENT}  " if is_item else INDENT, INDENT)


def _place_columns(
    head: Sequence[str], rows: Sequence[Sequence[str]]
) -> Iterator[tuple[int, bool]]:
    """Where each column starts, and whether on the next line. Rows that are wider than the terminal do
    not count, unless most are."""
    width, gap = find_width(), len(_GAP)
    sizes, fit = list(map(len, head)), 0
    for cells in sorted(rows, key=lambda cells: sum(map(len, cells))):
        wider = list(map(max, sizes, map(len, cells)))
        if sum(wider) + gap * (len(head) - 1) <= width:
            sizes, fit = wider, fit + 1
    if 2 * fit < len(rows):
        sizes = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    at = 0
    for size in sizes:
        is_next = bool(at) and at + size > width
        at = len(INDENT) if is_next else at
        yield at, is_next
        at += size + gap


def _paint(text: str, style: int | None) -> str:
    """Coloured text on a terminal, whatever FORCE_COLOR says."""
    if style is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{style}m{text}\x1b[0m"


def _unsaid(message: str, said: str) -> str:
    """The sentences of a message that were not printed yet."""
    return ". ".join(part for part in message.split(". ") if part.rstrip(".") not in said)


def _print_answers(answers: Sequence[StepExplanation], head: Sequence[str], said: str = "") -> None:
    """A row for each step, and for each object that it answers about; under it the actions."""
    rows = []
    for one in answers:
        cells = (one.step, "yes" if one.is_triggered else "no", one.about or "-", one.outcome)
        note = _unsaid(one.note, " ".join((said, *one.actions)))
        rows.append((cells[: len(head)], (*_list_actions(one.actions, said), note)))
    print_rows(head, rows, "\n")


def _list_actions(actions: Sequence[str], said: str) -> Iterator[str]:
    """The actions, as items. The words of an Event that were printed already are left out."""
    for action in actions:
        event = _EVENT.search(action)
        yield f"- {action[: event.end(1)] if event and event[2] in said else action}"
        said += action
