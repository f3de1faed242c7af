"""The frame of every step on Pub/Sub: decode, observe, decide, execute, answer, log.

A `Step` has a function for each of its parts: observe (I/O), decide (pure), recover from a failed call.
The frame does the rest: it acknowledges or retries messages, observes again after a stale observation,
and handles actions that fail. The frame knows no domain.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shared.frame import snapshot
from shared.frame.plan import (
    Each,
    NothingToDo,
    Plan,
    Publish,
    Send,
    StaleObservation,
    Work,
    join_outcomes,
)
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce.calls import Gce
from shared.ports.gce.clients import Clients
from shared.ports.kubernetes.access import AccessError
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.connection import Connection
from shared.triggers.decode import Delivery, decode
from shared.triggers.message import MAX_NAMES, PoisonError
from shared.triggers.route import Routes
from shared.triggers.trigger import Trigger

if TYPE_CHECKING:
    from shared.ports.gke import GkeClient

WorkT = TypeVar("WorkT", bound=Work)
ObservedT = TypeVar("ObservedT")

MAX_OBSERVATIONS = 3
SECONDS_FOR_CALLS = 30.0
"""No call starts later than this after the begin of the observation."""
SECONDS_FOR_OTHER_CALLS = 10.0
"""A batch, and a read that may be left out, leave so much of the time for calls to the rest."""
MAX_ATTEMPTS = 5
MAX_AGE = timedelta(minutes=10)
"""How long a message is retried if Pub/Sub does not count the attempts."""
MAX_RESYNC_AGE = timedelta(minutes=2)
MAX_RECOVERIES = 2
"""How many failed calls in sequence `Step.recover` handles: a call of its own plan may fail, too."""

ACKNOWLEDGED, POISON, TRY_AGAIN = 204, 400, 503

CRASHED, REFUSED, PARTLY = "Crashed", "Refused", "Partly"
RESYNC_DROPPED, LEFT_TO_THE_SWEEP = "ResyncDropped", "LeftToTheSweep"
_GIVEN_UP = frozenset({REFUSED, RESYNC_DROPPED, LEFT_TO_THE_SWEEP})


@dataclass
class Runtime:
    """The dependencies of a step: routes, settings, connections, time, randomness and log."""

    routes: Routes
    project: str
    """The project of the log's traces."""
    settings: Any
    """The settings of the process. The frame reads none of them."""
    connection: Connection
    clients: Clients
    publish: Publish
    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    random_bytes: Callable[[int], bytes]
    log: Any
    gke: GkeClient | None = None
    """``None`` unless JobSets get node pools."""


@dataclass(frozen=True)
class Answer:
    """The HTTP status for Pub/Sub, and the outcome in one word."""

    http: int
    outcome: str
    note: str = ""
    needs_attention: bool = False


@dataclass
class Invocation:
    """One message in one step: its ports, its time for calls, and the fields of its log line."""

    runtime: Runtime
    step: str
    trigger: Trigger
    started: float
    facts: dict[str, Any] = field(default_factory=dict)
    is_last_try: bool = False
    """Whether Pub/Sub does not retry this message: the sweep retries its work."""

    def __post_init__(self) -> None:
        self.observation_started = self.started
        self.reserved_s = 0.0
        self.gce = Gce(self.runtime.clients, self.remaining_s)
        self.cluster = Cluster(self.runtime.connection, self.step, self.remaining_s)

    def remaining_s(self) -> float:
        """Seconds left for calls. Raises `OutOfTimeError` when there are none."""
        for_calls = SECONDS_FOR_CALLS - self.reserved_s
        left = self.observation_started + for_calls - self.runtime.monotonic()
        if left <= 0:
            raise OutOfTimeError(f"no answer within {for_calls:.0f} s")
        return left

    @contextmanager
    def reserve(self, seconds: float) -> Iterator[None]:
        """A context that keeps the last so many seconds free for calls after it."""
        before = self.reserved_s
        self.reserved_s = max(before, seconds)
        try:
            yield
        finally:
            self.reserved_s = before

    def restart_call_time(self) -> None:
        """Restart the time for calls, before a new observation."""
        self.observation_started = self.runtime.monotonic()


