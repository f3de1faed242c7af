"""Pushes: what they look like, what their answers do, when they come again."""

from __future__ import annotations

import base64
import socket
from datetime import timedelta
from itertools import pairwise
from typing import Any

from google.auth import jwt

from local.tests.contract.pubsub.bench import Bench, Push
from local.tests.contract.pubsub.case import REFUSES, Differs, case

_ACCOUNT = "pusher@example.com"
_EVERY = ("data", "messageId", "message_id", "publishTime", "publish_time")
_RESTS = {
    "minimum_backoff": timedelta(seconds=2),
    "maximum_backoff": timedelta(seconds=600),
}
_ACKNOWLEDGING = ("102", "200", "201", "202", "204")
_REFUSING = ("203", "205", "206", "302", "400", "403", "404", "429", "500", "503")


# What a push looks like


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
    inbox = bench.inbox()
    bench.push(inbox)
    message_id = bench.publish(b"hello", attributes={"k": "v"})
    (push,) = inbox.wait(1)
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
def a_push_tells_the_time_of_publishing_to_the_millisecond(bench: Bench) -> Any:
    message = _first_push(bench).message
    digits = [character.isdigit() for character in message["publishTime"]]
    model = "2026-01-01T00:00:00.000Z"
    return model if digits == [one.isdigit() for one in model] else message["publishTime"]


@case({*_EVERY}, emulator=Differs({*_EVERY, "attributes"}, "pushes empty attributes"))
def a_message_without_attributes_is_pushed_without_them(bench: Bench) -> Any:
    return set(_first_push(bench).message)


@case(
    None,
    emulator=Differs("", "pushes empty data"),
)
def a_message_of_attributes_only_is_pushed_without_data(bench: Bench) -> Any:
    return _first_push(bench, b"", attributes={"k": "v"}).message.get("data")


@case("k", emulator=Differs(None, "pushes no ordering key"))
def a_push_has_the_ordering_key(bench: Bench) -> Any:
    return _first_push(bench, ordering_key="k").message.get("orderingKey")


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


@case(
    b"hello",
    embedded=Differs(
        "UNIMPLEMENTED The embedded Pub/Sub has no no_wrapper.",
        REFUSES,
        "steps read wrapped messages only",
    ),
)
def a_push_can_be_unwrapped(bench: Bench) -> Any:
    bench.topic()
    inbox = bench.inbox()
    bench.push(inbox, push_config={"no_wrapper": {"write_metadata": False}})
    bench.publish(b"hello")
    return inbox.wait(1)[0].raw


# What its answer does


@case(
    dict.fromkeys(_ACKNOWLEDGING, "acknowledged") | dict.fromkeys(_REFUSING, "refused"),
    embedded=Differs(
        dict.fromkeys(_ACKNOWLEDGING, "acknowledged")
        | dict.fromkeys(_REFUSING, "refused")
        | {"102": "refused"},
        "102 without a final status is a nack",
        "HTTP clients treat 102 as an interim answer; no step sends it",
    ),
    emulator=Differs(
        dict.fromkeys(_ACKNOWLEDGING, "acknowledged")
        | dict.fromkeys(_REFUSING, "refused")
        | {"202": "refused", "203": "acknowledged"},
        "202 is a nack, 203 an ack",
    ),
)
def statuses_102_200_201_202_and_204_are_acks_and_others_nacks(bench: Bench) -> Any:
    bench.topic()
    asked = {status: bench.inbox(int(status), 204) for status in (*_ACKNOWLEDGING, *_REFUSING)}
    for status, inbox in asked.items():
        bench.push(inbox, f"status-{status}")
    # When it is tried for the fifth time, the others have been tried again, if ever.
    slow = bench.inbox(500)
    bench.push(slow, "slow")
    bench.publish()
    slow.wait(5)
    return {
        status: "acknowledged" if inbox.count == 1 else "refused" for status, inbox in asked.items()
    }


@case(True)
def a_redirect_is_not_followed(bench: Bench) -> Any:
    bench.topic()
    inbox = bench.inbox(302, 204)
    bench.push(inbox)
    bench.publish()
    return all(inbox.url.endswith(push.path) for push in inbox.wait(2))


@case("later than the deadline, while the first is still under way")
def a_push_that_is_not_answered_within_the_ack_deadline_comes_again(bench: Bench) -> Any:
    bench.topic()
    inbox = bench.inbox(None, 204)
    bench.push(inbox, ack_deadline_seconds=10)
    bench.publish()
    first, again = inbox.wait(2)
    assert first.message["messageId"] == again.message["messageId"]
    late = again.at - first.at > 9.5
    return "later than the deadline, while the first is still under way" if late else "early"


@case(True)
def an_endpoint_that_nobody_listens_at_gets_the_message_once_somebody_does(bench: Bench) -> Any:
    bench.topic()
    inbox = bench.inbox()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        bench.subscribe(push_config={"push_endpoint": nowhere})
        message_id = bench.publish()
    bench.point(inbox)
    return inbox.wait(1)[0].message["messageId"] == message_id


