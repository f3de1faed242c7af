"""Pulling: leases, deadlines, nacks."""

from __future__ import annotations

import pytest

from local.pubsub.errors import InvalidArgument, Unavailable
from local.pubsub.model import RetryPolicy
from local.pubsub.subscription import RETENTION
from local.tests.pubsub.service import SUBSCRIPTION, Service


@pytest.fixture
def service() -> Service:
    return Service()


def test_a_pulled_message_is_leased_until_the_ack_deadline(service: Service) -> None:
    service.subscribe(push=False, ack_deadline_s=10)
    service.publish(b"x")
    assert len(service.pull()) == 1
    service.clock.run_for(9.9)
    assert service.pull() == []
    service.clock.run_for(0.1)
    assert [received.message.data for received in service.pull()] == [b"x"]


def test_an_ack_id_with_an_expired_lease_is_ignored(service: Service) -> None:
    subscription = service.subscribe(push=False)
    service.publish(b"x")
    late = service.pull()
    service.clock.run_for(10)
    service.acknowledge(late)
    assert (subscription.backlog, subscription.counts.acknowledged) == (1, 0)


def test_a_nacked_message_waits_for_the_backoff_of_the_retry_policy(service: Service) -> None:
    service.subscribe(push=False, retry=RetryPolicy(10, 600))
    service.publish(b"x")
    (received,) = service.pull()
    service.pubsub.modify_ack_deadline(SUBSCRIPTION, [received.ack_id], 0)
    service.clock.run_for(9.9)
    assert service.pull() == []
    service.clock.run_for(0.1)
    assert len(service.pull()) == 1


def test_a_pull_returns_at_most_max_messages(service: Service) -> None:
    service.subscribe(push=False)
    service.publish(b"a", b"b", b"c")
    assert [received.message.data for received in service.pull(2)] == [b"a", b"b"]


def test_a_message_is_dropped_after_the_retention(service: Service) -> None:
    subscription = service.subscribe(push=False)
    service.publish(b"old")
    service.clock.run_for(RETENTION.total_seconds() + 1)
    service.publish(b"new")
    assert [received.message.data for received in service.pull()] == [b"new"]
    assert subscription.counts.dropped == 1


def test_the_oldest_message_is_dropped_when_the_backlog_is_full(service: Service) -> None:
    subscription = service.subscribe(push=False)
    service.publish(*[b"x" * 9_000_000] * 20)
    assert (subscription.backlog, subscription.counts.dropped) == (14, 6)


def test_a_dropped_message_that_was_leased_can_be_acknowledged(service: Service) -> None:
    subscription = service.subscribe(push=False)
    service.publish(b"old")
    service.clock.run_for(RETENTION.total_seconds() - 1)
    received = service.pull()
    service.clock.run_for(2)
    service.publish(b"new")
    service.acknowledge(received)
    assert (subscription.backlog, subscription.outstanding) == (1, 0)


def test_publishing_and_pulling_fail_during_an_outage(service: Service) -> None:
    service.subscribe(push=False)
    service.pubsub.begin_outage()
    with pytest.raises(Unavailable):
        service.publish(b"x")
    with pytest.raises(Unavailable):
        service.pull()
    service.pubsub.end_outage()
    service.publish(b"y")
    assert [received.message.data for received in service.pull()] == [b"y"]


def test_listeners_are_called_for_pullable_messages_until_they_stop(service: Service) -> None:
    subscription = service.subscribe(push=False)
    heard: list[int] = []
    stop = subscription.listen(lambda: heard.append(subscription.backlog))
    service.publish(b"x")
    service.clock.run_for(0)
    stop()
    service.publish(b"y")
    service.clock.run_for(0)
    assert heard == [1]


def test_an_ack_id_of_another_subscription_is_an_error(service: Service) -> None:
    service.subscribe(push=False)
    other = "projects/p/subscriptions/other:1"
    with pytest.raises(InvalidArgument, match=f"an invalid ack ID to the service .ack_id={other}"):
        service.pubsub.acknowledge(SUBSCRIPTION, [other])
