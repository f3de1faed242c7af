"""The product's own code publishes and decodes: the functions', the relay's and the replay tool's."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from local.tests.contract.pubsub import case as contract
from local.tests.contract.pubsub.bench import Bench, Push, Receiver
from local.tests.contract.pubsub.case import Case, Differs
from relay.changes.pending import OutgoingMessage
from relay.publisher import PubSubPublisher, find_credentials
from shared.base.names import topic_id
from shared.frame.plan import Publish
from shared.ports.errors import CallError
from shared.ports.kubernetes.access_settings import Kubeconfig
from shared.ports.kubernetes.connection import Connection
from shared.ports.pubsub import Topics
from shared.runtime import make_publish
from shared.triggers.decode import Delivery, decode
from shared.triggers.message import Cause, Message
from shared.triggers.routes import ROUTES
from shared.triggers.trigger import ObjectTrigger

PREFIX = "tpu-functions-"
STEP = "label_node"
TOPIC_ID = topic_id(PREFIX, STEP)
CLUSTER = "9a1f"
AT = datetime(2026, 1, 1, tzinfo=UTC)
MESSAGE = Message("default", "train", "uid-1", Cause.NODES_CHANGED, AT, nodes=("n-1", "n-2"))
ENTRIES = Path(__file__).parents[3] / "tests" / "data" / "audit-log-entries.jsonl"

_RECEIVED = {"message": MESSAGE, "attributes": {"cluster": CLUSTER, "cause": "NodesChanged"}}


CASES: list[Case] = []
case = partial(contract.case, cases=CASES)

_ENVIRONMENT = threading.Lock()
"""Cases run at the same time in one process, which has one environment."""


@contextmanager
def _emulator_host(bench: Bench) -> Iterator[None]:
    """Set PUBSUB_EMULATOR_HOST to this Pub/Sub."""
    with _ENVIRONMENT, pytest.MonkeyPatch.context() as environment:
        environment.setenv("PUBSUB_EMULATOR_HOST", bench.address)
        yield


@contextmanager
def _topics(bench: Bench) -> Iterator[Topics]:
    """The functions' port, with PUBSUB_EMULATOR_HOST set to this Pub/Sub."""
    with _emulator_host(bench):
        yield Topics(bench.project_id, PREFIX)


@contextmanager
def _functions(bench: Bench) -> Iterator[Publish]:
    """The function with which a step publishes to other steps."""
    connection = Connection(Kubeconfig("/nowhere"))
    connection.cluster_id = CLUSTER
    with _topics(bench) as topics:
        yield make_publish(topics, connection)


def _relay(bench: Bench, *publications: OutgoingMessage) -> list[OutgoingMessage]:
    """Publish as the relay does, and return the messages that could not be published."""

    async def publish() -> list[OutgoingMessage]:
        sender = PubSubPublisher(bench.project_id, PREFIX, find_credentials(), lambda: AT)
        failed = await sender.publish(publications, CLUSTER)
        await sender.close()
        return failed

    with _emulator_host(bench):
        return asyncio.run(publish())


def _open_step(bench: Bench, *answers: int, **fields: Any) -> Receiver:
    """Create a step's topic, and the subscription that pushes to its endpoint."""
    bench.topic(TOPIC_ID)
    receiver = bench.receiver(*answers)
    bench.push(receiver, topic=TOPIC_ID, **fields)
    return receiver


def _deliveries(receiver: Receiver, count: int) -> list[Delivery]:
    """Decode pushes as the frame of a step does."""
    return [decode(push.raw, ROUTES) for push in receiver.wait(count)]


def _read_one(receiver: Receiver) -> dict[str, Any]:
    (delivery,) = _deliveries(receiver, 1)
    assert isinstance(delivery.trigger, ObjectTrigger)
    (push,) = receiver.wait(1)
    assert delivery.message_id == push.message["messageId"]
    return {"message": delivery.trigger.message, "attributes": push.message["attributes"]}


@case(_RECEIVED)
def a_step_reads_the_message_of_a_function(bench: Bench) -> Any:
    receiver = _open_step(bench)
    with _functions(bench) as publish:
        publish(STEP, [MESSAGE])
    return _read_one(receiver)


@case({"failed": [], **_RECEIVED})
def a_step_reads_the_message_of_the_relay(bench: Bench) -> Any:
    receiver = _open_step(bench)
    failed = _relay(bench, OutgoingMessage(STEP, MESSAGE))
    return {"failed": failed, **_read_one(receiver)}


@case(1_001)
def a_function_publishes_any_number_of_messages(bench: Bench) -> Any:
    bench.topic(TOPIC_ID)
    bench.subscribe(topic=TOPIC_ID)
    with _functions(bench) as publish:
        publish(STEP, [MESSAGE] * 1_001)
    found: set[str] = set()
    while len(found) < 1_001:
        found |= {received.message.message_id for received in bench.pull_many()}
    return len(found)


@case({"call": f"publish to {TOPIC_ID}", "http": 404, "reason": "refused"})
def publishing_to_an_absent_topic_is_an_error_for_a_function(bench: Bench) -> Any:
    with _functions(bench) as publish, pytest.raises(CallError) as raised:
        publish(STEP, [MESSAGE])
    error = raised.value
    return {"call": error.call, "http": error.http, "reason": error.code}


@case({"failed": ["tear_down"], **_RECEIVED})
def the_relay_keeps_messages_for_an_absent_topic(bench: Bench) -> Any:
    receiver = _open_step(bench)
    failed = _relay(bench, OutgoingMessage("tear_down", MESSAGE), OutgoingMessage(STEP, MESSAGE))
    return {"failed": [publication.step for publication in failed], **_read_one(receiver)}


@case({"changed": [], "unread": []})
def entries_of_the_audit_log_arrive_unchanged_and_are_decoded(bench: Bench) -> Any:
    receiver = _open_step(bench)
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
    pushes = {push.message["messageId"]: push for push in receiver.wait(len(entries))}
    read = {delivery.message_id for delivery in _deliveries(receiver, len(entries))}
    return {
        "changed": [one for one, entry in sent.items() if _data(pushes[one]) != entry],
        "unread": [one for one in sent if one not in read],
    }


@case([1, 2], emulator=Differs([0, 0], "pushes no delivery attempt"))
def a_push_has_its_delivery_attempt(bench: Bench) -> Any:
    bench.topic("dead")
    receiver = _open_step(
        bench, 503, 204, dead_letter_policy={"dead_letter_topic": bench.topic_name("dead")}
    )
    with _functions(bench) as publish:
        publish(STEP, [MESSAGE])
    return [delivery.attempt for delivery in _deliveries(receiver, 2)]


def _data(push: Push) -> Any:
    return json.loads(base64.b64decode(push.message["data"]))
