"""``replay file``: recorded messages are published again, all of them or none."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from local.cloud.simulation import DEAD_LETTERS, PROJECT
from local.pubsub.model import SubscriptionConfig
from replay.commands import MANY
from tests.support.harness import Harness, ProcessKilled
from tests.unit.replay.entries import entry, message
from tests.unit.replay.tool import ALONE, Tool, training

GOOD = message(step="label_node")
BAD = message(step="mow_lawn")
BAD_REPORT = (
    "message of line 2: step 'mow_lawn' does not accept messages about a TPUNodeGroup; it must be "
    "one of create_resources, inject_token, label_node, tear_down\n"
)


def lines(*documents: Any) -> str:
    return "".join(json.dumps(document) + "\n" for document in documents)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recorded.jsonl"


def test_each_line_is_published_to_its_topic_in_order(tool: Tool, path: Path) -> None:
    path.write_text(lines(GOOD, entry("policy-insert-last"), {"version": 1, "kind": "Sweep"}))
    assert tool.run("file", str(path)).exit_code == 0
    assert tool.topics == ["label_node", "create_resources", "sweep"]


def test_the_table_has_the_message_of_each_line(tool: Tool, path: Path) -> None:
    path.write_text("\n" + lines(GOOD))
    head, row = tool.run("file", str(path)).stdout.splitlines()
    assert head.split()[:4] == ["LINE", "ABOUT", "CAUSE", "TOPIC"]
    expected = ["2", "default/my-slice", "NodesChanged", "tpu-functions-label-node"]
    assert row.split()[:4] == expected


def test_a_dash_reads_stdin(tool: Tool) -> None:
    tool.run("file", "-", typed=lines(GOOD))
    assert tool.topics == ["label_node"]


def test_one_invalid_line_prevents_all_publishing(tool: Tool) -> None:
    result = tool.run("file", "-", typed=lines(GOOD, BAD))
    assert (result.exit_code, result.stdout, tool.published) == (1, "", [])
    assert result.stderr == BAD_REPORT + (
        "Error: 1 line cannot be read, so nothing was published; fix the file, or skip these lines "
        "with --skip-bad\n"
    )


def test_invalid_lines_are_skipped_with_skip_bad(tool: Tool) -> None:
    result = tool.run("file", "-", "--skip-bad", typed=lines(GOOD, BAD, GOOD))
    assert (result.exit_code, tool.topics) == (0, ["label_node", "label_node"])
    assert result.stderr == BAD_REPORT


def test_an_entry_that_triggers_no_step_is_skipped(tool: Tool) -> None:
    result = tool.run("file", "-", typed=lines(entry("policy-delete-first"), GOOD))
    assert (result.exit_code, tool.topics) == (0, ["label_node"])
    assert result.stderr.startswith("the message of line 1 triggers no step: ")


def test_an_empty_file_has_nothing_to_publish(tool: Tool, path: Path) -> None:
    path.touch()
    result = tool.run("file", str(path))
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "Nothing to publish: no line triggers a step.\n"


def test_a_dry_run_publishes_nothing(tool: Tool) -> None:
    [shown] = tool.json("file", "-", "--dry-run", typed=lines(GOOD))
    assert (shown["line"], shown["step"], shown["messageId"]) == (1, "label_node", None)
    assert tool.published == []


def test_no_call_is_made_to_the_cluster_or_compute_engine(tool: Tool) -> None:
    tool.run("file", "-", typed=lines(GOOD))
    assert tool.calls == []


def test_control_characters_in_a_message_are_not_printed(tool: Tool) -> None:
    result = tool.run("file", "-", typed=lines(message(cause="\x1b[2J\x07", step="label_node")))
    assert "\x1b" not in result.output
    assert "\N{REPLACEMENT CHARACTER}[2J" in result.stdout


def test_a_missing_file_is_wrong_usage(tool: Tool, path: Path) -> None:
    result = tool.run("file", str(path))
    assert result.exit_code == 2
    assert f"{path} cannot be read: No such file or directory" in result.stderr


@pytest.mark.parametrize("count, must_confirm", [(MANY, False), (MANY + 1, True)])
def test_the_user_must_confirm_before_many_messages_are_published(
    path: Path, count: int, must_confirm: bool
) -> None:
    tool = Tool(Harness(ALONE), is_interactive=True)
    path.write_text(lines(*[GOOD] * count))
    result = tool.run("file", str(path), typed="n\n")
    assert (f"Publish {count} messages? [y/N]" in result.stderr) is must_confirm
    assert len(tool.published) == (0 if must_confirm else count)


def test_a_pulled_dead_letter_triggers_its_step_again(path: Path) -> None:
    tool = Tool(Harness())
    tool.harness.apply(training())
    tool.harness.run_for(timedelta(seconds=1))
    dead = _make_dead_letters(tool, "create_resources")
    path.write_text(lines(*dead))
    tool.harness.answers.clear()
    shown = tool.json("file", str(path))
    assert {row["step"] for row in shown} == {"create_resources"}
    assert not [key for row in shown for key in row["attributes"] if "DeadLetter" in key]
    tool.harness.run_for(timedelta(minutes=2))
    assert "create_resources" in [step for step, _ in tool.harness.answers]


def _make_dead_letters(tool: Tool, step: str) -> list[dict[str, Any]]:
    """Crash a step with every message; return the dead letters as gcloud pulls them."""
    pubsub, name = tool.harness.simulation.pubsub, f"projects/{PROJECT}/subscriptions/graveyard"
    pubsub.create_subscription(
        SubscriptionConfig(name, topic=f"projects/{PROJECT}/topics/{DEAD_LETTERS}")
    )

    def crash(at: str, _call: str) -> None:
        if at == step:
            raise ProcessKilled

    tool.harness.hooks.before, original = crash, tool.harness.hooks.before
    tool.harness.run_until(lambda: pubsub.backlog(name) > 0, timedelta(hours=3))
    tool.harness.hooks.before = original
    return [
        {
            "ackId": received.ack_id,
            "message": {
                "data": base64.b64encode(received.message.data).decode(),
                "attributes": dict(received.message.attributes),
                "messageId": received.message.id,
            },
        }
        for received in pubsub.pull(name, 100)
    ]
