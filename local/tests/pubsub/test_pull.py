"""Pulling: leases, deadlines, nacks."""

from __future__ import annotations

import pytest

from local.pubsub.errors import FailedPrecondition, InvalidArgument, Unavailable
from local.pubsub.model import RetryPolicy
from local.tests.pubsub.service import DEAD_SUBSCRIPTION, SUBSCRIPTION, TOPIC, Service


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


def test_an_acknowledged_message_is_not_redelivered(service: Service) -> None:
    subscription = service.subscribe(push=False)
    service.publish(b"x")
    service.acknowledge(service.pull())
    service.clock.run_for(3600)
    assert (service.pull(), subscription.backlog) == ([], 0)


def test_an_ack_id_with_an_expired_lease_is_ignored(service: Service) -> None:
    subscription = service.subscribe(push=False)
    service.publish(b"x")
    late = service.pull()
    service.clock.run_for(10)
    service.acknowledge(late)
    assert (subscription.backlog, subscription.counts.acknowledged) == (1, 0)


def test_a_longer_deadline_keeps_a_message_leased(service: Service) -> None:
    service.subscribe(push=False)
    service.publish(b"x")
    (received,) = service.pull()
    service.pubsub.modify_ack_deadline(SUBSCRIPTION, [received.ack_id], 60)
    service.clock.run_for(59)
    assert service.pull() == []
    service.clock.run_for(1)
    assert len(service.pull()) == 1


def test_a_nacked_message_waits_for_the_backoff_of_the_retry_policy(service: Service) -> None:
    service.subscribe(push=False, retry=RetryPolicy(10, 600))
    service.publish(b"x")
    (received,) = service.pull()
    service.pubsub.modify_ack_deadline(SUBSCRIPTION, [received.ack_id], 0)
    service.clock.run_for(9.9)
    assert service.pull() == []
    service.clock.run_for(0.1)
    assert len(service.pull()) == 1


def test_a_message_pulled_too_often_goes_to_the_dead_letter_topic(service: Service) -> None:
    service.subscribe(push=False, max_attempts=5)
    service.publish(b"x")
    attempts = []
    while received := service.pull():
        attempts.append(received[0].delivery_attempt)
        service.clock.run_for(10)
    assert attempts == [1, 2, 3, 4, 5]
    assert [letter.message.data for letter in service.pubsub.pull(DEAD_SUBSCRIPTION, 10)] == [b"x"]


def test_a_pull_returns_at_most_max_messages(service: Service) -> None:
    service.subscribe(push=False)
    service.publish(b"a", b"b", b"c")
    assert [received.message.data for received in service.pull(2)] == [b"a", b"b"]


def test_each_subscription_receives_the_message(service: Service) -> None:
    service.subscribe(push=False)
    service.pubsub.delete_subscription(SUBSCRIPTION)
    service.subscribe(push=False)
    service.publish(b"x")
    assert (service.pubsub.backlog(SUBSCRIPTION), service.pubsub.backlog(DEAD_SUBSCRIPTION)) == (
        1,
        0,
    )


def test_a_subscription_receives_only_messages_published_after_its_creation(
    service: Service,
) -> None:
    service.publish(b"before")
    service.subscribe(push=False)
    service.publish(b"after")
    assert [received.message.data for received in service.pull()] == [b"after"]


def test_messages_that_a_filter_excludes_are_dropped(service: Service) -> None:
    subscription = service.subscribe(push=False, filter_text='attributes.cause = "Added"')
    service.pubsub.publish(TOPIC, b"x", {"cause": "Added"})
    service.pubsub.publish(TOPIC, b"y", {"cause": "Sync"})
    assert [received.message.data for received in service.pull()] == [b"x"]
    assert (subscription.counts.received, subscription.counts.filtered) == (1, 1)


def test_a_message_is_dropped_after_the_retention(service: Service) -> None:
    subscription = service.subscribe(push=False, retention_s=600)
    service.publish(b"old")
    service.clock.run_for(601)
    service.publish(b"new")
    assert [received.message.data for received in service.pull()] == [b"new"]
    assert subscription.counts.dropped == 1


def test_the_oldest_message_is_dropped_when_the_backlog_is_full(service: Service) -> None:
    subscription = service.subscribe(push=False)
    service.publish(*[b"x" * 9_000_000] * 20)
    assert (subscription.backlog, subscription.counts.dropped) == (14, 6)


def test_a_dropped_message_that_was_leased_can_be_acknowledged(service: Service) -> None:
    subscription = service.subscribe(push=False, ack_deadline_s=600, retention_s=600)
    service.publish(b"old")
    received = service.pull()
    service.pubsub.modify_ack_deadline(SUBSCRIPTION, [received[0].ack_id], 600)
    service.clock.run_for(599)
    service.pubsub.modify_ack_deadline(SUBSCRIPTION, [received[0].ack_id], 600)
    service.clock.run_for(2)
    service.publish(b"new")
    service.acknowledge(received)
    assert (subscription.backlog, subscription.outstanding) == (1, 0)


def test_pulling_from_a_push_subscription_is_an_error(service: Service) -> None:
    service.subscribe()
    with pytest.raises(
        FailedPrecondition, match="This method is not supported for this subscription type"
    ):
        service.pull()


def test_a_pull_of_zero_messages_is_an_error(service: Service) -> None:
    service.subscribe(push=False)
    with pytest.raises(InvalidArgument, match=r"argument=max_messages"):
        service.pull(0)


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
