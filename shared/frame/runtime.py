"""The real world's side of a step: environment, clocks, randomness and Pub/Sub, made once."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from shared.base.errors import CallError
from shared.base.logs import make_logger
from shared.base.names import topic_id
from shared.frame.settings import Settings, from_environment
from shared.frame.step import Runtime
from shared.frame.triggers import Message
from shared.ports.gce import Clients
from shared.ports.kubernetes.cluster import Connection

if TYPE_CHECKING:
    from shared.ports.gke import Client as GkeClient

_PUBLISH_TIMEOUT_S = 10.0
_MESSAGES_A_CALL = 1_000
"""As many as Pub/Sub takes in one request."""


class Inboxes:
    """The steps' inboxes, by google-cloud-pubsub's plain client: a call publishes and answers.

    The batching client keeps a thread and answers later; a function has no later.
    """

    def __init__(self, settings: Settings, connection: Connection) -> None:
        self._settings = settings
        self._connection = connection
        self._lock = threading.Lock()
        self._client: Any = None

    def publish(self, step: str, messages: Sequence[Message]) -> None:
        """Publish to a step's inbox, a thousand messages a call. Raises `CallError`."""
        cluster = self._connection.constants.get("cluster", "")
        for start in range(0, len(messages), _MESSAGES_A_CALL):
            batch = messages[start : start + _MESSAGES_A_CALL]
            self._publish(
                step, [(message.encode(), message.attributes(cluster)) for message in batch]
            )

    def publish_data(self, step: str, data: bytes, attributes: Mapping[str, str]) -> str:
        """Publish bytes as they are; returns the message's id. Raises `CallError`."""
        return self._publish(step, [(data, attributes)])[0]

    def _publish(self, step: str, contents: Sequence[tuple[bytes, Mapping[str, str]]]) -> list[str]:
        from google.api_core.exceptions import GoogleAPICallError, RetryError
        from google.auth.exceptions import GoogleAuthError

        name = topic_id(self._settings.topic_prefix, step)
        topic = f"projects/{self._settings.pubsub_project}/topics/{name}"
        messages = [{"data": data, "attributes": attributes} for data, attributes in contents]
        try:
            answer = self._get_client().publish(
                topic=topic, messages=messages, timeout=_PUBLISH_TIMEOUT_S, retry=None
            )
        except (GoogleAPICallError, RetryError, GoogleAuthError) as error:
            http = int(getattr(error, "code", None) or 0)
            reason = "refused" if http else "unreachable"
            raise CallError(f"publish to {name}", http, reason, str(error)) from error
        return [str(message_id) for message_id in answer.message_ids]

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
    connection = Connection(settings.access)
    return Runtime(
        settings=settings,
        connection=connection,
        clients=Clients(settings.compute_endpoint),
        publish=Inboxes(settings, connection).publish,
        now=lambda: datetime.now(UTC),
        monotonic=time.monotonic,
        random_bytes=secrets.token_bytes,
        log=make_logger(),
        gke=make_gke_client(settings),
    )


def make_gke_client(settings: Settings) -> GkeClient | None:
    """GKE's client, where JobSets get node pools; it connects at the first call."""
    if settings.gke is None:
        return None
    from shared.ports.gke import Client

    return Client(settings.gke.endpoint)
