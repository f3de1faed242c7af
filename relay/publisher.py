"""Publishes to Pub/Sub topics: one call at a time for each topic, without a queue.

The client's batching publisher is not used: it holds messages in threads and futures, whose number
grows during an outage. Here a call is made and awaited; what failed is returned to the outbox, which
retries it and drops what has become obsolete.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import google.auth
import structlog
from google.api_core.exceptions import GoogleAPIError
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import GoogleAuthError
from google.pubsub_v1.services.publisher import PublisherAsyncClient
from google.pubsub_v1.types import PubsubMessage

from relay import metrics
from relay.changes.pending import OutgoingMessage
from relay.kinds import TRIGGERED_STEPS
from shared.base.names import KIND, SIGNING_REQUEST_KIND, topic_id
from shared.triggers.message import REQUEST_KIND, Message

CALL_TIMEOUT_S = 10.0
MAX_MESSAGES = 300
"""In one call. Pub/Sub's limits are 1,000 messages and 10 MB; a message with 100 names of 253 characters
has 26 KB."""
_SCOPES = ("https://www.googleapis.com/auth/pubsub",)
_MOST_DETAIL = 500
_LOGGED_AS = {KIND: "group", REQUEST_KIND: "request"}
"""The fields of objects in log lines; those of other kinds are called as the kind."""
_LOG = structlog.get_logger()


class NoCredentials(Exception):
    """There are no credentials to publish with."""


def find_credentials() -> Credentials:
    """The application default credentials; anonymous ones for an emulator.

    Raises `NoCredentials`. May call the metadata server, which takes seconds where there is none.
    """
    if os.environ.get("PUBSUB_EMULATOR_HOST"):
        return AnonymousCredentials()
    try:
        return google.auth.default(scopes=_SCOPES)[0]
    except GoogleAuthError as error:
        raise NoCredentials(str(error)) from error


class PubSubPublisher:
    """Publishes to the steps' topics in one project.

    ``PUBSUB_EMULATOR_HOST`` leads to an emulator instead, as with every Pub/Sub client.
    """

    def __init__(
        self, project: str, topic_prefix: str, credentials: Credentials, now: Callable[[], datetime]
    ) -> None:
        self._topics = {
            step: f"projects/{project}/topics/{topic_id(topic_prefix, step)}"
            for step in TRIGGERED_STEPS
        }
        self._credentials = credentials
        self._now = now
        self._client: PublisherAsyncClient | None = None

    async def publish(
        self, publications: Sequence[OutgoingMessage], cluster_id: str
    ) -> list[OutgoingMessage]:
        """Publish all, each topic's in one call, and return those that could not be."""
        by_step: dict[str, list[OutgoingMessage]] = {}
        for publication in publications:
            by_step.setdefault(publication.step, []).append(publication)
        if self._client is None:
            self._client = PublisherAsyncClient(credentials=self._credentials)
        calls = [
            self._publish(self._client, step, batch, cluster_id) for step, batch in by_step.items()
        ]
        failed = [publication for part in await asyncio.gather(*calls) for publication in part]
        if failed:
            # A channel that has failed waits up to two minutes before it reconnects; a new one connects
            # immediately, and the outbox limits the attempts.
            await self.close()
        return failed

    async def close(self) -> None:
        """Close the connection; the next message opens a new one."""
        client, self._client = self._client, None
        if client is not None:
            await client.transport.close()

    async def _publish(
        self,
        client: PublisherAsyncClient,
        step: str,
        publications: list[OutgoingMessage],
        cluster_id: str,
    ) -> list[OutgoingMessage]:
        """Publish to one topic, in calls of at most `MAX_MESSAGES`. Returns what failed."""
        topic = self._topics[step]
        failed: list[OutgoingMessage] = []
        for start in range(0, len(publications), MAX_MESSAGES):
            part = publications[start : start + MAX_MESSAGES]
            messages = [
                PubsubMessage(
                    data=one.message.encode(), attributes=one.message.attributes(cluster_id)
                )
                for one in part
            ]
            try:
                with metrics.PUBLISH_DURATION.labels(step).time():
                    await client.publish(
                        topic=topic, messages=messages, retry=None, timeout=CALL_TIMEOUT_S
                    )
            except (GoogleAPIError, GoogleAuthError) as error:
                metrics.FAILED.labels(step).inc(len(part))
                detail = f"{type(error).__name__}: {error}"[:_MOST_DETAIL]
                _LOG.warning("could not publish", topic=topic, messages=len(part), detail=detail)
                failed += part
                continue
            now = self._now()
            metrics.PUBLISHED.labels(step).inc(len(part))
            for one in part:
                reaction = (now - one.message.at).total_seconds()
                metrics.REACTION.labels(step).observe(max(0.0, reaction))
                _log_published(step, one.message)
        return failed


def _log_published(step: str, message: Message) -> None:
    subject: dict[str, Any] = {"requests": message.requests}
    if message.kind != SIGNING_REQUEST_KIND:
        name = f"{message.namespace}/{message.name}"
        subject = {_LOGGED_AS.get(message.kind, message.kind.lower()): name, "uid": message.uid}
    nodes = len(message.nodes)
    _LOG.info("published", step=step, **subject, cause=message.cause, nodes=nodes)
