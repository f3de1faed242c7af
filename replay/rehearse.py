"""Make the decisions of an installation's log again, and show those that differ in this version."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from replay import decisions
from replay.audit_log import read_entries
from replay.cloud_logging import from_functions
from replay.decisions import Decision, decide_again
from replay.dependencies import Dependencies
from replay.output import Format, print_json, print_paragraph
from shared.base.documents import read_mapping
from shared.base.fields import count
from shared.base.timestamps import render_time

MAX_ALIKE = 3
"""How many decisions of a step are shown with the same outcome then and today; of more, the number."""


@dataclass(frozen=True)
class Difference:
    """An invocation whose decision is different today. ``about``: its group or request."""

    at: str
    step: str
    about: str
    message_id: str
    decision: Decision

    @property
    def kind(self) -> tuple[str, str, str]:
        """The step, and the outcomes then and today."""
        then, today = self.decision.then, self.decision.today
        return self.step, then.outcome if then else "", today.outcome if today else ""


@dataclass
class Rehearsal:
    """What was decided again. ``unread``: how often a decision could not be, by the reason."""

    same: int = 0
    different: list[Difference] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)


def rehearse(deps: Dependencies, since: datetime) -> Rehearsal:
    """Decide again what the functions have decided since then. Raises `CallError`."""
    query = (
        f'timestamp>="{render_time(since)}"\n{from_functions(deps.settings, decisions.STEPS)}\n'
        "jsonPayload.decision:*"
    )
    return compare(read_entries(deps, {deps.settings.pubsub_project}, query))


def compare(entries: Iterable[Mapping[str, Any]]) -> Rehearsal:
    """The decisions of log entries, made again. They are read one by one: a month has millions."""
    found = Rehearsal()
    for entry in entries:
        line = read_mapping(entry, "jsonPayload")
        decision = decide_again(line)
        if decision.problem:
            found.unread[decision.problem] += 1
        elif decision.is_same:
            found.same += 1
        else:
            about = str(line.get("group") or line.get("request") or "")
            at, message_id = str(entry.get("timestamp", "")), str(line.get("message_id", ""))
            step = str(line.get("step"))
            found.different.append(Difference(at, step, about, message_id, decision))
    return found


def print_rehearsal(found: Rehearsal, since: datetime, form: Format) -> None:
    """The numbers, then each decision that is different, with its facts."""
    if form is Format.JSON:
        print_json(to_document(found))
        return
    total = found.same + len(found.different)
    print_paragraph(
        f"{count(total, 'decision')} since {render_time(since)} made again: {found.same} are the same "
        f"in this version, {len(found.different)} are not."
    )
    for problem, times in found.unread.most_common():
        print_paragraph(f"{count(times, 'line')} not decided again: {problem}.")
    shown = Counter[tuple[str, str, str]]()
    for one in found.different:
        shown[one.kind] += 1
        if shown[one.kind] > MAX_ALIKE:
            continue
        print()
        print_paragraph(f"{one.at}  {one.step}  {one.about}  message {one.message_id}")
        for paragraph in decisions.render(one.decision):
            print_paragraph(paragraph, "  ")
    for (step, then, today), times in shown.items():
        if times > MAX_ALIKE:
            more = f"{times - MAX_ALIKE} more of {step}: {then} then, {today} today"
            print_paragraph(f"{more}; --output json has them.")


def to_document(found: Rehearsal) -> dict[str, Any]:
    """A rehearsal as JSON has it."""
    return {
        "same": found.same,
        "different": [
            {
                "at": one.at,
                "step": one.step,
                "about": one.about,
                "messageId": one.message_id,
                "decision": decisions.to_document(one.decision),
            }
            for one in found.different
        ],
        "unread": dict(found.unread),
    }
