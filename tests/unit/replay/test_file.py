"""``replay file``: recorded messages once more, all of them or none."""

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
from tests.harness import Death, Harness
from tests.unit.replay.desk import ALONE, Desk, training
from tests.unit.replay.test_recording import entry, message

GOOD = message(step="label_node")
BAD = message(step="mow_lawn")
BAD_TOLD = (
    "message of line 2: step 'mow_lawn' does not accept messages about a TPUNodeGroup; it must be "
    "one of create_resources, inject_token, label_node, tear_down\n"
)


def lines(*documents: Any) -> str:
    return "".join(json.dumps(document) + "\n" for document in documents)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recorded.jsonl"


def test_each_line_goes_to_its_inbox_in_order(desk: Desk, path: Path) -> None:
    path.write_text(lines(GOOD, entry("policy-insert-last"), {"version": 1, "kind": "Sweep"}))
    assert desk.run("file", str(path)).exit_code == 0
    assert desk.inboxes == ["label_node", "create_resources", "sweep"]


def test_the_table_says_what_each_line_became(desk: Desk, path: Path) -> None:
    path.write_text("\n" + lines(GOOD))
    head, row = desk.run("file", str(path)).stdout.splitlines()
    assert head.split()[:4] == ["LINE", "ABOUT", "CAUSE", "TOPIC"]
    expected = ["2", "default/my-slice", "NodesChanged", "tpu-functions-label-node"]
    assert row.split()[:4] == expected


def test_a_dash_reads_stdin(desk: Desk) -> None:
    desk.run("file", "-", typed=lines(GOOD))
    assert desk.inboxes == ["label_node"]


def test_one_wrong_line_keeps_all_back(desk: Desk) -> None:
    result = desk.run("file", "-", typed=lines(GOOD, BAD))
    assert (result.exit_code, result.stdout, desk.published) == (1, "", [])
    assert result.stderr == BAD_TOLD + (
        "Error: 1 line cannot be read, so nothing was published; fix the file, or skip these lines "
        "with --skip-bad\n"
    )


def test_wrong_lines_are_left_out_when_asked(desk: Desk) -> None:
    result = desk.run("file", "-", "--skip-bad", typed=lines(GOOD, BAD, GOOD))
    assert (result.exit_code, desk.inboxes) == (0, ["label_node", "label_node"])
    assert result.stderr == BAD_TOLD


def test_an_entry_that_triggers_no_step_delays_nothing(desk: Desk) -> None:
    result = desk.run("file", "-", typed=lines(entry("policy-delete-first"), GOOD))
    assert (result.exit_code, desk.inboxes) == (0, ["label_node"])
    assert result.stderr.startswith("the message of line 1 triggers no step: ")


def test_an_empty_file_has_nothing_to_publish(desk: Desk, path: Path) -> None:
    path.touch()
    result = desk.run("file", str(path))
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "Nothing to publish: no line triggers a step.\n"


def test_a_dry_run_publishes_nothing(desk: Desk) -> None:
    [shown] = desk.json("file", "-", "--dry-run", typed=lines(GOOD))
    assert (shown["line"], shown["step"], shown["messageId"]) == (1, "label_node", None)
    assert desk.published == []


def test_neither_cluster_nor_compute_engine_is_needed(desk: Desk) -> None:
    desk.run("file", "-", typed=lines(GOOD))
    assert desk.asked == []


def test_words_of_others_cannot_steer_a_terminal(desk: Desk) -> None:
    result = desk.run("file", "-", typed=lines(message(cause="\x1b[2J\x07", step="label_node")))
    assert "\x1b" not in result.output
    assert "\N{REPLACEMENT CHARACTER}[2J" in result.stdout


def test_a_file_that_is_not_there_is_wrong_usage(desk: Desk, path: Path) -> None:
    result = desk.run("file", str(path))
    assert result.exit_code == 2
    assert f"{path} cannot be read: No such file or directory" in result.stderr


@pytest.mark.parametrize("count, is_asked", [(MANY, False), (MANY + 1, True)])
def test_a_person_is_asked_before_many_are_published(
    path: Path, count: int, is_asked: bool
) -> None:
    desk = Desk(Harness(ALONE), is_interactive=True)
    path.write_text(lines(*[GOOD] * count))
    result = desk.run("file", str(path), typed="n\n")
    assert (f"Publish {count} messages? [y/N]" in result.stderr) is is_asked
    assert len(desk.published) == (0 if is_asked else count)


def test_a_dead_letter_comes_to_life(path: Path) -> None:
    desk = Desk(Harness())
    desk.harness.apply(training())
    desk.harness.run_for(timedelta(seconds=1))
    dead = _let_messages_die(desk, "create_resources")
    path.write_text(lines(*dead))
    desk.harness.answers.clear()
    shown = desk.json("file", str(path))
    assert {row["step"] for row in shown} == {"create_resources"}
    assert not [key for row in shown for key in row["attributes"] if "DeadLetter" in key]
    desk.harness.run_for(timedelta(minutes=2))
    assert "create_resources" in [step for step, _ in desk.harness.answers]


def _let_messages_die(desk: Desk, step: str) -> list[dict[str, Any]]:
    """A step dies of every message until Pub/Sub gives up; the dead letters, as gcloud pulls them."""
    pubsub, name = desk.harness.simulation.pubsub, f"projects/{PROJECT}/subscriptions/graveyard"
    pubsub.create_subscription(
        SubscriptionConfig(name, topic=f"projects/{PROJECT}/topics/{DEAD_LETTERS}")
    )

    def die(at: str, _call: str) -> None:
        if at == step:
            raise Death

    desk.harness.hooks.before, lives = die, desk.harness.hooks.before
    desk.harness.run_until(lambda: pubsub.backlog(name) > 0, timedelta(hours=3))
    desk.harness.hooks.before = lives
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
