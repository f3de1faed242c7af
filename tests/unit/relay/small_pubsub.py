"""A Pub/Sub server over gRPC that implements only Publish, and fails for missing topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
from google.pubsub_v1.types import PublishRequest, PublishResponse, PubsubMessage

MAX_MESSAGES = 1_000
"""Documented limit of one Publish call."""


@dataclass
class SmallPubSub:
    """Topics exist unless they are in ``missing``."""

    missing: set[str] = field(default_factory=set)
    messages: asyncio.Queue[tuple[str, PubsubMessage]] = field(default_factory=asyncio.Queue)

    async def publish(
        self, request: PublishRequest, context: grpc.aio.ServicerContext
    ) -> PublishResponse:
        topic = request.topic.rpartition("/")[2]
        if topic in self.missing:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"Resource not found (resource={topic})."
            )
        if len(request.messages) > MAX_MESSAGES:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"The value for message_count is too large. You passed {len(request.messages)} in the "
                f"request, but the maximum value is {MAX_MESSAGES}.",
            )
        for message in request.messages:
            self.messages.put_nowait((request.topic, message))
        return PublishResponse(message_ids=[str(number) for number in range(len(request.messages))])

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[int]:
        """Listen on a port of this machine."""
        handler = grpc.unary_unary_rpc_method_handler(
            self.publish,
            request_deserializer=PublishRequest.deserialize,
            response_serializer=PublishResponse.serialize,
        )
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    "google.pubsub.v1.Publisher", {"Publish": handler}
                )
            ]
        )
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        try:
            yield bound
        finally:
            await server.stop(grace=None)
