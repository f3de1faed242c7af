"""``kubectl tng record``: records a topic in a file that ``file`` publishes again."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from local.cloud.simulation import topic
from shared.ports.errors import About, CallError
from tests.unit.replay.entries import message
from tests.unit.replay.tool import Tool


def record(tool: Tool, path: Path, *data: bytes, limit: int = 10) -> list[str]:
    """Record label_node's topic while these messages are published; return the lines."""
    waiting = list(data)

    def publish_next() -> None:
        if waiting:
            tool.harness.simulation.pubsub.publish(topic("label_node"), waiting.pop(0), {"a": "b"})

    tool.subscriptions.while_pulling = publish_next
    result = tool.run("record", "label_node", str(path), "--for", "1m", "--limit", str(limit))
    assert result.exit_code == 0, result.output
    return path.read_text().splitlines()


def test_a_recorded_message_can_be_published_again(tool: Tool, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    [line] = record(tool, path, json.dumps(message()).encode())
    assert json.loads(line)["data"] == message()
    result = tool.run("file", str(path))
    assert result.exit_code == 0, result.output
    assert tool.published == [("label_node", message(), {"a": "b"})]


def test_the_step_receives_its_messages_during_a_recording(tool: Tool, tmp_path: Path) -> None:
    record(tool, tmp_path / "x", json.dumps(message()).encode())
    assert [step for step, _ in tool.harness.answers] == ["label_node"]


@pytest.mark.parametrize("data", [b"\xff\x00", b"[" * 50_000], ids=["binary", "nested"])
def test_data_that_is_not_json_is_recorded(tool: Tool, tmp_path: Path, data: bytes) -> None:
    [line] = record(tool, tmp_path / "x", data)
    assert base64.b64decode(json.loads(line)["data"]) == data


def test_a_recording_ends_at_the_limit_or_the_time_and_deletes_its_subscription(
    tool: Tool, tmp_path: Path
) -> None:
    before = len(tool.harness.simulation.pubsub.list_subscriptions("projects/my-gcp-project"))
    data = json.dumps(message()).encode()
    assert len(record(tool, tmp_path / "x", data, data, data, limit=2)) == 2
    assert len(record(tool, tmp_path / "y", data)) == 1
    assert (
        len(tool.harness.simulation.pubsub.list_subscriptions("projects/my-gcp-project")) == before
    )


def test_a_missing_permission_is_reported_with_the_missing_role(tool: Tool, tmp_path: Path) -> None:
    tool.subscriptions.error = CallError(
        "subscribe to x", 403, "refused", "User not authorized.", About("projects")
    )
    result = tool.run("record", "label_node", str(tmp_path / "x"))
    assert result.exit_code == 1
    assert "roles/pubsub.editor" in result.stderr


def test_an_invalid_duration_is_reported(tool: Tool, tmp_path: Path) -> None:
    result = tool.run("record", "label_node", str(tmp_path / "x"), "--for", "soon")
    assert result.exit_code == 2
    assert "'soon' must be a duration, as in 90s, 30m, 2h or 1d" in " ".join(result.stderr.split())


@pytest.mark.parametrize("text", ["3651d", "99999999999h", f"{'9' * 5000}s"])
@pytest.mark.parametrize("command", ["timeline default/training --since", "audit-log --since"])
def test_a_duration_that_is_too_long_is_reported(tool: Tool, command: str, text: str) -> None:
    result = tool.run(*command.split(), text)
    assert result.exit_code == 2
    expected = "must be a duration" if len(text) > 12 else "must be at most 3650d"
    assert expected in " ".join(result.stderr.split())