@case(True)
def a_refused_push_comes_again_as_the_same_message(bench: Bench) -> Any:
    bench.topic()
    inbox = bench.inbox(500, 204)
    bench.push(inbox)
    bench.publish(attributes={"k": "v"})
    first, again = inbox.wait(2)
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
    inbox = bench.inbox(500)
    bench.push(inbox, retry_policy=_RESTS)
    bench.publish()
    first, second = (after.at - before.at for before, after in pairwise(inbox.wait(3)))
    return {
        "the first gap": "the minimum" if first > 1.8 else "less than the minimum",
        "the second gap": "longer" if second > first else "not longer",
    }


_DEAD = {
    "letter": b"x",
    "attributes": {
        "k": "v",
        "CloudPubSubDeadLetterSourceDeliveryCount": "5",
        "CloudPubSubDeadLetterSourceSubscription": "inbox",
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
    inbox = bench.inbox(500)
    bench.push(inbox, dead_letter_policy={"dead_letter_topic": bench.topic_name("dead")})
    bench.publish(attributes={"k": "v"})
    letter = bench.pull("dead").message
    pushes = inbox.wait(inbox.count)
    message = pushes[0].message
    return {
        "attempts": [push.body.get("deliveryAttempt") for push in pushes],
        **bench.describe_letter(letter, message["messageId"], message["publishTime"]),
    }


@case(None)
def attempts_are_not_told_without_a_dead_letter_policy(bench: Bench) -> Any:
    return _first_push(bench).body.get("deliveryAttempt")


@case(
    8,
    emulator=Differs(2, "pushes two at a time, over all subscriptions"),
)
def concurrency_grows_while_pushes_succeed(bench: Bench) -> Any:
    bench.topic()
    quick = bench.inbox()
    bench.push(quick)
    bench.publish_all([{"data": b"x"}] * 16)
    quick.wait(16)
    slow = bench.inbox(gathers=8)
    bench.point(slow)
    bench.publish_all([{"data": b"x"}] * 8)
    slow.wait(8)
    return slow.most_under_way


# Changes on the way


@case({"pulled": b"x", "shown": ""})
def a_subscription_with_an_empty_push_config_is_pulled_from(bench: Bench) -> Any:
    bench.topic()
    inbox = bench.inbox(500)
    bench.push(inbox)
    bench.publish()
    inbox.wait(1)
    bench.point(None)
    pulled = bench.pull()
    shown = bench.subscriber.get_subscription(subscription=bench.subscription_name())
    return {"pulled": pulled.message.data, "shown": shown.push_config.push_endpoint}


@case(b"x")
def a_subscription_that_is_told_to_push_pushes_what_it_holds(bench: Bench) -> Any:
    bench.topic()
    bench.subscribe()
    bench.publish()
    inbox = bench.inbox()
    bench.point(inbox)
    return base64.b64decode(inbox.wait(1)[0].message["data"])


@case({"old": 1, "new": True})
def a_subscription_that_is_pointed_elsewhere_pushes_there(bench: Bench) -> Any:
    bench.topic()
    old, new = bench.inbox(500), bench.inbox()
    bench.push(old, retry_policy=_RESTS)
    message_id = bench.publish()
    old.wait(1)
    bench.point(new)
    there = new.wait(1)[0].message["messageId"] == message_id
    return {"old": old.count, "new": there}


@case(True)
def what_a_subscription_holds_is_pushed_after_its_topic_was_deleted(bench: Bench) -> Any:
    bench.topic()
    inbox = bench.inbox(500, 204)
    bench.push(inbox)
    bench.publish()
    inbox.wait(1)
    bench.publisher.delete_topic(topic=bench.topic_name())
    first, again = inbox.wait(2)
    return first.message["messageId"] == again.message["messageId"]


@case(1)
def a_deleted_subscription_pushes_no_more(bench: Bench) -> Any:
    bench.topic()
    gone, other = bench.inbox(500), bench.inbox(500)
    bench.push(gone, retry_policy=_RESTS)
    bench.push(other, "other")
    bench.publish()
    gone.wait(1)
    bench.subscriber.delete_subscription(subscription=bench.subscription_name())
    # Seconds later; what was deleted would have been tried again.
    other.wait(6)
    return gone.count


@case([])
def what_was_pushed_and_acknowledged_is_not_held_any_more(bench: Bench) -> Any:
    bench.topic()
    inbox = bench.inbox(204, 500)
    bench.push(inbox)
    bench.publish(b"first")
    inbox.wait(1)
    bench.publish(b"second")
    inbox.wait(2)
    bench.point(None)
    held = bench.pull()
    return [one.message.data for one in (held, *bench.pull_now()) if one.message.data != b"second"]


def _first_push(bench: Bench, data: bytes = b"x", **message: Any) -> Push:
    bench.topic()
    inbox = bench.inbox()
    bench.push(inbox)
    bench.publish(data, **message)
    return inbox.wait(1)[0]


def _claims(bench: Bench, **push_config: Any) -> dict[str, Any] | None:
    """What the token of a push says; `None` without one."""
    bench.topic()
    inbox = bench.inbox()
    bench.push(inbox, push_config=push_config)
    bench.publish()
    bearer = inbox.wait(1)[0].headers.get("authorization")
    if bearer is None:
        return None
    claims = jwt.decode(bearer.removeprefix("Bearer "), verify=False)
    audience = "the endpoint" if claims["aud"] == inbox.url else claims["aud"]
    return {"aud": audience, "email": claims["email"], "email_verified": claims["email_verified"]}
