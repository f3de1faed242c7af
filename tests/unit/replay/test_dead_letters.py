"""``kubectl tng dead-letters``: messages that no step acknowledged are listed, replayed or dropped."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from typing import Any

import pytest

from local.cloud.simulation import topic
from replay.dead_letters import LEASE_S, MAX_LISTED
from shared.ports.errors import About, CallError
from tests.support.harness import Harness
from tests.unit.replay.tool import ALONE, Tool, make_dead_letter, training

LETTERS = ("dead-letters",)
POISON = b'{"version": 7}'
REASON = "version 7 is not known; it must be 1"


def _message(uid: str, cause: str = "NodesChanged") -> bytes:
    document = {
        "version": 1,
        "kind": "TPUNodeGroup",
        "namespace": "default",
        "name": "training",
        "uid": uid,
        "cause": cause,
        "at": "2026-01-01T00:00:00Z",
    }
    return json.dumps(document).encode()


def listed(tool: Tool, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tool.json(*LETTERS, "list", *arguments)
    return found


def test_a_poison_message_is_listed_with_step_attempts_and_reason() -> None:
    tool = Tool(Harness(ALONE))
    tool.harness.simulation.pubsub.publish(topic("label_node"), POISON, {})
    tool.harness.run_for(timedelta(hours=2))
    [letter] = listed(tool)
    assert (letter["step"], letter["attempts"], letter["reason"]) == ("label_node", 10, REASON)
    assert (letter["canBeReplayed"], letter["data"]) == (False, {"version": 7})
    assert letter["publishedAt"] == "2026-01-01T00:00:00Z"
    assert letter["deadSince"] > letter["publishedAt"]


def test_a_dead_letter_that_is_nested_too_deeply_is_listed_with_its_bytes(tool: Tool) -> None:
    data = b"[" * 50_000
    make_dead_letter(tool, "label_node", data)
    [letter] = listed(tool)
    assert base64.b64decode(letter["data"]) == data
    assert "is not JSON: maximum recursion depth exceeded" in letter["reason"]


def test_the_table_has_time_step_attempts_and_reason(tool: Tool) -> None:
    make_dead_letter(tool, "label_node", _message("u"))
    head, row, reason = tool.run(*LETTERS, "list").stdout.splitlines()
    assert head.split() == ["ID", "FIRST", "SENT", "STEP", "TRIED", "ABOUT"]
    id_, *rest = row.split()
    age = rest[0]
    assert rest == [age, "ago", "label_node", "10", "default/training", "(NodesChanged)"]
    assert id_ == listed(tool)[0]["id"]
    assert reason.strip() == (
        "label_node did not acknowledge it in 10 attempts; the message can be read"
    )


def test_a_list_removes_no_dead_letter_and_leases_none(tool: Tool) -> None:
    make_dead_letter(tool, "label_node", _message("u"))
    first = listed(tool)
    assert len(first) == 1
    assert listed(tool) == first


def test_dead_letters_are_leased_during_a_replay_and_only_the_others_are_returned(
    tool: Tool,
) -> None:
    for step in ("label_node", "tear_down"):
        make_dead_letter(tool, step, _message("u"))
    tool.run(*LETTERS, "replay", "--all", "--step", "tear_down", "--yes")
    assert tool.subscriptions.leases == [(2, LEASE_S), (1, 0)]


def test_an_empty_list_is_reported(tool: Tool) -> None:
    result = tool.run(*LETTERS, "list")
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "",
        "There are no dead letters.\n",
    )
    assert listed(tool) == []


def test_a_replayed_dead_letter_is_published_to_its_step_unchanged_and_removed(tool: Tool) -> None:
    group = tool.harness.apply(training())
    data = _message(group["metadata"]["uid"], "Added")
    make_dead_letter(tool, "create_resources", data, cluster="c")
    [letter] = listed(tool)
    result = tool.run(*LETTERS, "replay", letter["id"])
    assert result.exit_code == 0
    assert tool.published == [("create_resources", json.loads(data), {"cluster": "c"})]
    assert listed(tool) == []
    tool.harness.run_for(timedelta(seconds=5))
    assert tool.harness.condition("training", "Ready")["reason"] == "Provisioning"


@pytest.mark.parametrize(
    "arguments, replayed",
    [
        (["--all", "--step", "label_node"], ["label_node"]),
        (["--all"], ["label_node", "tear_down"]),
    ],
)
def test_the_dead_letters_of_one_step_or_of_all_are_replayed(
    tool: Tool, arguments: list[str], replayed: list[str]
) -> None:
    for step in ("label_node", "tear_down"):
        make_dead_letter(tool, step, _message("u"))
    assert tool.run(*LETTERS, "replay", *arguments, "--yes").exit_code == 0
    assert sorted(tool.topics) == replayed
    left = {letter["step"] for letter in listed(tool)}
    assert left == {"label_node", "tear_down"} - set(replayed)


def test_an_unreadable_dead_letter_is_kept_and_reported(tool: Tool) -> None:
    make_dead_letter(tool, "label_node", POISON)
    make_dead_letter(tool, "label_node", _message("u"))
    poison = next(one for one in listed(tool) if not one["canBeReplayed"])
    result = tool.run(*LETTERS, "replay", "--all", "--yes")
    assert (result.exit_code, tool.topics) == (1, ["label_node"])
    assert result.stderr == (
        f"{poison['id']} is kept: {REASON}\n"
        "Error: 1 dead letter cannot be replayed; remove what you do not need with `drop`\n"
    )
    assert [one["id"] for one in listed(tool)] == [poison["id"]]


def test_a_dead_letter_that_cannot_be_published_is_kept(tool: Tool) -> None:
    make_dead_letter(tool, "label_node", _message("u"))
    tool.fail_after = 0
    result = tool.run(*LETTERS, "replay", "--all", "--yes")
    assert result.exit_code == 1
    assert "(0 of 1 were published; it is safe to repeat the command)" in result.stderr
    assert len(listed(tool)) == 1


def test_a_dropped_dead_letter_is_removed_and_nothing_is_published(tool: Tool) -> None:
    for step in ("label_node", "tear_down"):
        make_dead_letter(tool, step, _message("u"))
    first, second = listed(tool)
    result = tool.run(*LETTERS, "drop", first["id"], "--yes")
    assert (result.exit_code, result.stderr) == (0, "Dropped 1 dead letter.\n")
    assert listed(tool) == [second]
    assert tool.published == []


@pytest.mark.parametrize("command", ["replay", "drop"])
def test_a_dry_run_shows_and_changes_nothing(tool: Tool, command: str) -> None:
    make_dead_letter(tool, "label_node", _message("u"))
    before = listed(tool)
    result = tool.run(*LETTERS, command, "--all", "--dry-run")
    assert result.exit_code == 0
    assert "default/training" in result.stdout
    assert (listed(tool), tool.published) == (before, [])


@pytest.mark.parametrize("command", ["replay", "drop"])
def test_a_command_that_the_user_declines_changes_nothing(command: str) -> None:
    tool = Tool(Harness(ALONE), is_interactive=True)
    make_dead_letter(tool, "label_node", _message("u"))
    result = tool.run(*LETTERS, command, "--all", typed="n\n")
    assert (result.exit_code, tool.published) == (1, [])
    assert f"{command.capitalize()} 1 dead letter? [y/N]" in result.stderr
    assert len(listed(tool)) == 1


@pytest.mark.parametrize("command", ["replay", "drop"])
@pytest.mark.parametrize("arguments", [[], ["1", "--all"]])
def test_a_command_without_ids_and_without_all_is_wrong_usage(
    tool: Tool, command: str, arguments: list[str]
) -> None:
    result = tool.run(*LETTERS, command, *arguments)
    assert result.exit_code == 2
    assert "name at least one, or give --all" in result.stderr


def test_an_unknown_step_is_wrong_usage(tool: Tool) -> None:
    result = tool.run(*LETTERS, "list", "--step", "label_nodes")
    assert result.exit_code == 2
    assert "'label_nodes'" in result.stderr


def test_an_unknown_id_is_reported_and_nothing_is_replayed(tool: Tool) -> None:
    make_dead_letter(tool, "label_node", _message("u"))
    [letter] = listed(tool)
    result = tool.run(*LETTERS, "replay", letter["id"], "77")
    assert (result.exit_code, tool.published) == (1, [])
    assert result.stderr.startswith("Error: there is no dead letter 77; ")


def test_a_missing_subscription_is_reported_with_a_solution(tool: Tool) -> None:
    tool.subscriptions.error = CallError(
        "pull from x", 404, "refused", "Not found.", About("subscriptions")
    )
    result = tool.run(*LETTERS, "list")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        "Error: the call `pull from x` to Pub/Sub failed: 404 refused: Not found."
    )
    assert "PUBSUB_PROJECT and TOPIC_PREFIX must be those of the installation" in result.stderr


def test_more_than_one_page_is_read(tool: Tool) -> None:
    assert MAX_LISTED == 1_000
    for _ in range(250):
        make_dead_letter(tool, "label_node", _message("u"))
    assert len(listed(tool)) == 250


def test_a_list_at_its_limit_says_that_more_dead_letters_may_exist(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replay.dead_letters.MAX_LISTED", 100)
    monkeypatch.setattr("replay.dead_letter_commands.MAX_LISTED", 100)
    for number in range(150):
        make_dead_letter(tool, "label_node", _message(f"u{number}"))
    result = tool.run(*LETTERS, "drop", "--all", "--yes")
    assert "These are 100 dead letters; repeat the command if there are more." in result.stderr
    result = tool.run(*LETTERS, "drop", "--all", "--yes")
    assert result.stderr == "Dropped 50 dead letters.\n"
