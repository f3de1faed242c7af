"""Pushes: their requests, the effect of their answers, and retries."""

from __future__ import annotations

import base64
import socket
import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

from google.auth import jwt

from local.tests.contract.pubsub.bench import Bench, Push
from local.tests.contract.pubsub.case import Differs, case

_ACCOUNT = "pusher@example.com"
_EVERY = ("data", "messageId", "message_id", "publishTime", "publish_time")
_RETRY_POLICY = {
    "minimum_backoff": timedelta(seconds=2),
    "maximum_backoff": timedelta(seconds=600),
}
_ACKS = ("102", "200", "201", "202", "204")
_NACKS = ("203", "205", "206", "302", "400", "403", "404", "429", "500", "503")


# The request


@case(
    {
        "fields": {"message", "subscription"},
        "message": {*_EVERY, "attributes"},
        "data": b"hello",
        "attributes": {"k": "v"},
        "id": True,
        "times": True,
        "content type": "application/json",
        "path": "/push?from=pubsub",
    }
)
def a_push_wraps_the_message(bench: Bench) -> Any:
    bench.topic()
    receiver = bench.receiver()
    bench.push(receiver)
    message_id = bench.publish(b"hello", attributes={"k": "v"})
    (push,) = receiver.wait(1)
    message = push.message
    assert push.body["subscription"] == bench.subscription_name()
    return {
        "fields": set(push.body),
        "message": set(message),
        "data": base64.b64decode(message["data"]),
        "attributes": message["attributes"],
        "id": message["messageId"] == message["message_id"] == message_id,
        "times": message["publishTime"] == message["publish_time"],
        "content type": push.headers["content-type"],
        "path": push.path[push.path.index("/push") :],
    }


@case("2026-01-01T00:00:00.000Z")
def a_push_has_the_publish_time_in_milliseconds(bench: Bench) -> Any:
    message = _first_push(bench).message
    digits = [character.isdigit() for character in message["publishTime"]]
    example = "2026-01-01T00:00:00.000Z"
    return example if digits == [one.isdigit() for one in example] else message["publishTime"]


@case({*_EVERY}, emulator=Differs({*_EVERY, "attributes"}, "pushes empty attributes"))
def a_message_without_attributes_is_pushed_without_them(bench: Bench) -> Any:
    return set(_first_push(bench).message)


@case(
    None,
    emulator=Differs("", "pushes empty data"),
)
def a_message_of_attributes_only_is_pushed_without_data(bench: Bench) -> Any:
    return _first_push(bench, b"", attributes={"k": "v"}).message.get("data")


@case("CloudPubSub-Google", emulator=Differs("Java", "has Java in `User-Agent`"))
def a_push_has_the_User_Agent_of_Pub_Sub(bench: Bench) -> Any:
    return _first_push(bench).headers["user-agent"].partition("/")[0]


@case(9_900_000)
def a_large_message_is_pushed(bench: Bench) -> Any:
    return len(base64.b64decode(_first_push(bench, b"x" * 9_900_000).message["data"]))


_WITHOUT_TOKEN = Differs(None, "pushes without a token")


@case(
    {"aud": "https://step.example.com", "email": _ACCOUNT, "email_verified": True},
    emulator=_WITHOUT_TOKEN,
)
def a_push_with_an_identity_has_a_token_for_the_audience(bench: Bench) -> Any:
    token = {"service_account_email": _ACCOUNT, "audience": "https://step.example.com"}
    return _claims(bench, oidc_token=token)


@case(
    {"aud": "the endpoint", "email": _ACCOUNT, "email_verified": True},
    emulator=_WITHOUT_TOKEN,
)
def the_default_audience_is_the_endpoint(bench: Bench) -> Any:
    return _claims(bench, oidc_token={"service_account_email": _ACCOUNT})


@case(None)
def a_push_without_an_identity_has_no_token(bench: Bench) -> Any:
    return _claims(bench)


# The answer


@case(
    dict.fromkeys(_ACKS, "ack") | dict.fromkeys(_NACKS, "nack"),
    embedded=Differs(
        dict.fromkeys(_ACKS, "ack") | dict.fromkeys(_NACKS, "nack") | {"102": "nack"},
        "102 without a final status is a nack",
        "HTTP clients treat 102 as an interim answer; no step sends it",
    ),
    emulator=Differs(
        dict.fromkeys(_ACKS, "ack") | dict.fromkeys(_NACKS, "nack") | {"202": "nack", "203": "ack"},
        "202 is a nack, 203 an ack",
    ),
)
def statuses_102_200_201_202_and_204_are_acks_and_others_nacks(bench: Bench) -> Any:
    bench.topic()
    receivers = {status: bench.receiver(int(status), 204) for status in (*_ACKS, *_NACKS)}
    for status, receiver in receivers.items():
        bench.push(receiver, f"status-{status}")
    slow = bench.receiver(500)
    bench.push(slow, "slow")
    bench.publish()
    # On a busy machine some are pushed again late. The emulator never repeats 203.
    for status in _NACKS:
        if status != "203":
            receivers[status].wait(2)
    # At the eighth attempt here, every other nacked message has been pushed a second time, too.
    slow.wait(8)
    return {
        status: "ack" if receiver.count == 1 else "nack" for status, receiver in receivers.items()
    }


@case(True)
def a_redirect_is_not_followed(bench: Bench) -> Any:
    bench.topic()
    receiver = bench.receiver(302, 204)
    bench.push(receiver)
    bench.publish()
    return all(receiver.url.endswith(push.path) for push in receiver.wait(2))


