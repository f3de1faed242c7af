"""Make the decisions of an installation's log again, and show those that differ in this version."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from replay import decisions
from replay.audit_log import read_entries
from replay.cloud_logging import from_functions
from replay.decisions import Decided, Decision, decide_again
from replay.dependencies import Dependencies
from replay.output import Format, print_json, print_paragraph
from shared.base.documents import read_mapping
from shared.base.fields import count
from shared.base.timestamps import render_time

MAX_ALIKE = 3
"""How many decisions that differ alike are kept and shown; the others are counted."""
_SIZE = re.compile(r"\bhad \d+ bytes")

Kind = tuple[str, str, str]
"""The step, and a sketch of the decision then and today."""


@dataclass(frozen=True)
class Difference:
    """An invocation whose decision is different today. ``about``: its group or request."""

    at: str
    about: str
    message_id: str
    decision: Decision


@dataclass
class Rehearsal:
    """What was decided again. ``unread``: how often a decision could not be, by the reason."""

    same: int = 0
    alike: Counter[Kind] = field(default_factory=Counter)
    examples: dict[Kind, list[Difference]] = field(default_factory=dict)
    unread: Counter[str] = field(default_factory=Counter)


def rehearse(deps: Dependencies, since: datetime) -> Rehearsal:
    """Decide again what the functions have decided since then. Raises `CallError`."""
    query = (
        f'timestamp>="{render_time(since)}"\n{from_functions(deps.settings, decisions.STEPS)}\n'
        "jsonPayload.decision:*"
    )
    return compare(read_entries(deps, {deps.settings.pubsub_project}, query))


def compare(entries: Iterable[Mapping[str, Any]]) -> Rehearsal:
    """The decisions of log entries, made again. Few are kept: a month may have millions."""
    found = Rehearsal()
    for entry in entries:
        line = read_mapping(entry, "jsonPayload")
        decision = decide_again(line)
        if decision.problem:
            found.unread[_SIZE.sub("had too many bytes", decision.problem)] += 1
            continue
        if decision.is_same:
            found.same += 1
            continue
        kind = str(line.get("step")), _sketch(decision.then), _sketch(decision.today)
        found.alike[kind] += 1
        examples = found.examples.setdefault(kind, [])
        if len(examples) < MAX_ALIKE:
            about = str(line.get("group") or line.get("request") or "")
            at, message_id = str(entry.get("timestamp", "")), str(line.get("message_id", ""))
            examples.append(Difference(at, about, message_id, decision))
    return found


def _sketch(decided: Decided | None) -> str:
    """A decision without the names of what it changes: two that differ alike have the same."""
    if decided is None:
        return ""
    verbs = sorted({action.partition(" ")[0] for action in decided.actions})
    return str(Decided(decided.outcome, tuple(verbs), decided.ready))


def print_rehearsal(found: Rehearsal, since: datetime, form: Format) -> None:
    """The numbers, then the decisions that are different, with their facts."""
    if form is Format.JSON:
        print_json(to_document(found))
        return
    different = found.alike.total()
    print_paragraph(
        f"{count(found.same + different, 'decision')} since {render_time(since)} made again: "
        f"{found.same} the same in this version, {different} different."
    )
    for problem, times in found.unread.most_common():
        print_paragraph(f"{count(times, 'line')} not decided again: {problem}.")
    for kind, times in found.alike.most_common():
        for one in found.examples[kind]:
            print()
            print_paragraph(f"{one.at}  {kind[0]}  {one.about}  message {one.message_id}")
            for paragraph in decisions.render(one.decision):
                print_paragraph(paragraph, "  ")
        if times > MAX_ALIKE:
            print_paragraph(f"  {times - MAX_ALIKE} more are different in the same way.")


def to_document(found: Rehearsal) -> dict[str, Any]:
    """A rehearsal as JSON has it."""
    return {
        "same": found.same,
        "different": [
            {
                "step": kind[0],
                "count": times,
                "examples": [
                    {
                        "at": one.at,
                        "about": one.about,
                        "messageId": one.message_id,
                        "decision": decisions.to_document(one.decision),
                    }
                    for one in found.examples[kind]
                ],
            }
            for kind, times in found.alike.most_common()
        ],
        "unread": dict(found.unread),
    }
