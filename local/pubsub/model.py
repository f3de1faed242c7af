"""Messages and the settings of subscriptions, with the limits that the service documents.

Names are full resource names: ``projects/P/topics/T``, ``projects/P/subscriptions/S``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from local.pubsub.errors import InvalidArgument, OutOfRange, PubSubError

MAX_REQUEST_BYTES = 10_000_000
MAX_MESSAGES = 1_000
MAX_ATTRIBUTES = 100
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024

_ID = r"(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}"
_NAME = {kind: re.compile(rf"projects/[^/]+/{kind}/{_ID}") for kind in ("topics", "subscriptions")}


@dataclass(frozen=True)
class Message:
    """One published message; ``id`` is unique and the same in every delivery of it."""

    id: str
    data: bytes
    attributes: Mapping[str, str]
    publish_time: datetime

    @property
    def size_bytes(self) -> int:
        """The billed size: data, attributes, id and time."""
        attributes = sum(len(key) + len(value) for key, value in self.attributes.items())
        return len(self.data) + attributes + len(self.id) + 20


@dataclass(frozen=True)
class PushIdentity:
    """The service account of a push's token; the default ``audience`` is the endpoint."""

    email: str
    audience: str = ""


@dataclass(frozen=True)
class PushConfig:
    """The endpoint of pushes, which the pusher interprets, and the identity of their tokens."""

    endpoint: str
    identity: PushIdentity | None = None


@dataclass(frozen=True)
class RetryPolicy:
    """The backoff after a nack: exponential from the minimum to the maximum."""

    minimum_backoff_s: float = 10.0
    maximum_backoff_s: float = 600.0

    def backoff_s(self, attempts: int) -> float:
        """The backoff after ``failures`` attempts (1 or more). The doubling is assumed."""
        doublings = min(attempts - 1, 32)
        return min(self.maximum_backoff_s, self.minimum_backoff_s * 2.0**doublings)


@dataclass(frozen=True)
class DeadLetterPolicy:
    """The topic of messages that have failed ``max_attempts`` times."""

    topic: str
    max_delivery_attempts: int = 5


@dataclass(frozen=True)
class SubscriptionConfig:
    """The settings of a subscription; without ``push`` it is a pull subscription."""

    name: str
    topic: str
    push: PushConfig | None = None
    ack_deadline_s: int = 10
    """For a push this is the time-out of the request."""
    retry: RetryPolicy | None = None
    """Without one, a message is retried immediately."""
    dead_letter: DeadLetterPolicy | None = None


@dataclass
class Counts:
    """The counters of a subscription."""

    received: int = 0
    """Messages of the topic."""
    delivered: int = 0
    """Deliveries begun, repeats and duplicates included."""
    acknowledged: int = 0
    refused: int = 0
    """Deliveries that were nacked, or not answered in time."""
    dead_lettered: int = 0
    dropped: int = 0
    """Messages dropped because of the retention or a full memory."""


@dataclass(frozen=True)
class DeadLetter:
    """A message that a subscription has dropped or dead-lettered."""

    subscription: str
    message: Message
    attempts: int


@dataclass(frozen=True)
class Received:
    """A pulled message; ``delivery_attempt`` is 0 without a dead-letter policy."""

    ack_id: str
    message: Message
    delivery_attempt: int


def check_name(name: str, kind: str) -> None:
    """Raise `InvalidArgument` unless ``name`` can name one of ``kind`` (topics, subscriptions)."""
    if _NAME[kind].fullmatch(name):
        return
    raise InvalidArgument(
        f"Invalid resource name given (name={name}). Refer to "
        "https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names for more information."
    )


def check_request(messages: int, size_bytes: int) -> None:
    """Raise `InvalidArgument` for a publish request that exceeds the limits of the service."""
    for name, value, low, high in (
        ("message_count", messages, 1, MAX_MESSAGES),
        ("request_size", size_bytes, 0, MAX_REQUEST_BYTES),
    ):
        if refusal := _out_of(name, value, low, high):
            raise InvalidArgument(refusal)


