"""Messages and the settings of subscriptions, with the limits that the service documents.

Names are full resource names: ``projects/P/topics/T``, ``projects/P/subscriptions/S``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from local.pubsub import filters
from local.pubsub.errors import InvalidArgument

DAY_S = 86_400
MAX_MESSAGE_BYTES = 10_000_000
MAX_ATTRIBUTES = 100
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024
MAX_FILTER_BYTES = 256

_ID = r"(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}"
_NAME = {kind: re.compile(rf"projects/[^/]+/{kind}/{_ID}") for kind in ("topics", "subscriptions")}


@dataclass(frozen=True)
class Message:
    """One published message; ``id`` is unique and the same in every delivery of it."""

    id: str
    data: bytes
    attributes: Mapping[str, str]
    publish_time: datetime
    ordering_key: str = ""

    @property
    def size_bytes(self) -> int:
        """What the message is billed by: data, attributes, id and time."""
        attributes = sum(len(key) + len(value) for key, value in self.attributes.items())
        return len(self.data) + attributes + len(self.id) + 20


@dataclass(frozen=True)
class PushIdentity:
    """The service account that a push speaks for; without ``audience`` it is the endpoint."""

    email: str
    audience: str = ""


@dataclass(frozen=True)
class PushConfig:
    """Where messages are pushed to, and as whom; what an endpoint means is the pusher's business."""

    endpoint: str
    identity: PushIdentity | None = None


@dataclass(frozen=True)
class RetryPolicy:
    """How long a message rests after a refusal: from the minimum, doubling, to the maximum."""

    minimum_backoff_s: float = 10.0
    maximum_backoff_s: float = 600.0

    def backoff_s(self, attempts: int) -> float:
        """The rest after so many failed attempts (1 or more). That it doubles is assumed."""
        doublings = min(attempts - 1, 32)
        return min(self.maximum_backoff_s, self.minimum_backoff_s * 2.0**doublings)


@dataclass(frozen=True)
class DeadLetterPolicy:
    """Where a message goes that has failed so often; a topic of the same service."""

    topic: str
    max_delivery_attempts: int = 5


@dataclass(frozen=True)
class SubscriptionConfig:
    """A subscription's settings; with ``push`` it pushes, without it is pulled from."""

    name: str
    topic: str
    push: PushConfig | None = None
    ack_deadline_s: int = 10
    """For a push this is the time-out of the request."""
    retry: RetryPolicy | None = None
    """Without one a message is tried again at once."""
    dead_letter: DeadLetterPolicy | None = None
    filter: str = ""
    retention_s: int = 7 * DAY_S
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Counts:
    """What a subscription has done so far."""

    received: int = 0
    """Messages taken from the topic; those that the filter left out are not among them."""
    filtered: int = 0
    delivered: int = 0
    """Deliveries begun, repeats and duplicates included."""
    acknowledged: int = 0
    refused: int = 0
    """Deliveries answered with a refusal, or not in time."""
    dead_lettered: int = 0
    dropped: int = 0
    """Messages that outlived the retention, or found the subscription's memory full."""


@dataclass(frozen=True)
class DeadLetter:
    """A message that a subscription has given up on."""

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


def check_message(data: bytes, attributes: Mapping[str, str]) -> None:
    """Raise `InvalidArgument` for a message that the service does not take."""
    for refusal in _message_refusals(data, attributes):
        raise InvalidArgument(refusal)


def check_subscription(config: SubscriptionConfig) -> None:
    """Raise `InvalidArgument` for settings outside of their documented range."""
    check_name(config.name, "subscriptions")
    for refusal in _subscription_refusals(config):
        raise InvalidArgument(refusal)


def _message_refusals(data: bytes, attributes: Mapping[str, str]) -> Iterator[str]:
    if not data and not attributes:
        yield (
            "One or more messages in the publish request is empty. Each message must contain "
            "either non-empty data, or at least one attribute."
        )
    if len(data) > MAX_MESSAGE_BYTES:
        yield f"The value for data is too large: {len(data)} bytes of {MAX_MESSAGE_BYTES} allowed."
    if len(attributes) > MAX_ATTRIBUTES:
        yield f"The message has {len(attributes)} attributes of {MAX_ATTRIBUTES} allowed."
    for key, value in attributes.items():
        if not 0 < len(key.encode()) <= MAX_KEY_BYTES:
            yield f"The attribute key {key!r} must have 1 to {MAX_KEY_BYTES} bytes."
        if len(value.encode()) > MAX_VALUE_BYTES:
            yield f"The value of attribute {key!r} is longer than {MAX_VALUE_BYTES} bytes."


def _subscription_refusals(config: SubscriptionConfig) -> Iterator[str]:
    ranges: list[tuple[str, float, float, float]] = [
        ("ack_deadline_seconds", config.ack_deadline_s, 10, 600),
        ("message_retention_duration", config.retention_s, 600, 31 * DAY_S),
    ]
    if config.retry:
        ranges.append(("minimum_backoff", config.retry.minimum_backoff_s, 0, 600))
        ranges.append(
            ("maximum_backoff", config.retry.maximum_backoff_s, config.retry.minimum_backoff_s, 600)
        )
    if config.dead_letter:
        attempts = config.dead_letter.max_delivery_attempts
        ranges.append(("max_delivery_attempts", attempts, 5, 100))
    for name, value, low, high in ranges:
        if not low <= value <= high:
            yield f"The value for {name} is {value:.10g}; it must be {low:.10g} to {high:.10g}."
    if len(config.filter.encode()) > MAX_FILTER_BYTES:
        yield f"The filter is longer than {MAX_FILTER_BYTES} bytes."
    try:
        filters.parse(config.filter)
    except filters.FilterError as error:
        yield f"Invalid filter: {error}"
