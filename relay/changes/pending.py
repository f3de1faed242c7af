"""The pending triggers by object and step, and when they are due."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from relay.changes.coalescing import REQUESTS_GAP, WIDEST_GAP, Coalescer, PendingTrigger
from shared.base.names import KIND, SIGNING_REQUEST_KIND
from shared.triggers.message import BATCH, MAX_NAMES, Cause, Message, message_about_requests


@dataclass(frozen=True, slots=True)
class MessageSubject:
    """The object that a message is about; an object that is recreated is another subject, by its uid."""

    namespace: str
    name: str
    uid: str
    kind: str = KIND

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


def subject_of(raw: Mapping[str, Any], kind: str) -> MessageSubject:
    """The subject of messages about an object."""
    metadata = raw["metadata"]
    namespace, name, uid = (str(metadata.get(key)) for key in ("namespace", "name", "uid"))
    return MessageSubject(namespace, name, uid, kind)


@dataclass(frozen=True)
class OutgoingMessage:
    """A message and the step to whose topic it goes."""

    step: str
    message: Message

    @property
    def subject(self) -> MessageSubject:
        message = self.message
        return MessageSubject(message.namespace, message.name, message.uid, message.kind)


_Key = tuple[MessageSubject, str]


class PendingTriggers:
    """One `Coalescer` for each subject and step with a pending or recently published trigger.

    An idle coalescer is dropped, because a new one behaves the same.
    """

    def __init__(self) -> None:
        self._coalescers: dict[_Key, Coalescer] = {}
        self._pending: dict[_Key, Coalescer] = {}
        self._taken: frozenset[_Key] = frozenset()
        """What is being published: `take_due` has returned it, and `put_back` ends it."""

    def count_pending(self, step: str) -> int:
        """The number of subjects with a message to this step that is not published yet."""
        return sum(1 for _, pending in self._pending.keys() | self._taken if pending == step)

    def add(
        self,
        subject: MessageSubject,
        step: str,
        cause: Cause,
        now: datetime,
        names: Iterable[str] = (),
        *,
        immediately: bool = False,
    ) -> None:
        """Add a change; ``immediately``: due now, because a user waits for it."""
        self._coalescer(subject, step).add(cause, names, now, immediately=immediately)

    def drop(self, subject: MessageSubject, step: str) -> None:
        """Drop a pending trigger, because it is obsolete."""
        self._coalescers.pop((subject, step), None)
        self._pending.pop((subject, step), None)

    def next_due(self) -> datetime | None:
        """When `take_due` next returns a message; ``None`` while nothing is pending."""
        return min(
            (coalescer.due for coalescer in self._pending.values() if coalescer.due), default=None
        )

    def take_due(self, now: datetime, most: int | None = None) -> list[OutgoingMessage]:
        """Remove and return the due messages, of at most ``most`` subjects and steps, oldest first."""
        due = ((key, coalescer.take(now)) for key, coalescer in self._pending.items())
        taken = list(islice(((key, trigger) for key, trigger in due if trigger is not None), most))
        self._taken = frozenset(key for key, _ in taken)
        for key in self._taken:
            del self._pending[key]
        for key in [key for key, coalescer in self._coalescers.items() if coalescer.is_idle(now)]:
            del self._coalescers[key]
        return [one for key, trigger in taken for one in _render_messages(key, trigger)]

    def put_back(
        self,
        publications: Sequence[OutgoingMessage],
        now: datetime,
        is_obsolete: Callable[[MessageSubject, str], bool],
    ) -> None:
        """Return messages that could not be published: due again later, dropped if obsolete."""
        self._taken = frozenset()
        parts: dict[_Key, list[Message]] = {}
        for one in publications:
            parts.setdefault((one.subject, one.step), []).append(one.message)
        for (subject, step), messages in parts.items():
            if not is_obsolete(subject, step):
                trigger = PendingTrigger(messages[0].cause, messages[0].at)
                for message in messages:
                    trigger.add_names((*message.nodes, *message.requests))
                self._coalescer(subject, step).put_back(trigger, now)

    def _coalescer(self, subject: MessageSubject, step: str) -> Coalescer:
        key = subject, step
        gap = REQUESTS_GAP if subject.kind == SIGNING_REQUEST_KIND else WIDEST_GAP
        coalescer = self._coalescers.setdefault(key, Coalescer(gap))
        self._pending.setdefault(key, coalescer)
        return coalescer


def _render_messages(key: _Key, trigger: PendingTrigger) -> list[OutgoingMessage]:
    """The messages of a trigger: several if its names do not fit into one."""
    subject, step = key
    names = tuple(trigger.names)
    most = BATCH if subject.kind == SIGNING_REQUEST_KIND else MAX_NAMES
    messages = []
    for start in range(0, len(names) or 1, most):
        part = names[start : start + most]
        if subject.kind == SIGNING_REQUEST_KIND:
            message = message_about_requests(trigger.cause, trigger.at, part)
        else:
            about = subject.namespace, subject.name, subject.uid, trigger.cause, trigger.at
            message = Message(*about, nodes=part, kind=subject.kind)
        messages.append(OutgoingMessage(step, message))
    return messages