@case("after the deadline, while the first is in progress")
def a_push_without_an_answer_within_the_ack_deadline_is_repeated(bench: Bench) -> Any:
    bench.topic()
    receiver = bench.receiver(None, 204)
    bench.push(receiver, ack_deadline_seconds=10)
    begun = time.monotonic()  # on a busy machine the first push is received late
    bench.publish()
    first, again = receiver.wait(2)
    assert first.message["messageId"] == again.message["messageId"]
    late = again.at - begun > 9.5
    return "after the deadline, while the first is in progress" if late else "early"


@case(b"x")
def a_message_for_an_endpoint_without_a_listener_becomes_a_dead_letter(bench: Bench) -> Any:
    bench.topic()
    bench.topic("dead")
    bench.subscribe("dead", topic="dead")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        bench.subscribe(
            push_config={"push_endpoint": f"http://127.0.0.1:{unused.getsockname()[1]}/"},
            dead_letter_policy={"dead_letter_topic": bench.topic_name("dead")},
        )
        bench.publish()
        return bench.pull("dead").message.data


@case(True)
def a_nacked_push_is_repeated_with_the_same_message(bench: Bench) -> Any:
    bench.topic()
    receiver = bench.receiver(500, 204)
    bench.push(receiver)
    bench.publish(attributes={"k": "v"})
    first, again = receiver.wait(2)
    return first.body == again.body


@case(
    {"the first gap": "the minimum", "the second gap": "longer"},
    emulator=Differs(
        {"the first gap": "less than the minimum", "the second gap": "longer"},
        "retries the first time after one second",
    ),
)
def the_backoff_grows_from_its_minimum(bench: Bench) -> Any:
    bench.topic()
    receiver = bench.receiver(500)
    bench.push(receiver, retry_policy=_RETRY_POLICY)
    bench.publish()
    first, second = (after.at - before.at for before, after in pairwise(receiver.wait(3)))
    return {
        "the first gap": "the minimum" if first > 1.8 else "less than the minimum",
        "the second gap": "longer" if second > first else "not longer",
    }


_DEAD = {
    "letter": b"x",
    "attributes": {
        "k": "v",
        "CloudPubSubDeadLetterSourceDeliveryCount": "5",
        "CloudPubSubDeadLetterSourceSubscription": "main",
        "CloudPubSubDeadLetterSourceSubscriptionProject": "P",
    },
    "published": "when the message was",
    "id": "another",
}


@case(
    {**_DEAD, "attempts": [1, 2, 3, 4, 5]},
    emulator=Differs({**_DEAD, "attempts": [None] * 5}, "pushes no delivery attempt"),
)
def a_message_that_is_nacked_five_times_becomes_a_dead_letter(bench: Bench) -> Any:
    bench.topic()
    bench.topic("dead")
    bench.subscribe("dead", topic="dead")
    receiver = bench.receiver(500)
    bench.push(receiver, dead_letter_policy={"dead_letter_topic": bench.topic_name("dead")})
    bench.publish(attributes={"k": "v"})
    letter = bench.pull("dead").message
    pushes = receiver.wait(receiver.count)
    message = pushes[0].message
    return {
        "attempts": [push.body.get("deliveryAttempt") for push in pushes],
        **bench.describe_letter(letter, message["messageId"], message["publishTime"]),
    }


@case(None)
def a_push_has_no_delivery_attempt_without_a_dead_letter_policy(bench: Bench) -> Any:
    return _first_push(bench).body.get("deliveryAttempt")


@case(
    8,
    emulator=Differs(2, "pushes two at a time, over all subscriptions"),
)
def concurrency_grows_while_pushes_succeed(bench: Bench) -> Any:
    bench.topic()
    receiver = bench.receiver()
    bench.push(receiver)
    bench.publish_all([{"data": b"x"}] * 16)
    receiver.wait(16)
    receiver.gather(8)
    bench.publish_all([{"data": b"x"}] * 8)
    receiver.wait(24)
    return receiver.most_in_progress


@case(1)
def a_deleted_subscription_does_not_push(bench: Bench) -> Any:
    bench.topic()
    deleted, other = bench.receiver(500), bench.receiver(500)
    bench.push(deleted, retry_policy=_RETRY_POLICY)
    bench.push(other, "other")
    bench.publish()
    deleted.wait(1)
    bench.subscriber.delete_subscription(subscription=bench.subscription_name())
    # By the sixth push to the other, the deleted subscription would have retried.
    other.wait(6)
    return deleted.count


def _first_push(bench: Bench, data: bytes = b"x", **message: Any) -> Push:
    bench.topic()
    receiver = bench.receiver()
    bench.push(receiver)
    bench.publish(data, **message)
    return receiver.wait(1)[0]


def _claims(bench: Bench, **push_config: Any) -> dict[str, Any] | None:
    """Return the claims of the token of a push, or `None` without a token."""
    bench.topic()
    receiver = bench.receiver()
    bench.push(receiver, push_config=push_config)
    bench.publish()
    bearer = receiver.wait(1)[0].headers.get("authorization")
    if bearer is None:
        return None
    claims = jwt.decode(bearer.removeprefix("Bearer "), verify=False)
    audience = "the endpoint" if claims["aud"] == receiver.url else claims["aud"]
    return {"aud": audience, "email": claims["email"], "email_verified": claims["email_verified"]}
