"""Topics and subscriptions are created, read, listed, updated and deleted."""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.json_format import MessageToDict

from local.tests.contract.pubsub.bench import WITHIN_S, Bench
from local.tests.contract.pubsub.case import UNIMPLEMENTED, UNUSED, Differs, case, unsupported

WEEK = "604800s"
_TESTED_ELSEWHERE = ("name", "topic", "state", "expiration_policy")
"""Fields that have their own cases. The cases about whole resources leave them out."""


def _fields_of(resource: Any) -> dict[str, Any]:
    fields = MessageToDict(type(resource).pb(resource), preserving_proto_field_name=True)
    return {name: value for name, value in fields.items() if name not in _TESTED_ELSEWHERE}


def _ids(names: Iterable[str]) -> list[str]:
    return [name.rpartition("/")[2] for name in names]


# Topics


@case({"created": {"labels": {"a": "b"}}, "read": {"labels": {"a": "b"}}, "listed": ["main"]})
def a_created_topic_can_be_read_and_listed(bench: Bench) -> Any:
    return {
        "created": _fields_of(bench.topic(labels={"a": "b"})),
        "read": _fields_of(bench.publisher.get_topic(topic=bench.topic_name())),
        "listed": _ids(topic.name for topic in bench.publisher.list_topics(project=bench.project)),
    }


@case([["one", "three"], ["two"]])
def topics_are_listed_in_pages(bench: Bench) -> Any:
    for topic_id in ("one", "two", "three"):
        bench.topic(topic_id)
    pages = bench.publisher.list_topics(request={"project": bench.project, "page_size": 2}).pages
    return [_ids(topic.name for topic in page.topics) for page in pages]


@case([])
def a_project_without_topics_has_an_empty_list(bench: Bench) -> Any:
    return [topic.name for topic in bench.publisher.list_topics(project=bench.project)]


@case(
    {"labels": {"c": "d"}},
    embedded=Differs("UNIMPLEMENTED Method not found!", UNIMPLEMENTED, UNUSED),
    emulator=Differs(
        "INVALID_ARGUMENT Invalid update_mask provided in the UpdateTopicRequest: labels is not a "
        "known Topic field. Note that field paths must be of the form 'schema_settings' rather than "
        "'schemaSetings'.",
        "cannot change labels",
    ),
)
def the_labels_of_a_topic_can_be_changed(bench: Bench) -> Any:
    bench.topic(labels={"a": "b"})
    changed = {"name": bench.topic_name(), "labels": {"c": "d"}}
    return _fields_of(
        bench.publisher.update_topic(
            request={"topic": changed, "update_mask": {"paths": ["labels"]}}
        )
    )


@case({"message_retention_duration": "86400s"}, embedded=unsupported("message_retention_duration"))
def a_topic_can_retain_messages(bench: Bench) -> Any:
    return _fields_of(bench.topic(message_retention_duration=timedelta(days=1)))


@case({"topic": "_deleted-topic_", "first": b"before", "then": []})
def a_subscription_and_its_backlog_remain_when_the_topic_is_deleted(bench: Bench) -> Any:
    bench.topic()
    bench.subscribe()
    bench.publish(b"before")
    bench.publisher.delete_topic(topic=bench.topic_name())
    bench.topic()
    bench.publish(b"after")
    first = bench.pull()
    bench.acknowledge(first)
    found = bench.subscriber.get_subscription(subscription=bench.subscription_name())
    return {"topic": found.topic, "first": first.message.data, "then": bench.pull_now()}


# Subscriptions


@case(
    {"push_config": {}, "ack_deadline_seconds": 10, "message_retention_duration": WEEK},
)
def a_read_subscription_has_the_default_values(bench: Bench) -> Any:
    bench.topic()
    bench.subscribe()
    return _fields_of(bench.subscriber.get_subscription(subscription=bench.subscription_name()))


