"""Errors about names, messages and settings out of their documented range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from local.pubsub.errors import AlreadyExists, InvalidArgument, NotFound, PubSubError
from local.pubsub.model import DeadLetterPolicy, RetryPolicy, SubscriptionConfig
from local.tests.pubsub.service import DEAD, SUBSCRIPTION, TOPIC, Service

CONFIG = SubscriptionConfig(SUBSCRIPTION, TOPIC)


@pytest.fixture
def service() -> Service:
    return Service()


NAMES = ["projects/p/topics/ab", "projects/p/topics/goog-x", "projects/p/topics/1abc", "inbox", ""]


@pytest.mark.parametrize("name", NAMES)
def test_an_invalid_topic_name_is_an_error(service: Service, name: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        service.pubsub.create_topic(name)
    assert str(refusal.value).startswith(f"Invalid resource name given (name={name}).")


MESSAGES: list[Any] = [
    pytest.param(b"", {}, "One or more messages in the publish request is empty.", id="empty"),
    pytest.param(b"", {str(n): "" for n in range(101)}, "has 101 attributes", id="attributes"),
    pytest.param(b"", {"": "x"}, "The key of an attribute is empty", id="no key"),
    pytest.param(
        b"",
        {"k" * 257: ""},
        "has a key that is too long. The length is 257 characters, but the maximum allowed is 256",
        id="long key",
    ),
    pytest.param(
        b"",
        {"k": "é" * 513},
        'The attribute "k" in the request has a value that is too long. The length is 1026',
        id="long value",
    ),
]


@pytest.mark.parametrize("data,attributes,message", MESSAGES)
def test_an_invalid_message_is_an_error(
    service: Service, data: bytes, attributes: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        service.pubsub.publish(TOPIC, data, attributes)


SETTINGS: list[Any] = [
    pytest.param(
        replace(CONFIG, ack_deadline_s=9),
        "Invalid ack deadline given (ack_deadline=9). "
        "The ack deadline must be between 10 and 600 seconds.",
        id="a short deadline",
    ),
    pytest.param(
        replace(CONFIG, ack_deadline_s=601),
        "Invalid ack deadline given (ack_deadline=601). "
        "The ack deadline must be between 10 and 600 seconds.",
        id="a long deadline",
    ),
    pytest.param(
        replace(CONFIG, retention_s=599),
        "The value for message_retention_duration is out of bounds. You passed 599s in the request, "
        "but the value must be between 600s and 2678400s.",
        id="a short retention",
    ),
    pytest.param(
        replace(CONFIG, retry=RetryPolicy(10, 700)),
        "The value for maximum_backoff is out of bounds. You passed 700s in the request, "
        "but the value must be between 0s and 600s.",
        id="a long backoff",
    ),
    pytest.param(
        replace(CONFIG, retry=RetryPolicy(20, 10)),
        "The value for maximum_backoff is too small. You passed 10s in the request, "
        "but the minimum value is 20s.",
        id="a maximum below the minimum",
    ),
    pytest.param(
        replace(CONFIG, dead_letter=DeadLetterPolicy(DEAD, 4)),
        "The value for max_delivery_attempts is too small. You passed 4 in the request, "
        "but the minimum value is 5.",
        id="few attempts",
    ),
    pytest.param(
        replace(CONFIG, dead_letter=DeadLetterPolicy(DEAD, 101)),
        "The value for max_delivery_attempts is too large. You passed 101 in the request, "
        "but the maximum value is 100.",
        id="many attempts",
    ),
    pytest.param(
        replace(CONFIG, filter="attributes:" + "k" * 256),
        "The filter is longer than 256 bytes.",
        id="a long filter",
    ),
    pytest.param(
        replace(CONFIG, filter="attributes"),
        "Invalid filter: expected '.' or ':' at 11, found the end",
        id="an invalid filter",
    ),
]


@pytest.mark.parametrize("config,message", SETTINGS)
def test_settings_out_of_range_are_errors(
    service: Service, config: SubscriptionConfig, message: str
) -> None:
    with pytest.raises(PubSubError) as refusal:
        service.pubsub.create_subscription(config)
    assert str(refusal.value) == message


Act = Callable[[Service], object]

MISSING: list[Any] = [
    pytest.param(lambda s: s.pubsub.publish(TOPIC + "2", b"x", {}), "inbox2", id="publish"),
    pytest.param(lambda s: s.pubsub.delete_topic(TOPIC + "2"), "inbox2", id="delete_topic"),
    pytest.param(lambda s: s.pubsub.pull(SUBSCRIPTION, 1), "inbox", id="pull"),
    pytest.param(lambda s: s.pubsub.acknowledge(SUBSCRIPTION, []), "inbox", id="acknowledge"),
    pytest.param(
        lambda s: s.pubsub.create_subscription(replace(CONFIG, topic=TOPIC + "2")),
        "inbox2",
        id="create_subscription",
    ),
    pytest.param(
        lambda s: s.pubsub.create_subscription(
            replace(CONFIG, dead_letter=DeadLetterPolicy(DEAD + "2"))
        ),
        "dead2",
        id="dead_letter_topic",
    ),
]


@pytest.mark.parametrize("act,name", MISSING)
def test_an_absent_resource_is_not_found(service: Service, act: Act, name: str) -> None:
    with pytest.raises(NotFound) as refusal:
        act(service)
    assert str(refusal.value) == f"Resource not found (resource={name})."


def test_a_name_in_use_is_an_error(service: Service) -> None:
    service.subscribe()
    with pytest.raises(AlreadyExists, match=r"in the project \(resource=inbox\)"):
        service.pubsub.create_topic(TOPIC)
    with pytest.raises(AlreadyExists, match=r"in the project \(resource=inbox\)"):
        service.subscribe()


@pytest.mark.parametrize("seconds", [-1, 601])
def test_a_lease_is_limited_to_ten_minutes(service: Service, seconds: int) -> None:
    service.subscribe(push=False)
    service.publish(b"x")
    (received,) = service.pull()
    with pytest.raises(InvalidArgument, match="must be between 0 and 600 seconds"):
        service.pubsub.modify_ack_deadline(SUBSCRIPTION, [received.ack_id], seconds)


ACK_IDS: list[Any] = [
    pytest.param([], "You have not specified an ack ID in the request.", id="none"),
    pytest.param(["x"], "an invalid ack ID to the service (ack_id=x).", id="no id"),
    pytest.param(
        ["projects/p/subscriptions/other:1"],
        "an invalid ack ID to the service (ack_id=projects/p/subscriptions/other:1).",
        id="an id of another subscription",
    ),
]


@pytest.mark.parametrize("ack_ids,message", ACK_IDS)
def test_an_unknown_ack_id_is_an_error(service: Service, ack_ids: list[str], message: str) -> None:
    service.subscribe(push=False)
    with pytest.raises(InvalidArgument) as refusal:
        service.pubsub.acknowledge(SUBSCRIPTION, ack_ids)
    assert str(refusal.value).endswith(message)
