"""The topics of the steps, with push subscriptions, in a Pub/Sub at an address.

Settings are those of the deployment: deadline, backoff, and a dead letter after ten attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import grpc
from google.api_core.exceptions import GoogleAPICallError
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher import PublisherAsyncClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
from google.pubsub_v1.services.subscriber import SubscriberAsyncClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport

from local.cloud.simulation import (
    ACK_DEADLINE_S,
    DEAD_LETTERS,
    MAX_BACKOFF_S,
    MAX_DELIVERY_ATTEMPTS,
    MIN_BACKOFF_S,
    PROJECT,
    RETRY_S,
    topic,
)

PUSHER = f"pusher@{PROJECT}.iam.gserviceaccount.com"
"""The service account of the tokens in pushes; each token is for one endpoint."""

_TIMEOUT_S = 10.0
_DEAD = f"projects/{PROJECT}/topics/{DEAD_LETTERS}"
_KEPT = f"projects/{PROJECT}/subscriptions/{DEAD_LETTERS}"


class Topics:
    """Creates the topics, and publishes as log sinks and the Scheduler do."""

    def __init__(self, address: str, max_backoff_s: float = MAX_BACKOFF_S) -> None:
        """``address`` is host and port of a Pub/Sub without TLS."""
        self._max_backoff_s = max_backoff_s
        self._channel = grpc.aio.insecure_channel(address)
        self._publisher = PublisherAsyncClient(
            transport=PublisherGrpcAsyncIOTransport(channel=self._channel)
        )
        self._subscriber = SubscriberAsyncClient(
            transport=SubscriberGrpcAsyncIOTransport(channel=self._channel)
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def create(self, endpoints: Mapping[str, str]) -> None:
        """Create each step's topic, and the subscription that pushes to the step's endpoint."""
        await self._publisher.create_topic(name=_DEAD, timeout=_TIMEOUT_S)
        kept = types.Subscription(name=_KEPT, topic=_DEAD, ack_deadline_seconds=60)
        await self._subscriber.create_subscription(kept, timeout=_TIMEOUT_S)
        for step, endpoint in endpoints.items():
            await self._publisher.create_topic(name=topic(step), timeout=_TIMEOUT_S)
            await self._subscriber.create_subscription(
                types.Subscription(
                    name=topic(step).replace("/topics/", "/subscriptions/"),
                    topic=topic(step),
                    push_config=types.PushConfig(
                        push_endpoint=endpoint,
                        oidc_token=types.PushConfig.OidcToken(
                            service_account_email=PUSHER, audience=endpoint
                        ),
                    ),
                    ack_deadline_seconds=ACK_DEADLINE_S,
                    retry_policy=types.RetryPolicy(
                        minimum_backoff=timedelta(seconds=MIN_BACKOFF_S),
                        maximum_backoff=timedelta(seconds=self._max_backoff_s),
                    ),
                    dead_letter_policy=types.DeadLetterPolicy(
                        dead_letter_topic=_DEAD, max_delivery_attempts=MAX_DELIVERY_ATTEMPTS
                    ),
                ),
                timeout=_TIMEOUT_S,
            )

    def publish(self, step: str, data: bytes, attributes: Mapping[str, str]) -> None:
        """Publish in the background, with retries until Pub/Sub accepts the message.

        Messages after `close` are dropped: the simulated cloud ends a little later.
        """
        if not self._is_closed:
            task = asyncio.get_running_loop().create_task(self._publish(step, data, attributes))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Drop what is not published yet."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    async def _publish(self, step: str, data: bytes, attributes: Mapping[str, str]) -> None:
        message = types.PubsubMessage(data=data, attributes=dict(attributes))
        while True:
            try:
                await self._publisher.publish(
                    topic=topic(step), messages=[message], timeout=_TIMEOUT_S, retry=None
                )
            except GoogleAPICallError:
                await asyncio.sleep(RETRY_S)
            else:
                return
