"""A plan and its actions: the result of a step's decision.

Plans and actions hold only values, so that they can be compared, printed and tested. The domains add
actions of their own; those here need nothing but a `Work`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce.calls import Gce
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.events import Event
from shared.triggers.message import Message
from shared.triggers.trigger import Trigger

_MAX_UNDONE = 20
"""How many errors of best-effort actions a log line has: Cloud Logging's limit is 256 KB."""

Publish = Callable[[str, Sequence[Message]], None]
"""Publish messages to a step's topic. Raises `CallError`."""


class StaleObservation(Exception):
    """The observation no longer holds. The step observes and decides again."""


class NothingToDo(Exception):
    """The trigger needs no work. ``outcome`` is one word for the log line."""

    def __init__(self, outcome: str, note: str = "") -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.note = note


class StepRefused(Exception):
    """The step may do nothing about the object. ``outcome`` is one word, the text says why and what to
    do."""

    def __init__(self, outcome: str, note: str) -> None:
        super().__init__(note)
        self.outcome = outcome


@dataclass(kw_only=True)
class Work:
    """One observation and its execution: the ports, the time and the trigger.

    The domains' subclasses add the object that the work is about.
    """

    settings: Any
    """The settings of the process. The frame reads none of them."""
    gce: Gce
    cluster: Cluster
    publish: Publish
    random_bytes: Callable[[int], bytes]
    log: Any = field(default=None, repr=False)
    """For lines about single objects, besides the invocation's."""
    remaining_s: Callable[[], float]
    """Seconds left for calls. Raises `OutOfTimeError` when there are none."""
    reserve: Callable[[float], AbstractContextManager[None]] = lambda _: nullcontext()
    """A context that keeps the last so many seconds free for calls after it."""
    now: datetime
    trigger: Trigger
    facts: dict[str, Any] = field(default_factory=dict)
    """Fields of the invocation's log line."""
    step: str = ""
    """The name of the step."""
    is_first_observation: bool = True
    """False when the step observes again: the first observation was stale, or a plan ended with
    ``again``."""
    has_failed: bool = False
    """Whether a call has failed and `Step.recover` was asked for a plan."""
    observed: Any = None
    """What the step has observed, for `Step.recover`; ``None`` before that."""

    @property
    def subject(self) -> Mapping[str, Any] | None:
        """The object of Events that name none; ``None`` if the work is about no single object."""
        return None

    @property
    def is_repetition(self) -> bool:
        """Whether this is a later attempt: the message was redelivered, or is observed again."""
        return self.trigger.is_redelivered or not self.is_first_observation

    def has_time(self) -> bool:
        """Whether there is time for another call."""
        try:
            self.remaining_s()
        except OutOfTimeError:
            return False
        return True

    @contextmanager
    def best_effort(self) -> Iterator[None]:
        """A context in which a failed call is logged, and not raised."""
        try:
            yield
        except (CallError, OutOfTimeError) as error:
            undone = self.facts.setdefault("left_undone", [])
            if len(undone) < _MAX_UNDONE and str(error) not in undone:
                undone.append(str(error))

    def rotate(self, names: Sequence[str]) -> list[str]:
        """The names, from a random one on: there may not be time for all of them in one invocation."""
        start = int.from_bytes(self.random_bytes(2)) % max(1, len(names))
        return [*names[start:], *names[:start]]

    def list_events(self) -> Iterable[Emit]:
        """The Events about what the executed actions have changed."""
        return ()

    def refuse(self, refusal: StepRefused) -> Plan:
        """The plan instead of a decision. Its only actions may be reports and messages."""
        return Plan(refusal.outcome, note=str(refusal))

    def list_closing_actions(self) -> Iterable[Action]:
        """Actions after a plan that was executed without an error. Best effort."""
        return ()


class Action(Protocol):
    """An action of a plan."""

    def apply(self, work: Any) -> object:
        """Execute it. Raises `CallError`, or `StaleObservation` if the observation does not hold."""

    def describe(self) -> str:
        """The action in words, for ``kubectl tng explain``."""


