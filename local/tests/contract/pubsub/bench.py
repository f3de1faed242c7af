"""What a case works with: the clients of an application, and an HTTP endpoint that is pushed to."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import pubsub_v1
from google.pubsub_v1 import PublisherClient as PlainPublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

WITHIN_S = 60.0
"""How long anything may take that is waited for; the longest, a push time-out, is 10 seconds."""
_PULL_S = 10.0
_TIMEOUT_S = 2.0
_ANY_SIZE = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


@dataclass(frozen=True)
class Push:
    """A push request as it came in; ``at`` in seconds of the monotonic clock."""

    at: float
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        """The envelope."""
        return json.loads(self.raw)

    @property
    def message(self) -> Any:
        """The message in the envelope."""
        return self.body["message"]


@dataclass
class Inbox:
    """A part of the endpoint: takes pushes, and gives each the next of ``answers``.

    The last answer is given again and again; `None` is no answer for as long as the case runs. With
    ``gathers`` each push waits until so many are under way together, or two seconds.
    """

    url: str
    answers: list[int | None]
    gathers: int = 1
    most_under_way: int = 0
    _pushes: list[Push] = field(default_factory=list)
    _under_way: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _closed: bool = False

    def take(self, push: Push) -> int | None:
        """The status to answer with; waits as long as it is to wait."""
        with self._changed:
            self._pushes.append(push)
            self._under_way += 1
            self.most_under_way = max(self.most_under_way, self._under_way)
            status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self._changed.notify_all()
            if status is None:
                self._changed.wait_for(lambda: self._closed)
            else:
                self._changed.wait_for(lambda: self.most_under_way >= self.gathers, _TIMEOUT_S)
            self._under_way -= 1
        return status

    @property
    def count(self) -> int:
        """How many pushes there were so far."""
        return len(self._pushes)

    def wait(self, count: int) -> list[Push]:
        """The first ``count`` pushes, when they have come."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self._pushes) >= count, WITHIN_S)
            assert came, f"{len(self._pushes)} of {count} pushes came to {self.url}"
            return self._pushes[:count]

    def close(self) -> None:
        """Let go of those that get no answer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Endpoint:
    """An HTTP server on loopback with an `Inbox` for each first segment of a path; else a 404."""

    def __init__(self) -> None:
        self._inboxes: dict[str, Inbox] = {}
        inboxes = self._inboxes

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                push = Push(time.monotonic(), self.path, headers, body)
                inbox = inboxes.get(self.path.split("/")[1])
                status = inbox.take(push) if inbox else 404
                if status is not None:
                    self.send_response(status)
                    if 300 <= status < 400:
                        self.send_header("Location", f"{self.path}/moved")
                    self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def open(self, answers: Sequence[int | None], gathers: int) -> Inbox:
        """Take pushes at a path that nobody else has, and below it."""
        segment = secrets.token_hex(6)
        url = f"http://127.0.0.1:{self._server.server_port}/{segment}/push?from=pubsub"
        inbox = Inbox(url, list(answers), gathers)
        self._inboxes[segment] = inbox
        return inbox

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@dataclass(frozen=True)
class Clients:
    """An application's clients: batching, plain, pulling. They are not typed."""

    address: str
    batching: Any
    publisher: Any
    subscriber: Any


@contextmanager
def connect(address: str) -> Iterator[Clients]:
    """Clients of the Pub/Sub that listens at ``address``, without TLS and credentials."""
    with grpc.insecure_channel(address, options=_ANY_SIZE) as channel:
        transport = PublisherGrpcTransport(channel=channel)
        batching = pubsub_v1.PublisherClient(transport=transport)
        yield Clients(
            address,
            batching,
            PlainPublisherClient(transport=transport),
            pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(channel=channel)),
        )
        batching.stop()


