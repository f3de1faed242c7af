"""What the product sends and reads, by its own code: the functions', the relay's, the replay tool's."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from local.tests.contract.pubsub.bench import Bench, Inbox, Push
from local.tests.contract.pubsub.case import Differs, case
from relay.changes.pending import OutgoingMessage
from relay.publisher import PubSubPublisher, find_credentials
from shared.base.errors import CallError
from shared.base.names import topic_id
from shared.frame.decode import Delivery, decode
from shared.frame.message import Cause, Message
from shared.frame.plan import Publish
from shared.frame.runtime import make_publish
from shared.ports.kubernetes.access_settings import Kubeconfig
from shared.ports.kubernetes.connection import Connection
from shared.ports.pubsub import Topics

PREFIX = "tpu-functions-"
STEP = "label_node"
TOPIC_ID = topic_id(PREFIX, STEP)
CLUSTER = "9a1f"
AT = datetime(2026, 1, 1, tzinfo=UTC)
NEWS = Message("default", "train", "uid-1", Cause.NODES_CHANGED, AT, nodes=("n-1", "n-2"))
ENTRIES = Path(__file__).parents[4] / "tests" / "data" / "audit-log-entries.jsonl"

_COMES = {"message": NEWS, "attributes": {"cluster": CLUSTER, "cause": "NodesChanged"}}


_ENVIRONMENT = threading.Lock()
"""Cases run at the same time, and have one environment."""


@contextmanager
def _named(bench: Bench) -> Iterator[None]:
    """The environment names this Pub/Sub."""
    with _ENVIRONMENT, pytest.MonkeyPatch.context() as environment:
        environment.setenv("PUBSUB_EMULATOR_HOST", bench.address)
        yield


@contextmanager
def _topics(bench: Bench) -> Iterator[Topics]:
    """The functions' port, while the environment names this Pub/Sub."""
    with _named(bench):
        yield Topics(bench.project_id, PREFIX)


@contextmanager
def _functions(bench: Bench) -> Iterator[Publish]:
    """Publishing as a function does to other steps."""
    connection = Connection(Kubeconfig("/nowhere"))
    connection.constants["cluster"] = CLUSTER
    with _topics(bench) as topics:
        yield make_publish(topics, connection)


def _relay(bench: Bench, *publications: OutgoingMessage) -> list[OutgoingMessage]:
    """Publish as the relay does; what could not be."""

    async def publish() -> list[OutgoingMessage]:
        sender = PubSubPublisher(bench.project_id, PREFIX, find_credentials(), lambda: AT)
        failed = await sender.publish(publications, CLUSTER)
        await sender.close()
        return failed

    with _named(bench):
        return asyncio.run(publish())


def _open_inbox(bench: Bench, *answers: int, **fields: Any) -> Inbox:
    """A step's inbox: its topic, and the subscription that pushes to its endpoint."""
    bench.topic(TOPIC_ID)
    inbox = bench.inbox(*answers)
    bench.push(inbox, topic=TOPIC_ID, **fields)
    return inbox


def _deliveries(inbox: Inbox, count: int) -> list[Delivery]:
    """What the frame of a step reads in the pushes."""
    return [decode(push.raw) for push in inbox.wait(count)]


def _what_comes(inbox: Inbox) -> dict[str, Any]:
    (delivery,) = _deliveries(inbox, 1)
    assert delivery.trigger is not None
    (push,) = inbox.wait(1)
    assert delivery.message_id == push.message["messageId"]
    return {"message": delivery.trigger.message, "attributes": push.message["attributes"]}


@case(_COMES)
def what_a_function_publishes_is_read_by_the_step_that_it_is_pushed_to(bench: Bench) -> Any:
    inbox = _open_inbox(bench)
    with _functions(bench) as publish:
        publish(STEP, [NEWS])
    return _what_comes(inbox)


@case({"failed": [], **_COMES})
def what_the_relay_publishes_is_read_by_the_step_that_it_is_pushed_to(bench: Bench) -> Any:
    inbox = _open_inbox(bench)
    failed = _relay(bench, OutgoingMessage(STEP, NEWS))
    return {"failed": failed, **_what_comes(inbox)}


@case(1_001)
def a_function_publishes_any_number_of_messages(bench: Bench) -> Any:
    bench.topic(TOPIC_ID)
    bench.subscribe(topic=TOPIC_ID)
    with _functions(bench) as publish:
        publish(STEP, [NEWS] * 1_001)
    found: set[str] = set()
    while len(found) < 1_001:
        found |= {received.message.message_id for received in bench.pull_many()}
    return len(found)


@case({"call": f"publish to {TOPIC_ID}", "http": 404, "reason": "refused"})
def a_function_is_told_of_an_inbox_that_is_not_there(bench: Bench) -> Any:
    with _functions(bench) as publish, pytest.raises(CallError) as refusal:
        publish(STEP, [NEWS])
    error = refusal.value
    return {"call": error.call, "http": error.http, "reason": error.reason}


@case({"failed": ["tear_down"], **_COMES})
def the_relay_keeps_what_an_inbox_that_is_not_there_did_not_take(bench: Bench) -> Any:
    inbox = _open_inbox(bench)
    failed = _relay(bench, OutgoingMessage("tear_down", NEWS), OutgoingMessage(STEP, NEWS))
    return {"failed": [publication.step for publication in failed], **_what_comes(inbox)}


@case({"changed": [], "unread": []})
def entries_of_the_audit_log_come_whole_and_are_read(bench: Bench) -> Any:
    inbox = _open_inbox(bench)
    entries = [json.loads(line)["entry"] for line in ENTRIES.read_text().splitlines()]
    with _topics(bench) as topics:
        # As a log sink and the replay tool publish them.
        contents = [
            (
                json.dumps(entry).encode(),
                {"logging.googleapis.com/timestamp": entry["timestamp"]},
            )
            for entry in entries
        ]
        sent = dict(zip(topics.publish(STEP, contents), entries, strict=True))
    came = {push.message["messageId"]: push for push in inbox.wait(len(entries))}
    read = {delivery.message_id for delivery in _deliveries(inbox, len(entries))}
    return {
        "changed": [one for one, entry in sent.items() if _data(came[one]) != entry],
        "unread": [one for one in sent if one not in read],
    }


@case([1, 2], emulator=Differs([0, 0], "pushes no delivery attempt"))
def a_push_has_its_delivery_attempt(bench: Bench) -> Any:
    bench.topic("dead")
    inbox = _open_inbox(
        bench, 503, 204, dead_letter_policy={"dead_letter_topic": bench.topic_name("dead")}
    )
    with _functions(bench) as publish:
        publish(STEP, [NEWS])
    return [delivery.attempt for delivery in _deliveries(inbox, 2)]


def _data(push: Push) -> Any:
    return json.loads(base64.b64decode(push.message["data"]))
