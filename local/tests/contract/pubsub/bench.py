"""The tools of a case: the clients of an application, and an HTTP endpoint that receives pushes."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from google.api_core.exceptions import GoogleAPICallError, NotFound
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

WITHIN_S = 60.0
"""The longest wait for anything. The slowest event, the timeout of a push, takes 10 seconds."""
_PULL_S = 10.0
_TIMEOUT_S = 2.0
_ANY_SIZE = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


@dataclass(frozen=True)
class Push:
    """A received push request. ``at`` is in seconds of the monotonic clock."""

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
class Receiver:
    """Receives the pushes to one path of the endpoint, and answers each with the next of ``answers``.

    The last answer is repeated. `None` means no answer until the case ends.
    """

    url: str
    answers: list[int | None]
    most_in_progress: int = 0
    _gathers: int = 1
    _pushes: list[Push] = field(default_factory=list)
    _in_progress: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _closed: bool = False

    def take(self, push: Push) -> int | None:
        """Record a push; return the status to answer with, after the wait that is configured."""
        with self._changed:
            self._pushes.append(push)
            self._in_progress += 1
            self.most_in_progress = max(self.most_in_progress, self._in_progress)
            status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self._changed.notify_all()
            if status is None:
                self._changed.wait_for(lambda: self._closed)
            else:
                self._changed.wait_for(lambda: self.most_in_progress >= self._gathers, _TIMEOUT_S)
            self._in_progress -= 1
        return status

    @property
    def count(self) -> int:
        """The number of pushes received so far."""
        return len(self._pushes)

    def wait(self, count: int) -> list[Push]:
        """Wait for ``count`` pushes, and return them."""
        with self._changed:
            complete = self._changed.wait_for(lambda: len(self._pushes) >= count, WITHIN_S)
            assert complete, f"{self.url} received {len(self._pushes)} of {count} pushes"
            return self._pushes[:count]

    def gather(self, count: int) -> None:
        """Let each answer wait for ``count`` pushes in progress together, two seconds at most."""
        with self._changed:
            self.most_in_progress = 0
            self._gathers = count

    def close(self) -> None:
        """Release the requests that are not answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Endpoint:
    """An HTTP server on loopback: one `Receiver` per first segment of a path, and 404 for others."""

    def __init__(self) -> None:
        self._receivers: dict[str, Receiver] = {}
        receivers = self._receivers

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                push = Push(time.monotonic(), self.path, headers, body)
                receiver = receivers.get(self.path.split("/")[1])
                status = receiver.take(push) if receiver else 404
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

    def open(self, answers: Sequence[int | None]) -> Receiver:
        """Receive pushes at a new path and below it."""
        segment = secrets.token_hex(6)
        url = f"http://127.0.0.1:{self._server.server_port}/{segment}/push?from=pubsub"
        receiver = Receiver(url, list(answers))
        self._receivers[segment] = receiver
        return receiver

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@dataclass(frozen=True)
class Clients:
    """An application's clients. They are not typed."""

    address: str
    publisher: Any
    subscriber: Any


@contextmanager
def connect(address: str) -> Iterator[Clients]:
    """Connect clients to the Pub/Sub at ``address``, without TLS and credentials."""
    with grpc.insecure_channel(address, options=_ANY_SIZE) as channel:
        transport = PublisherGrpcTransport(channel=channel)
        yield Clients(
            address,
            PublisherClient(transport=transport),
            SubscriberClient(transport=SubscriberGrpcTransport(channel=channel)),
        )


