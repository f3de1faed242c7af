"""The gRPC server of the embedded Pub/Sub.

A client finds it by ``PUBSUB_EMULATOR_HOST=<address>``. All calls run on one asyncio loop, so the
core needs no locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
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
MAX_STREAMED = 100

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
    server.add_generic_rpc_handlers((_publisher_service(pubsub), _subscriber_service(pubsub)))
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        await pusher.close()
        raise OSError(f"cannot listen on {host}:{port}: {error}") from error
    await server.start()
    return Server(pubsub, tokens, f"{host}:{bound}", server, pusher)


class _Publisher:
    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub

    async def create_topic(self, request: types.Topic, _: Any) -> types.Topic:
        name, labels = wire.parse_topic(request)
        self._pubsub.create_topic(name, labels)
        return self._topic(name)

    async def get_topic(self, request: types.GetTopicRequest, _: Any) -> types.Topic:
        return self._topic(request.topic)

    async def list_topics(
        self, request: types.ListTopicsRequest, _: Any
    ) -> types.ListTopicsResponse:
        names, token = _page(self._pubsub.list_topics(request.project), request)
        topics = [self._topic(name) for name in names]
        return types.ListTopicsResponse(topics=topics, next_page_token=token)

    async def list_topic_subscriptions(
        self, request: types.ListTopicSubscriptionsRequest, _: Any
    ) -> types.ListTopicSubscriptionsResponse:
        names, token = _page(self._pubsub.list_topic_subscriptions(request.topic), request)
        return types.ListTopicSubscriptionsResponse(subscriptions=names, next_page_token=token)

    async def delete_topic(self, request: types.DeleteTopicRequest, _: Any) -> Empty:
        self._pubsub.delete_topic(request.topic)
        return Empty()

    async def publish(self, request: types.PublishRequest, _: Any) -> types.PublishResponse:
        check_request(len(request.messages), types.PublishRequest.pb(request).ByteSize())
        for message in request.messages:
            check_message(message.data, message.attributes)
        ids = [
            self._pubsub.publish(
                request.topic,
                message.data,
                message.attributes,
                ordering_key=message.ordering_key,
            )
            for message in request.messages
        ]
        return types.PublishResponse(message_ids=ids)

    def _topic(self, name: str) -> types.Topic:
        labels = self._pubsub.get_topic_labels(name)
        return types.Topic(name=name, labels=dict(labels))


class _Subscriber:
    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub

    async def create_subscription(self, request: types.Subscription, _: Any) -> types.Subscription:
        config = wire.parse_subscription(request)
        return wire.render_subscription(self._pubsub.create_subscription(config))

    async def get_subscription(
        self, request: types.GetSubscriptionRequest, _: Any
    ) -> types.Subscription:
        return self._show(request.subscription)

    async def list_subscriptions(
        self, request: types.ListSubscriptionsRequest, _: Any
    ) -> types.ListSubscriptionsResponse:
        found = self._pubsub.list_subscriptions(request.project)
        names, token = _page([subscription.config.name for subscription in found], request)
        return types.ListSubscriptionsResponse(
            subscriptions=[self._show(name) for name in names], next_page_token=token
        )

    async def update_subscription(
        self, request: types.UpdateSubscriptionRequest, _: Any
    ) -> types.Subscription:
        name = request.subscription.name
        present = self._pubsub.get_subscription(name).config
        paths = list(request.update_mask.paths)
        self._pubsub.update_subscription(wire.parse_update(request.subscription, paths, present))
        return self._show(name)

    async def delete_subscription(self, request: types.DeleteSubscriptionRequest, _: Any) -> Empty:
        self._pubsub.delete_subscription(request.subscription)
        return Empty()

    async def modify_push_config(self, request: types.ModifyPushConfigRequest, _: Any) -> Empty:
        push = wire.parse_push(request.push_config)
        self._pubsub.modify_push_config(request.subscription, push)
        return Empty()

    async def acknowledge(self, request: types.AcknowledgeRequest, _: Any) -> Empty:
        self._pubsub.acknowledge(request.subscription, request.ack_ids)
        return Empty()

    async def modify_ack_deadline(self, request: types.ModifyAckDeadlineRequest, _: Any) -> Empty:
        self._pubsub.modify_ack_deadline(
            request.subscription, request.ack_ids, request.ack_deadline_seconds
        )
        return Empty()

    async def pull(self, request: types.PullRequest, _: Any) -> types.PullResponse:
        received: list[Received] = []
        wait_s = 0.0 if request.return_immediately else PULL_WAIT_S
        with self._arrivals(request.subscription) as arrival, suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not received:
                    arrival.clear()
                    received = self._pubsub.pull(request.subscription, request.max_messages)
                    await _unless(bool(received), arrival)
        return types.PullResponse(received_messages=[wire.render_received(one) for one in received])

    async def streaming_pull(
        self, requests: AsyncIterator[types.StreamingPullRequest], _: Any
    ) -> AsyncIterator[types.StreamingPullResponse]:
        opening = await anext(requests, None)
        if opening is None:
            return
        with self._arrivals(opening.subscription) as arrival:
            reader = asyncio.ensure_future(self._read(opening.subscription, requests))
            reader.add_done_callback(lambda _: arrival.set())
            try:
                while not reader.done():
                    arrival.clear()
                    received = self._lease(opening)
                    if received:
                        yield types.StreamingPullResponse(
                            received_messages=[wire.render_received(one) for one in received]
                        )
                    await _unless(bool(received), arrival)
                reader.result()
            finally:
                reader.cancel()

    def _show(self, name: str) -> types.Subscription:
        return wire.render_subscription(self._pubsub.get_subscription(name))

    def _lease(self, opening: types.StreamingPullRequest) -> list[Received]:
        name = opening.subscription
        bound = opening.max_outstanding_messages or MAX_STREAMED
        # All streams of a subscription share the limit; in the service, each has its own.
        room = bound - self._pubsub.get_subscription(name).outstanding
        if room < 1:
            return []
        received = self._pubsub.pull(name, min(room, MAX_STREAMED))
        if received:
            ack_ids = [one.ack_id for one in received]
            self._pubsub.modify_ack_deadline(name, ack_ids, opening.stream_ack_deadline_seconds)
        return received

    async def _read(self, name: str, requests: AsyncIterator[types.StreamingPullRequest]) -> None:
        async for request in requests:
            if request.ack_ids:
                self._pubsub.acknowledge(name, request.ack_ids)
            changes = zip(
                request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=True
            )
            for ack_id, seconds in changes:
                self._pubsub.modify_ack_deadline(name, [ack_id], seconds)

    @contextmanager
    def _arrivals(self, name: str) -> Iterator[asyncio.Event]:
        arrival = asyncio.Event()
        stop = self._pubsub.get_subscription(name).listen(arrival.set)
        try:
            yield arrival
        finally:
            stop()


def _page(names: list[str], request: Any) -> tuple[list[str], str]:
    """The sorted names of a requested page, and the token of the next page."""
    left = [name for name in names if name >= request.page_token]
    size = request.page_size or len(left)
    return left[:size], left[size] if size < len(left) else ""


async def _unless(satisfied: bool, arrival: asyncio.Event) -> None:
    if not satisfied:
        await arrival.wait()


def _publisher_service(pubsub: PubSub) -> grpc.GenericRpcHandler:
    publisher = _Publisher(pubsub)
    calls = {
        "CreateTopic": (publisher.create_topic, types.Topic, types.Topic),
        "GetTopic": (publisher.get_topic, types.GetTopicRequest, types.Topic),
        "ListTopics": (
            publisher.list_topics,
            types.ListTopicsRequest,
            types.ListTopicsResponse,
        ),
        "ListTopicSubscriptions": (
            publisher.list_topic_subscriptions,
            types.ListTopicSubscriptionsRequest,
            types.ListTopicSubscriptionsResponse,
        ),
        "DeleteTopic": (publisher.delete_topic, types.DeleteTopicRequest, None),
        "Publish": (publisher.publish, types.PublishRequest, types.PublishResponse),
    }
    handlers = {name: _unary(*call) for name, call in calls.items()}
    return grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", handlers)


def _subscriber_service(pubsub: PubSub) -> grpc.GenericRpcHandler:
    subscriber = _Subscriber(pubsub)
    calls = {
        "CreateSubscription": (
            subscriber.create_subscription,
            types.Subscription,
            types.Subscription,
        ),
        "GetSubscription": (
            subscriber.get_subscription,
            types.GetSubscriptionRequest,
            types.Subscription,
        ),
        "ListSubscriptions": (
            subscriber.list_subscriptions,
            types.ListSubscriptionsRequest,
            types.ListSubscriptionsResponse,
        ),
        "DeleteSubscription": (
            subscriber.delete_subscription,
            types.DeleteSubscriptionRequest,
            None,
        ),
        "UpdateSubscription": (
            subscriber.update_subscription,
            types.UpdateSubscriptionRequest,
            types.Subscription,
        ),
        "ModifyPushConfig": (subscriber.modify_push_config, types.ModifyPushConfigRequest, None),
        "Acknowledge": (subscriber.acknowledge, types.AcknowledgeRequest, None),
        "ModifyAckDeadline": (
            subscriber.modify_ack_deadline,
            types.ModifyAckDeadlineRequest,
            None,
        ),
        "Pull": (subscriber.pull, types.PullRequest, types.PullResponse),
    }
    handlers = {name: _unary(*call) for name, call in calls.items()}
    handlers["StreamingPull"] = _streaming(subscriber.streaming_pull)
    return grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", handlers)


def _unary(call: _Call, request_type: Any, response_type: Any) -> grpc.RpcMethodHandler:
    """A handler that maps errors to gRPC statuses; without ``response_type`` the response is empty."""

    async def answer(request: Any, context: Any) -> Any:
        try:
            return await call(request, context)
        except PubSubError as refusal:
            return await context.abort(grpc.StatusCode[refusal.status], str(refusal))

    serialize = response_type.serialize if response_type else Empty.SerializeToString
    return grpc.unary_unary_rpc_method_handler(answer, request_type.deserialize, serialize)


def _streaming(call: Callable[[Any, Any], AsyncIterator[Any]]) -> grpc.RpcMethodHandler:
    async def answer(requests: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for response in call(requests, context):
                yield response
        except PubSubError as refusal:
            await context.abort(grpc.StatusCode[refusal.status], str(refusal))

    return grpc.stream_stream_rpc_method_handler(
        answer,
        types.StreamingPullRequest.deserialize,
        types.StreamingPullResponse.serialize,
    )