@dataclass(frozen=True)
class Step(Generic[WorkT, ObservedT]):
    """The functions of a step.

    ``open`` builds the work for a trigger, or raises `NothingToDo`. Its second argument is false when
    the step observes again.
    ``observe`` reads (I/O). ``decide`` is pure.
    ``recover`` returns a plan for a call that failed; ``None`` leaves the error to the frame.
    ``recovers_each``: ``recover`` gets the error of each object of a plan, not only one of them, and
    its plan replaces the rest of that object's actions.
    ``give_up`` returns a plan that reports a transient error when only the sweep retries.
    ``snapshot``: the rules by which observed values are written to the log; ``None``: they are not.
    """

    name: str
    open: Callable[[Invocation, bool], WorkT]
    observe: Callable[[WorkT], ObservedT]
    decide: Callable[[ObservedT, datetime], Plan]
    recover: Callable[[WorkT, CallError], Plan | None]
    recovers_each: bool = False
    give_up: Callable[[WorkT, Exception], Plan] | None = None
    snapshot: snapshot.Rules | None = None

    def run(self, invocation: Invocation) -> Answer:
        """Observe, decide and execute, at most three times while the observation is stale."""
        try:
            return self._run(invocation)
        except (CallError, OutOfTimeError) as error:
            if invocation.is_last_try and is_retried(error):
                self._report(invocation, error)
            raise

    def _report(self, invocation: Invocation, error: Exception) -> None:
        """Report an error that only the sweep retries. Best effort."""
        if self.give_up is None:
            return
        invocation.restart_call_time()
        try:
            work = self.open(invocation, False)
            execute(self.give_up(work, error), work)
        except (CallError, OutOfTimeError, StaleObservation, NothingToDo, AccessError) as second:
            invocation.facts.setdefault("left_undone", []).append(str(second))

    def _run(self, invocation: Invocation) -> Answer:
        note = ""
        for attempt in range(MAX_OBSERVATIONS):
            invocation.restart_call_time()
            try:
                return self._once(invocation, is_first_observation=attempt == 0)
            except StaleObservation as stale:
                note = str(stale)
        raise CallError(
            self.name,
            409,
            "conditionNotMet",
            f"{MAX_OBSERVATIONS} observations were stale: {note}",
        )

    def _once(self, invocation: Invocation, *, is_first_observation: bool) -> Answer:
        invocation.facts.pop(snapshot.FIELD, None)
        try:
            work = self.open(invocation, is_first_observation)
        except NothingToDo as nothing:
            return Answer(ACKNOWLEDGED, nothing.outcome, nothing.note)
        try:
            work.observed = self.observe(work)
        except CallError as error:
            answer = self._recover(work, error, 0)
        else:
            answer = self._execute(self._decide(work), work, 0)
        if answer.outcome != PARTLY and not work.has_failed:
            for action in work.list_closing_actions():
                with work.best_effort():
                    action.apply(work)
        return answer

    def _decide(self, work: WorkT) -> Plan:
        """Decide, and add a snapshot to the log line, even if the decision crashes."""
        plan = None
        try:
            plan = self.decide(work.observed, work.now)
        finally:
            if self.snapshot is not None:
                found = snapshot.encode(work.observed, work.now, plan, self.snapshot)
                work.facts[snapshot.FIELD] = found
        return plan

    def _execute(self, plan: Plan, work: WorkT, recoveries: int) -> Answer:
        def recover(error: CallError) -> Answer:
            return self._recover(work, error, recoveries)

        try:
            return execute(plan, work, recover if self.recovers_each else None)
        except CallError as error:
            return recover(error)

    def _recover(self, work: WorkT, error: CallError, recoveries: int) -> Answer:
        recovery = self.recover(work, error) if recoveries < MAX_RECOVERIES else None
        work.has_failed = True
        if recovery is None:
            raise StaleObservation(str(error)) if error.is_stale else error
        return self._execute(recovery, work, recoveries + 1)


