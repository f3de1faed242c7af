"""Topics and subscriptions are created and deleted."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from google.protobuf.json_format import MessageToDict

from local.tests.contract.pubsub.bench import Bench
from local.tests.contract.pubsub.case import UNIMPLEMENTED, UNUSED, Differs, case, unsupported

_TESTED_ELSEWHERE = ("name", "topic", "state", "expiration_policy")
"""Fields that have their own cases. The cases about whole resources leave them out."""


def _fields_of(resource: Any) -> dict[str, Any]:
    fields = MessageToDict(type(resource).pb(resource), preserving_proto_field_name=True)
    return {name: value for name, value in fields.items() if name not in _TESTED_ELSEWHERE}


@case(
    {"push_config": {}, "ack_deadline_seconds": 10, "message_retention_duration": "604800s"},
)
def a_created_subscription_has_the_default_values(bench: Bench) -> Any:
    bench.topic()
    return _fields_of(bench.subscribe())


@case(
    {
        "push_config": {
            "push_endpoint": "https://example.com/push?from=pubsub",
            "oidc_token": {"service_account_email": "a@example.com", "audience": "me"},
        },
        "ack_deadline_seconds": 600,
        "message_retention_duration": "604800s",
        "retry_policy": {"minimum_backoff": "5s", "maximum_backoff": "600s"},
        "dead_letter_policy": {"dead_letter_topic": "main", "max_delivery_attempts": 5},
    }
)
def a_created_subscription_has_the_requested_fields(bench: Bench) -> Any:
    bench.topic()
    created = bench.subscribe(
        push_config={
            "push_endpoint": "https://example.com/push?from=pubsub",
            "oidc_token": {"service_account_email": "a@example.com", "audience": "me"},
        },
        ack_deadline_seconds=600,
        retry_policy={"minimum_backoff": timedelta(seconds=5)},
        dead_letter_policy={"dead_letter_topic": bench.topic_name()},
    )
    fields = _fields_of(created)
    fields["dead_letter_policy"]["dead_letter_topic"] = "main"
    return fields


@case("ACTIVE", emulator=Differs("STATE_UNSPECIFIED", "has no state"))
def a_subscription_has_the_state_ACTIVE(bench: Bench) -> Any:
    bench.topic()
    return bench.subscribe().state.name


@case(
    "2678400s",
    embedded=Differs(None, "never expires a subscription", "no run lasts a month"),
    emulator=Differs(None, "expires a subscription only if asked to"),
)
def an_unused_subscription_expires_after_31_days(bench: Bench) -> Any:
    bench.topic()
    created = bench.subscribe()
    policy = MessageToDict(type(created).pb(created)).get("expirationPolicy")
    return policy and policy["ttl"]


@case(
    {"x-goog-version": "v1"},
    embedded=Differs({}, "drops the attributes of a push config", "the envelope has one version"),
)
def a_push_config_has_attributes(bench: Bench) -> Any:
    bench.topic()
    push_config = {
        "push_endpoint": "https://example.com/",
        "attributes": {"x-goog-version": "v1"},
    }
    return dict(bench.subscribe(push_config=push_config).push_config.attributes)


@case({"first": b"before", "then": []})
def a_recreated_subscription_has_no_backlog(bench: Bench) -> Any:
    bench.topic()
    bench.subscribe()
    bench.publish(b"before")
    first = bench.pull()
    bench.subscriber.delete_subscription(subscription=bench.subscription_name())
    bench.subscribe()
    return {"first": first.message.data, "then": bench.pull_now()}


# What the embedded Pub/Sub does not have

_FIELDS = {
    "filter": 'attributes.cause = "Added"',
    "message_retention_duration": timedelta(days=31),
    "enable_exactly_once_delivery": True,
}


@case(["main"], embedded=Differs("UNIMPLEMENTED Method not found!", UNIMPLEMENTED, UNUSED))
def topics_are_listed(bench: Bench) -> Any:
    bench.topic()
    listed = bench.publisher.list_topics(project=bench.project)
    return [topic.name.rpartition("/")[2] for topic in listed]


@case(
    dict.fromkeys(_FIELDS, "OK"),
    embedded=Differs(dict.fromkeys(_FIELDS, "UNIMPLEMENTED"), UNIMPLEMENTED, UNUSED),
    emulator=Differs(
        dict.fromkeys(_FIELDS, "OK") | {"message_retention_duration": "INVALID_ARGUMENT"},
        "ignores filters, accepts at most seven days",
    ),
)
def a_subscription_can_filter_and_retain_for_31_days_and_deliver_exactly_once(bench: Bench) -> Any:
    bench.topic()
    made = {key: partial(bench.subscribe, key, **{key: value}) for key, value in _FIELDS.items()}
    return {key: bench.status_of(subscribe) for key, subscribe in made.items()}


@case(
    "k",
    embedded=unsupported("ordering_key", "a step reads the current state, order does not matter"),
)
def a_message_has_an_ordering_key(bench: Bench) -> Any:
    bench.topic()
    bench.subscribe()
    bench.publish(ordering_key="k")
    return bench.pull().message.ordering_key


@case(b"hello", embedded=unsupported("no_wrapper", "steps read wrapped messages only"))
def a_push_can_be_unwrapped(bench: Bench) -> Any:
    bench.topic()
    receiver = bench.receiver()
    bench.push(receiver, push_config={"no_wrapper": {"write_metadata": False}})
    bench.publish(b"hello")
    return receiver.wait(1)[0].raw
