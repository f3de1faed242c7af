"""Pushing: the envelope, acks and nacks, retries, dead letters."""

from __future__ import annotations

import pytest

from local.pubsub.model import DeadLetter, RetryPolicy
from local.pubsub.subscription import Timings
from local.tests.pubsub.service import (
    DEAD_SUBSCRIPTION,
    SUBSCRIPTION,
    Service,
)

ACKNOWLEDGING = (102, 200, 201, 202, 204)
NACKING = (100, 203, 205, 206, 301, 302, 400, 404, 408, 409, 429, 500, 503, None)


@pytest.fixture
def service() -> Service:
    return Service()


def test_publish_returns_before_the_push(service: Service) -> None:
    service.subscribe()
    service.publish(b"x")
    assert service.endpoint.pushes == []


@pytest.mark.parametrize("status", ACKNOWLEDGING)
def test_an_acknowledging_status_acknowledges_the_message(service: Service, status: int) -> None:
    subscription = service.subscribe()
    service.endpoint.statuses = [status]
    service.publish(b"x")
    service.clock.run_for(3600)
    assert (subscription.backlog, subscription.counts.delivered) == (0, 1)


@pytest.mark.parametrize("status", NACKING)
def test_every_other_status_is_a_nack(service: Service, status: int | None) -> None:
    subscription = service.subscribe(retry=RetryPolicy(10, 600))
    service.endpoint.statuses = [status, 200]
    service.publish(b"x")
    service.clock.run_for(60)
    assert (subscription.backlog, subscription.counts.delivered) == (0, 2)
    assert service.endpoint.times == [0.0, 10.0]


def test_no_answer_within_the_ack_deadline_is_a_nack(service: Service) -> None:
    service.subscribe(ack_deadline_s=60, retry=RetryPolicy(10, 600))
    service.endpoint.hangs = True
    service.publish(b"x")
    service.clock.run_for(100)
    assert service.endpoint.times == [0.0, 70.0]


def test_an_answer_after_the_deadline_is_ignored(service: Service) -> None:
    subscription = service.subscribe(ack_deadline_s=10, retry=RetryPolicy(10, 600))
    service.endpoint.takes_s = 15
    service.publish(b"x")
    service.clock.run_for(16)
    assert (subscription.backlog, subscription.counts.acknowledged) == (1, 0)


def test_the_backoff_grows_with_each_nack_up_to_the_maximum(service: Service) -> None:
    service.subscribe(retry=RetryPolicy(10, 60))
    service.endpoint.statuses = [500]
    service.publish(b"x")
    service.clock.run_for(200)
    gaps = [b - a for a, b in zip(service.endpoint.times, service.endpoint.times[1:], strict=False)]
    assert gaps == [10.0, 20.0, 40.0, 60.0, 60.0]


def test_without_a_retry_policy_only_the_pause_of_the_subscription_delays_retries(
    service: Service,
) -> None:
    service.subscribe()
    service.endpoint.statuses = [500]
    service.publish(b"x")
    service.clock.run_for(300)
    gaps = [
        round(b - a, 1)
        for a, b in zip(service.endpoint.times, service.endpoint.times[1:], strict=False)
    ]
    assert gaps == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0, 60.0]


def test_a_nack_of_one_message_pauses_the_whole_subscription(service: Service) -> None:
    service.subscribe(retry=RetryPolicy(10, 600))
    service.endpoint.statuses = [500, 500, 200]
    service.publish(b"x", b"y")
    service.clock.run_for(5)
    service.publish(b"z")
    service.clock.run_for(5)
    assert service.endpoint.times == [0.0, 0.1, 5.0, 10.0]


def test_pushes_that_fail_together_count_as_one_failure(service: Service) -> None:
    subscription = service.subscribe(retry=RetryPolicy(10, 600))
    subscription.flow.window = 16
    service.endpoint.takes_s = 1
    service.endpoint.statuses = [500]
    service.publish(*[b"x"] * 16)
    service.clock.run_for(2)
    assert subscription.counts.refused == 16
    assert (subscription.flow.window, subscription.flow.pause_left_s(service.clock.now())) == (8, 0)


