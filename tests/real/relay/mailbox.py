"""The inboxes of the steps in an embedded Pub/Sub, read by pull."""

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
from tests.real.relay.patience import PATIENCE_S
from tests.real.relay.wire import Background


@dataclass(frozen=True)
class Letter:
    """A message in an inbox."""

    step: str
    cluster: str
    document: dict[str, Any]

    @property
    def group(self) -> str:
        """The name of the group, or of what else it is about."""
        return str(self.document["name"])

    @property
    def cause(self) -> str:
        return str(self.document["cause"])

    @property
    def nodes(self) -> list[str]:
        return list(self.document.get("nodes", []))


class Mailbox:
    """All inboxes of the relay; made by `open_mailbox`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.letters: list[Letter] = []
        """All that has come, in the order of coming."""
        self._news = threading.Condition()
        self._channel = grpc.insecure_channel(address)
        self._client = SubscriberClient(transport=SubscriberGrpcTransport(channel=self._channel))
        self._readers = [
            threading.Thread(target=self._read, args=(step,)) for step in TRIGGERED_STEPS
        ]
        for reader in self._readers:
            reader.start()

    def wait_for(self, fits: Callable[[Letter], bool], what: str) -> Letter:
        """The first letter that fits, of those that are here and those to come."""

        def found() -> Letter | None:
            return next((one for one in self.letters if fits(one)), None)

        with self._news:
            self._news.wait_for(lambda: found() is not None, PATIENCE_S)
            letter = found()
        assert letter is not None, f"no message says {what}; there are {self.letters}"
        return letter

    def wait_for_news(self, step: str, group: str, cause: str) -> Letter:
        """The first letter to a step about a group with this cause."""
        return self.wait_for(
            lambda one: (one.step, one.group, one.cause) == (step, group, cause),
            f"{cause} of {group} to {step}",
        )

    def close(self) -> None:
        """Read no more."""
        self._channel.close()
        for reader in self._readers:
            reader.join()

    def _read(self, step: str) -> None:
        name = _subscription(step)
        wanted = types.PullRequest(subscription=name, max_messages=1000)
        while True:
            try:
                found = list(self._client.pull(wanted, timeout=None, retry=None).received_messages)
                if found:
                    ids = [one.ack_id for one in found]
                    self._client.acknowledge(subscription=name, ack_ids=ids, retry=None)
            except (GoogleAPICallError, ValueError):
                return  # the channel is closed
            with self._news:
                self.letters += [_letter(step, one.message) for one in found]
                self._news.notify_all()


def _letter(step: str, message: types.PubsubMessage) -> Letter:
    return Letter(step, message.attributes["cluster"], json.loads(message.data))


@contextmanager
def open_mailbox() -> Iterator[Mailbox]:
    """A Pub/Sub with the inboxes, on a port of loopback, until the block is left."""
    background = Background()
    server = background.run(_serve())
    mailbox = Mailbox(server.address)
    try:
        yield mailbox
    finally:
        mailbox.close()
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
