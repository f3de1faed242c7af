"""What is refused, with the service's status and words.

The words are the service's own where its users have shown them in public, and elsewhere those of the
emulator or, if it takes what the service refuses, our own.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from local.tests.contract.pubsub.bench import Bench
from local.tests.contract.pubsub.case import TAKEN, Act, Differs, refused

_NAMES = (
    "Refer to https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names for more "
    "information."
)
_QUOTAS = "Refer to https://cloud.google.com/pubsub/quotas for more information."
_MASK = "Invalid update_mask provided in the UpdateSubscriptionRequest:"
_NOT_KNOWN = (
    "is not a known Subscription field. Note that field paths must be of the form 'push_config' "
    "rather than 'pushConfig'."
)


def _takes(how: str) -> Differs:
    return Differs(TAKEN, how)


def _subscribe(**fields: Any) -> Act:
    return lambda bench: bench.subscribe("other", **fields)


def _update(*paths: str, **fields: Any) -> Act:
    return lambda bench: bench.update(*paths, **fields)


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


def _make_topic(topic_id: str) -> Act:
    return lambda bench: bench.topic(topic_id)


def _lease_for(seconds: int) -> Act:
    def act(bench: Bench) -> None:
        bench.publish()
        bench.lease(bench.pull(), seconds)

    return act


# Names

refused(
    "a topic cannot be made twice",
    lambda bench: bench.topic(),
    "ALREADY_EXISTS",
    "Resource already exists in the project (resource=inbox).",
    emulator="Topic already exists",
)
refused(
    "a subscription cannot be made twice",
    lambda bench: bench.subscribe(),
    "ALREADY_EXISTS",
    "Resource already exists in the project (resource=inbox).",
    emulator="Subscription already exists",
)
for what, topic_id in (
    ("too short", "ab"),
    ("too long", "a" * 256),
    ("not begun by a letter", "1abc"),
    ("begun by goog", "goog-x"),
    ("with a space", "a b"),
):
    refused(
        f"a topic's name is refused that is {what}",
        _make_topic(topic_id),
        "INVALID_ARGUMENT",
        f"Invalid resource name given (name=projects/P/topics/{topic_id}). {_NAMES}",
        emulator=f"Invalid [topics] name: (name=projects/P/topics/{topic_id})",
    )
refused(
    "a name without its project is refused, and not looked for",
    lambda bench: bench.publisher.get_topic(topic="inbox"),
    "INVALID_ARGUMENT",
    f"Invalid resource name given (name=inbox). {_NAMES}",
    emulator="Invalid [topics] name: (name=inbox)",
)
refused(
    "a subscription's name must say that it is one",
    lambda bench: bench.subscriber.create_subscription(
        name=bench.topic_name("other"), topic=bench.topic_name()
    ),
    "INVALID_ARGUMENT",
    f"Invalid resource name given (name=projects/P/topics/other). {_NAMES}",
    emulator="Invalid [subscriptions] name: (name=projects/P/topics/other)",
)

# What is not there

refused(
    "a topic that is not there is not found",
    lambda bench: bench.publisher.get_topic(topic=bench.topic_name("other")),
    "NOT_FOUND",
    "Resource not found (resource=other).",
    emulator="Topic not found",
)
refused(
    "a topic that is not there cannot be deleted",
    lambda bench: bench.publisher.delete_topic(topic=bench.topic_name("other")),
    "NOT_FOUND",
    "Resource not found (resource=other).",
    emulator="Topic not found",
)
refused(
    "nothing can be published to a topic that is not there",
    _publish(topic="other"),
    "NOT_FOUND",
    "Resource not found (resource=other).",
    emulator="Topic not found",
)
refused(
    "listing the subscriptions of an absent topic is an error",
    lambda bench: bench.publisher.list_topic_subscriptions(topic=bench.topic_name("other")),
    "NOT_FOUND",
    "Resource not found (resource=other).",
    emulator=_takes("returns an empty list"),
)
refused(
    "a subscription needs a topic",
    _subscribe(topic="other"),
    "NOT_FOUND",
    "Resource not found (resource=other).",
    emulator="Subscription topic does not exist",
)
refused(
    "a dead-letter policy needs its topic",
    lambda bench: bench.subscribe(
        "other", dead_letter_policy={"dead_letter_topic": bench.topic_name("other")}
    ),
    "NOT_FOUND",
    "Resource not found (resource=other).",
    emulator="Dead letter topic not found",
)
refused(
    "a dead-letter policy must name a topic",
    _subscribe(dead_letter_policy={"max_delivery_attempts": 5}),
    "NOT_FOUND",
    "Resource not found (resource=).",
    emulator="Dead letter topic not found",
)
refused(
    "a subscription that is not there is not found",
    lambda bench: bench.subscriber.get_subscription(subscription=bench.subscription_name("other")),
    "NOT_FOUND",
    "Resource not found (resource=other).",
    emulator="Subscription does not exist",
)
refused(
    "a subscription that is not there cannot be deleted",
    lambda bench: bench.subscriber.delete_subscription(
        subscription=bench.subscription_name("other")
    ),
    "NOT_FOUND",
    "Resource not found (resource=other).",
    emulator="Subscription does not exist",
)
refused(
    "a subscription that is not there cannot be pulled from",
    lambda bench: bench.pull("other"),
    "NOT_FOUND",
    "Resource not found (resource=other).",
    emulator="Subscription does not exist",
)
refused(
    "a subscription that is not there cannot be pointed elsewhere",
    lambda bench: bench.subscriber.modify_push_config(
        subscription=bench.subscription_name("other"), push_config={}
    ),
    "NOT_FOUND",
    "Resource not found (resource=other).",
    emulator="Subscription does not exist",
)
refused(
    "a subscription that is not there cannot be updated",
    _update("ack_deadline_seconds", subscription_id="other"),
    "NOT_FOUND",
    "Resource not found (resource=other).",
    emulator="Subscription not found.",
)

# A subscription's settings

for what, seconds, emulator in (
    ("shorter than ten seconds", 9, _takes("accepts any deadline from one second")),
    ("longer than ten minutes", 601, "ack_deadline_secs out of bounds"),
):
    refused(
        f"an ack deadline {what} is an error",
        _subscribe(ack_deadline_seconds=seconds),
        "INVALID_ARGUMENT",
        f"Invalid ack deadline given (ack_deadline={seconds}). The ack deadline must be between 10 "
        "and 600 seconds.",
        emulator=emulator,
    )
for what, seconds in (("shorter than ten minutes", 599), ("longer than 31 days", 2_678_401)):
    refused(
        f"a retention is refused that is {what}",
        _subscribe(message_retention_duration=timedelta(seconds=seconds)),
        "INVALID_ARGUMENT",
        f"The value for message_retention_duration is out of bounds. You passed {seconds}s in the "
        "request, but the value must be between 600s and 2678400s.",
        emulator="message_retention_duration out of bounds",
    )
refused(
    "a back-off is refused that is longer than ten minutes",
    _subscribe(retry_policy={"maximum_backoff": timedelta(seconds=700)}),
    "INVALID_ARGUMENT",
    "The value for maximum_backoff is out of bounds. You passed 700s in the request, but the value "
    "must be between 0s and 600s.",
)
refused(
    "a maximal back-off is refused that is shorter than the minimal one, which is ten seconds if unsaid",
    _subscribe(retry_policy={"maximum_backoff": timedelta(seconds=5)}),
    "INVALID_ARGUMENT",
    "The value for maximum_backoff is too small. You passed 5s in the request, but the minimum value "
    "is 10s.",
)
for what, attempts, bound in (
    ("fewer than five", 4, "too small. You passed 4 in the request, but the minimum value is 5."),
    (
        "more than 100",
        101,
        "too large. You passed 101 in the request, but the maximum value is 100.",
    ),
):
    refused(
        f"delivery attempts are refused that are {what}",
        _dead_letters(max_delivery_attempts=attempts),
        "OUT_OF_RANGE",
        f"The value for max_delivery_attempts is {bound}",
    )
refused(
    "a push endpoint is refused that is not of HTTP",
    _subscribe(push_config={"push_endpoint": "ftp://example.com/"}),
    "INVALID_ARGUMENT",
    "Invalid push endpoint given (endpoint=ftp://example.com/). Refer to "
    "https://cloud.google.com/pubsub/subscriber#create for more information.",
    emulator="Unsupported push_endpoint",
)
refused(
    "an invalid filter is an error",
    _subscribe(filter="bogus("),
    "INVALID_ARGUMENT",
    "Invalid filter: expected attributes, hasPrefix, NOT or ( at 1, found 'bogus'",
    emulator=_takes("accepts any text as a filter"),
)
refused(
    "a filter longer than 256 bytes is an error",
    _subscribe(filter="attributes:" + "k" * 246),
    "INVALID_ARGUMENT",
    "The filter is longer than 256 bytes.",
    emulator=_takes("accepts any text as a filter"),
)

# An update of a subscription

refused(
    "an update must say of what",
    _update(ack_deadline_seconds=60),
    "INVALID_ARGUMENT",
    "The update_mask in the UpdateSubscriptionRequest must be set, and must contain a non-empty "
    "paths list.",
)
refused(
    "a field that nobody knows cannot be updated",
    _update("nonsense"),
    "INVALID_ARGUMENT",
    f"{_MASK} 'nonsense' {_NOT_KNOWN}",
    emulator=f"{_MASK} nonsense {_NOT_KNOWN}",
)
refused(
    "a subscription's topic cannot be changed",
    _update("topic"),
    "INVALID_ARGUMENT",
    f"{_MASK} the 'topic' field in the Subscription is not mutable.",
    emulator=f"{_MASK} the topic field in the Subscription is not mutable.",
)
refused(
    "a subscription's filter cannot be changed",
    _update("filter", filter="attributes:k"),
    "INVALID_ARGUMENT",
    f"{_MASK} the 'filter' field in the Subscription is not mutable.",
    emulator="Updating the filter field is currently unsupported in the Pub/Sub Emulator.",
)
refused(
    "an update keeps within the bounds",
    _update("ack_deadline_seconds", ack_deadline_seconds=601),
    "INVALID_ARGUMENT",
    "Invalid ack deadline given (ack_deadline=601). The ack deadline must be between 10 and 600 "
    "seconds.",
    emulator="ack_deadline_secs out of bounds",
)

# Publishing

refused(
    "a request without messages is refused",
    lambda bench: bench.publish_all([]),
    "INVALID_ARGUMENT",
    "The value for message_count is too small. You passed 0 in the request, but the minimum value "
    "is 1.",
    emulator="No messages to publish",
)
refused(
    "a request with more than a thousand messages is refused",
    lambda bench: bench.publish_all([{"data": b"x"}] * 1_001),
    "INVALID_ARGUMENT",
    "The value for message_count is too large. You passed 1001 in the request, but the maximum value "
    "is 1000.",
    emulator="Too many messages to publish",
)
refused(
    "a message of nothing is refused",
    _publish(b""),
    "INVALID_ARGUMENT",
    "One or more messages in the publish request is empty. Each message must contain either "
    "non-empty data, or at least one attribute.",
    emulator="Some messages are empty",
)
refused(
    "a request of more than ten million bytes is an error",
    _publish(b"x" * 10_000_000),
    "INVALID_ARGUMENT",
    "The value for request_size is too large. You passed 10000048 in the request, but the maximum "
    "value is 10000000.",
    emulator=_takes("accepts a little more, and does not answer if it is far more"),
)
for what, attributes, words in (
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
        {"k": "x" * 1_025},
        'The attribute "k" in the request has a value that is too long. The length is 1025 '
        f"characters, but the maximum allowed is 1024. {_QUOTAS}",
    ),
):
    refused(
        f"a message with {what} is an error",
        _publish(attributes=attributes),
        "INVALID_ARGUMENT",
        words,
        emulator=_takes("has no limits on attributes"),
    )

# Pulling

refused(
    "no messages cannot be pulled",
    lambda bench: bench.subscriber.pull(subscription=bench.subscription_name(), max_messages=0),
    "INVALID_ARGUMENT",
    "You have passed an invalid argument to the service (argument=max_messages).",
    emulator="No max_messages specified",
)
refused(
    "a pull from a push subscription is an error",
    lambda bench: bench.push(bench.inbox(), "other") and bench.pull_now("other"),
    "FAILED_PRECONDITION",
    "This method is not supported for this subscription type.",
    emulator=_takes("allows the pull"),
)
refused(
    "an acknowledgement needs an id",
    _acknowledge(),
    "INVALID_ARGUMENT",
    "You have not specified an ack ID in the request.",
    emulator="No ack ids specified.",
)
refused(
    "an ack id must be one that was given",
    _acknowledge("junk"),
    "INVALID_ARGUMENT",
    "You have passed an invalid ack ID to the service (ack_id=junk).",
    emulator="Invalid ack id (ack_id=junk)",
)
for what, seconds, emulator in (
    ("less than nothing", -1, "Ack deadline cannot be negative"),
    ("more than ten minutes", 601, _takes("accepts any lease")),
):
    refused(
        f"a lease of {what} is an error",
        _lease_for(seconds),
        "INVALID_ARGUMENT",
        f"Invalid ack deadline given (ack_deadline={seconds}). The ack deadline must be between 0 "
        "and 600 seconds.",
        emulator=emulator,
    )
