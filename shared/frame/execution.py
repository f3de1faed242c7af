"""Execute a plan: its actions by phases, as `Plan` says."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from shared.frame.plan import Each, Plan, Send, StaleObservation, Work, join_outcomes
from shared.ports.errors import CallError, OutOfTimeError
from shared.triggers.message import MAX_NAMES

SECONDS_FOR_OTHER_CALLS = 10.0
"""So many seconds stay free for what follows the objects of a plan with ``resume``, best-effort actions,
and reads that may be left out."""
ACKNOWLEDGED, POISON, TRY_AGAIN = 204, 400, 503
PARTLY = "Partly"


@dataclass(frozen=True)
class Answer:
    """The HTTP status for Pub/Sub, and the outcome in one word."""

    http: int
    outcome: str
    note: str = ""
    needs_attention: bool = False


def execute(plan: Plan, work: Work, recover: Callable[[CallError], Answer] | None = None) -> Answer:
    """Execute a plan's actions, then write the Events about what has changed.

    ``recover`` gets the error of an object and answers for it. Raises `CallError`, `StaleObservation`
    and `OutOfTimeError`.
    """
    work.facts.update(plan.facts)
    for action in plan.first:
        action.apply(work)
    answers, failed, left = _execute_each(plan, work, recover)
    failures = [*failed, *plan.errors]
    if left:
        work.facts["left"] = len(left)
        # A failure that `Step.recover` reports acknowledges this message, like the end of a resync.
        if plan.resume is not None and (work.trigger.is_resync or all(map(_rank, failures))):
            with work.best_effort():
                resumed = replace(plan.resume, nodes=tuple(left[:MAX_NAMES]))
                Send(work.step, (resumed,)).apply(work)
    else:
        for action in plan.after:
            action.apply(work)
        with work.reserve(SECONDS_FOR_OTHER_CALLS):
            for action in plan.best_effort:
                with work.best_effort():
                    action.apply(work)
        for action in plan.if_all_succeeded if not failures else ():
            action.apply(work)
    for event in work.list_events():
        event.apply(work)
    if failures:
        raise min(failures, key=_rank)
    if left:
        cannot_continue = "left_undone" in work.facts
        return Answer(ACKNOWLEDGED, PARTLY, plan.note, plan.needs_attention or cannot_continue)
    if plan.again:
        raise StaleObservation(plan.again)
    return Answer(
        ACKNOWLEDGED,
        join_outcomes(filter(None, (one.outcome for one in answers))) or plan.outcome,
        "; ".join(filter(None, (plan.note, *(one.note for one in answers)))),
        plan.needs_attention or any(one.needs_attention for one in answers),
    )


def _execute_each(
    plan: Plan, work: Work, recover: Callable[[CallError], Answer] | None
) -> tuple[list[Answer], list[CallError | StaleObservation], list[str]]:
    """The answers and the failures of objects, and the names of those that are left."""
    answers: list[Answer] = []
    failures: list[CallError | StaleObservation] = []
    for index, one in enumerate(plan.each):
        # The first object is not left: otherwise a slow API would end no message.
        may_be_left = plan.resume is not None and index > 0
        try:
            with work.reserve(SECONDS_FOR_OTHER_CALLS if may_be_left else 0):
                if may_be_left:
                    work.remaining_s()
                answers.append(_execute_one(one, work, recover))
        except (CallError, StaleObservation) as error:
            failures.append(error)
        except OutOfTimeError:
            if not may_be_left:
                raise
            return answers, failures, [other.name for other in plan.each[index:]]
    return answers, failures, []


def _execute_one(one: Each, work: Work, recover: Callable[[CallError], Answer] | None) -> Answer:
    try:
        for action in one.actions:
            action.apply(work)
    except CallError as error:
        if recover is None:
            raise
        return recover(error)
    return Answer(ACKNOWLEDGED, one.outcome, one.note)


def _rank(error: CallError | OutOfTimeError | StaleObservation) -> int:
    """0 if the error makes Pub/Sub deliver the message again, 1 if it does unless a step reports it."""
    if not isinstance(error, CallError) or error.reason is None:
        return 0
    return 1 if is_retried(error) else 2


def is_retried(error: CallError | OutOfTimeError) -> bool:
    """Whether an error that `Step.recover` has left to the frame is retried.

    No condition records such an error yet. A 401 or 403 here means that the group itself could not be
    read or written: an API server that has just started denies what it allows a second later.
    """
    if isinstance(error, OutOfTimeError):
        return True
    return error.reason is None or error.http in (401, 403)
