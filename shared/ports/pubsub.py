"""The port to Pub/Sub: publishes to the steps' topics."""

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from shared.base.names import topic_id
from shared.ports.errors import UNPARSABLE, About, CallError

EMULATOR = "PUBSUB_EMULATOR_HOST"
_PUBLISH_TIMEOUT_S = 10.0
_MESSAGES_A_CALL = 1_000
"""Pub/Sub's limit of messages in one request."""


class Topics:
    """The steps' topics, by google-cloud-pubsub's plain client, which publishes before it returns.

    The batching client publishes later, in a thread: the function may have ended by then.
    """

    def __init__(self, project: str, prefix: str) -> None:
        self._project = project
        self._prefix = prefix
        self._lock = threading.Lock()
        self._client: Any = None

    def publish(self, step: str, contents: Sequence[tuple[bytes, Mapping[str, str]]]) -> list[str]:
        """Publish data with attributes to a step's topic, a thousand messages a call. Returns the ids.

        Raises `CallError`.
        """
        ids: list[str] = []
        for start in range(0, len(contents), _MESSAGES_A_CALL):
            ids += self._publish(step, contents[start : start + _MESSAGES_A_CALL])
        return ids

    def _publish(self, step: str, contents: Sequence[tuple[bytes, Mapping[str, str]]]) -> list[str]:
        from google.api_core.exceptions import GoogleAPICallError, RetryError
        from google.auth.exceptions import GoogleAuthError

        name = topic_id(self._prefix, step)
        topic = f"projects/{self._project}/topics/{name}"
        messages = [{"data": data, "attributes": attributes} for data, attributes in contents]
        try:
            answer = self._get_client().publish(
                topic=topic, messages=messages, timeout=_PUBLISH_TIMEOUT_S, retry=None
            )
        except (GoogleAPICallError, RetryError, GoogleAuthError) as error:
            http = int(getattr(error, "code", None) or 0)
            code, about = "refused" if http else "unreachable", About("topics", name)
            raise CallError(f"publish to {name}", http, code, str(error), about) from error
        ids = [str(message_id) for message_id in answer.message_ids]
        if len(ids) != len(messages):
            why = f"the answer has {len(ids)} message ids for {len(messages)} messages"
            raise CallError(f"publish to {name}", 0, UNPARSABLE, why, About("topics", name))
        return ids

    def _get_client(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = _make_publisher()
            return self._client


def _make_publisher() -> Any:
    from google.pubsub_v1.services.publisher import PublisherClient, transports

    return open_client(PublisherClient, transports.PublisherGrpcTransport, EMULATOR)


def open_client(client: Any, transport: Any, variable: str) -> Any:
    """A client of Google's libraries; one of the emulator that this variable names, if it is set."""
    emulator = os.environ.get(variable)
    if not emulator:
        return client()
    import grpc

    return client(transport=transport(channel=grpc.insecure_channel(emulator)))