@case(
    {
        "push_config": {
            "push_endpoint": "https://example.com/push?from=pubsub",
            "oidc_token": {"service_account_email": "a@example.com", "audience": "me"},
        },
        "ack_deadline_seconds": 600,
        "message_retention_duration": "600s",
        "retry_policy": {"minimum_backoff": "5s", "maximum_backoff": "600s"},
        "dead_letter_policy": {"dead_letter_topic": "main", "max_delivery_attempts": 5},
        "filter": 'attributes.cause = "Added"',
        "labels": {"a": "b"},
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
        message_retention_duration=timedelta(minutes=10),
        retry_policy={"minimum_backoff": timedelta(seconds=5)},
        dead_letter_policy={"dead_letter_topic": bench.topic_name()},
        filter='attributes.cause = "Added"',
        labels={"a": "b"},
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
    31,
    emulator=Differs(
        "INVALID_ARGUMENT message_retention_duration out of bounds", "accepts at most seven days"
    ),
)
def a_subscription_can_retain_messages_for_31_days(bench: Bench) -> Any:
    bench.topic()
    created = bench.subscribe(message_retention_duration=timedelta(days=31))
    return created.message_retention_duration.days


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


@case({"project": [["one", "three"], ["two"]], "topic": [["one", "three"], ["two"]]})
def subscriptions_are_listed_in_pages(bench: Bench) -> Any:
    bench.topic()
    for subscription_id in ("one", "two", "three"):
        bench.subscribe(subscription_id)
    of_project = bench.subscriber.list_subscriptions(
        request={"project": bench.project, "page_size": 2}
    )
    of_topic = bench.publisher.list_topic_subscriptions(
        request={"topic": bench.topic_name(), "page_size": 2}
    )
    return {
        "project": [_ids(one.name for one in page.subscriptions) for page in of_project.pages],
        "topic": [_ids(page.subscriptions) for page in of_topic.pages],
    }


@case(
    {
        "push_config": {"push_endpoint": "https://example.com/"},
        "ack_deadline_seconds": 60,
        "message_retention_duration": "600s",
        "retry_policy": {"minimum_backoff": "5s", "maximum_backoff": "50s"},
    }
)
def an_update_changes_only_the_fields_in_its_mask(bench: Bench) -> Any:
    bench.topic()
    bench.subscribe(ack_deadline_seconds=20)
    paths = ("push_config", "message_retention_duration", "retry_policy", "ack_deadline_seconds")
    bench.update(
        *paths,
        push_config={"push_endpoint": "https://example.com/"},
        ack_deadline_seconds=60,
        message_retention_duration=timedelta(minutes=10),
        retry_policy={
            "minimum_backoff": timedelta(seconds=5),
            "maximum_backoff": timedelta(seconds=50),
        },
        dead_letter_policy={"dead_letter_topic": bench.topic_name()},
    )
    return _fields_of(bench.subscriber.get_subscription(subscription=bench.subscription_name()))


@case({"push_config": {}, "ack_deadline_seconds": 10, "message_retention_duration": WEEK})
def an_update_without_a_value_removes_a_policy(bench: Bench) -> Any:
    bench.topic()
    bench.subscribe(retry_policy={}, dead_letter_policy={"dead_letter_topic": bench.topic_name()})
    return _fields_of(bench.update("retry_policy", "dead_letter_policy"))


@case(
    {"c": "d"},
    emulator=Differs(
        "INVALID_ARGUMENT Invalid update_mask provided in the UpdateSubscriptionRequest: labels is "
        "not a known Subscription field. Note that field paths must be of the form 'push_config' "
        "rather than 'pushConfig'.",
        "cannot change labels",
    ),
)
def the_labels_of_a_subscription_can_be_changed(bench: Bench) -> Any:
    bench.topic()
    bench.subscribe(labels={"a": "b"})
    return dict(bench.update("labels", labels={"c": "d"}).labels)


@case({"first": b"before", "then": []})
def a_recreated_subscription_has_no_backlog(bench: Bench) -> Any:
    bench.topic()
    bench.subscribe()
    bench.publish(b"before")
    first = bench.pull()
    bench.subscriber.delete_subscription(subscription=bench.subscription_name())
    bench.subscribe()
    return {"first": first.message.data, "then": bench.pull_now()}


@case(
    True,
    embedded=Differs("UNIMPLEMENTED Method not found!", UNIMPLEMENTED, UNUSED),
    emulator=Differs(
        "UNIMPLEMENTED Method google.pubsub.v1.Publisher/DetachSubscription is unimplemented",
        UNIMPLEMENTED,
    ),
)
def a_subscription_can_be_detached(bench: Bench) -> Any:
    bench.topic()
    bench.subscribe()
    bench.publisher.detach_subscription(request={"subscription": bench.subscription_name()})
    return bench.subscriber.get_subscription(subscription=bench.subscription_name()).detached


# Features that the embedded Pub/Sub does not have


@case(
    200,
    embedded=Differs("no answer", "has gRPC only", "the client libraries use gRPC"),
)
def all_methods_exist_in_REST_too(bench: Bench) -> Any:
    bench.topic()
    url = f"http://{bench.address}/v1/{bench.topic_name()}"
    try:
        with urllib.request.urlopen(url, timeout=WITHIN_S) as answer:
            return answer.status
    except (OSError, http.client.HTTPException):
        return "no answer"


@case(True, embedded=unsupported("enable_exactly_once_delivery"))
def a_subscription_can_deliver_exactly_once(bench: Bench) -> Any:
    bench.topic()
    return bench.subscribe(enable_exactly_once_delivery=True).enable_exactly_once_delivery


@case(b"x", embedded=unsupported("retain_acked_messages"))
def a_subscription_that_retains_messages_can_seek_to_a_time(bench: Bench) -> Any:
    bench.topic()
    bench.subscribe(retain_acked_messages=True)
    before = datetime.now(UTC) - timedelta(minutes=1)
    bench.publish()
    bench.acknowledge(bench.pull())
    bench.subscriber.seek(request={"subscription": bench.subscription_name(), "time": before})
    return bench.pull().message.data


@case(
    b"x",
    embedded=Differs("UNIMPLEMENTED Method not found!", UNIMPLEMENTED, UNUSED),
)
def a_subscription_can_seek_to_a_snapshot(bench: Bench) -> Any:
    bench.topic()
    bench.subscribe()
    name = f"{bench.project}/snapshots/before"
    bench.subscriber.create_snapshot(name=name, subscription=bench.subscription_name())
    bench.publish()
    bench.acknowledge(bench.pull())
    bench.subscriber.seek(request={"subscription": bench.subscription_name(), "snapshot": name})
    again = bench.pull().message.data
    bench.subscriber.delete_snapshot(snapshot=name)
    return again


@case(
    [b"1", b"2", b"3"],
    embedded=unsupported(
        "enable_message_ordering", "a step reads the current state, order does not matter"
    ),
)
def messages_with_one_ordering_key_are_delivered_in_order(bench: Bench) -> Any:
    bench.topic()
    bench.subscribe(enable_message_ordering=True)
    bench.publish_all([{"data": data, "ordering_key": "k"} for data in (b"1", b"2", b"3")])
    received_data = []
    for _ in range(3):
        received = bench.pull()
        received_data.append(received.message.data)
        bench.acknowledge(received)
    return received_data
