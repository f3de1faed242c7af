"""The gRPC server of the embedded Pub/Sub.

A client finds it by ``PUBSUB_EMULATOR_HOST=<address>``. All calls run on one asyncio loop, so the
core needs no locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types
from grpc import aio

from local.base.clock import LoopClock
from local.pubsub import wire
from local.pubsub.core import PubSub
from local.pubsub.errors import PubSubError
from local.pubsub.model import MAX_REQUEST_BYTES, Received, check_message, check_request
from local.pubsub.push import HttpPusher
from local.pubsub.subscription import Timings
from local.pubsub.tokens import PushTokens

PULL_WAIT_S = 20.0
"""How long a pull of an empty subscription waits; documented only as "a bounded amount of time"."""

_CHANNEL_BYTES = 2 * MAX_REQUEST_BYTES
_OPTIONS = (
    ("grpc.max_receive_message_length", _CHANNEL_BYTES),
    ("grpc.max_send_message_length", _CHANNEL_BYTES),
    # A second server on the same port is an error.
    ("grpc.so_reuseport", 0),
)

_Call = Callable[[Any, Any], Awaitable[Any]]


@dataclass(frozen=True)
class Server:
    """A service that is listening at ``address`` (host and port)."""

    pubsub: PubSub
    tokens: PushTokens
    address: str
    _grpc: aio.Server
    _pusher: HttpPusher

    async def stop(self) -> None:
        """Stop listening and pushing."""
        await self._grpc.stop(grace=None)
        await self._pusher.close()


async def serve(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    random: Random | None = None,
    timings: Timings | None = None,
) -> Server:
    """Start an empty service on the running loop; port 0 finds a free one.

    Raises `OSError` when the port is taken.
    """
    clock = LoopClock(asyncio.get_running_loop())
    tokens = PushTokens()

    def authorize(subscription: str, endpoint: str) -> str | None:
        push = pubsub.get_subscription(subscription).config.push
        if push is None or push.identity is None:
            return None
        return tokens.render(push.identity, endpoint, clock.now())

    pusher = HttpPusher(authorize)
    pubsub = PubSub(clock, random=random or Random(), push=pusher.push, timings=timings)
    server = aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers(tuple(_handlers(pubsub)))
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        await pusher.close()
        raise OSError(f"cannot listen on {host}:{port}: {error}") from error
    await server.start()
    return Server(pubsub, tokens, f"{host}:{bound}", server, pusher)


class _Service:
    """The methods of the API that are served."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub

    async def create_topic(self, request: types.Topic, _: Any) -> types.Topic:
        name = wire.parse_topic(request)
        self._pubsub.create_topic(name)
        return types.Topic(name=name)

    async def publish(self, request: types.PublishRequest, _: Any) -> types.PublishResponse:
        check_request(len(request.messages), types.PublishRequest.pb(request).ByteSize())
        messages = [wire.parse_message(message) for message in request.messages]
        for data, attributes in messages:
            check_message(data, attributes)
        ids = [
            self._pubsub.publish(request.topic, data, attributes) for data, attributes in messages
        ]
        return types.PublishResponse(message_ids=ids)

    async def create_subscription(self, request: types.Subscription, _: Any) -> types.Subscription:
        config = wire.parse_subscription(request)
        return wire.render_subscription(self._pubsub.create_subscription(config))

    async def delete_subscription(self, request: types.DeleteSubscriptionRequest, _: Any) -> None:
        self._pubsub.delete_subscription(request.subscription)

    async def acknowledge(self, request: types.AcknowledgeRequest, _: Any) -> None:
        self._pubsub.acknowledge(request.subscription, request.ack_ids)

    async def modify_ack_deadline(self, request: types.ModifyAckDeadlineRequest, _: Any) -> None:
        self._pubsub.modify_ack_deadline(
            request.subscription, request.ack_ids, request.ack_deadline_seconds
        )

    async def pull(self, request: types.PullRequest, _: Any) -> types.PullResponse:
        received: list[Received] = []
        wait_s = 0.0 if request.return_immediately else PULL_WAIT_S
        arrival = asyncio.Event()
        stop = self._pubsub.get_subscription(request.subscription).listen(arrival.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    while not received:
                        arrival.clear()
                        received = self._pubsub.pull(request.subscription, request.max_messages)
                        if not received:
                            await arrival.wait()
        finally:
            stop()
        return types.PullResponse(received_messages=[wire.render_received(one) for one in received])


def _handlers(pubsub: PubSub) -> Iterator[grpc.GenericRpcHandler]:
    """The handlers of the API's two services."""
    service = _Service(pubsub)
    publisher = {
        "CreateTopic": _unary(service.create_topic, types.Topic, types.Topic),
        "Publish": _unary(service.publish, types.PublishRequest, types.PublishResponse),
    }
    leases, deletion = types.ModifyAckDeadlineRequest, types.DeleteSubscriptionRequest
    subscriber = {
        "CreateSubscription": _unary(
            service.create_subscription, types.Subscription, types.Subscription
        ),
        "DeleteSubscription": _unary(service.delete_subscription, deletion),
        "Acknowledge": _unary(service.acknowledge, types.AcknowledgeRequest),
        "ModifyAckDeadline": _unary(service.modify_ack_deadline, leases),
        "Pull": _unary(service.pull, types.PullRequest, types.PullResponse),
    }
    for name, handlers in (("Publisher", publisher), ("Subscriber", subscriber)):
        yield grpc.method_handlers_generic_handler(f"google.pubsub.v1.{name}", handlers)


def _unary(call: _Call, request_type: Any, response_type: Any = None) -> grpc.RpcMethodHandler:
    """A handler that maps errors to gRPC statuses; without ``response_type`` the response is empty."""

    async def answer(request: Any, context: Any) -> Any:
        try:
            response = await call(request, context)
        except PubSubError as refusal:
            return await context.abort(grpc.StatusCode[refusal.status], str(refusal))
        return response if response_type else Empty()

    serialize = response_type.serialize if response_type else Empty.SerializeToString
    return grpc.unary_unary_rpc_method_handler(answer, request_type.deserialize, serialize)
