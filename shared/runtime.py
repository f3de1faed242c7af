"""The real world's side of a step: environment, clocks, randomness and Pub/Sub, made once."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from shared.cluster import Connection
from shared.errors import CallError
from shared.gce import Clients
from shared.logs import make_logger
from shared.names import topic_id
from shared.occasions import Message
from shared.settings import Settings, from_environment
from shared.step import Runtime

_PUBLISH_TIMEOUT_S = 10.0


class Inboxes:
    """The steps' inboxes, by google-cloud-pubsub's plain client: one call publishes one message.

    The batching client keeps a thread and answers later; a function has no later.
    """

    def __init__(self, settings: Settings, connection: Connection) -> None:
        self._settings = settings
        self._connection = connection
        self._lock = threading.Lock()
        self._client: Any = None

    def publish(self, step: str, message: Message) -> None:
        """Publish to a step's inbox. Raises `CallError`."""
        cluster = self._connection.constants.get("cluster", "")
        self.publish_data(step, message.encode(), message.attributes(cluster))

    def publish_data(self, step: str, data: bytes, attributes: Mapping[str, str]) -> str:
        """Publish bytes as they are; returns the message's id. Raises `CallError`."""
        from google.api_core.exceptions import GoogleAPICallError, RetryError

        name = topic_id(self._settings.topic_prefix, step)
        topic = f"projects/{self._settings.pubsub_project}/topics/{name}"
        content = {"data": data, "attributes": attributes}
        try:
            answer = self._get_client().publish(
                topic=topic, messages=[content], timeout=_PUBLISH_TIMEOUT_S, retry=None
            )
        except (GoogleAPICallError, RetryError) as error:
            http = int(getattr(error, "code", None) or 0)
            reason = "refused" if http else "unreachable"
            raise CallError(f"publish to {name}", http, reason, error.message) from error
        return str(answer.message_ids[0])

    def _get_client(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = _make_publisher()
            return self._client


def _make_publisher() -> Any:
    from google.pubsub_v1.services.publisher import PublisherClient

    emulator = os.environ.get("PUBSUB_EMULATOR_HOST")
    if not emulator:
        return PublisherClient()
    import grpc
    from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

    channel = grpc.insecure_channel(emulator)
    return PublisherClient(transport=PublisherGrpcTransport(channel=channel))


@lru_cache(maxsize=1)
def get_runtime() -> Runtime:
    """The runtime of this process. Raises `SettingsError` while the environment is not right."""
    settings = from_environment(os.environ)
    connection = Connection(settings.kubeconfig)
    return Runtime(
        settings=settings,
        connection=connection,
        clients=Clients(settings.compute_endpoint),
        publish=Inboxes(settings, connection).publish,
        now=lambda: datetime.now(UTC),
        monotonic=time.monotonic,
        random_bytes=secrets.token_bytes,
        log=make_logger(),
    )