@dataclass(frozen=True)
class Each:
    """The actions on one object of many. ``name`` is the object's.

    If the objects have outcomes, the frame joins that of the plan from them.
    """

    name: str
    actions: tuple[Action, ...]
    outcome: str = ""
    note: str = ""

    def to_plan(self) -> Plan:
        """A plan about this object alone."""
        return Plan(self.outcome, first=self.actions, note=self.note)


@dataclass(frozen=True)
class Plan:
    """The actions of a decision by phases, and its outcome in one word.

    The phases are executed in this order:

    - ``first``: in order. An error ends the plan.
    - ``each``: one object after the other. An error ends only the actions on its object, and is raised
      at the end of the plan (of several errors, one that is retried). Without time for the next object,
      the plan ends: without ``resume`` by `OutOfTimeError`, with it with the outcome ``Partly``. Then
      ``resume``, with the names of the objects that are left, is sent to the step's own topic. The first
      object is never left. If an object has failed, ``resume`` is sent only if this message may not be
      delivered again.
    - ``errors``: those of objects that could not be read. They are raised at the end, as those of
      ``each``.
    - ``after``: in order, also if objects have failed. An error ends the plan.
    - ``best_effort``: an error is logged.
    - ``if_all_succeeded``: in order, if no object has failed. An error ends the plan.
    - ``again``, if it is not empty, says why the step observes and decides again then.

    ``note`` and ``facts`` are for the log line.
    """

    outcome: str
    first: tuple[Action, ...] = ()
    each: tuple[Each, ...] = ()
    resume: Message | None = None
    errors: tuple[CallError | OutOfTimeError, ...] = ()
    after: tuple[Action, ...] = ()
    best_effort: tuple[Action, ...] = ()
    if_all_succeeded: tuple[Action, ...] = ()
    again: str = ""
    note: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    needs_attention: bool = False
    """Whether the log line is a warning, because nothing else reports what it names."""

    def list_actions(self) -> Iterator[Action]:
        """All actions, in order."""
        yield from self.first
        for one in self.each:
            yield from one.actions
        yield from map(Fail, self.errors)
        yield from (*self.after, *self.best_effort, *self.if_all_succeeded)


def join_outcomes(outcomes: Iterable[str]) -> str:
    """The outcome of a plan about objects with these outcomes."""
    return ",".join(sorted(set(outcomes)))


@dataclass(frozen=True)
class Send:
    """Publish messages to a step's topic."""

    step: str
    messages: tuple[Message, ...]

    def apply(self, work: Work) -> None:
        work.publish(self.step, self.messages)

    def describe(self) -> str:
        causes = ", ".join(sorted({str(message.cause) for message in self.messages}))
        return f"trigger {self.step} ({causes})"


def plan_unread(
    sends: tuple[Send, ...], *, is_repetition: bool
) -> tuple[tuple[Each, ...], tuple[Action, ...]]:
    """For ``each`` and ``if_all_succeeded``: the messages that name what there was no time to read.

    The first attempt publishes them, whatever follows. A repetition publishes them only if nothing
    fails: otherwise each retry of the message would publish them again.
    """
    return ((), sends) if is_repetition else (tuple(Each("", (send,)) for send in sends), ())


@dataclass(frozen=True)
class Emit:
    """Write a Kubernetes Event about an object, by default the work's subject; none about an empty
    subject, which is an object that the step does not know. An error is only logged.

    ``once``: a repetition does not increment the count of the existing Event.
    """

    event: Event
    about: Mapping[str, Any] | None = field(default=None, repr=False)
    once: bool = False

    def apply(self, work: Work) -> None:
        about = self.about if self.about is not None else work.subject
        if about is None:
            raise TypeError(f"the Event {self.event.reason} is about no object")
        if not about:
            return
        emit = work.cluster.emit_once if self.once else work.cluster.emit
        with work.best_effort():
            emit(about, self.event, work.now)

    def describe(self) -> str:
        return f"event {self.event.reason}: {self.event.message}"


@dataclass(frozen=True)
class Fail:
    """Raise an error of the observation."""

    error: CallError | OutOfTimeError

    def apply(self, _work: Work) -> None:
        raise self.error

    def describe(self) -> str:
        return f"fail: {self.error}"
