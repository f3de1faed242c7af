"""The service as google-cloud-pubsub's own clients see it, over gRPC and HTTP on loopback."""

from __future__ import annotations

import asyncio
import base64
import json
import queue
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from google.api_core import exceptions
from google.auth import jwt
from google.cloud import pubsub_v1
from google.pubsub_v1 import PublisherClient as PlainPublisherClient
from google.pubsub_v1 import types

from local.http import Request, Response
from local.pubsub import server
from local.web import serve as serve_http

PROJECT = "projects/p"
TOPIC = "projects/p/topics/inbox"
DEAD = "projects/p/topics/dead"
SUBSCRIPTION = "projects/p/subscriptions/inbox"
EMAIL = "pusher@p.iam.gserviceaccount.com"

T = TypeVar("T")


@dataclass
class Inbox:
    """Takes pushes and answers them with the next status, or the last one again."""

    statuses: list[int] = field(default_factory=lambda: [204])
    requests: queue.Queue[Request] = field(default_factory=queue.Queue)
    url: str = ""

    def handle(self, request: Request) -> Response:
        self.requests.put(request)
        return Response(self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0])

    def request(self) -> Request:
        return self.requests.get(timeout=10)

    def envelope(self) -> Any:
        return json.loads(self.request().body)


class Loop:
    """An asyncio loop on a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=30)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10)
        self.loop.close()


@dataclass
class Api:
    """A service with two topics, and the clients of an application (which are not typed)."""

    service: server.Server
    publisher: Any
    subscriber: Any

    def publish(self, data: bytes, **attributes: str) -> str:
        message_id: str = self.publisher.publish(TOPIC, data, **attributes).result(timeout=30)
        return message_id

    def subscribe(self, **fields: Any) -> None:
        request = {"name": SUBSCRIPTION, "topic": TOPIC, **fields}
        self.subscriber.create_subscription(request=request)

    def pull(self) -> Any:
        """One message, with its ack id."""
        answer = self.subscriber.pull(subscription=SUBSCRIPTION, max_messages=1, timeout=15)
        (received,) = answer.received_messages
        return received


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.stop()


@pytest.fixture
def api(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    service = loop.run(server.serve())
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", service.address)
    publisher = pubsub_v1.PublisherClient()
    publisher.create_topic(name=TOPIC)
    publisher.create_topic(name=DEAD)
    with pubsub_v1.SubscriberClient() as subscriber:
        yield Api(service, publisher, subscriber)
    publisher.stop()
    publisher.transport.close()
    loop.run(service.stop())


@pytest.fixture
def inbox(loop: Loop) -> Iterator[Inbox]:
    inbox = Inbox()
    runner, port = loop.run(serve_http(inbox))
    inbox.url = f"http://127.0.0.1:{port}/push?from=pubsub"
    yield inbox
    loop.run(runner.cleanup())


def test_a_published_message_is_pushed(api: Api, inbox: Inbox) -> None:
    api.subscribe(push_config={"push_endpoint": inbox.url}, ack_deadline_seconds=60)
    message_id = api.publish(b"hello", cause="Added")
    request = inbox.request()
    envelope = json.loads(request.body)
    assert (request.method, request.path, request.query) == ("POST", "/push", {"from": ["pubsub"]})
    assert request.headers["content-type"] == "application/json"
    assert "authorization" not in request.headers
    assert envelope["message"]["messageId"] == message_id
    assert envelope["message"]["attributes"] == {"cause": "Added"}
    assert "deliveryAttempt" not in envelope


def test_a_refused_push_comes_again_and_ends_as_a_dead_letter(api: Api, inbox: Inbox) -> None:
    morgue = "projects/p/subscriptions/dead"
    inbox.statuses = [500]
    api.subscriber.create_subscription(request={"name": morgue, "topic": DEAD})
    api.subscribe(
        push_config={"push_endpoint": inbox.url},
        retry_policy={"minimum_backoff": timedelta(0), "maximum_backoff": timedelta(0)},
        dead_letter_policy={"dead_letter_topic": DEAD, "max_delivery_attempts": 5},
    )
    api.publish(b"hello")
    pulled = api.subscriber.pull(subscription=morgue, max_messages=1, timeout=15)
    assert [inbox.envelope()["deliveryAttempt"] for _ in range(5)] == [1, 2, 3, 4, 5]
    (letter,) = pulled.received_messages
    assert letter.message.data == b"hello"
    assert letter.message.attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"


def test_a_redirect_is_a_refusal_and_is_not_followed(api: Api, inbox: Inbox) -> None:
    inbox.statuses = [302, 204]
    api.subscribe(push_config={"push_endpoint": inbox.url})
    api.publish(b"hello")
    first, second = inbox.envelope(), inbox.envelope()
    assert first == second


def test_an_endpoint_that_nobody_listens_at_gets_the_message_once_somebody_does(
    api: Api, inbox: Inbox
) -> None:
    nowhere = "http://127.0.0.1:1/"
    api.subscribe(push_config={"push_endpoint": nowhere})
    api.publish(b"hello")
    api.subscriber.modify_push_config(
        subscription=SUBSCRIPTION, push_config={"push_endpoint": inbox.url}
    )
    assert inbox.envelope()["message"]["data"] == "aGVsbG8="


AUDIENCES: list[Any] = [
    pytest.param("https://step.example.com", "https://step.example.com", id="named"),
    pytest.param("", None, id="the endpoint when none is named"),
]


@pytest.mark.parametrize("audience,expected", AUDIENCES)
def test_a_push_with_an_identity_bears_a_token_that_can_be_verified(
    api: Api, inbox: Inbox, audience: str, expected: str | None
) -> None:
    token = {"service_account_email": EMAIL, "audience": audience}
    api.subscribe(push_config={"push_endpoint": inbox.url, "oidc_token": token})
    api.publish(b"hello")
    bearer = inbox.request().headers["authorization"].removeprefix("Bearer ")
    claims = jwt.decode(
        bearer, certs=api.service.tokens.certificates(), audience=expected or inbox.url
    )
    assert claims["iss"] == "https://accounts.google.com"
    assert (claims["email"], claims["email_verified"]) == (EMAIL, True)
    assert claims["exp"] - claims["iat"] == 3600
    assert jwt.decode_header(bearer)["alg"] == "RS256"


def test_a_pull_waits_for_a_message(api: Api) -> None:
    api.subscribe()
    pulls: queue.Queue[Any] = queue.Queue()

    def pull() -> None:
        pulls.put(api.subscriber.pull(subscription=SUBSCRIPTION, max_messages=1, timeout=15))

    thread = threading.Thread(target=pull)
    thread.start()
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    message_id = api.publish(b"hello", k="v")
    (received,) = pulls.get(timeout=10).received_messages
    thread.join()
    assert (received.message.message_id, received.delivery_attempt) == (message_id, 0)
    assert before <= received.message.publish_time <= datetime.now(UTC)


@pytest.mark.filterwarnings("ignore:The return_immediately flag is deprecated")
def test_a_pull_that_is_not_to_wait_comes_back_empty(api: Api) -> None:
    api.subscribe()
    answer = api.subscriber.pull(
        request={"subscription": SUBSCRIPTION, "max_messages": 1, "return_immediately": True}
    )
    assert list(answer.received_messages) == []


def test_a_pulled_message_comes_again_when_refused_and_ends_when_acknowledged(api: Api) -> None:
    api.subscribe()
    api.publish(b"hello")
    first = api.pull()
    api.subscriber.modify_ack_deadline(
        subscription=SUBSCRIPTION, ack_ids=[first.ack_id], ack_deadline_seconds=0
    )
    again = api.pull()
    api.subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=[again.ack_id])
    assert first.message.message_id == again.message.message_id
    assert api.service.pubsub.backlog(SUBSCRIPTION) == 0


def test_a_streaming_subscriber_gets_what_comes(api: Api) -> None:
    api.subscribe()
    api.publish(b"before")
    received: queue.Queue[Any] = queue.Queue()
    streaming = api.subscriber.subscribe(SUBSCRIPTION, callback=received.put)
    first = received.get(timeout=10)
    first.ack_with_response().result(timeout=10)
    api.publish(b"after")
    second = received.get(timeout=10)
    second.ack_with_response().result(timeout=10)
    streaming.cancel()
    streaming.result(timeout=10)
    assert (first.data, second.data) == (b"before", b"after")


def test_a_subscription_is_shown_as_it_was_asked_for_with_the_defaults_filled_in(api: Api) -> None:
    api.subscribe(
        push_config={"push_endpoint": "https://example.com/"},
        retry_policy={"minimum_backoff": timedelta(seconds=5)},
        dead_letter_policy={"dead_letter_topic": DEAD},
        filter='attributes.cause = "Added"',
        labels={"a": "b"},
    )
    shown = api.subscriber.get_subscription(subscription=SUBSCRIPTION)
    assert shown == types.Subscription(
        name=SUBSCRIPTION,
        topic=TOPIC,
        push_config={"push_endpoint": "https://example.com/"},
        ack_deadline_seconds=10,
        message_retention_duration=timedelta(days=7),
        retry_policy={
            "minimum_backoff": timedelta(seconds=5),
            "maximum_backoff": timedelta(seconds=600),
        },
        dead_letter_policy={"dead_letter_topic": DEAD, "max_delivery_attempts": 5},
        filter='attributes.cause = "Added"',
        labels={"a": "b"},
        state="ACTIVE",
    )


def test_topics_and_subscriptions_are_listed(api: Api) -> None:
    api.subscribe()
    topics = [topic.name for topic in api.publisher.list_topics(project=PROJECT)]
    subscriptions = [found.name for found in api.subscriber.list_subscriptions(project=PROJECT)]
    of_topic = list(api.publisher.list_topic_subscriptions(topic=TOPIC))
    assert topics == [DEAD, TOPIC]
    assert subscriptions == of_topic == [SUBSCRIPTION]


def test_the_subscription_of_a_deleted_topic_says_so(api: Api) -> None:
    api.subscribe()
    api.publisher.delete_topic(topic=TOPIC)
    shown = api.subscriber.get_subscription(subscription=SUBSCRIPTION)
    assert shown.topic == "_deleted-topic_"


def test_what_is_not_there_is_not_found(api: Api) -> None:
    api.subscribe()
    api.subscriber.delete_subscription(subscription=SUBSCRIPTION)
    with pytest.raises(exceptions.NotFound) as gone:
        api.subscriber.get_subscription(subscription=SUBSCRIPTION)
    with pytest.raises(exceptions.NotFound) as missing:
        api.publisher.publish("projects/p/topics/other", b"x").result(timeout=10)
    assert gone.value.message == "Resource not found (resource=inbox)."
    assert missing.value.message == "Resource not found (resource=other)."


def test_a_name_in_use_is_refused(api: Api) -> None:
    with pytest.raises(exceptions.AlreadyExists) as refusal:
        api.publisher.create_topic(name=TOPIC)
    assert refusal.value.message == "Resource already exists in the project (resource=inbox)."


NOT_HERE: list[Any] = [
    pytest.param({"enable_message_ordering": True}, "enable_message_ordering", id="ordering"),
    pytest.param(
        {"push_config": {"push_endpoint": "https://a.b/", "no_wrapper": {}}},
        "no_wrapper",
        id="unwrapped pushes",
    ),
]


@pytest.mark.parametrize("fields,name", NOT_HERE)
def test_what_is_not_here_is_refused_by_name(api: Api, fields: dict[str, Any], name: str) -> None:
    with pytest.raises(exceptions.MethodNotImplemented) as refusal:
        api.subscribe(**fields)
    assert refusal.value.message == f"The embedded Pub/Sub has no {name}."


def test_an_endpoint_of_another_protocol_than_http_is_refused(api: Api) -> None:
    with pytest.raises(exceptions.InvalidArgument) as refusal:
        api.subscribe(push_config={"push_endpoint": "ftp://a.b/"})
    assert refusal.value.message.startswith("Invalid push endpoint given (endpoint=ftp://a.b/).")


def test_a_service_that_is_away_is_unavailable(api: Api) -> None:
    api.subscribe()
    api.service.pubsub.go_away()
    with pytest.raises(exceptions.ServiceUnavailable):
        PlainPublisherClient.publish(
            api.publisher, topic=TOPIC, messages=[{"data": b"x"}], retry=None
        )
    with pytest.raises(exceptions.ServiceUnavailable):
        api.subscriber.pull(subscription=SUBSCRIPTION, max_messages=1, retry=None)


def test_a_port_that_is_taken_is_an_error(api: Api, loop: Loop) -> None:
    port = int(api.service.address.rpartition(":")[2])
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
        loop.run(server.serve(port=port))


def test_the_largest_message_passes(api: Api, inbox: Inbox) -> None:
    api.subscribe(push_config={"push_endpoint": inbox.url}, ack_deadline_seconds=60)
    data = b"x" * 9_900_000
    api.publish(data)
    assert base64.b64decode(inbox.envelope()["message"]["data"]) == data
