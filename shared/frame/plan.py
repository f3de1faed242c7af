"""A plan and its actions: the result of a step's decision.

The frame (`shared.frame.step`) executes the actions in order. Plans and actions hold only values, so
that they can be compared, printed and tested. The domains add actions of their own; those here need
nothing but a `Work`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce.calls import Gce
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.events import Event
from shared.triggers.message import MAX_NAMES, Message
from shared.triggers.trigger import Trigger

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
    `ObserveAgain`."""
    has_failed: bool = False
    """Whether a call has failed and `Step.recover` was asked for a plan."""
    observed: Any = None
    """What the step has observed, for `Step.recover`; ``None`` before that."""

    @property
    def subject(self) -> Mapping[str, Any] | None:
        """The object of Events that name none; ``None`` if the work is about no single object."""
        return None

    def has_time(self) -> bool:
        """Whether there is time for another call."""
        try:
            self.remaining_s()
        except OutOfTimeError:
            return False
        return True

    def rotate(self, names: Sequence[str]) -> list[str]:
        """The names, from a random one on: there may not be time for all of them in one invocation."""
        start = int.from_bytes(self.random_bytes(2)) % max(1, len(names))
        return [*names[start:], *names[:start]]

    def list_events(self) -> Iterable[Emit]:
        """The Events about what the executed actions have changed."""
        return ()

    def list_closing_actions(self) -> Iterable[Action]:
        """Actions after a plan that was executed without an error. Best effort."""
        return ()


class Action(Protocol):
    """An action of a plan."""

    def apply(self, work: Any) -> None:
        """Execute it. Raises `CallError`, or `StaleObservation` if the observation does not hold."""

    def describe(self) -> str:
        """The action in words, for ``kubectl tng explain``."""


@dataclass(frozen=True)
class Plan:
    """The actions of a decision, and its outcome in one word.

    ``note`` and ``facts`` are for the log line. ``parts`` are plans about one object each, executed
    after the actions. A failure ends only its part; the outcome is joined from those of the parts.
    """

    outcome: str
    actions: tuple[Action | Batch, ...] = ()
    note: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Plan, ...] = ()
    needs_attention: bool = False
    """Whether the log line is a warning, because nothing else reports what it names."""

    def list_actions(self) -> Iterator[Action]:
        """The actions, with those of batches and of the parts."""
        for action in self.actions:
            if isinstance(action, Batch):
                yield from (named.action for named in action.actions)
            else:
                yield action
        for part in self.parts:
            yield from part.list_actions()


def join_outcomes(outcomes: Iterable[str]) -> str:
    """The outcome of a plan whose parts have these outcomes."""
    return ",".join(sorted(set(outcomes)))


@dataclass(frozen=True)
class Send:
    """Publish messages to a step's topic. Best effort, except in `ForOne` and `Require`."""

    step: str
    messages: tuple[Message, ...]

    def apply(self, work: Work) -> None:
        work.publish(self.step, self.messages)

    def describe(self) -> str:
        causes = ", ".join(sorted({str(message.cause) for message in self.messages}))
        return f"trigger {self.step} ({causes})"


@dataclass(frozen=True)
class Emit:
    """Write a Kubernetes Event about an object, by default the work's subject. Best effort.

    ``once``: a repetition does not increment the count of the existing Event.
    """

    event: Event
    about: Mapping[str, Any] | None = field(default=None, repr=False)
    once: bool = False

    def apply(self, work: Work) -> None:
        about = self.about if self.about is not None else work.subject
        if about is None:
            raise TypeError(f"the Event {self.event.reason} is about no object")
        emit = work.cluster.emit_once if self.once else work.cluster.emit
        emit(about, self.event, work.now)

    def describe(self) -> str:
        return f"event {self.event.reason}: {self.event.message}"


@dataclass(frozen=True)
class Attempt:
    """Best effort: a failure of the action is logged, and the plan continues."""

    action: Action

    def apply(self, work: Work) -> None:
        self.action.apply(work)

    def describe(self) -> str:
        return f"try to {self.action.describe()}"


@dataclass(frozen=True)
class Require:
    """Make an action required that is otherwise best effort: its failure ends the plan."""

    action: Action

    def apply(self, work: Work) -> None:
        self.action.apply(work)

    def describe(self) -> str:
        return self.action.describe()


@dataclass(frozen=True)
class Fail:
    """End the plan with an error of the observation, so that the message is retried."""

    error: CallError | OutOfTimeError

    def apply(self, _work: Work) -> None:
        raise self.error

    def describe(self) -> str:
        return f"fail: {self.error}"


@dataclass(frozen=True)
class ForOne:
    """Actions about one object of many. A failure ends only these; it is raised after the others have
    been executed."""

    actions: tuple[Action, ...]

    def apply(self, work: Work) -> None:
        for action in self.actions:
            action.apply(work)

    def describe(self) -> str:
        return ", ".join(action.describe() for action in self.actions)


@dataclass(frozen=True)
class Batch:
    """Actions about one object each, as many as there is time for. A failure ends only one object's.

    Without ``resume``, actions that are left are dropped, and the plan continues. With it, at least one
    action is executed. If some are left, the plan ends with the outcome ``Partly``, and ``resume``
    builds a message to the step's own topic. After a failure that message is not sent if the current
    one is retried. ``is_required``: the rest of the plan is executed only if no action has failed.
    """

    actions: tuple[NamedAction, ...]
    resume: Resume | None = None
    is_required: bool = False


@dataclass(frozen=True)
class NamedAction:
    """An action about the object of this name."""

    name: str
    action: Action


@dataclass(frozen=True)
class Resume:
    """The message to the step's own topic that continues a batch.

    ``names_nodes``: the message names the first Nodes that are left. Each message must name later Nodes
    than the last one: then the sequence ends even if the actions have no effect.
    """

    step: str
    message: Message
    names_nodes: bool = False

    def build(self, left: Sequence[str]) -> Send:
        """The action that triggers the next invocation."""
        nodes = tuple(left[:MAX_NAMES]) if self.names_nodes else ()
        return Send(self.step, (replace(self.message, nodes=nodes),))


@dataclass(frozen=True)
class ObserveAgain:
    """End the plan. The step observes and decides again, with the whole time for calls.

    It counts as one of the three observations, as a stale one does.
    """

    why: str

    def apply(self, _work: Any) -> None:
        raise StaleObservation(self.why)

    def describe(self) -> str:
        return f"observe again: {self.why}"


ABORT_AFTER_FAILURE = Batch((), is_required=True)
"""What follows in the plan is executed only if no earlier action has failed."""


def forward_rest(plan: Plan, sends: Iterable[Send], *, is_repetition: bool) -> Plan:
    """``plan``, which also publishes messages about the objects for which there was no time.

    The first attempt publishes them in any case, before its other actions. A repetition publishes them
    only if nothing has failed: otherwise each retry of the message would publish them again.
    """
    rest = tuple(ForOne((send,)) for send in sends)
    if not rest:
        return plan
    order = (*plan.actions, ABORT_AFTER_FAILURE, *rest) if is_repetition else (*rest, *plan.actions)
    return replace(plan, actions=order)


BEST_EFFORT = (Send, Emit, Attempt)
"""Actions whose failure is only logged: the sweep repeats the work, or a condition reports the same."""
