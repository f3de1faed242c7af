"""Explain what each step would do about a group now, and why.

Each step observes and decides. Its plan is described by its actions; none of them is executed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from google.auth.exceptions import GoogleAuthError

from functions import create_resources, inject_token, label_node, sweep, tear_down
from replay.dependencies import Dependencies
from replay.errors import in_plain_words
from replay.publications import get_group
from shared.base.backoff import TICK
from shared.base.reasons import find_advice
from shared.base.timestamps import render_time
from shared.frame.plan import Plan, StepRefused
from shared.frame.step import Step
from shared.node_groups import status
from shared.node_groups.node_group import AnyGroup
from shared.node_groups.status import Condition, Status, Type
from shared.node_groups.work import GroupWork, message_about
from shared.ports.errors import CallError, OutOfTimeError
from shared.runtime import find_refusal
from shared.triggers.message import Cause, Message
from shared.triggers.trigger import ObjectTrigger, Trigger

STEPS: tuple[Step[Any, Any], ...] = tuple(
    module.STEP for module in (create_resources, inject_token, label_node, tear_down)
)
API_ERRORS = (CallError, OutOfTimeError, GoogleAuthError)
CANNOT_OBSERVE = "CannotObserve"
"""The outcome of a step whose reads failed with the user's permissions."""


@dataclass(frozen=True)
class StepExplanation:
    """What a step would do on a resync. ``is_triggered``: the sweep would send it one.

    ``has_observed`` is false if a read has failed; ``note`` then says why. ``about`` is the Pod or the
    slice, if the step has answers for several.
    """

    step: str
    is_triggered: bool
    outcome: str
    note: str = ""
    actions: tuple[str, ...] = ()
    has_observed: bool = True
    about: str = ""


@dataclass(frozen=True)
class Sweep:
    """What the sweep finds; ``next_resync`` is ``None`` if no resync is due within an hour."""

    is_settled: bool
    is_due: bool
    next_resync: datetime | None
    topics: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """The explanation of one group."""

    group: AnyGroup
    known: Status
    now: datetime
    sweep: Sweep
    steps: tuple[StepExplanation, ...]

    @property
    def ready(self) -> Condition | None:
        return self.known.conditions.get(Type.READY)

    @property
    def meaning(self) -> str:
        """The catalogue's words for the reason of Ready; empty when it is Ready."""
        return find_advice(self.ready.reason) if self.ready is not None else ""

    @property
    def is_whole(self) -> bool:
        """Whether every step that the sweep would trigger could observe."""
        return all(answer.has_observed for answer in self.steps if answer.is_triggered)


def explain(deps: Dependencies, namespace: str, name: str) -> Explanation:
    """Observe a group as each step would. Raises `ReplayError` if there is none, `CallError`."""
    group = get_group(deps, namespace, name)
    known, now = status.parse_of(group), deps.now()
    decide = sweep.decide
    minute = now.replace(second=0, microsecond=0)
    ticks = (minute + count * TICK for count in range(1, decide.SETTLED_EVERY_MINUTES + 1))
    swept = Sweep(
        is_settled=decide.is_settled(group, known),
        is_due=decide.is_due(group, known, now),
        next_resync=next((tick for tick in ticks if decide.is_due(group, known, tick)), None),
        topics=decide.list_steps(group, known),
    )
    trigger = ObjectTrigger(message_about(group, Cause.RESYNC, now))

    def build_plan(step: Step[Any, Any]) -> Plan:
        try:
            fields = work_fields(deps, trigger, now)
            work = GroupWork(**fields, group=group, status=known, reported=known)
            return step.decide(step.observe(work), now)
        except StepRefused as refusal:
            return Plan(refusal.outcome, note=str(refusal))

    steps = tuple(
        explain_step(step.name, step.name in swept.topics, partial(build_plan, step))
        for step in STEPS
    )
    return Explanation(group, known, now, swept, steps)


def explain_step(
    step: str, is_triggered: bool, build_plan: Callable[[], Plan], about: str = ""
) -> StepExplanation:
    """What a step would do: its plan, or the error of its reads."""
    try:
        plan = build_plan()
    except API_ERRORS as error:
        return explain_error(step, error, about, is_triggered=is_triggered)
    actions = tuple(action.describe() for action in plan.list_actions())
    return StepExplanation(step, is_triggered, plan.outcome, plan.note, actions, about=about)


def explain_error(
    step: str, error: Exception, about: str = "", *, is_triggered: bool = True
) -> StepExplanation:
    """A step that cannot observe, because its reads fail."""
    note = in_plain_words(error)
    return StepExplanation(
        step, is_triggered, CANNOT_OBSERVE, note, has_observed=False, about=about
    )


def work_fields(deps: Dependencies, trigger: Trigger, now: datetime) -> dict[str, Any]:
    """The fields of a step's `Work` that only observes: it cannot publish.

    Raises `StepRefused` if the cluster is not the one of the tool's settings, and `CallError`.
    """
    cluster = deps.open_cluster()
    refusal = find_refusal(deps.settings, cluster) if deps.settings.installation_id else None
    if refusal is not None:
        raise refusal
    return {
        "settings": deps.settings,
        "gce": deps.open_gce(),
        "cluster": cluster,
        "publish": _publish_nothing,
        "random_bytes": deps.random_bytes,
        "remaining_s": deps.count_down(),
        "now": now,
        "trigger": trigger,
    }


def _publish_nothing(step: str, _messages: Sequence[Message]) -> None:
    raise AssertionError(f"an explanation must not publish, and tried to trigger {step}")


def to_document(explanation: Explanation) -> dict[str, Any]:
    """The explanation as JSON."""
    group, found = explanation.group, explanation.sweep
    conditions = {
        kind: {
            "type": str(kind),
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "since": render_time(condition.since),
        }
        for kind, condition in explanation.known.conditions.items()
    }
    ready = conditions.get(Type.READY)
    return {
        "group": group.key,
        "uid": group.uid,
        "resourceName": group.resource_name,
        "deleting": render_time(group.deleting) if group.deleting else None,
        "ready": {**ready, "meaning": explanation.meaning} if ready is not None else None,
        "conditions": list(conditions.values()),
        "sweep": {
            "settled": found.is_settled,
            "due": found.is_due,
            "nextResync": render_time(found.next_resync) if found.next_resync else None,
            "topics": list(found.topics),
        },
        "steps": [step_document(answer) for answer in explanation.steps],
    }


def step_document(answer: StepExplanation) -> dict[str, Any]:
    """The explanation of a step as JSON."""
    return {
        "step": answer.step,
        "triggeredBySweep": answer.is_triggered,
        "observed": answer.has_observed,
        "outcome": answer.outcome,
        "note": answer.note,
        "actions": list(answer.actions),
    }
