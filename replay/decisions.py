"""Read the snapshot in an invocation's log line, and repeat the decision.

Pure: the code of this tool decides from the values that were observed then. Nothing is read or executed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from functions import approve_join, create_resources, inject_token, label_node, tear_down
from replay.observed_text import list_facts
from replay.text import join_names
from shared.frame.plan import Emit, Send
from shared.frame.snapshot import FIELD, Snapshot, SnapshotError, decode, describe, find_classes
from shared.frame.step import CRASHED, Step
from shared.node_groups.status import Status, Type
from shared.node_groups.work import WriteStatus

MAX_ACTIONS = 4
"""Actions that a line of text names; of more it gives the number."""
STEPS: Mapping[str, Step[Any, Any]] = {
    module.STEP.name: module.STEP
    for module in (create_resources, inject_token, approve_join, label_node, tear_down)
}


@dataclass(frozen=True)
class Decided:
    """A plan in words: its outcome, its actions, and the reason of Ready that it writes, if that is
    known."""

    outcome: str
    actions: tuple[str, ...] = ()
    ready: str = ""

    def __str__(self) -> str:
        actions = join_names(list(dict.fromkeys(self.actions)), MAX_ACTIONS, "; ")
        ready = f" (Ready: {self.ready})" if self.ready else ""
        return f"{self.outcome}{ready}{': ' if actions else ''}{actions}"


@dataclass(frozen=True)
class Decision:
    """A decision of the past. ``problem``: why it cannot be repeated; then all else is empty."""

    observed: tuple[str, ...] = ()
    then: Decided | None = None
    today: Decided | None = None
    problem: str = ""

    @property
    def is_same(self) -> bool:
        return self.then is not None and self.then == self.today


def decide_again(line: Mapping[str, Any]) -> Decision:
    """The decision of an invocation, by its log line. Never raises, whatever the line holds."""
    step = STEPS.get(str(line.get("step", "")))
    if step is None:
        return Decision(problem=f"{line.get('step')} writes no snapshot of what it observes")
    if FIELD not in line:
        return Decision(
            problem="the log line has no snapshot: nothing was decided, or an older version wrote it"
        )
    try:
        snapshot = decode(line[FIELD], _get_classes(step.name))
    except SnapshotError as error:
        return Decision(problem=f"the snapshot cannot be read: {error}")
    try:
        facts = tuple(map(str, list_facts(snapshot.observed)))
    except Exception as error:  # noqa: BLE001 - the log may hold any value of a known class
        return Decision(problem=f"the snapshot cannot be read: {type(error).__name__}: {error}")
    try:
        plan = step.decide(snapshot.observed, snapshot.now)
        # The reason of Ready is known if no later action can change it.
        last = [one for one in plan.list_actions() if not isinstance(one, Send | Emit)][-1:]
        ready = _reason(last[0].status) if last and isinstance(last[0], WriteStatus) else ""
        today = Decided(plan.outcome, describe(plan), ready)
    except Exception as error:  # noqa: BLE001 - a crash of today's code is its decision
        today = Decided(CRASHED, (f"{type(error).__name__}: {error}",))
    then = _read_then(line, snapshot, knows_ready=bool(today.ready))
    if not then.ready:
        today = Decided(today.outcome, today.actions)
    return Decision(facts, then, today)


def render(decision: Decision) -> Iterator[str]:
    """A decision as text has it, a paragraph at a time."""
    if decision.problem:
        yield f"observed: unknown; {decision.problem}"
        return
    yield f"observed: {'; '.join(decision.observed)}"
    if decision.is_same:
        yield f"decided, as this version does: {decision.then}"
    else:
        yield f"decided: {decision.then}"
        yield f"this version would decide: {decision.today}"


def to_document(decision: Decision) -> dict[str, Any]:
    """A decision as JSON has it."""
    return {
        "observed": list(decision.observed),
        "then": asdict(decision.then) if decision.then else None,
        "today": asdict(decision.today) if decision.today else None,
        "isSame": decision.is_same,
        "problem": decision.problem,
    }


@cache
def _get_classes(step: str) -> Mapping[str, type]:
    return find_classes(STEPS[step].decide)


def _read_then(line: Mapping[str, Any], snapshot: Snapshot, *, knows_ready: bool) -> Decided:
    """What was decided. Its reason of Ready is known if the plan was executed to its end: then the line
    has it, or it was not changed."""
    if snapshot.outcome is None:
        crash = str(line.get("note", ""))
        return Decided(CRASHED, (crash,) if crash else ())
    is_executed = line.get("decision") == snapshot.outcome
    if not (knows_ready and is_executed):
        return Decided(snapshot.outcome, snapshot.actions)
    written = line.get("ready")
    if isinstance(written, Mapping):
        reason = str(written.get("reason", ""))
    else:
        before = getattr(snapshot.observed, "status", None)
        reason = _reason(before) if isinstance(before, Status) else ""
    return Decided(snapshot.outcome, snapshot.actions, reason)


def _reason(known: Status) -> str:
    ready = known.conditions.get(Type.READY)
    return str(ready.reason) if ready is not None else ""
