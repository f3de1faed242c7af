# ruff: noqa: E501  (a table reads best with a row on a line)
"""Errors, with the service's status and message.

A message is the service's own if its users have published it. Others are the emulator's, or our own if
the emulator accepts the request.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from local.tests.contract.pubsub.bench import Bench
from local.tests.contract.pubsub.case import ACCEPTED, Act, Differs, error_case

_NAMES = (
    "Refer to https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names for more "
    "information."
)
_QUOTAS = "Refer to https://cloud.google.com/pubsub/quotas for more information."


def _accepts(how: str) -> Differs:
    return Differs(ACCEPTED, how)


def _subscribe(**fields: Any) -> Act:
    return lambda bench: bench.subscribe("other", **fields)


def _dead_letters(**fields: Any) -> Act:
    return lambda bench: bench.subscribe(
        "other", dead_letter_policy={"dead_letter_topic": bench.topic_name(), **fields}
    )


def _publish(data: bytes = b"x", **fields: Any) -> Act:
    return lambda bench: bench.publish(data, **fields)


def _acknowledge(*ack_ids: str) -> Act:
    return lambda bench: bench.subscriber.acknowledge(
        subscription=bench.subscription_name(), ack_ids=ack_ids
    )


def _create_topic(topic_id: str) -> Act:
    return lambda bench: bench.topic(topic_id)


def _lease_for(seconds: int) -> Act:
    def act(bench: Bench) -> None:
        bench.publish()
        bench.lease(bench.pull(), seconds)

    return act


ERRORS: list[tuple[Any, ...]] = [
    ("a topic cannot be created twice", lambda bench: bench.topic(), "ALREADY_EXISTS", "Resource already exists in the project (resource=main).", "Topic already exists"),
    ("a subscription cannot be created twice", lambda bench: bench.subscribe(), "ALREADY_EXISTS", "Resource already exists in the project (resource=main).", "Subscription already exists"),
    (
        "a topic's name for a subscription is an error",
        lambda bench: bench.subscriber.create_subscription(
            name=bench.topic_name("other"), topic=bench.topic_name()
        ),
        "INVALID_ARGUMENT",
        f"Invalid resource name given (name=projects/P/topics/other). {_NAMES}",
        "Invalid [subscriptions] name: (name=projects/P/topics/other)",
    ),
    ("publishing to an absent topic is an error", _publish(topic="other"), "NOT_FOUND", "Resource not found (resource=other).", "Topic not found"),
    ("a subscription to an absent topic is an error", _subscribe(topic="other"), "NOT_FOUND", "Resource not found (resource=other).", "Subscription topic does not exist"),
    (
        "a dead-letter policy with an absent topic is an error",
        lambda bench: bench.subscribe(
            "other", dead_letter_policy={"dead_letter_topic": bench.topic_name("other")}
        ),
        "NOT_FOUND",
        "Resource not found (resource=other).",
        "Dead letter topic not found",
    ),
    ("a dead-letter policy without a topic is an error", _subscribe(dead_letter_policy={"max_delivery_attempts": 5}), "NOT_FOUND", "Resource not found (resource=).", "Dead letter topic not found"),
    (
        "an absent subscription cannot be deleted",
        lambda bench: bench.subscriber.delete_subscription(
            subscription=bench.subscription_name("other")
        ),
        "NOT_FOUND",
        "Resource not found (resource=other).",
        "Subscription does not exist",
    ),
    ("an absent subscription cannot be pulled", lambda bench: bench.pull("other"), "NOT_FOUND", "Resource not found (resource=other).", "Subscription does not exist"),
    (
        "a backoff longer than ten minutes is an error",
        _subscribe(retry_policy={"maximum_backoff": timedelta(seconds=700)}),
        "INVALID_ARGUMENT",
        "The value for maximum_backoff is out of bounds. You passed 700s in the request, but the value must be between 0s and 600s.",
    ),
    (
        "a maximum backoff below the default minimum of ten seconds is an error",
        _subscribe(retry_policy={"maximum_backoff": timedelta(seconds=5)}),
        "INVALID_ARGUMENT",
        "The value for maximum_backoff is too small. You passed 5s in the request, but the minimum value is 10s.",
    ),
    (
        "a push endpoint that is no HTTP URL is an error",
        _subscribe(push_config={"push_endpoint": "ftp://example.com/"}),
        "INVALID_ARGUMENT",
        "Invalid push endpoint given (endpoint=ftp://example.com/). Refer to https://cloud.google.com/pubsub/subscriber#create for more information.",
        "Unsupported push_endpoint",
    ),
    (
        "a request without messages is an error",
        lambda bench: bench.publish_all([]),
        "INVALID_ARGUMENT",
        "The value for message_count is too small. You passed 0 in the request, but the minimum value is 1.",
        "No messages to publish",
    ),
    (
        "a request with more than a thousand messages is an error",
        lambda bench: bench.publish_all([{"data": b"x"}] * 1_001),
        "INVALID_ARGUMENT",
        "The value for message_count is too large. You passed 1001 in the request, but the maximum value is 1000.",
        "Too many messages to publish",
    ),
    (
        "an empty message is an error",
        _publish(b""),
        "INVALID_ARGUMENT",
        "One or more messages in the publish request is empty. Each message must contain either non-empty data, or at least one attribute.",
        "Some messages are empty",
    ),
    (
        "a request of more than ten million bytes is an error",
        _publish(b"x" * 10_000_000),
        "INVALID_ARGUMENT",
        "The value for request_size is too large. You passed 10000047 in the request, but the maximum value is 10000000.",
        _accepts("accepts a little more, and does not answer if it is far more"),
    ),
    (
        "a pull of zero messages is an error",
        lambda bench: bench.subscriber.pull(subscription=bench.subscription_name(), max_messages=0),
        "INVALID_ARGUMENT",
        "You have passed an invalid argument to the service (argument=max_messages).",
        "No max_messages specified",
    ),
    (
        "a pull from a push subscription is an error",
        lambda bench: bench.push(bench.receiver(), "other") and bench.pull_now("other"),
        "FAILED_PRECONDITION",
        "This method is not supported for this subscription type.",
        _accepts("allows the pull"),
    ),
    ("an acknowledgement without an ack id is an error", _acknowledge(), "INVALID_ARGUMENT", "You have not specified an ack ID in the request.", "No ack ids specified."),
    ("an unknown ack id is an error", _acknowledge("junk"), "INVALID_ARGUMENT", "You have passed an invalid ack ID to the service (ack_id=junk).", "Invalid ack id (ack_id=junk)"),
]  # fmt: skip
for row in ERRORS:
    error_case(*row)

for what, topic_id in (
    ("too short", "ab"),
    ("too long", "a" * 256),
    ("without a letter at its start", "1abc"),
    ("with the prefix goog", "goog-x"),
    ("with a space", "a b"),
):
    error_case(
        f"a topic's name {what} is an error",
        _create_topic(topic_id),
        "INVALID_ARGUMENT",
        f"Invalid resource name given (name=projects/P/topics/{topic_id}). {_NAMES}",
        emulator=f"Invalid [topics] name: (name=projects/P/topics/{topic_id})",
    )
for what, seconds, emulator in (
    ("shorter than ten seconds", 9, _accepts("accepts any deadline from one second")),
    ("longer than ten minutes", 601, "ack_deadline_secs out of bounds"),
):
    error_case(
        f"an ack deadline {what} is an error",
        _subscribe(ack_deadline_seconds=seconds),
        "INVALID_ARGUMENT",
        f"Invalid ack deadline given (ack_deadline={seconds}). The ack deadline must be between 10 "
        "and 600 seconds.",
        emulator=emulator,
    )
for what, attempts, bound in (
    ("below five", 4, "too small. You passed 4 in the request, but the minimum value is 5."),
    (
        "above 100",
        101,
        "too large. You passed 101 in the request, but the maximum value is 100.",
    ),
):
    error_case(
        f"a limit of delivery attempts {what} is an error",
        _dead_letters(max_delivery_attempts=attempts),
        "OUT_OF_RANGE",
        f"The value for max_delivery_attempts is {bound}",
    )
for what, attributes, message in (
    (
        "more than 100 attributes",
        {str(number): "" for number in range(101)},
        "The message has 101 attributes of 100 allowed.",
    ),
    ("an attribute without a key", {"": "x"}, "The key of an attribute is empty."),
    (
        "a key longer than 256 bytes",
        {"k" * 257: "x"},
        f'The attribute "{"k" * 257}" in the request has a key that is too long. The length is 257 '
        f"characters, but the maximum allowed is 256. {_QUOTAS}",
    ),
    (
        "a value longer than 1,024 bytes",
        {"k": "é" * 513},
        'The attribute "k" in the request has a value that is too long. The length is 1026 '
        f"characters, but the maximum allowed is 1024. {_QUOTAS}",
    ),
):
    error_case(
        f"a message with {what} is an error",
        _publish(attributes=attributes),
        "INVALID_ARGUMENT",
        message,
        emulator=_accepts("has no limits on attributes"),
    )
for what, seconds, emulator in (
    ("less than zero seconds", -1, "Ack deadline cannot be negative"),
    ("more than ten minutes", 601, _accepts("accepts any lease")),
):
    error_case(
        f"a lease of {what} is an error",
        _lease_for(seconds),
        "INVALID_ARGUMENT",
        f"Invalid ack deadline given (ack_deadline={seconds}). The ack deadline must be between 0 "
        "and 600 seconds.",
        emulator=emulator,
    )
