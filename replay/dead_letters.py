"""Dead letters: the messages that no step has acknowledged in ten attempts, and what can be done."""

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from replay.errors import ReplayError
from replay.publications import Publication
from replay.recording import DEAD_LETTER_SOURCE, ReplayRules, read_message
from replay.subscriptions import Pulled, Subscriptions
from shared.base.fields import count
from shared.base.names import topic_id
from shared.base.timestamps import guess_time, render_time
from shared.triggers import routes
from shared.triggers.message import PoisonError

STEP = "dead_letters"
"""Makes the name of their topic and subscription, like a step's."""
MAX_LISTED = 1_000
LEASE_S = 600
"""Pub/Sub's maximum: the user is asked, and many messages may be published."""
_PREFIX = "CloudPubSubDeadLetterSource"


@dataclass(frozen=True)
class DeadLetter:
    """A dead letter: which ``step`` gave it up, how often it was delivered, and why in ``reason``.

    ``publications`` is what a replay would publish; empty when no step can read it.
    """

    pulled: Pulled
    step: str
    attempts: int
    first_published: datetime
    about: str
    cause: str
    reason: str
    publications: tuple[Publication, ...] = ()

    @property
    def id(self) -> str:
        return self.pulled.message_id


def read_dead_letter(pulled: Pulled, rules: ReplayRules) -> DeadLetter:
    """Parse a pulled message, and find why it is a dead letter."""
    attributes = pulled.attributes
    source = attributes.get(DEAD_LETTER_SOURCE, "")
    steps = {topic_id(rules.topic_prefix, step): step for step in routes.ROUTES}
    step = steps.get(source, source or "unknown")
    attempts = attributes.get(f"{_PREFIX}DeliveryCount", "")
    envelope = {
        "data": base64.b64encode(pulled.data).decode(),
        "attributes": dict(pulled.attributes),
        "publishTime": render_time(pulled.published),
    }
    try:
        found = read_message(envelope, pulled.message_id, rules)
    except PoisonError as error:
        found = str(error).removeprefix(f"message {pulled.message_id}: ")
    publications: tuple[Publication, ...] = ()
    if isinstance(found, str):
        reason = found
    else:
        publications = found
        often = f" in {attempts} attempts" if attempts else ""
        reason = f"{step} did not acknowledge it{often}; the message can be read"
    return DeadLetter(
        pulled=pulled,
        step=step,
        attempts=int(attempts) if attempts.isdecimal() else 0,
        first_published=guess_time(attributes.get(f"{_PREFIX}TopicPublishTime", ""))
        or pulled.published,
        about=publications[0].about if publications else "",
        cause=publications[0].cause if publications else "",
        reason=reason,
        publications=publications,
    )


class Leased:
    """The dead letters that this process has leased, the oldest first."""

    def __init__(self, subscriptions: Subscriptions, subscription: str) -> None:
        self.letters: list[DeadLetter] = []
        self._subscriptions = subscriptions
        self.subscription = subscription
        self.ack_ids: dict[str, str] = {}
        """By the ids of those that were not removed."""

    def pull(self, rules: ReplayRules) -> Iterator[int]:
        """Pull all, up to `MAX_LISTED`; how many there are so far, page by page. Raises `CallError`."""
        while len(self.ack_ids) < MAX_LISTED:
            page = self._subscriptions.pull(self.subscription)
            if not page:
                break
            self._subscriptions.lease(self.subscription, [one.ack_id for one in page], LEASE_S)
            new = [one for one in page if one.message_id not in self.ack_ids]
            self.ack_ids |= {one.message_id: one.ack_id for one in new}
            self.letters += [read_dead_letter(one, rules) for one in new]
            yield len(self.letters)
        self.letters.sort(key=lambda letter: (letter.first_published, letter.id))

    def remove(self, letter: DeadLetter) -> None:
        """Acknowledge one, so that it is gone. Raises `CallError`."""
        self._subscriptions.acknowledge(self.subscription, [letter.pulled.ack_id])
        del self.ack_ids[letter.id]


@contextmanager
def leased(
    subscriptions: Subscriptions, rules: ReplayRules, on_page: Callable[[str], None]
) -> Iterator[Leased]:
    """All dead letters, until the block is left. ``on_page`` gets their number so far, in words.

    Raises `CallError`.
    """
    found = Leased(subscriptions, topic_id(rules.topic_prefix, STEP))
    try:
        for number in found.pull(rules):
            on_page(count(number, "dead letter"))
        yield found
    finally:
        if found.ack_ids:
            subscriptions.lease(found.subscription, list(found.ack_ids.values()), 0)


def select(letters: Sequence[DeadLetter], ids: Sequence[str], step: str | None) -> list[DeadLetter]:
    """Those of these ids, or all; of one step, if it is named. Raises `ReplayError`."""
    missing = sorted(set(ids) - {letter.id for letter in letters})
    if missing:
        raise ReplayError(
            f"there is no dead letter {', '.join(missing)}; see `kubectl tng dead-letters list`"
        )
    named = [letter for letter in letters if not ids or letter.id in ids]
    return [letter for letter in named if step is None or letter.step == step]


def to_document(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as JSON has it."""
    raw = letter.pulled.data
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        data = base64.b64encode(raw).decode()
    return {
        "id": letter.id,
        "step": letter.step,
        "publishedAt": render_time(letter.first_published),
        "deadSince": render_time(letter.pulled.published),
        "attempts": letter.attempts,
        "about": letter.about,
        "cause": letter.cause,
        "reason": letter.reason,
        "canBeReplayed": bool(letter.publications),
        "data": data,
    }
