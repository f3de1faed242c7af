"""Messages are published, pulled, acknowledged and nacked."""

from __future__ import annotations

import queue
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

from local.tests.contract.pubsub.bench import WITHIN_S, Bench
from local.tests.contract.pubsub.case import ACCEPTED, case

_LEASE_S = 2
"""Much longer than a few calls take."""


def _open(bench: Bench, **fields: Any) -> None:
    bench.topic()
    bench.subscribe(**fields)


# Publishing


@case({"ids": 1_000, "different": 1_000, "data of the last": b"999"})
def a_thousand_messages_in_one_call_get_ids_in_their_order(bench: Bench) -> Any:
    _open(bench)
    ids = bench.publish_all([{"data": str(number).encode()} for number in range(1_000)])
    found: dict[str, bytes] = {}
    while len(found) < 1_000:
        for received in bench.pull_many():
            found[received.message.message_id] = received.message.data
    return {"ids": len(ids), "different": len(set(ids)), "data of the last": found[ids[-1]]}


@case(9_900_000)
def a_message_of_nearly_ten_million_bytes_is_delivered(bench: Bench) -> Any:
    _open(bench)
    bench.publish(b"x" * 9_900_000)
    return len(bench.pull().message.data)


@case({"data": b"", "attributes": {"k": "v", "logging.googleapis.com/timestamp": "t"}})
def a_message_can_have_attributes_and_no_data(bench: Bench) -> Any:
    _open(bench)
    bench.publish(b"", attributes={"k": "v", "logging.googleapis.com/timestamp": "t"})
    message = bench.pull().message
    return {"data": message.data, "attributes": dict(message.attributes)}


@case(True)
def a_message_can_have_100_attributes_with_the_longest_keys_and_values(bench: Bench) -> Any:
    _open(bench)
    attributes = {f"{number:0256}": "x" * 1_024 for number in range(100)}
    bench.publish(b"", attributes=attributes)
    return dict(bench.pull().message.attributes) == attributes


@case({"id": "the service's", "published": "just now"})
def the_service_sets_id_and_publish_time(bench: Bench) -> Any:
    _open(bench)
    began = datetime.now(UTC)
    long_ago = datetime(2000, 1, 1, tzinfo=UTC)
    message_id = bench.publish(message_id="mine", publish_time=long_ago)
    message = bench.pull().message
    about_now = timedelta(seconds=-1) < message.publish_time - began < timedelta(minutes=1)
    return {
        "id": "the service's" if message.message_id == message_id != "mine" else "the client's",
        "published": "just now" if about_now else "then",
    }


@case({"status": "INVALID_ARGUMENT", "received": b"good"})
def one_invalid_message_rejects_the_whole_request(bench: Bench) -> Any:
    _open(bench)
    status = bench.status_of(lambda: bench.publish_all([{"data": b"with a bad one"}, {}]))
    bench.publish(b"good")
    return {"status": status, "received": bench.pull().message.data}


# Delivery to subscriptions


@case({"one": b"x", "other": b"x", "same": True})
def each_subscription_receives_the_message(bench: Bench) -> Any:
    _open(bench)
    bench.subscribe("other")
    bench.publish()
    one, other = bench.pull().message, bench.pull("other").message
    same = one.message_id == other.message_id
    return {"one": one.data, "other": other.data, "same": same}


@case([b"after"])
def a_subscription_receives_only_messages_published_after_its_creation(bench: Bench) -> Any:
    bench.topic()
    bench.publish(b"before")
    bench.subscribe()
    bench.publish(b"after")
    return [bench.pull().message.data, *(one.message.data for one in bench.pull_now())]


# Pulling


@case({"empty": [], "received": b"x"})
def a_pull_waits_for_a_message(bench: Bench) -> Any:
    _open(bench)
    empty = bench.pull_now()
    pulled: queue.Queue[Any] = queue.Queue()
    puller = threading.Thread(target=lambda: pulled.put(bench.pull()))
    puller.start()
    bench.publish()
    received = pulled.get(timeout=WITHIN_S)
    puller.join()
    return {"empty": empty, "received": received.message.data}


@case([])
def an_acknowledged_message_is_not_redelivered(bench: Bench) -> Any:
    _open(bench)
    bench.publish()
    received = bench.pull()
    bench.lease(received, _LEASE_S)
    bench.acknowledge(received)
    _wait_longer_than_a_lease(bench)
    return bench.pull_now()


@case(True)
def a_nacked_message_is_redelivered_with_another_ack_id(bench: Bench) -> Any:
    _open(bench)
    bench.publish()
    first = bench.pull()
    bench.lease(first, 0)
    again = bench.pull()
    return first.message.message_id == again.message.message_id and first.ack_id != again.ack_id


@case({"meanwhile": [], "then": True})
def a_message_is_redelivered_when_its_lease_ends(bench: Bench) -> Any:
    _open(bench)
    bench.publish()
    first = bench.pull()
    bench.lease(first, _LEASE_S)
    meanwhile = bench.pull_now()
    again = bench.pull()
    return {"meanwhile": meanwhile, "then": first.message.message_id == again.message.message_id}


@case([])
def an_extended_lease_delays_redelivery(bench: Bench) -> Any:
    _open(bench)
    bench.publish()
    received = bench.pull()
    bench.lease(received, _LEASE_S)
    bench.lease(received, 600)
    _wait_longer_than_a_lease(bench)
    return bench.pull_now()


@case(ACCEPTED)
def a_message_can_be_acknowledged_twice(bench: Bench) -> Any:
    _open(bench)
    bench.publish()
    received = bench.pull()
    bench.acknowledge(received)
    bench.acknowledge(received)
    return ACCEPTED


@case([0, 0])
def attempts_are_not_counted_without_a_dead_letter_policy(bench: Bench) -> Any:
    _open(bench)
    bench.publish()
    first = bench.pull()
    bench.lease(first, 0)
    return [first.delivery_attempt, bench.pull().delivery_attempt]


@case(
    {
        "attempts": [1, 2, 3, 4, 5],
        "letter": b"x",
        "left": [],
        "attributes": {
            "k": "v",
            "CloudPubSubDeadLetterSourceDeliveryCount": "5",
            "CloudPubSubDeadLetterSourceSubscription": "main",
            "CloudPubSubDeadLetterSourceSubscriptionProject": "P",
        },
        "published": "when the message was",
        "id": "another",
    }
)
def a_pulled_message_that_is_nacked_five_times_becomes_a_dead_letter(bench: Bench) -> Any:
    bench.topic("dead")
    bench.subscribe("dead", topic="dead")
    _open(bench, dead_letter_policy={"dead_letter_topic": bench.topic_name("dead")})
    bench.publish(attributes={"k": "v"})
    attempts = []
    for _ in range(5):
        received = bench.pull()
        attempts.append(received.delivery_attempt)
        bench.lease(received, 0)
    # The emulator forwards a message to the dead-letter topic only at the sixth pull.
    left = bench.pull_now()
    letter = bench.pull("dead").message
    message = received.message
    published = message.publish_time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "attempts": attempts,
        "left": left,
        **bench.describe_letter(letter, message.message_id, published),
    }


def _wait_longer_than_a_lease(bench: Bench) -> None:
    """Wait until leases of `_LEASE_S` that exist now have ended, by the Pub/Sub's own clock."""
    bench.topic("clock")
    bench.subscribe("clock", topic="clock")
    bench.publish(topic="clock")
    bench.lease(bench.pull("clock"), _LEASE_S + 1, "clock")
    bench.pull("clock")
