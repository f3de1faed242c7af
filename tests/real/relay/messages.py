"""Subscriptions of the steps' topics in an embedded Pub/Sub, read by pull."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.api_core.exceptions import GoogleAPICallError
from google.pubsub_v1 import types
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from local.cloud.simulation import topic
from local.pubsub.model import SubscriptionConfig
from local.pubsub.server import Server, serve
from relay.kinds import TRIGGERED_STEPS
from tests.real.relay.proxy import Background
from tests.real.relay.waiting import TIMEOUT_S


@dataclass(frozen=True)
class Message:
    """A message to a step."""

    step: str
    cluster: str
    document: dict[str, Any]

    @property
    def group(self) -> str:
        """The name of the group or other object."""
        return str(self.document["name"])

    @property
    def cause(self) -> str:
        return str(self.document["cause"])

    @property
    def nodes(self) -> list[str]:
        return list(self.document.get("nodes", []))


class Subscriptions:
    """Subscriptions of all topics of the relay; created by `open_subscriptions`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.received: list[Message] = []
        """All messages, in the order of their arrival."""
        self._changed = threading.Condition()
        self._channel = grpc.insecure_channel(address)
        self._client = SubscriberClient(transport=SubscriberGrpcTransport(channel=self._channel))
        self._readers = [
            threading.Thread(target=self._read, args=(step,)) for step in TRIGGERED_STEPS
        ]
        for reader in self._readers:
            reader.start()

    def wait_for(self, matches: Callable[[Message], bool], description: str) -> Message:
        """Wait for the first message that matches, received before or after the call."""

        def found() -> Message | None:
            return next((one for one in self.received if matches(one)), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None, TIMEOUT_S)
            message = found()
        assert message is not None, f"no message: {description}; received: {self.received}"
        return message

    def wait_for_message(self, step: str, group: str, cause: str) -> Message:
        """Wait for the first message to a step about a group with this cause."""
        return self.wait_for(
            lambda one: (one.step, one.group, one.cause) == (step, group, cause),
            f"{cause} of {group} to {step}",
        )

    def close(self) -> None:
        """Stop reading."""
        self._channel.close()
        for reader in self._readers:
            reader.join()

    def _read(self, step: str) -> None:
        name = _subscription(step)
        request = types.PullRequest(subscription=name, max_messages=1000)
        while True:
            try:
                found = list(self._client.pull(request, timeout=None, retry=None).received_messages)
                if found:
                    ids = [one.ack_id for one in found]
                    self._client.acknowledge(subscription=name, ack_ids=ids, retry=None)
            except (GoogleAPICallError, ValueError):
                return  # the channel is closed
            with self._changed:
                self.received += [_parse(step, one.message) for one in found]
                self._changed.notify_all()


def _parse(step: str, message: types.PubsubMessage) -> Message:
    return Message(step, message.attributes["cluster"], json.loads(message.data))


@contextmanager
def open_subscriptions() -> Iterator[Subscriptions]:
    """Run a Pub/Sub with the subscriptions on a port of loopback until the block ends."""
    background = Background()
    server = background.run(_serve())
    subscriptions = Subscriptions(server.address)
    try:
        yield subscriptions
    finally:
        subscriptions.close()
        background.run(server.stop())
        background.stop()


async def _serve() -> Server:
    server = await serve()
    for step in TRIGGERED_STEPS:
        server.pubsub.create_topic(topic(step))
        server.pubsub.create_subscription(
            SubscriptionConfig(name=_subscription(step), topic=topic(step))
        )
    return server


def _subscription(step: str) -> str:
    return topic(step).replace("/topics/", "/subscriptions/")
