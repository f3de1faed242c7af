"""Steps: the answer and the log line for a message, and the execution of a plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shared.frame.execution import POISON, Answer, execute
from shared.frame.plan import Each, Emit, NothingToDo, Plan, Send, StaleObservation, Work
from shared.frame.step import (
    MAX_ATTEMPTS,
    MAX_RESYNC_AGE,
    SECONDS_FOR_CALLS,
    Invocation,
    Step,
    handle,
    open_work,
    work_fields,
)
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.kubernetes.access import AccessError
from shared.ports.kubernetes.events import Event
from shared.triggers.decode import decode
from shared.triggers.message import MAX_NAMES, Cause, Message
from shared.triggers.routes import ROUTES
from shared.triggers.trigger import ObjectTrigger, TimeTrigger, Trigger
from tests.unit.shared.frame.objects import NOW, STEP, message, runtime

Run = Callable[[Invocation], Answer]


def crash(_: Invocation) -> Answer:
    raise KeyError("apiVersion")


def raise_call_error(http: int) -> Run:
    def run(_: Invocation) -> Answer:
        raise CallError("GET /x", http, "Because", "no")

    return run


@dataclass(frozen=True)
class Case:
    run: Run
    cause: str
    attempt: int
    expected: tuple[int, str, str]


def fail(error: Exception) -> Run:
    def run(_: Invocation) -> Answer:
        raise error

    return run


CASES = {
    "handled": Case(lambda _: Answer(204, "Settled"), "Added", 1, (204, "Settled", "INFO")),
    "a crash is retried": Case(crash, "Added", 1, (503, "Crashed", "ERROR")),
    "a crash of the fifth attempt": Case(crash, "Added", 5, (204, "Crashed", "ERROR")),
    "a crash of a resync": Case(crash, "Resync", 1, (204, "Crashed", "ERROR")),
    "no answer": Case(raise_call_error(503), "Added", 1, (503, "TryAgain", "WARNING")),
    "no answer to the fifth attempt": Case(
        raise_call_error(503), "Added", 5, (204, "LeftToTheSweep", "WARNING")
    ),
    "no answer to a resync": Case(
        raise_call_error(503), "Resync", 1, (204, "ResyncDropped", "WARNING")
    ),
    "a missing permission": Case(
        raise_call_error(401), "Resync", 1, (204, "ResyncDropped", "WARNING")
    ),
    "no time left": Case(
        fail(OutOfTimeError("no answer")), "Added", 1, (503, "TryAgain", "WARNING")
    ),
    "no access to the cluster": Case(
        fail(AccessError("no kubeconfig")), "Added", 5, (204, "LeftToTheSweep", "WARNING")
    ),
    "no access to the cluster at the fourth attempt": Case(
        fail(AccessError("no kubeconfig")), "Added", 4, (503, "TryAgain", "WARNING")
    ),
    "a conflict": Case(raise_call_error(409), "Added", 1, (503, "TryAgain", "WARNING")),
    "a rejected request": Case(raise_call_error(400), "Added", 1, (204, "Refused", "WARNING")),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_outcome_of_a_message_is_logged_with_its_severity(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = handle(STEP, case.run, message(case.cause, case.attempt), runtime())
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (answer.http, line["decision"], line["severity"]) == case.expected
    assert line["message"] == f"{STEP}: {case.expected[1]}"


LATE, EARLY = timedelta(minutes=10, seconds=1), -timedelta(minutes=10, seconds=1)
RETRIED, LEFT = (503, "TryAgain"), (204, "LeftToTheSweep")


@pytest.mark.parametrize(
    "attempt, published, expected",
    [
        pytest.param(4, NOW, RETRIED, id="fourth attempt"),
        pytest.param(5, NOW, LEFT, id="fifth attempt"),
        pytest.param(4, NOW - LATE, RETRIED, id="with a count, old"),
        pytest.param(1, None, RETRIED, id="with a count, of unknown age"),
        pytest.param(0, NOW, RETRIED, id="without a count, new"),
        pytest.param(
            0, NOW - timedelta(minutes=10), RETRIED, id="without a count, ten minutes old"
        ),
        pytest.param(0, NOW - LATE, LEFT, id="without a count, more than ten minutes old"),
        pytest.param(0, NOW - EARLY, LEFT, id="without a count, published in the future"),
        pytest.param(0, None, LEFT, id="without a count, of unknown age"),
    ],
)
def test_a_message_with_a_delivery_count_is_retried_four_times_and_one_without_for_ten_minutes(
    attempt: int, published: datetime | None, expected: tuple[int, str]
) -> None:
    answer = handle(STEP, raise_call_error(503), message("Added", attempt, published), runtime())
    assert (answer.http, answer.outcome) == expected


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}"])
def test_an_unreadable_message_is_reported_as_poison(body: bytes) -> None:
    answer = handle(STEP, crash, body, runtime())
    assert (answer.http, answer.outcome) == (POISON, "Poison")


def test_a_step_ignores_a_message_about_another_kind() -> None:
    answer = handle("provision_slice", crash, message("Added", 1), runtime())
    assert answer == Answer(204, "NotForThisStep", "Added triggers other steps")


CRASH = "unexpected KeyError; the step's log has the traceback"
REPORTED: dict[str, tuple[Run, str, int, list[str]]] = {
    "the last attempt": (raise_call_error(503), "Added", 5, ["GET /x: 503 Because: no"]),
    "an earlier attempt": (raise_call_error(503), "Added", 4, []),
    "a rate limit, at any attempt": (
        raise_call_error(429),
        "Added",
        1,
        ["GET /x: 429 Because: no"],
    ),
    "a resync, which is not retried": (
        raise_call_error(503),
        "Resync",
        1,
        ["GET /x: 503 Because: no"],
    ),
    "an error of the user": (raise_call_error(400), "Added", 5, []),
    "out of time": (fail(OutOfTimeError("slow")), "Added", 5, ["slow"]),
    "a crash": (crash, "Added", 5, [CRASH]),
    "a crash of an earlier attempt": (crash, "Added", 4, []),
    "a crash of a resync": (crash, "Resync", 1, [CRASH]),
    "no access to the cluster": (fail(AccessError("no kubeconfig")), "Added", 5, []),
}


@pytest.mark.parametrize("case", REPORTED.values(), ids=REPORTED)
def test_only_an_error_that_is_left_to_the_sweep_is_reported(
    case: tuple[Run, str, int, list[str]],
) -> None:
    run, cause, attempt, reported = case
    errors: list[str] = []

    def give_up(_work: Work, error: Exception) -> Plan:
        errors.append(str(error))
        return Plan("Reported", (Record("reported"),))

    def observe(work: Work) -> None:
        run(cast("Invocation", work))

    RECORDED.clear()
    step = Step(STEP, open_work, observe, lambda _, __: Plan("x"), recover_nothing, give_up=give_up)
    handle(STEP, step.run, message(cause, attempt), runtime())
    assert errors == reported
    assert ["reported"] * len(reported) == RECORDED


def fail_to_report(_work: Work, _error: Exception) -> Plan:
    raise CallError("PUT /x", 503, "", "no")


@pytest.mark.parametrize(
    "give_up, outcome, http",
    [
        (lambda _work, _error: Plan("Reported"), "LeftToTheSweep", 204),
        (fail_to_report, "TryAgain", 503),
        (lambda _work, _error: None, "TryAgain", 503),
        (None, "TryAgain", 503),
    ],
    ids=["reported", "the report fails", "the sweep does not repeat it", "nothing reports it"],
)
def test_a_message_that_a_rate_limit_rejects_is_retried_only_if_the_sweep_cannot_know_it(
    give_up: Any, outcome: str, http: int
) -> None:
    def observe(_work: Work) -> None:
        raise CallError("GET /x", 403, "rateLimitExceeded", "slow down")

    step = Step(STEP, open_work, observe, lambda _, __: Plan("x"), recover_nothing, give_up=give_up)
    answer = handle(STEP, step.run, message("Added", 1), runtime())
    assert (answer.outcome, answer.http) == (outcome, http)


def test_the_report_of_an_error_has_the_full_time_for_calls() -> None:
    now_s, left = 0.0, list[float]()

    def observe(work: Work) -> None:
        nonlocal now_s
        now_s = SECONDS_FOR_CALLS
        work.remaining_s()

    def give_up(work: Work, _error: Exception) -> Plan:
        left.append(work.remaining_s())
        return Plan("Reported")

    step = Step(STEP, open_work, observe, lambda _, __: Plan("x"), recover_nothing, give_up=give_up)
    given = runtime()
    given.monotonic = lambda: now_s
    handle(STEP, step.run, message("Added", MAX_ATTEMPTS), given)
    assert left == [SECONDS_FOR_CALLS]


def recover_nothing(_work: Work, _error: CallError) -> None:
    return None


REPORTS: dict[str, tuple[Exception, str]] = {
    "the group is gone": (NothingToDo("Gone", "the group does not exist any more"), "Gone"),
    "a call fails": (CallError("GET /y", 503, "Because", "no"), "GET /y: 503 Because: no"),
    "no time": (OutOfTimeError("slow"), "slow"),
    "the status has changed": (StaleObservation("it was written"), "it was written"),
    "no access to the cluster": (AccessError("no kubeconfig"), "no kubeconfig"),
    "a crash": (KeyError("apiVersion"), "'apiVersion'"),
}


@pytest.mark.parametrize("case", REPORTS.values(), ids=REPORTS)
def test_a_failed_report_is_named_in_the_log_line_of_the_error(
    case: tuple[Exception, str], capsys: pytest.CaptureFixture[str]
) -> None:
    second, message_of_second = case
    opened: list[bool] = []

    def open_once(invocation: Invocation, is_first_observation: bool) -> Work:
        opened.append(is_first_observation)
        if len(opened) > 1:
            raise second
        return open_work(invocation, is_first_observation)

    def observe(_work: Work) -> None:
        raise CallError("GET /x", 503, "Because", "no")

    plan = Plan("Reported")
    step = Step(
        STEP, open_once, observe, lambda _, __: plan, recover_nothing, give_up=lambda _, __: plan
    )
    answer = handle(STEP, step.run, message("Added", 5), runtime())
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (answer.outcome, line["left_undone"]) == ("LeftToTheSweep", [message_of_second])
    assert opened == [True, False]


@pytest.mark.parametrize("attempt, is_redelivered", [(0, False), (1, False), (2, True), (3, True)])
def test_a_trigger_is_redelivered_from_its_second_attempt_on(
    attempt: int, is_redelivered: bool
) -> None:
    trigger = decode(message("Added", attempt), ROUTES).trigger
    assert trigger is not None
    assert trigger.is_redelivered is is_redelivered


@pytest.mark.parametrize(
    "cause, age, outcome",
    [
        ("Resync", MAX_RESYNC_AGE, "Settled"),
        ("Resync", MAX_RESYNC_AGE + timedelta(seconds=1), "StaleResync"),
        ("Added", MAX_RESYNC_AGE + timedelta(seconds=1), "Settled"),
    ],
)
def test_an_old_resync_is_dropped_because_newer_ones_follow(
    cause: str, age: timedelta, outcome: str
) -> None:
    body = message(cause, 1, NOW - age, at=NOW - age)
    assert handle(STEP, lambda _: Answer(204, "Settled"), body, runtime()).outcome == outcome


@pytest.mark.parametrize("needs_attention, severity", [(True, "WARNING"), (False, "INFO")])
def test_a_plan_that_needs_attention_is_a_warning(
    needs_attention: bool, severity: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan("Done", needs_attention=needs_attention)
    step = Step(STEP, open_work, lambda _: None, lambda _, __: plan, recover)
    answer = handle(STEP, step.run, message("Added", 1), runtime())
    line = json.loads(capsys.readouterr().out)
    assert (answer.http, line["decision"], line["severity"]) == (204, "Done", severity)


@dataclass(frozen=True)
class Record:
    """An action that is recorded, and fails if it has an HTTP status."""

    word: str
    http: int = 0

    def apply(self, _work: Work) -> None:
        RECORDED.append(self.word)
        if self.http:
            raise CallError(self.word, self.http, "Because", "no")

    def describe(self) -> str:
        return f"record {self.word}"


RECORDED: list[str] = []


def recover(_work: Work, error: CallError) -> Plan | None:
    """Follow the failed action "x" by "not x", which fails, too."""
    if error.http != 400:
        return None
    instead = f"not {error.call}"
    return Plan(
        "Recovered",
        first=(Record(instead, http=400),) if error.call == "x" else (),
        note=instead,
    )


def execute_plan(
    plan: Plan, *, recovers_each: bool = False, publish: Callable[..., None] | None = None
) -> Answer:
    """Execute this plan in a step; `RECORDED` has the actions that were applied."""
    RECORDED.clear()
    step = Step(
        STEP,
        open_work,
        lambda _: "observation",
        lambda _, __: plan,
        recover,
        recovers_each=recovers_each,
    )
    given = runtime()
    given.publish = publish or given.publish
    return step.run(Invocation(given, STEP, TimeTrigger(NOW), 0.0))


def test_a_step_may_recover_each_object_and_the_outcome_is_joined_from_the_objects() -> None:
    each = (
        Each("b", (Record("1"),), "B", "first"),
        Each("a", (Record("y", http=400), Record("2")), "A"),
        Each("c", (Record("3"),), "B"),
    )
    answer = execute_plan(Plan("planned", (Record("0"),), each=each), recovers_each=True)
    assert (answer.outcome, answer.note) == ("B,Recovered", "first; not y")
    assert RECORDED == ["0", "1", "y", "3"]


def test_the_error_of_an_object_that_cannot_be_recovered_is_raised_after_the_others() -> None:
    each = (
        Each("a", (Record("1", http=503),)),
        Each("b", (Record("2", http=500),)),
        Each("c", (Record("3"),)),
    )
    with pytest.raises(CallError, match=r"^1: 503"):
        execute_plan(Plan("planned", each=each), recovers_each=True)
    assert RECORDED == ["1", "2", "3"]


@pytest.mark.parametrize("first", [403, 422])
@pytest.mark.parametrize("http", [409, 429, 503])
def test_of_several_errors_one_that_is_retried_is_raised(first: int, http: int) -> None:
    each = (Each("a", (Record("1", http=first),)), Each("b", (Record("2", http=http),)))
    with pytest.raises(CallError, match=rf"{http} Because: no"):
        execute_plan(Plan("planned", each=each))


def test_a_stale_object_makes_the_step_observe_again() -> None:
    each = (Each("a", (Record("1", http=409),)), Each("b", (Record("2"),)))
    with pytest.raises(CallError, match="3 observations were stale: 1: 409 Because: no") as raised:
        execute_plan(Plan("planned", each=each), recovers_each=True)
    assert (raised.value.http, raised.value.code) == (409, "conditionNotMet")
    assert RECORDED == ["1", "2"] * 3


def test_a_failed_recovery_is_recovered_once_more() -> None:
    answer = execute_plan(Plan("planned", (Record("x", http=400),)))
    assert (answer.outcome, answer.note, RECORDED) == ("Recovered", "not not x", ["x", "not x"])


def test_a_recovery_can_read_the_observation() -> None:
    observed: list[object] = []

    def record_observation(work: Work, _error: CallError) -> Plan:
        observed.append(work.observed)
        return Plan("Recovered")

    plan = Plan("planned", (Record("x", http=400),))
    step = Step(STEP, open_work, lambda _: "observation", lambda _, __: plan, record_observation)
    step.run(Invocation(runtime(), STEP, TimeTrigger(NOW), 0.0))
    assert observed == ["observation"]


def test_a_message_that_cannot_be_published_ends_the_plan_except_as_best_effort() -> None:
    def fail_to_publish(_step: str, _messages: object) -> None:
        raise CallError("publish", 503, "unreachable", "no")

    send = Send(STEP, (Message("default", "train", "u", Cause.RESYNC, NOW),))
    plan = Plan("Sent", best_effort=(send, Record("1")))
    assert execute_plan(plan, publish=fail_to_publish).outcome == "Sent"
    assert RECORDED == ["1"]
    with pytest.raises(CallError, match=r"^publish: 503"):
        execute_plan(Plan("Sent", first=(send, Record("1"))), publish=fail_to_publish)
    assert RECORDED == []


@dataclass
class Raise:
    """An action that raises this error, if there is one."""

    error: CallError | None = None

    def apply(self, _work: Work) -> None:
        if self.error is not None:
            raise self.error

    def describe(self) -> str:
        return "raise"


DENIED, STALE = (
    CallError("GET /x", 403, "Forbidden", "no"),
    CallError("PUT /x", 409, "Conflict", ""),
)


def run_step(
    reads: list[CallError | None], writes: list[CallError | None]
) -> tuple[Answer, list[bool]]:
    """Run a step whose reads and recoveries raise these errors, one after the other."""
    opened: list[bool] = []

    def begin(invocation: Invocation, is_first_observation: bool) -> Work:
        opened.append(is_first_observation)
        return open_work(invocation, is_first_observation)

    def observe(_: Work) -> None:
        error = reads.pop(0)
        if error is not None:
            raise error

    def recover(_: Work, error: CallError) -> Plan | None:
        if error.is_stale:
            return None
        return Plan("Reported", (Raise(writes.pop(0)),))

    step = Step(STEP, begin, observe, lambda _, __: Plan("Done"), recover)
    delivery = decode(message("Added", 1), ROUTES)
    assert delivery.trigger is not None
    return step.run(Invocation(runtime(), STEP, delivery.trigger, 0.0)), opened


def test_a_conflict_during_a_recovery_makes_the_step_observe_again() -> None:
    answer, opened = run_step([DENIED, DENIED], [STALE, None])
    assert (answer.http, answer.outcome) == (204, "Reported")
    assert opened == [True, False]


def test_only_the_first_observation_of_a_trigger_is_marked_as_the_first() -> None:
    answer, opened = run_step([STALE, STALE, None], [])
    assert (answer.outcome, opened) == ("Done", [True, False, False])


def test_a_step_observes_at_most_three_times() -> None:
    with pytest.raises(CallError, match="conditionNotMet"):
        run_step([DENIED] * 3, [STALE] * 3)


@dataclass(frozen=True)
class Act:
    """An action that takes some seconds and may fail."""

    name: str
    seconds: float = 0.0
    error: Exception | None = None

    def apply(self, work: ClockedWork) -> None:
        work.remaining_s()
        work.clock.now_s += self.seconds
        if self.error is not None:
            raise self.error
        work.done.append(self.name)

    def describe(self) -> str:
        return self.name


@dataclass(kw_only=True)
class ClockedWork(Work):
    clock: SimpleNamespace
    done: list[str]


def clocked_work(sent: list[Message], trigger: Trigger | None = None) -> ClockedWork:
    """Return work whose clock advances by the seconds that actions take."""
    clock, given = SimpleNamespace(now_s=0.0), runtime()
    given.monotonic = lambda: clock.now_s
    given.publish = lambda _step, messages: sent.extend(messages)
    invocation = Invocation(given, STEP, trigger or ADDED, 0.0)
    return ClockedWork(**work_fields(invocation, is_first_observation=True), clock=clock, done=[])


CONTINUE = Message("default", "train", "u", Cause.CONTINUED, NOW)
ADDED = ObjectTrigger(replace(CONTINUE, cause=Cause.ADDED))
FORBIDDEN = CallError("PATCH /api/v1/nodes/a", 403, "Forbidden", "no")
UNAVAILABLE = CallError("PATCH /api/v1/nodes/a", 503, "ServiceUnavailable", "no")


def plan(*objects: Each, resume: Message | None = CONTINUE, **phases: Any) -> Plan:
    return Plan("Done", each=objects, resume=resume, after=(Act("count all"),), **phases)


def many(*seconds: float) -> list[Each]:
    return [Each(name, (Act(name, took),)) for name, took in zip("abcdef", seconds, strict=False)]


TIMES: dict[str, tuple[Plan, str, list[str], list[tuple[str, ...]]]] = {
    "there is time for all": (plan(*many(9, 9)), "Done", ["a", "b", "count all"], []),
    "the last object begins in time": (
        plan(*many(9, 9, 1)),
        "Done",
        ["a", "b", "c", "count all"],
        [],
    ),
    "some objects are left": (plan(*many(10, 10, 1, 1)), "Partly", ["a", "b"], [("c", "d")]),
    "the first object takes all the time": (plan(*many(29, 1)), "Partly", ["a"], [("b",)]),
    "the time ends during the second object": (
        plan(Each("a", (Act("a", 15),)), Each("b", (Act("b", 5), Act("b again")))),
        "Partly",
        ["a", "b"],
        [("b",)],
    ),
    "without a message, objects have the whole time": (
        plan(*many(20, 9), resume=None),
        "Done",
        ["a", "b", "count all"],
        [],
    ),
}


@pytest.mark.parametrize("case", TIMES.values(), ids=TIMES)
def test_a_plan_acts_on_as_many_objects_as_there_is_time_for(
    case: tuple[Plan, str, list[str], list[tuple[str, ...]]],
) -> None:
    given, outcome, done, left = case
    sent: list[Message] = []
    work = clocked_work(sent)
    assert (execute(given, work).outcome, work.done) == (outcome, done)
    assert [message.nodes for message in sent] == left


def test_a_plan_that_no_message_continues_is_out_of_time_with_objects_left() -> None:
    work = clocked_work([])
    with pytest.raises(OutOfTimeError):
        execute(plan(*many(30, 1), resume=None), work)
    assert work.done == ["a"]


def test_best_effort_leaves_time_for_the_actions_that_follow_it() -> None:
    work = clocked_work([])
    given = Plan(
        "Done", best_effort=(Act("a", 20), Act("b"), Act("c")), if_all_succeeded=(Act("end"),)
    )
    assert execute(given, work).outcome == "Done"
    assert work.done == ["a", "end"]
    assert work.facts["left_undone"] == ["no answer within 20 s"]


def test_a_continuing_message_names_a_limited_number_of_objects() -> None:
    names = [f"vm-{number}" for number in range(200)]
    objects = [Each(name, (Act(name, 20),)) for name in names]
    sent: list[Message] = []
    assert execute(plan(*objects), clocked_work(sent)).outcome == "Partly"
    assert sent == [replace(CONTINUE, nodes=tuple(names[1 : MAX_NAMES + 1]))]


RESYNC_TRIGGER = ObjectTrigger(replace(CONTINUE, cause=Cause.RESYNC))


@pytest.mark.parametrize(
    "trigger, error, left",
    [
        pytest.param(None, UNAVAILABLE, [], id="an event, which is retried"),
        pytest.param(RESYNC_TRIGGER, UNAVAILABLE, [("b",)], id="a resync, which is not retried"),
        pytest.param(None, FORBIDDEN, [("b",)], id="an error that a step may report"),
    ],
)
def test_a_plan_with_a_failed_object_is_continued_only_if_its_trigger_is_not_retried(
    trigger: Trigger | None, error: CallError, left: list[tuple[str, ...]]
) -> None:
    sent: list[Message] = []
    work = clocked_work(sent, trigger)
    with pytest.raises(CallError, match=f"{error.http}"):
        execute(plan(Each("a", (Act("a", 20, error),)), Each("b", (Act("b"),))), work)
    assert (work.done, [message.nodes for message in sent]) == ([], left)


FAILS = Act("x", error=FORBIDDEN)
PHASES: dict[str, tuple[dict[str, Any], list[str], bool]] = {
    "all succeed": ({}, ["first", "a", "b", "after", "best effort", "if all succeeded"], False),
    "first": ({"first": (FAILS, Act("first"))}, [], True),
    "an object": (
        {"each": (Each("a", (FAILS, Act("a"))), Each("b", (Act("b"),)))},
        ["first", "b", "after", "best effort"],
        True,
    ),
    "an object cannot be read in time": (
        {"errors": (OutOfTimeError("slow"), FORBIDDEN)},
        ["first", "a", "b", "after", "best effort"],
        True,
    ),
    "after": ({"after": (FAILS, Act("after"))}, ["first", "a", "b"], True),
    "best effort": (
        {"best_effort": (FAILS, Act("best effort"))},
        ["first", "a", "b", "after", "best effort", "if all succeeded"],
        False,
    ),
    "if all succeeded": (
        {"if_all_succeeded": (FAILS, Act("if all succeeded"))},
        ["first", "a", "b", "after", "best effort"],
        True,
    ),
}


@pytest.mark.parametrize("case", PHASES.values(), ids=PHASES)
def test_what_follows_an_error_depends_on_the_phase(
    case: tuple[dict[str, Any], list[str], bool],
) -> None:
    change, done, is_raised = case
    given = Plan(
        "Done",
        first=(Act("first"),),
        each=(Each("a", (Act("a"),)), Each("b", (Act("b"),))),
        after=(Act("after"),),
        best_effort=(Act("best effort"),),
        if_all_succeeded=(Act("if all succeeded"),),
    )
    work = clocked_work([])
    raised = pytest.raises((CallError, OutOfTimeError), match=r"403 Forbidden|slow")
    with raised if is_raised else nullcontext():
        execute(replace(given, **change), work)
    assert work.done == done


def test_a_plan_without_time_for_its_first_object_is_out_of_time() -> None:
    work = clocked_work([])
    work.clock.now_s = SECONDS_FOR_CALLS
    with pytest.raises(OutOfTimeError):
        execute(plan(*many(1, 1)), work)


def test_an_event_about_no_object_raises_an_error_that_names_it() -> None:
    with pytest.raises(TypeError, match="the Event NodeLost is about no object"):
        Emit(Event("NodeLost", "words")).apply(clocked_work([]))


def test_a_step_that_cannot_continue_needs_attention() -> None:
    def fail_to_publish(_step: str, _messages: object) -> None:
        raise CallError("publish", 403, "Forbidden", "no")

    clock, given = SimpleNamespace(now_s=0.0), runtime()
    given.monotonic, given.publish = (lambda: clock.now_s), fail_to_publish

    def decide_(_observed: object, _now: datetime) -> Plan:
        slow = lambda _work: setattr(clock, "now_s", clock.now_s + 20)  # noqa: E731
        each = tuple(Each("a", (SimpleNamespace(apply=slow),)) for _ in range(2))
        return Plan("Done", each=each, resume=CONTINUE)

    step = Step(STEP, open_work, lambda _: None, decide_, recover)
    answer = step.run(Invocation(given, STEP, RESYNC_TRIGGER, 0.0))
    assert (answer.outcome, answer.needs_attention) == ("Partly", True)


def test_a_step_that_observes_again_has_the_full_time_for_calls_again() -> None:
    observations: list[tuple[bool, float]] = []
    clock, given = SimpleNamespace(now_s=0.0), runtime()
    given.monotonic = lambda: clock.now_s

    def observe(work: Work) -> bool:
        observations.append((work.is_first_observation, work.remaining_s()))
        clock.now_s += 25
        return work.is_first_observation

    def decide_(is_first: bool, _now: datetime) -> Plan:
        return Plan("Done", again="to be sure") if is_first else Plan("Done", (Record("done"),))

    RECORDED.clear()
    step = Step(STEP, open_work, observe, decide_, recover)
    answer = step.run(Invocation(given, STEP, ADDED, 0.0))
    assert (answer.outcome, RECORDED) == ("Done", ["done"])
    assert observations == [(True, SECONDS_FOR_CALLS), (False, SECONDS_FOR_CALLS)]


@pytest.mark.parametrize("minutes", [-5, 5])
@pytest.mark.parametrize("is_senders", [True, False])
def test_a_recent_resync_is_executed_although_one_clock_is_wrong(
    minutes: int, is_senders: bool
) -> None:
    wrong = NOW + timedelta(minutes=minutes)
    published, at = (NOW, wrong) if is_senders else (wrong, NOW)
    body = message("Resync", 1, published, at=at)
    assert handle(STEP, lambda _: Answer(204, "Settled"), body, runtime()).outcome == "Settled"
