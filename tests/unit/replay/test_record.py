"""``kubectl tng record``: what is published to a topic, in a file that ``file`` publishes again."""

from __future__ import annotations

import json
from pathlib import Path

from local.cloud.simulation import topic
from shared.base.errors import CallError
from tests.unit.replay.desk import Desk
from tests.unit.replay.test_recording import message


def record(desk: Desk, path: Path, *data: bytes, limit: int = 10) -> list[str]:
    """Record label_node's topic while this is published to it; the lines."""
    waiting = list(data)

    def publish_next() -> None:
        if waiting:
            desk.harness.simulation.pubsub.publish(topic("label_node"), waiting.pop(0), {"a": "b"})

    desk.subscriptions.while_pulling = publish_next
    result = desk.run("record", "label_node", str(path), "--for", "1m", "--limit", str(limit))
    assert result.exit_code == 0, result.output
    return path.read_text().splitlines()


def test_what_was_recorded_can_be_published_again(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    [line] = record(desk, path, json.dumps(message()).encode())
    assert json.loads(line)["data"] == message()
    result = desk.run("file", str(path))
    assert result.exit_code == 0, result.output
    assert desk.published == [("label_node", message(), {"a": "b"})]


def test_the_step_gets_its_messages_all_the_same(desk: Desk, tmp_path: Path) -> None:
    record(desk, tmp_path / "x", json.dumps(message()).encode())
    assert [step for step, _ in desk.harness.answers] == ["label_node"]


def test_what_is_no_json_is_kept_too(desk: Desk, tmp_path: Path) -> None:
    [line] = record(desk, tmp_path / "x", b"\xff\x00")
    assert json.loads(line)["data"] == "/wA="


def test_it_ends_with_the_limit_or_the_time_and_leaves_no_subscription(
    desk: Desk, tmp_path: Path
) -> None:
    before = len(desk.harness.simulation.pubsub.list_subscriptions("projects/my-gcp-project"))
    data = json.dumps(message()).encode()
    assert len(record(desk, tmp_path / "x", data, data, data, limit=2)) == 2
    assert len(record(desk, tmp_path / "y", data)) == 1
    assert (
        len(desk.harness.simulation.pubsub.list_subscriptions("projects/my-gcp-project")) == before
    )


def test_a_refusal_is_said_with_the_role_that_is_missing(desk: Desk, tmp_path: Path) -> None:
    desk.subscriptions.refuse = CallError("subscribe to x", 403, "refused", "User not authorized.")
    result = desk.run("record", "label_node", str(tmp_path / "x"))
    assert result.exit_code == 1
    assert "roles/pubsub.editor" in result.stderr


def test_a_duration_that_is_none_is_named(desk: Desk, tmp_path: Path) -> None:
    result = desk.run("record", "label_node", str(tmp_path / "x"), "--for", "soon")
    assert result.exit_code == 2
    assert "'soon' must be a duration, as in 90s, 30m, 2h or 1d" in " ".join(result.stderr.split())
