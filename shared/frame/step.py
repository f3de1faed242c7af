"""From a push request to its answer, for every step on Pub/Sub.

`handle` decodes the request, runs the step, answers Pub/Sub and writes the log line. `Step.run`
observes, decides and executes, and does so again after a stale observation. `shared.frame.execution` has
the phases of a plan. The frame knows no domain.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shared.frame import snapshot
from shared.frame.execution import (
    ACKNOWLEDGED,
    PARTLY,
    POISON,
    TRY_AGAIN,
    Answer,
    execute,
    is_retried,
)
from shared.frame.plan import NothingToDo, Plan, Publish, StaleObservation, StepRefused, Work
from shared.ports.error_reasons import ErrorKind
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce.calls import Gce
from shared.ports.gce.clients import Clients
from shared.ports.kubernetes.access import AccessError
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.connection import Connection
from shared.triggers.decode import Delivery, decode
from shared.triggers.message import PoisonError
from shared.triggers.route import Routes
from shared.triggers.trigger import Trigger

if TYPE_CHECKING:
    from shared.ports.gke import GkeClient

WorkT = TypeVar("WorkT", bound=Work)
ObservedT = TypeVar("ObservedT")

MAX_OBSERVATIONS = 3
SECONDS_FOR_CALLS = 30.0
"""No call starts later than this after the begin of the observation."""
MAX_ATTEMPTS = 5
MAX_AGE = timedelta(minutes=10)
"""How long a message is retried if Pub/Sub does not count the attempts."""
MAX_RESYNC_AGE = timedelta(minutes=2)
MAX_RECOVERIES = 2
"""How many failed calls in sequence `Step.recover` handles: a call of its own plan may fail, too."""

CRASHED, REFUSED = "Crashed", "Refused"
RESYNC_DROPPED, LEFT_TO_THE_SWEEP = "ResyncDropped", "LeftToTheSweep"
_GIVEN_UP = frozenset({REFUSED, RESYNC_DROPPED, LEFT_TO_THE_SWEEP})


def handle(step: str, run: Callable[[Invocation], Answer], body: bytes, runtime: Runtime) -> Answer:
    """Answer one push request of a step's subscription, and write its log line."""
    started = runtime.monotonic()
    facts: dict[str, Any] = {}
    answer = _answer(step, run, body, runtime, started, facts)
    fields = {"step": step, "decision": answer.outcome, **facts}
    if answer.note:
        fields["note"] = answer.note
    uid = fields.pop("uid", "")
    if uid:
        trace = f"projects/{runtime.project}/traces/{uid.replace('-', '')}"
        fields["logging.googleapis.com/trace"] = trace
    fields["milliseconds"] = round((runtime.monotonic() - started) * 1000)
    is_undone = answer.http != ACKNOWLEDGED or answer.outcome in _GIVEN_UP
    level = "warning" if is_undone or answer.needs_attention else "info"
    write = getattr(runtime.log, "error" if answer.outcome == CRASHED else level)
    write(f"{step}: {answer.outcome}", **fields)
    return answer


def _answer(
    step: str,
    run: Callable[[Invocation], Answer],
    body: bytes,
    runtime: Runtime,
    started: float,
    facts: dict[str, Any],
) -> Answer:
    """Run the step on the trigger of a request, if it is one for this step."""
    try:
        delivery = decode(body, runtime.routes)
    except PoisonError as error:
        return Answer(POISON, "Poison", str(error))
    facts |= {"message_id": delivery.message_id, "attempt": delivery.attempt}
    trigger, now = delivery.trigger, runtime.now()
    if trigger is None:
        return Answer(ACKNOWLEDGED, "NotRelevant", delivery.note)
    facts["trigger"] = trigger.cause
    if not runtime.routes[step].accepts(trigger):
        return Answer(ACKNOWLEDGED, "NotForThisStep", f"{trigger.cause} triggers other steps")
    # The sender's clock may be behind, such as that of an operator's computer.
    sent = max(trigger.at, delivery.published or trigger.at)
    if trigger.is_resync and now - sent > MAX_RESYNC_AGE:
        return Answer(ACKNOWLEDGED, "StaleResync", "the sweep publishes another one")
    is_last_try = trigger.is_resync or _is_last_attempt(delivery, now)
    invocation = Invocation(runtime, step, trigger, started, facts, is_last_try)
    try:
        return run(invocation)
    except CallError as error:
        if not is_retried(error):
            return Answer(ACKNOWLEDGED, REFUSED, str(error))
        return _retry(invocation, error)
    except (OutOfTimeError, AccessError) as error:
        return _retry(invocation, error)
    except Exception as error:  # noqa: BLE001 - the outermost handler: a bug is logged
        facts["crash"] = traceback.format_exc(limit=-5)
        return Answer(_retry(invocation, error).http, CRASHED, f"{type(error).__name__}: {error}")
    finally:
        facts["calls"] = {"gce": invocation.gce.calls, "kubernetes": invocation.cluster.calls}


def _is_last_attempt(delivery: Delivery, now: datetime) -> bool:
    """Whether the message is not retried any more."""
    # A time far in the future counts as old: otherwise the message would be retried forever.
    is_recent = delivery.published is not None and abs(now - delivery.published) <= MAX_AGE
    return delivery.attempt >= MAX_ATTEMPTS or (delivery.attempt == 0 and not is_recent)


