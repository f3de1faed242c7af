# ruff: noqa: E501  (a table reads best with a row on a line)
"""Publishing over gRPC, as to an emulator: published and returned messages."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from google.auth.credentials import AnonymousCredentials
from google.oauth2.credentials import Credentials
from prometheus_client import REGISTRY

from relay import publisher
from relay.changes.pending import OutgoingMessage
from relay.publisher import NoCredentials, PubSubPublisher, find_credentials
from shared.base.names import JOBSET_KIND
from shared.triggers.message import POD_KIND, REQUEST_KIND, Cause, Message, message_about_requests
from tests.unit.relay.small_pubsub import SmallPubSub

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def a_publication(step: str = "label_node", name: str = "train") -> OutgoingMessage:
    message = Message("default", name, "uid-1", Cause.NODES_CHANGED, NOW, ("n-1",))
    return OutgoingMessage(step, message)


def a_publisher() -> PubSubPublisher:
    now = NOW + timedelta(seconds=0.3)
    return PubSubPublisher("proj-1", "tf-", AnonymousCredentials(), lambda: now)


async def test_a_message_is_published_to_the_topic_of_its_step_as_it_was_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pubsub = SmallPubSub()
    async with pubsub.serving() as port:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{port}")
        sender = a_publisher()
        assert await sender.publish([a_publication()], "cluster-1") == []
        await sender.close()
    topic, message = pubsub.messages.get_nowait()
    assert topic == "projects/proj-1/topics/tf-label-node"
    assert json.loads(message.data)["nodes"] == ["n-1"]
    assert dict(message.attributes) == {"cluster": "cluster-1", "cause": "NodesChanged"}


async def test_a_missing_topic_fails_only_its_own_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    pubsub = SmallPubSub(missing={"tf-label-node"})
    lost, other = a_publication(), a_publication("tear_down")
    failed = "tpu_functions_relay_failed_messages_total"
    before = [counted(failed, step) for step in ("label_node", "tear_down")]
    async with pubsub.serving() as port:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{port}")
        sender = a_publisher()
        assert await sender.publish([lost, other], "c") == [lost]
        await sender.close()
    assert pubsub.messages.get_nowait()[0].endswith("/tf-tear-down")
    after = [counted(failed, step) for step in ("label_node", "tear_down")]
    assert after == [before[0] + 1, before[1]]


async def test_more_messages_than_one_call_allows_are_published_in_several_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pubsub = SmallPubSub()
    async with pubsub.serving() as port:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{port}")
        sender = a_publisher()
        assert await sender.publish([a_publication()] * 2_001, "c") == []
        await sender.close()
    assert pubsub.messages.qsize() == 2_001


async def test_messages_are_published_as_soon_as_pubsub_is_available_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pubsub, batch = SmallPubSub(), [a_publication()]
    async with pubsub.serving() as port:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{port}")
        sender = a_publisher()
        assert await sender.publish(batch, "c") == []
    for _ in range(5):
        assert await sender.publish(batch, "c") == batch
    async with pubsub.serving(port):
        assert await sender.publish(batch, "c") == []
        await sender.close()


async def test_a_call_to_a_pubsub_that_does_not_answer_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "CALL_TIMEOUT_S", 0.1)

    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{port}")
    sender, batch = a_publisher(), [a_publication()]
    assert await sender.publish(batch, "c") == batch
    server.close()


A_POD = Message("default", "train-0", "uid-2", Cause.UNSCHEDULABLE, NOW, kind=POD_KIND)
A_JOBSET = Message("default", "train", "uid-3", Cause.COMPLETED, NOW, kind=JOBSET_KIND)
A_REQUEST = Message("default", "queued", "uid-4", Cause.ADDED, NOW, kind=REQUEST_KIND)
REQUESTS = message_about_requests(Cause.JOIN_REQUESTED, NOW, ("csr-1", "csr-2"))


@pytest.mark.parametrize(
    "step, message, logged",
    [
        pytest.param("label_node", a_publication().message, {"group": "default/train", "uid": "uid-1", "cause": "NodesChanged", "nodes": 1}, id="TPUNodeGroup"),
        pytest.param("approve_join", REQUESTS, {"requests": ["csr-1", "csr-2"], "cause": "JoinRequested", "nodes": 0}, id="CertificateSigningRequest"),
        pytest.param("provision_slice", A_POD, {"pod": "default/train-0", "uid": "uid-2", "cause": "Unschedulable", "nodes": 0}, id="Pod"),
        pytest.param("release_slice", A_JOBSET, {"jobset": "default/train", "uid": "uid-3", "cause": "Completed", "nodes": 0}, id="JobSet"),
        pytest.param("provision_slice", A_REQUEST, {"request": "default/queued", "uid": "uid-4", "cause": "Added", "nodes": 0}, id="ProvisioningRequest"),
    ],
)  # fmt: skip
def test_each_kind_of_message_is_logged_with_its_object(
    monkeypatch: pytest.MonkeyPatch, step: str, message: Message, logged: dict[str, Any]
) -> None:
    async def scenario() -> list[Any]:
        async with SmallPubSub().serving() as port:
            monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{port}")
            sender = a_publisher()
            with structlog.testing.capture_logs() as lines:
                assert await sender.publish([OutgoingMessage(step, message)], "c") == []
            await sender.close()
            return lines

    (line,) = asyncio.run(scenario())
    expected = {"event": "published", "log_level": "info", "step": step, **logged}
    assert json.loads(json.dumps(line)) == expected


def counted(name: str, step: str) -> float:
    return REGISTRY.get_sample_value(name, {"step": step}) or 0.0


def test_published_messages_and_their_reaction_time_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    total, reaction = (
        "tpu_functions_relay_published_messages_total",
        "tpu_functions_relay_reaction_seconds_sum",
    )
    before = counted(total, "tear_down"), counted(reaction, "tear_down")

    async def scenario() -> None:
        async with SmallPubSub().serving() as port:
            monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{port}")
            sender = a_publisher()
            await sender.publish([a_publication("tear_down")] * 2, "c")
            await sender.close()

    asyncio.run(scenario())
    assert counted(total, "tear_down") - before[0] == 2
    assert counted(reaction, "tear_down") - before[1] == pytest.approx(0.6)


def test_the_credentials_are_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    user = {"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r"}
    path = tmp_path / "key.json"
    path.write_text(json.dumps(user))
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    found = find_credentials()
    assert isinstance(found, Credentials)
    assert found.client_id == "i"


def test_missing_credentials_raise_an_error_with_googles_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    nowhere = tmp_path_factory.mktemp("nowhere") / "key.json"
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(nowhere))
    with pytest.raises(NoCredentials, match=f"File {nowhere} was not found"):
        find_credentials()