class Bench:
    """The project of one case in one Pub/Sub. The default id of topics and subscriptions is ``main``."""

    def __init__(self, clients: Clients, endpoint: Endpoint) -> None:
        self.address = clients.address
        self.publisher = clients.publisher
        self.subscriber = clients.subscriber
        self.project_id = f"p-{secrets.token_hex(6)}"
        self.project = f"projects/{self.project_id}"
        self._endpoint = endpoint
        self._receivers: list[Receiver] = []
        self._subscriptions: list[str] = []

    def close(self) -> None:
        """Delete the project's subscriptions, so that nothing is pushed any more."""
        for receiver in self._receivers:
            receiver.close()
        for name in self._subscriptions:
            # A case may have deleted it.
            with suppress(NotFound):
                self.subscriber.delete_subscription(subscription=name)

    def describe_error(self, error: GoogleAPICallError) -> str:
        """Return an error's status and message, with the project's name replaced."""
        status = error.grpc_status_code
        assert status is not None
        return f"{status.name} {error.message}".replace(self.project, "projects/P")

    def status_of(self, call: Callable[[], object]) -> str:
        """Return the status of a call's error, or OK."""
        try:
            call()
        except GoogleAPICallError as error:
            return self.describe_error(error).partition(" ")[0]
        return "OK"

    def topic_name(self, topic_id: str = "main") -> str:
        return f"{self.project}/topics/{topic_id}"

    def subscription_name(self, subscription_id: str = "main") -> str:
        return f"{self.project}/subscriptions/{subscription_id}"

    def topic(self, topic_id: str = "main", **fields: Any) -> Any:
        """Create a topic, and return it."""
        return self.publisher.create_topic(request={"name": self.topic_name(topic_id), **fields})

    def subscribe(self, subscription_id: str = "main", **fields: Any) -> Any:
        """Create a subscription, and return it. ``topic`` is an id."""
        topic = self.topic_name(fields.pop("topic", "main"))
        name = self.subscription_name(subscription_id)
        created = self.subscriber.create_subscription(
            request={"name": name, "topic": topic, **fields}
        )
        self._subscriptions.append(name)
        return created

    def push(self, receiver: Receiver, subscription_id: str = "main", **fields: Any) -> Any:
        """Create a subscription that pushes to the receiver."""
        push_config = {"push_endpoint": receiver.url, **fields.pop("push_config", {})}
        return self.subscribe(subscription_id, push_config=push_config, **fields)

    def receiver(self, *answers: int | None) -> Receiver:
        """Open a receiver with these answers; the default answer is 204."""
        receiver = self._endpoint.open(answers or (204,))
        self._receivers.append(receiver)
        return receiver

    def publish(self, data: bytes = b"x", *, topic: str = "main", **fields: Any) -> str:
        """Publish one message, and return its id."""
        (message_id,) = self.publish_all([{"data": data, **fields}], topic=topic)
        return message_id

    def publish_all(self, messages: Sequence[Any], topic: str = "main") -> list[str]:
        """Publish messages in one call, and return their ids."""
        answer = self.publisher.publish(
            topic=self.topic_name(topic), messages=messages, retry=None, timeout=WITHIN_S
        )
        return list(answer.message_ids)

    def pull(self, subscription_id: str = "main") -> Any:
        """Wait for a message, and return it."""
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            answer = self.subscriber.pull(
                subscription=self.subscription_name(subscription_id),
                max_messages=1,
                timeout=_PULL_S,
            )
            if answer.received_messages:
                return answer.received_messages[0]
        raise AssertionError(f"no message could be pulled from {subscription_id}")

    def pull_many(self, subscription_id: str = "main") -> list[Any]:
        """Wait for messages; acknowledge and return them. May return none."""
        name = self.subscription_name(subscription_id)
        answer = self.subscriber.pull(subscription=name, max_messages=1_000, timeout=_PULL_S)
        received = list(answer.received_messages)
        if received:
            ack_ids = [one.ack_id for one in received]
            self.subscriber.acknowledge(subscription=name, ack_ids=ack_ids)
        return received

    def pull_now(self, subscription_id: str = "main") -> list[Any]:
        """Return the messages that can be delivered now, without waiting."""
        answer = self.subscriber.pull(
            request={
                "subscription": self.subscription_name(subscription_id),
                "max_messages": 1_000,
                "return_immediately": True,
            }
        )
        return list(answer.received_messages)

    def acknowledge(self, received: Any, subscription_id: str = "main") -> None:
        """Acknowledge a message."""
        self.subscriber.acknowledge(
            subscription=self.subscription_name(subscription_id), ack_ids=[received.ack_id]
        )

    def lease(self, received: Any, seconds: int, subscription_id: str = "main") -> None:
        """Let a lease end that many seconds from now; 0 seconds is a nack."""
        self.subscriber.modify_ack_deadline(
            subscription=self.subscription_name(subscription_id),
            ack_ids=[received.ack_id],
            ack_deadline_seconds=seconds,
        )

    def describe_letter(self, letter: Any, message_id: str, published: str) -> dict[str, Any]:
        """Describe the dead letter of a message with that id and time, the same for each project."""
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
