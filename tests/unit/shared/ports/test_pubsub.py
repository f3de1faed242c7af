"""Publishing to the topics of the steps: batches and errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core.exceptions import Forbidden, RetryError
from google.auth.exceptions import DefaultCredentialsError

from shared.ports import pubsub
from shared.ports.errors import CallError
from shared.ports.pubsub import Topics


class Publisher:
    """A Pub/Sub client that records the requests, and answers or raises the error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.requests: list[dict[str, Any]] = []

    def publish(self, **request: Any) -> Any:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        return SimpleNamespace(message_ids=[len(self.requests)] * len(request["messages"]))


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Publisher:
    publisher = Publisher()
    monkeypatch.setattr(pubsub, "_make_publisher", lambda: publisher)
    return publisher


@pytest.mark.parametrize(
    "count, calls", [(0, []), (1, [1]), (1000, [1000]), (1001, [1000, 1]), (2000, [1000, 1000])]
)
def test_messages_are_published_in_calls_of_at_most_a_thousand(
    count: int, calls: list[int], publisher: Publisher
) -> None:
    contents = [(b"%d" % number, {"a": "b"}) for number in range(count)]
    ids = Topics("p", "tpu-").publish("sweep", contents)
    assert len(ids) == count
    assert [len(request["messages"]) for request in publisher.requests] == calls
    sent = [message for request in publisher.requests for message in request["messages"]]
    assert sent == [{"data": data, "attributes": attributes} for data, attributes in contents]
    assert ids == [str(number + 1) for number, size in enumerate(calls) for _ in range(size)]
    for request in publisher.requests:
        assert request["topic"] == "projects/p/topics/tpu-sweep"
        assert (request["timeout"], request["retry"]) == (10.0, None)


@pytest.mark.parametrize(
    "error, http, reason",
    [
        (Forbidden("may not"), 403, "refused"),
        (RetryError("slow", cause=None), 0, "unreachable"),
        (DefaultCredentialsError("no credentials"), 0, "unreachable"),
    ],
)
def test_a_failed_publish_names_its_topic(
    error: Exception, http: int, reason: str, publisher: Publisher
) -> None:
    publisher.error = error
    with pytest.raises(CallError) as raised:
        Topics("p", "tpu-").publish("sweep", [(b"x", {})])
    failure = raised.value
    assert (failure.call, failure.http, failure.code) == ("publish to tpu-sweep", http, reason)


def test_all_publishes_share_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    publishers: list[Publisher] = []

    def make() -> Publisher:
        publishers.append(Publisher())
        return publishers[-1]

    monkeypatch.setattr(pubsub, "_make_publisher", make)
    topics = Topics("p", "")
    topics.publish("sweep", [(b"x", {})])
    topics.publish("sweep", [(b"x", {})])
    assert [len(one.requests) for one in publishers] == [2]