def _retry(invocation: Invocation, error: Exception) -> Answer:
    """Nack a message, within limits. Beyond them the sweep retries the work: also that of a resync,
    because the next sweep run publishes another one."""
    if not invocation.is_last_try:
        return Answer(TRY_AGAIN, "TryAgain", str(error))
    outcome = RESYNC_DROPPED if invocation.trigger.is_resync else LEFT_TO_THE_SWEEP
    return Answer(ACKNOWLEDGED, outcome, str(error))


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
    find_refusal: Callable[[Cluster], StepRefused | None]
    """Why no step may do anything in this cluster; ``None``: the steps may."""
    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    random_bytes: Callable[[int], bytes]
    log: Any
    gke: GkeClient | None = None
    """``None`` unless JobSets get node pools."""


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
    ``observe`` reads (I/O). Its result is a dataclass. ``decide`` is pure.
    ``recover`` returns a plan for a call of ``observe`` or of the plan that failed, mostly a report of
    an environment error on the object; ``None`` leaves the error to the frame. If several objects have
    failed, it gets one of their errors, if possible one that is retried.
    ``recovers_each``: ``recover`` gets the error of each object of a plan, not only one of them, and
    its plan replaces the rest of that object's actions.
    ``give_up`` returns a plan that reports a transient error, or a crash, when only the sweep retries:
    at the last attempt (a resync has one), or because of a rate limit. If that fails, or if it returns
    ``None``, because no sweep reports what the message is about, the message is retried all the same.
    ``snapshot``: the rules by which observed values are written to the log; ``None``: they are not.
    ``only_triggers``: the step only publishes messages. It does so even if `Runtime.find_refusal` has a
    reason why no step may do anything, and its outcome names that.
    """

    name: str
    open: Callable[[Invocation, bool], WorkT]
    observe: Callable[[WorkT], ObservedT]
    decide: Callable[[ObservedT, datetime], Plan]
    recover: Callable[[WorkT, CallError], Plan | None] = lambda _work, _error: None
    recovers_each: bool = False
    give_up: Callable[[WorkT, Exception], Plan | None] | None = None
    snapshot: snapshot.Rules | None = None
    only_triggers: bool = False

    def run(self, invocation: Invocation) -> Answer:
        """Observe, decide and execute, at most three times while the observation is stale."""
        try:
            return self._run(invocation)
        except (CallError, OutOfTimeError) as error:
            is_limited = isinstance(error, CallError) and error.kind is ErrorKind.RATE_LIMIT
            if is_retried(error) and (invocation.is_last_try or is_limited):
                is_reported = self._report(invocation, error)
                invocation.is_last_try |= is_limited and is_reported
            raise
        except AccessError:
            raise  # nothing can be written
        except Exception as error:
            if invocation.is_last_try:
                # Without its text, which is for developers.
                text = f"unexpected {type(error).__name__}; the step's log has the traceback"
                self._report(invocation, RuntimeError(text))
            raise

    def _run(self, invocation: Invocation) -> Answer:
        note = ""
        for attempt in range(MAX_OBSERVATIONS):
            invocation.restart_call_time()
            try:
                return self._once(invocation, is_first_observation=attempt == 0)
            except StaleObservation as stale:
                note = str(stale)
        text = f"{MAX_OBSERVATIONS} observations were stale: {note}"
        raise CallError(self.name, 409, "conditionNotMet", text)

    def _once(self, invocation: Invocation, *, is_first_observation: bool) -> Answer:
        invocation.facts.pop(snapshot.FIELD, None)
        try:
            work = self.open(invocation, is_first_observation)
        except NothingToDo as nothing:
            return Answer(ACKNOWLEDGED, nothing.outcome, nothing.note)
        refusal = None
        try:
            refusal = invocation.runtime.find_refusal(work.cluster)
            if refusal is not None and not self.only_triggers:
                raise refusal
            work.observed = self.observe(work)
        except StepRefused as found:
            return self._execute(work.refuse(found), work, 0)
        except CallError as error:
            answer = self._recover(work, error, 0)
        else:
            answer = self._execute(self._decide(work), work, 0)
        if answer.outcome != PARTLY and not work.has_failed:
            for action in work.list_closing_actions():
                with work.best_effort():
                    action.apply(work)
        if refusal is not None:
            note = "; ".join(filter(None, (str(refusal), answer.note)))
            answer = replace(answer, outcome=refusal.outcome, note=note)
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

    def _report(self, invocation: Invocation, error: Exception) -> bool:
        """Report an error that only the sweep retries. Best effort: whether it is reported."""
        if self.give_up is None:
            return False
        invocation.restart_call_time()
        try:
            work = self.open(invocation, False)
            plan = self.give_up(work, error)
            if plan is None:
                return False
            execute(plan, work)
        except Exception as second:  # noqa: BLE001 - the first error is the one to raise
            invocation.facts.setdefault("left_undone", []).append(str(second))
            return False
        return True


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
        "log": runtime.log,
        "remaining_s": invocation.remaining_s,
        "reserve": invocation.reserve,
        "now": runtime.now(),
        "trigger": invocation.trigger,
        "facts": invocation.facts,
        "step": invocation.step,
        "is_first_observation": is_first_observation,
    }