def open_work(invocation: Invocation, is_first_observation: bool) -> Work:
    """The work of a step that is about no single object."""
    return Work(**work_fields(invocation, is_first_observation=is_first_observation))


def work_fields(invocation: Invocation, *, is_first_observation: bool) -> dict[str, Any]:
    """The fields of `Work` from an invocation, for the subclasses of the domains."""
    runtime = invocation.runtime
    return {
        "settings": runtime.settings,
        "gce": invocation.gce,
        "cluster": invocation.cluster,
        "publish": runtime.publish,
        "random_bytes": runtime.random_bytes,
        "remaining_s": invocation.remaining_s,
        "reserve": invocation.reserve,
        "now": runtime.now(),
        "trigger": invocation.trigger,
        "facts": invocation.facts,
        "step": invocation.step,
        "is_first_observation": is_first_observation,
    }


def execute(plan: Plan, work: Work, recover: Callable[[CallError], Answer] | None = None) -> Answer:
    """Execute a plan's actions, then write the Events about what has changed.

    `Plan` says what follows an error. ``recover`` gets the error of an object and answers for it.
    Raises `CallError`, `StaleObservation` and `OutOfTimeError`.
    """
    work.facts.update(plan.facts)
    for action in plan.first:
        action.apply(work)
    answers, failures, left = _execute_each(plan, work, recover)
    if left:
        work.facts["left"] = len(left)
        # Without a failure, or if the failure is not retried, this message is not delivered again.
        if plan.resume is not None and (not failures or work.trigger.is_resync):
            with work.best_effort():
                resumed = replace(plan.resume, nodes=tuple(left[:MAX_NAMES]))
                Send(work.step, (resumed,)).apply(work)
    else:
        _execute_rest(plan, work, has_failed=bool(failures))
    for event in work.list_events():
        event.apply(work)
    if failures:
        raise next((one for one in failures if _is_retried(one)), failures[0])
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


_Failure = CallError | StaleObservation


def _execute_each(
    plan: Plan, work: Work, recover: Callable[[CallError], Answer] | None
) -> tuple[list[Answer], list[_Failure], list[str]]:
    """The answers and the failures of objects, and the names of those that are left."""
    answers: list[Answer] = []
    failures: list[_Failure] = []
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


def _execute_rest(plan: Plan, work: Work, *, has_failed: bool) -> None:
    for action in plan.after:
        action.apply(work)
    with work.reserve(SECONDS_FOR_OTHER_CALLS):
        for action in plan.best_effort:
            with work.best_effort():
                action.apply(work)
    if not has_failed:
        for action in plan.if_all_succeeded:
            action.apply(work)


def _is_retried(failure: _Failure) -> bool:
    return isinstance(failure, StaleObservation) or is_retried(failure)


def handle(step: str, run: Callable[[Invocation], Answer], body: bytes, runtime: Runtime) -> Answer:
    """Answer one push request of a step's subscription, and write its log line."""
    started = runtime.monotonic()
    facts: dict[str, Any] = {}
    answer = _answer(step, run, body, runtime, started, facts)
    _log(step, answer, facts, runtime, started)
    return answer


