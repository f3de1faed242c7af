"""Converts between the API's protocol buffers and the core's types."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from google.pubsub_v1 import types

from local.pubsub.errors import InvalidArgument, Unimplemented
from local.pubsub.model import (
    DeadLetterPolicy,
    PushConfig,
    PushIdentity,
    Received,
    RetryPolicy,
    SubscriptionConfig,
)
from local.pubsub.subscription import RETENTION, Subscription

_NOT_OF_TOPICS = (
    "ingestion_data_source_settings",
    "kms_key_name",
    "labels",
    "message_retention_duration",
    "message_storage_policy",
    "message_transforms",
    "schema_settings",
    "tags",
)
_NOT_OF_SUBSCRIPTIONS = (
    "bigquery_config",
    "bigtable_config",
    "cloud_storage_config",
    "enable_exactly_once_delivery",
    "enable_message_ordering",
    "filter",
    "labels",
    "message_retention_duration",
    "message_transforms",
    "retain_acked_messages",
    "tags",
)


def parse_topic(wire: types.Topic) -> str:
    """Parse a topic: its name. Raises `Unimplemented` for unsupported fields."""
    _refuse(wire, _NOT_OF_TOPICS)
    return str(wire.name)


def parse_message(wire: types.PubsubMessage) -> tuple[bytes, dict[str, str]]:
    """Parse a message: data and attributes. Raises `Unimplemented` for an ordering key."""
    _refuse(wire, ("ordering_key",))
    return wire.data, dict(wire.attributes)


def parse_subscription(wire: types.Subscription) -> SubscriptionConfig:
    """Parse a subscription. An expiration policy is accepted without effect.

    Raises `Unimplemented` for unsupported fields.
    """
    _refuse(wire, _NOT_OF_SUBSCRIPTIONS)
    return SubscriptionConfig(
        name=wire.name,
        topic=wire.topic,
        push=_parse_push(wire.push_config),
        ack_deadline_s=wire.ack_deadline_seconds or SubscriptionConfig.ack_deadline_s,
        retry=_parse_retry(wire),
        dead_letter=_parse_dead_letter(wire),
    )


def _parse_push(wire: types.PushConfig) -> PushConfig | None:
    """Parse a push config; ``None`` without an endpoint.

    Raises `Unimplemented` for unwrapped pushes and `InvalidArgument` for other than HTTP.
    """
    if "no_wrapper" in wire:
        raise Unimplemented("The embedded Pub/Sub has no no_wrapper.")
    if not wire.push_endpoint:
        return None
    if not wire.push_endpoint.startswith(("http://", "https://")):
        raise InvalidArgument(
            f"Invalid push endpoint given (endpoint={wire.push_endpoint}). Refer to "
            "https://cloud.google.com/pubsub/subscriber#create for more information."
        )
    email, audience = wire.oidc_token.service_account_email, wire.oidc_token.audience
    return PushConfig(wire.push_endpoint, PushIdentity(email, audience) if email else None)


def render_subscription(subscription: Subscription) -> types.Subscription:
    """Render a subscription."""
    config = subscription.config
    wire = types.Subscription(
        name=config.name,
        topic=config.topic,
        push_config=_render_push(config.push),
        ack_deadline_seconds=config.ack_deadline_s,
        message_retention_duration=_duration(RETENTION.total_seconds()),
        state=types.Subscription.State.ACTIVE,
    )
    if config.retry:
        wire.retry_policy = types.RetryPolicy(
            minimum_backoff=_duration(config.retry.minimum_backoff_s),
            maximum_backoff=_duration(config.retry.maximum_backoff_s),
        )
    if config.dead_letter:
        wire.dead_letter_policy = types.DeadLetterPolicy(
            dead_letter_topic=config.dead_letter.topic,
            max_delivery_attempts=config.dead_letter.max_delivery_attempts,
        )
    return wire


def render_received(received: Received) -> types.ReceivedMessage:
    """Render a pulled message."""
    message = received.message
    published = Timestamp()
    published.FromDatetime(message.publish_time)
    return types.ReceivedMessage(
        ack_id=received.ack_id,
        message=types.PubsubMessage(
            data=message.data,
            attributes=dict(message.attributes),
            message_id=message.id,
            publish_time=published,
        ),
        delivery_attempt=received.delivery_attempt,
    )


def _parse_retry(wire: types.Subscription) -> RetryPolicy | None:
    if "retry_policy" not in wire:
        return None
    policy, given = wire.retry_policy, {}
    if "minimum_backoff" in policy:
        given["minimum_backoff_s"] = policy.minimum_backoff.total_seconds()
    if "maximum_backoff" in policy:
        given["maximum_backoff_s"] = policy.maximum_backoff.total_seconds()
    return RetryPolicy(**given)


def _parse_dead_letter(wire: types.Subscription) -> DeadLetterPolicy | None:
    if "dead_letter_policy" not in wire:
        return None
    policy = wire.dead_letter_policy
    return DeadLetterPolicy(
        policy.dead_letter_topic,
        policy.max_delivery_attempts or DeadLetterPolicy.max_delivery_attempts,
    )


def _render_push(push: PushConfig | None) -> types.PushConfig:
    if push is None:
        return types.PushConfig()
    wire = types.PushConfig(push_endpoint=push.endpoint)
    if push.identity:
        wire.oidc_token = types.PushConfig.OidcToken(
            service_account_email=push.identity.email, audience=push.identity.audience
        )
    return wire


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromTimedelta(timedelta(seconds=seconds))
    return duration


def _refuse(wire: Any, names: Iterable[str]) -> None:
    for name in names:
        if name in wire and getattr(wire, name):
            raise Unimplemented(f"The embedded Pub/Sub has no {name}.")