class Bench:
    """One case's project at one Pub/Sub. Where no name is given, ``inbox`` is meant."""

    def __init__(self, clients: Clients, endpoint: Endpoint) -> None:
        self.address = clients.address
        self.batching = clients.batching
        self.publisher = clients.publisher
        self.subscriber = clients.subscriber
        self.project_id = f"p-{secrets.token_hex(6)}"
        self.project = f"projects/{self.project_id}"
        self._endpoint = endpoint
        self._inboxes: list[Inbox] = []

    def close(self) -> None:
        """Remove what the case has left, so that nothing is pushed any more."""
        for inbox in self._inboxes:
            inbox.close()
        for subscription in self.subscriber.list_subscriptions(project=self.project):
            self.subscriber.delete_subscription(subscription=subscription.name)
        for topic in self.publisher.list_topics(project=self.project):
            self.publisher.delete_topic(topic=topic.name)

    def refusal(self, error: GoogleAPICallError) -> str:
        """Status and words, the same in each project."""
        status = error.grpc_status_code
        assert status is not None
        return f"{status.name} {error.message}".replace(self.project, "projects/P")

    def status_of(self, call: Callable[[], object]) -> str:
        """The status of what is refused."""
        try:
            call()
        except GoogleAPICallError as error:
            return self.refusal(error).partition(" ")[0]
        return "OK"

    def topic_name(self, topic_id: str = "inbox") -> str:
        return f"{self.project}/topics/{topic_id}"

    def subscription_name(self, subscription_id: str = "inbox") -> str:
        return f"{self.project}/subscriptions/{subscription_id}"

    def topic(self, topic_id: str = "inbox", **fields: Any) -> Any:
        """Make a topic; as it is shown."""
        return self.publisher.create_topic(request={"name": self.topic_name(topic_id), **fields})

    def subscribe(self, subscription_id: str = "inbox", **fields: Any) -> Any:
        """Make a subscription; as it is shown. ``topic`` is an id."""
        topic = self.topic_name(fields.pop("topic", "inbox"))
        name = self.subscription_name(subscription_id)
        return self.subscriber.create_subscription(request={"name": name, "topic": topic, **fields})

    def update(self, *paths: str, subscription_id: str = "inbox", **fields: Any) -> Any:
        """Change the fields of a subscription that ``paths`` name; as it is shown."""
        named = {
            "name": self.subscription_name(subscription_id),
            "topic": self.topic_name(),
            **fields,
        }
        return self.subscriber.update_subscription(
            request={"subscription": named, "update_mask": {"paths": paths}}
        )

    def push(self, inbox: Inbox, subscription_id: str = "inbox", **fields: Any) -> Any:
        """Make a subscription that pushes there."""
        push_config = {"push_endpoint": inbox.url, **fields.pop("push_config", {})}
        return self.subscribe(subscription_id, push_config=push_config, **fields)

    def point(self, inbox: Inbox | None, subscription_id: str = "inbox") -> None:
        """Let a subscription push there from now on, or nowhere."""
        self.subscriber.modify_push_config(
            subscription=self.subscription_name(subscription_id),
            push_config={"push_endpoint": inbox.url} if inbox else {},
        )

    def inbox(self, *answers: int | None, gathers: int = 1) -> Inbox:
        """Something to push to, which answers so; 204 if nothing is said."""
        inbox = self._endpoint.open(answers or (204,), gathers)
        self._inboxes.append(inbox)
        return inbox

    def publish(self, data: bytes = b"x", *, topic: str = "inbox", **fields: Any) -> str:
        """Publish one message; its id."""
        (message_id,) = self.publish_all([{"data": data, **fields}], topic=topic)
        return message_id

    def publish_all(self, messages: Sequence[Any], topic: str = "inbox") -> list[str]:
        """Publish messages in one call; their ids."""
        answer = self.publisher.publish(
            topic=self.topic_name(topic), messages=messages, retry=None, timeout=WITHIN_S
        )
        return list(answer.message_ids)

    def pull(self, subscription_id: str = "inbox") -> Any:
        """The next message that is ready, when there is one."""
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            answer = self.subscriber.pull(
                subscription=self.subscription_name(subscription_id),
                max_messages=1,
                timeout=_PULL_S,
            )
            if answer.received_messages:
                return answer.received_messages[0]
        raise AssertionError(f"there was nothing to pull from {subscription_id}")

    def pull_many(self, subscription_id: str = "inbox") -> list[Any]:
        """What is ready, when something is; acknowledged."""
        name = self.subscription_name(subscription_id)
        answer = self.subscriber.pull(subscription=name, max_messages=1_000, timeout=_PULL_S)
        received = list(answer.received_messages)
        if received:
            ack_ids = [one.ack_id for one in received]
            self.subscriber.acknowledge(subscription=name, ack_ids=ack_ids)
        return received

    def pull_now(self, subscription_id: str = "inbox") -> list[Any]:
        """What is ready at this moment."""
        answer = self.subscriber.pull(
            request={
                "subscription": self.subscription_name(subscription_id),
                "max_messages": 1_000,
                "return_immediately": True,
            }
        )
        return list(answer.received_messages)

    def acknowledge(self, received: Any, subscription_id: str = "inbox") -> None:
        """End a delivery."""
        self.subscriber.acknowledge(
            subscription=self.subscription_name(subscription_id), ack_ids=[received.ack_id]
        )

    def lease(self, received: Any, seconds: int, subscription_id: str = "inbox") -> None:
        """Let a lease end so many seconds from now; none refuses the message."""
        self.subscriber.modify_ack_deadline(
            subscription=self.subscription_name(subscription_id),
            ack_ids=[received.ack_id],
            ack_deadline_seconds=seconds,
        )

    def describe_letter(self, letter: Any, message_id: str, published: str) -> dict[str, Any]:
        """A dead letter, the same in each project, of a message with that id and time."""
        attributes = dict(letter.attributes)
        time_of_message = attributes.pop("CloudPubSubDeadLetterSourceTopicPublishTime", "")
        return {
            "letter": letter.data,
            "attributes": {
                key: value.replace(self.project_id, "P") for key, value in attributes.items()
            },
            "published": "when the message was" if time_of_message == published else "then",
            "id": "the same" if letter.message_id == message_id else "another",
        }