def _answer(
    step: str,
    run: Callable[[Invocation], Answer],
    body: bytes,
    runtime: Runtime,
    started: float,
    facts: dict[str, Any],
) -> Answer:
    try:
        delivery = decode(body, runtime.routes)
    except PoisonError as error:
        return Answer(POISON, "Poison", str(error))
    facts |= {"message_id": delivery.message_id, "attempt": delivery.attempt}
    trigger = delivery.trigger
    if trigger is None:
        return Answer(ACKNOWLEDGED, "NotRelevant", delivery.note)
    facts["trigger"] = trigger.cause
    if not runtime.routes[step].accepts(trigger):
        return Answer(ACKNOWLEDGED, "NotForThisStep", f"{trigger.cause} triggers other steps")
    # The sender's clock may be behind, such as that of an operator's computer.
    sent = max(trigger.at, delivery.published or trigger.at)
    if trigger.is_resync and runtime.now() - sent > MAX_RESYNC_AGE:
        return Answer(ACKNOWLEDGED, "StaleResync", "the sweep publishes another one")
    is_last_try = _is_last_try(delivery, runtime)
    invocation = Invocation(runtime, step, trigger, started, facts, is_last_try)
    try:
        return run(invocation)
    except CallError as error:
        return _try_again_or_not(delivery, runtime, error, is_transient=is_retried(error))
    except (OutOfTimeError, AccessError) as error:
        return _try_again_or_not(delivery, runtime, error, is_transient=True)
    except Exception as error:  # noqa: BLE001 - the outermost handler: a bug is logged
        facts["crash"] = traceback.format_exc(limit=-5)
        answer = _try_again_or_not(delivery, runtime, error, is_transient=True)
        return Answer(answer.http, CRASHED, f"{type(error).__name__}: {error}")
    finally:
        facts["calls"] = {
            "gce": invocation.gce.calls,
            "kubernetes": invocation.cluster.calls,
        }


def is_retried(error: CallError | OutOfTimeError) -> bool:
    """Whether an error that `Step.recover` has left to the frame is retried.

    No condition records such an error yet. A 401 or 403 here means that the group itself could not be
    read or written: an API server that has just started denies what it allows a second later.
    """
    if isinstance(error, OutOfTimeError):
        return True
    return error.reason is None or error.http in (401, 403)


def _try_again_or_not(
    delivery: Delivery, runtime: Runtime, error: Exception, *, is_transient: bool
) -> Answer:
    """Nack a message with a transient error, within limits. Beyond them the sweep retries the work."""
    note = str(error)
    if not is_transient:
        return Answer(ACKNOWLEDGED, REFUSED, note)
    if not _is_last_try(delivery, runtime):
        return Answer(TRY_AGAIN, "TryAgain", note)
    is_resync = delivery.trigger is not None and delivery.trigger.is_resync
    return Answer(ACKNOWLEDGED, RESYNC_DROPPED if is_resync else LEFT_TO_THE_SWEEP, note)


def _is_last_try(delivery: Delivery, runtime: Runtime) -> bool:
    """Whether a failure of this attempt is acknowledged. A resync is never retried: the next sweep run
    sends another."""
    if delivery.trigger is not None and delivery.trigger.is_resync:
        return True
    published = delivery.published
    # A time far in the future counts as old: otherwise the message would be retried forever.
    is_recent = published is not None and abs(runtime.now() - published) <= MAX_AGE
    return delivery.attempt >= MAX_ATTEMPTS or (delivery.attempt == 0 and not is_recent)


def _level(answer: Answer) -> str:
    """The severity of the log line. Acknowledged work that is not done is a warning."""
    if answer.outcome == CRASHED:
        return "error"
    is_undone = answer.http != ACKNOWLEDGED or answer.outcome in _GIVEN_UP
    return "warning" if is_undone or answer.needs_attention else "info"


def _log(
    step: str, answer: Answer, facts: Mapping[str, Any], runtime: Runtime, started: float
) -> None:
    fields = {"step": step, "decision": answer.outcome, **facts}
    if answer.note:
        fields["note"] = answer.note
    uid = fields.pop("uid", "")
    if uid:
        trace = f"projects/{runtime.project}/traces/{uid.replace('-', '')}"
        fields["logging.googleapis.com/trace"] = trace
    fields["milliseconds"] = round((runtime.monotonic() - started) * 1000)
    write = getattr(runtime.log, _level(answer))
    write(f"{step}: {answer.outcome}", **fields)
