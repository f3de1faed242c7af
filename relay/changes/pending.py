"""What there is to tell, about whom and to which step, and when each may be told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from relay.changes.coalescing import Slot, Story
from shared.base.names import KIND
from shared.frame.message import MAX_NAMES, Cause, Message


@dataclass(frozen=True, slots=True)
class Subject:
    """An object of the cluster that a step is told of; made anew it is another, by its uid."""

    namespace: str
    name: str
    uid: str
    kind: str = KIND

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


@dataclass(frozen=True)
class Publication:
    """A message and the step whose inbox it is for."""

    step: str
    message: Message

    @property
    def subject(self) -> Subject:
        message = self.message
        return Subject(message.namespace, message.name, message.uid, message.kind)


_Key = tuple[Subject, str]


class Slots:
    """One `Slot` for each subject and step of which something is, or lately was, to be told.

    Nothing is kept of those that have long been told: a slot that may be told at once and has
    nothing to tell is as good as none.
    """

    def __init__(self) -> None:
        self._slots: dict[_Key, Slot] = {}
        self._untold: dict[_Key, Slot] = {}

    def count_untold(self, step: str) -> int:
        """How many subjects wait for a message to this step, for whatever reason."""
        return sum(1 for _, untold in self._untold if untold == step)

    def tell(
        self,
        subject: Subject,
        step: str,
        cause: Cause,
        now: datetime,
        names: Iterable[str] = (),
        *,
        at_once: bool = False,
    ) -> None:
        """Something new is to be told, ``at_once`` if somebody waits for it."""
        self._slot(subject, step).add(cause, names, now, at_once=at_once)

    def drop(self, subject: Subject, step: str) -> None:
        """What was to be told is moot."""
        self._slots.pop((subject, step), None)
        self._untold.pop((subject, step), None)

    def next_due(self) -> datetime | None:
        """When `take_due` has something to give; ``None`` while there is nothing to tell."""
        return min((slot.due for slot in self._untold.values() if slot.due), default=None)

    def take_due(self, now: datetime, most: int | None = None) -> list[Publication]:
        """The messages that are due, those of ``most`` subjects and steps if given, longest first."""
        due = [key for key, slot in self._untold.items() if slot.is_due(now)]
        taken = [publication for key in due[:most] for publication in self._take(key, now)]
        for key in [key for key, slot in self._slots.items() if slot.is_spent(now)]:
            del self._slots[key]
        return taken

    def put_back(
        self,
        publications: Sequence[Publication],
        now: datetime,
        is_moot: Callable[[Subject, str], bool],
    ) -> None:
        """These could not be published: they are due again, later. What is moot is dropped."""
        parts: dict[_Key, list[Message]] = {}
        for publication in publications:
            parts.setdefault((publication.subject, publication.step), []).append(
                publication.message
            )
        for (subject, step), messages in parts.items():
            if not is_moot(subject, step):
                story = Story(messages[0].cause, messages[0].at)
                story.add_names(name for message in messages for name in message.nodes)
                self._slot(subject, step).put_back(story, now)

    def _slot(self, subject: Subject, step: str) -> Slot:
        key = subject, step
        slot = self._slots.setdefault(key, Slot())
        self._untold.setdefault(key, slot)
        return slot

    def _take(self, key: _Key, now: datetime) -> list[Publication]:
        subject, step = key
        story = self._untold.pop(key).take(now)
        names = tuple(story.names)
        return [
            Publication(
                step,
                Message(
                    namespace=subject.namespace,
                    name=subject.name,
                    uid=subject.uid,
                    cause=story.cause,
                    at=story.at,
                    nodes=names[start : start + MAX_NAMES],
                    kind=subject.kind,
                ),
            )
            for start in range(0, len(names) or 1, MAX_NAMES)
        ]
