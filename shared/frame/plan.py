"""A plan and its actions: what a step does after it has decided.

A step's decision makes actions from what was observed; the frame (`shared.frame.step`) executes them
in order. Plans and actions hold only values, so that they can be compared, printed and tested. The
domains add actions of their own; those here need no more than a `Work` has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from shared.base.errors import CallError, OutOfTimeError
from shared.frame.decode import Trigger
from shared.frame.message import MAX_NAMES, Message
from shared.frame.settings import Settings
from shared.ports.gce.calls import Gce
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.events import Event

Publish = Callable[[str, Sequence[Message]], None]
"""Publish messages to a step's topic. Raises `CallError`."""


class StaleObservation(Exception):
    """What was observed is no longer so; the step observes and decides again."""


class NothingToDo(Exception):
    """The trigger names nothing that the step has work with; ``outcome`` says why, in one word."""

    def __init__(self, outcome: str, note: str = "") -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.note = note


@dataclass(kw_only=True)
class Work:
    """One observation and what follows from it: the ports, the time and the trigger.

    A domain's own kind of work adds the object that it is about.
    """

    settings: Settings
    gce: Gce
    cluster: Cluster
    publish: Publish
    random_bytes: Callable[[int], bytes]
    remaining_s: Callable[[], float]
    """Seconds left for calls. Raises `OutOfTimeError` when there are none."""
    reserve: Callable[[float], AbstractContextManager[None]] = lambda _: nullcontext()
    """In this context the last so many seconds are not there for calls: what follows it has them."""
    now: datetime
    trigger: Trigger
    facts: dict[str, Any] = field(default_factory=dict)
    """Fields of the invocation's log line."""
    step: str = ""
    """The name of the step."""
    is_first_observation: bool = True
    """False when the step observes again because the first observation was stale."""
    observed: Any = None
    """What the step has observed, once it has: for what it does about a call that is refused."""

    @property
    def subject(self) -> Mapping[str, Any]:
        """The object that Events are about, unless the action names another."""
        raise NotImplementedError(f"{type(self).__name__} is about no object")

    def list_events(self) -> Iterable[Emit]:
        """The Events that follow from what the executed actions have changed."""
        return ()

    def list_closing_actions(self) -> Iterable[Action]:
        """What remains to be done, best effort, when the plan has been executed without an error."""
        return ()


class Action(Protocol):
    """One thing to do."""

    def apply(self, work: Any) -> None:
        """Do it. Raises `CallError`, or `StaleObservation` if the observation does not hold."""

    def describe(self) -> str:
        """What would be done, for a person who reads ``replay explain``."""


@dataclass(frozen=True)
class Plan:
    """What to do and, in one word of the step's own, why.

    ``note`` and ``facts`` are for the log line. ``parts`` are plans about one object each, executed
    after the actions: a failure ends its part alone, and their outcomes make the plan's.
    """

    outcome: str
    actions: tuple[Action | Batch, ...] = ()
    note: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Plan, ...] = ()
    needs_attention: bool = False
    """Whether the log line is a warning: it names what nobody else reports."""

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
    """The outcome of a plan whose parts have these."""
    return ",".join(sorted(set(outcomes)))


@dataclass(frozen=True)
class Send:
    """Publish messages to a step's topic. Best effort, except inside of `ForOne` and `Require`."""

    step: str
    messages: tuple[Message, ...]

    def apply(self, work: Work) -> None:
        work.publish(self.step, self.messages)

    def describe(self) -> str:
        causes = ", ".join(sorted({str(message.cause) for message in self.messages}))
        return f"trigger {self.step} ({causes})"


@dataclass(frozen=True)
class Emit:
    """Write a Kubernetes Event about the work's subject, or about the object given. Best effort.

    ``once``: an Event that says the same is not counted up.
    """

    event: Event
    about: Mapping[str, Any] | None = field(default=None, repr=False)
    once: bool = False

    def apply(self, work: Work) -> None:
        about = self.about if self.about is not None else work.subject
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
    """An action that is otherwise best effort: its failure ends the plan."""

    action: Action

    def apply(self, work: Work) -> None:
        self.action.apply(work)

    def describe(self) -> str:
        return self.action.describe()


@dataclass(frozen=True)
class Fail:
    """End the plan with an error that was met before it, so that the message is tried again."""

    error: CallError | OutOfTimeError

    def apply(self, _work: Work) -> None:
        raise self.error

    def describe(self) -> str:
        return f"fail: {self.error}"


@dataclass(frozen=True)
class ForOne:
    """Actions about one object among many. A failure ends these alone; it is raised after the others
    have been executed."""

    actions: tuple[Action, ...]

    def apply(self, work: Work) -> None:
        for action in self.actions:
            action.apply(work)

    def describe(self) -> str:
        return ", ".join(action.describe() for action in self.actions)


@dataclass(frozen=True)
class Batch:
    """Actions about one object each: as many as there is time for. A failure ends one object's alone.

    Without ``resume`` what is left is left, and the plan continues. With it at least one action is
    executed; if some are left, the plan ends with the outcome ``Partly``, and the message that
    ``resume`` makes of their names goes to the step's own topic. After a failure it does not, where the
    message itself is retried. ``is_required``: what follows is executed only if no action has failed.
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
    """How an invocation continues with what a batch has left: a message to this step's topic.

    ``names_nodes``: the message names the first Nodes that are left. Whoever continues there must come
    to an end though nothing that it does has an effect: each message names later ones than the last.
    """

    step: str
    message: Message
    names_nodes: bool = False

    def build(self, left: Sequence[str]) -> Send:
        """What triggers another invocation."""
        nodes = tuple(left[:MAX_NAMES]) if self.names_nodes else ()
        return Send(self.step, (replace(self.message, nodes=nodes),))


@dataclass(frozen=True)
class ObserveAgain:
    """End the plan: the step observes and decides again, with the whole time for calls."""

    why: str

    def apply(self, _work: Any) -> None:
        raise StaleObservation(self.why)

    def describe(self) -> str:
        return f"observe again: {self.why}"


BEST_EFFORT = (Send, Emit, Attempt)
"""Actions whose failure changes nothing: the sweep finds the work, the condition says the same."""