def check_message(data: bytes, attributes: Mapping[str, str]) -> None:
    """Raise `InvalidArgument` for a message that the service does not accept."""
    for refusal in _list_message_violations(data, attributes):
        raise InvalidArgument(refusal)


def check_lease(seconds: float) -> None:
    """Raise `InvalidArgument` unless the deadline of a lease is allowed."""
    if not 0 <= seconds <= 600:
        raise InvalidArgument(_bad_deadline(seconds, 0))


def check_ack_ids(ack_ids: Sequence[str], subscription: str) -> None:
    """Raise `InvalidArgument` unless there are ids, and all of them of the subscription's kind."""
    if not ack_ids:
        raise InvalidArgument("You have not specified an ack ID in the request.")
    for ack_id in ack_ids:
        name, _, number = ack_id.rpartition(":")
        if name != subscription or not number.isdigit():
            raise InvalidArgument(
                f"You have passed an invalid ack ID to the service (ack_id={ack_id})."
            )


def check_subscription(config: SubscriptionConfig) -> None:
    """Raise `InvalidArgument` or `OutOfRange` for settings outside of their documented range."""
    check_name(config.name, "subscriptions")
    for refusal in _list_subscription_violations(config):
        raise refusal


def _list_message_violations(data: bytes, attributes: Mapping[str, str]) -> Iterator[str]:
    if not data and not attributes:
        yield (
            "One or more messages in the publish request is empty. Each message must contain "
            "either non-empty data, or at least one attribute."
        )
    if len(attributes) > MAX_ATTRIBUTES:
        yield f"The message has {len(attributes)} attributes of {MAX_ATTRIBUTES} allowed."
    for key, value in attributes.items():
        if not key:
            yield "The key of an attribute is empty."
        for what, text, most in (("key", key, MAX_KEY_BYTES), ("value", value, MAX_VALUE_BYTES)):
            length = len(text.encode())
            if length > most:
                yield (
                    f'The attribute "{key}" in the request has a {what} that is too long. The '
                    f"length is {length} characters, but the maximum allowed is {most}. Refer to "
                    "https://cloud.google.com/pubsub/quotas for more information."
                )


def _list_subscription_violations(config: SubscriptionConfig) -> Iterator[PubSubError]:
    if not 10 <= config.ack_deadline_s <= 600:
        yield InvalidArgument(_bad_deadline(config.ack_deadline_s, 10))
    if config.retry:
        low, high = config.retry.minimum_backoff_s, config.retry.maximum_backoff_s
        for name, value in (("minimum_backoff", low), ("maximum_backoff", high)):
            if not 0 <= value <= 600:
                yield InvalidArgument(
                    f"The value for {name} is out of bounds. You passed {value:.10g}s in the "
                    "request, but the value must be between 0s and 600s."
                )
        if high < low:
            yield InvalidArgument(
                f"The value for maximum_backoff is too small. You passed {high:.10g}s in the "
                f"request, but the minimum value is {low:.10g}s."
            )
    if config.dead_letter:
        attempts = config.dead_letter.max_delivery_attempts
        if refusal := _out_of("max_delivery_attempts", attempts, 5, 100):
            yield OutOfRange(refusal)


def _bad_deadline(seconds: float, least: int) -> str:
    return (
        f"Invalid ack deadline given (ack_deadline={seconds:g}). The ack deadline must be between "
        f"{least} and 600 seconds."
    )


def _out_of(name: str, value: int, least: int, most: int) -> str:
    """The violation of the bounds of a number; empty if it is within them."""
    if value < least:
        return (
            f"The value for {name} is too small. You passed {value} in the request, but the "
            f"minimum value is {least}."
        )
    if value > most:
        return (
            f"The value for {name} is too large. You passed {value} in the request, but the "
            f"maximum value is {most}."
        )
    return ""