def test_a_success_shortens_the_pause_after_the_next_nack(service: Service) -> None:
    subscription = service.subscribe()
    service.endpoint.statuses = [500, 500, 500, 200, 500, 200]
    service.publish(b"x", b"y")
    service.clock.run_for(60)
    # 0.1, 0.2 and 0.4 seconds; then 0.4 again instead of 0.8.
    assert service.endpoint.times == [0.0, 0.1, 0.3, 0.7, 0.7, 1.1]
    assert subscription.backlog == 0


def test_the_window_doubles_with_each_round_of_successes(service: Service) -> None:
    service.subscribe()
    service.endpoint.takes_s = 1
    service.publish(*[b"x"] * 15)
    service.clock.run_for(10)
    starts = service.endpoint.times
    assert [starts.count(float(second)) for second in range(4)] == [1, 2, 4, 8]
    assert service.endpoint.most_in_flight == 8


def test_dead_letters_can_be_read_from_the_service(service: Service) -> None:
    service.subscribe(max_attempts=5)
    service.endpoint.statuses = [400]
    service.publish(b"x")
    service.clock.run_for(60)
    (letter,) = service.pubsub.dead_letters
    assert isinstance(letter, DeadLetter)
    assert (letter.subscription, letter.message.data, letter.attempts) == (SUBSCRIPTION, b"x", 5)


def test_an_outage_stops_pushes_without_loss_of_messages(service: Service) -> None:
    subscription = service.subscribe()
    service.publish(b"x")
    service.pubsub.begin_outage()
    service.clock.run_for(600)
    assert (service.endpoint.pushes, subscription.backlog) == ([], 1)
    service.pubsub.end_outage()
    service.clock.run_for(1)
    assert (service.endpoint.times, subscription.backlog) == ([600.0], 0)


def test_no_message_becomes_a_dead_letter_during_an_outage(service: Service) -> None:
    subscription = service.subscribe(retry=RetryPolicy(0, 0), max_attempts=5)
    service.endpoint.statuses = [500]
    service.endpoint.takes_s = 1
    service.publish(b"x")
    service.clock.run_until(lambda: len(service.endpoint.pushes) == 5, timeout_s=60)
    service.pubsub.begin_outage()
    service.clock.run_for(60)
    assert (subscription.backlog, service.pubsub.backlog(DEAD_SUBSCRIPTION)) == (1, 0)
    service.pubsub.end_outage()
    service.clock.run_for(60)
    assert (subscription.backlog, service.pubsub.backlog(DEAD_SUBSCRIPTION)) == (0, 1)


def test_a_message_can_be_duplicated_without_a_failure() -> None:
    service = Service(Timings(duplicates=1.0))
    subscription = service.subscribe()
    message_id = service.publish(b"x")[0]
    service.clock.run_for(60)
    ids = [envelope["message"]["messageId"] for _, envelope in service.endpoint.pushes]
    assert ids == [message_id, message_id]
    assert (subscription.backlog, subscription.counts.refused) == (0, 0)


def test_delayed_messages_can_arrive_out_of_order() -> None:
    service = Service(Timings(delay_s=5.0))
    service.subscribe()
    service.publish(*[bytes([n]) for n in range(1, 21)])
    service.clock.run_for(6)
    assert len(service.endpoint.datas) == 20
    assert service.endpoint.datas != sorted(service.endpoint.datas)


def test_without_injected_faults_messages_arrive_once_and_in_order(service: Service) -> None:
    service.subscribe()
    datas = [bytes([n]) for n in range(1, 21)]
    service.publish(*datas)
    service.clock.run_for(1)
    assert service.endpoint.datas == sorted(service.endpoint.datas)
    assert len(set(service.endpoint.datas)) == 20
