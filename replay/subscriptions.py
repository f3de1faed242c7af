"""The tool's port to Pub/Sub's subscriptions: pull, acknowledge, and one that lives for a recording."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from replay.errors import as_call_errors
from shared.ports.errors import About
from shared.ports.pubsub import EMULATOR, open_client

PULL_S = 3.0
"""How long a pull waits for messages."""
MAX_PULLED = 100
"""Messages of one pull."""
_CALL_S = 10.0
_KIND = "subscriptions"
_ACKNOWLEDGED_AT_ONCE = 500
_RECORDING_EXPIRES = timedelta(days=1)
"""Pub/Sub's minimum: the subscription of a recording that was killed is deleted after it."""


@dataclass(frozen=True)
class Pulled:
    """A message that is leased to us until it is acknowledged, released, or the lease ends."""

    ack_id: str
    message_id: str
    data: bytes
    attributes: Mapping[str, str]
    published: datetime


class Subscriptions:
    """The subscriptions of a project, by google-cloud-pubsub's plain client."""

    def __init__(self, project: str) -> None:
        self._project = project

    def pull(self, subscription: str, limit: int = MAX_PULLED) -> list[Pulled]:
        """Messages of a subscription; empty when none has come in a while. Raises `CallError`."""
        from google.api_core.exceptions import DeadlineExceeded

        with as_call_errors(f"pull from {subscription}", About(_KIND, subscription)):
            try:
                answer = self._client.pull(
                    subscription=self._path(subscription),
                    max_messages=limit,
                    timeout=PULL_S,
                    retry=None,
                )
            except DeadlineExceeded:
                return []
        return [
            Pulled(
                ack_id=received.ack_id,
                message_id=received.message.message_id,
                data=received.message.data,
                attributes=dict(received.message.attributes),
                published=received.message.publish_time,
            )
            for received in answer.received_messages
        ]

    def acknowledge(self, subscription: str, ack_ids: Sequence[str]) -> None:
        """Remove messages from a subscription. Raises `CallError`."""
        self._call("acknowledge", subscription, ack_ids)

    def lease(self, subscription: str, ack_ids: Sequence[str], seconds: int) -> None:
        """Keep messages for some seconds; 0 releases them immediately. Raises `CallError`."""
        self._call("modify_ack_deadline", subscription, ack_ids, ack_deadline_seconds=seconds)

    def _call(self, method: str, subscription: str, ack_ids: Sequence[str], **more: int) -> None:
        call, path = getattr(self._client, method), self._path(subscription)
        for start in range(0, len(ack_ids), _ACKNOWLEDGED_AT_ONCE):
            some = list(ack_ids[start : start + _ACKNOWLEDGED_AT_ONCE])
            with as_call_errors(f"{method} in {subscription}", About(_KIND, subscription)):
                call(subscription=path, ack_ids=some, timeout=_CALL_S, retry=None, **more)

    @contextmanager
    def open(self, topic: str, name: str) -> Iterator[str]:
        """A subscription to a topic that is deleted with the block. Raises `CallError`."""
        project = About("projects", self._project)
        with as_call_errors(f"subscribe to {topic}", project):
            self._client.create_subscription(
                request={
                    "name": self._path(name),
                    "topic": f"projects/{self._project}/topics/{topic}",
                    "expiration_policy": {"ttl": _RECORDING_EXPIRES},
                },
                timeout=_CALL_S,
                retry=None,
            )
        try:
            yield name
        finally:
            with as_call_errors(f"delete the subscription {name}", project):
                self._client.delete_subscription(
                    subscription=self._path(name), timeout=_CALL_S, retry=None
                )

    def _path(self, subscription: str) -> str:
        return f"projects/{self._project}/subscriptions/{subscription}"

    @cached_property
    def _client(self) -> Any:
        from google.pubsub_v1.services import subscriber

        transport = subscriber.transports.SubscriberGrpcTransport
        return open_client(subscriber.SubscriberClient, transport, EMULATOR)
