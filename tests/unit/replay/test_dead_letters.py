"""``kubectl tng dead-letters``: what no step has taken, listed, replayed, dropped."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from local.cloud.simulation import topic
from replay.dead_letters import LEASE_S, MAX_LISTED
from shared.base.errors import CallError
from tests.harness import Harness
from tests.unit.replay.desk import ALONE, Desk, training

LETTERS = ("dead-letters",)
POISON = b'{"version": 7}'
WHY = "version 7 is not known; it must be 1"


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


def kill(desk: Desk, step: str, data: bytes, **attributes: str) -> None:
    """Let a step refuse a message until it is a dead letter, whatever it says."""
    source = topic(step).rsplit("/", 1)[-1]
    dead = {
        "CloudPubSubDeadLetterSourceDeliveryCount": "10",
        "CloudPubSubDeadLetterSourceSubscription": source,
        "CloudPubSubDeadLetterSourceTopicPublishTime": "2026-01-01T00:00:00Z",
    }
    simulation = desk.harness.simulation
    simulation.pubsub.publish(topic("dead-letters"), data, {**dead, **attributes})
    desk.harness.run_for(timedelta(seconds=1))


def listed(desk: Desk, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = desk.json(*LETTERS, "list", *arguments)
    return found


def test_a_poison_message_ends_here_with_step_count_and_reason() -> None:
    desk = Desk(Harness(ALONE))
    desk.harness.simulation.pubsub.publish(topic("label_node"), POISON, {})
    desk.harness.run_for(timedelta(hours=2))
    [letter] = listed(desk)
    assert (letter["step"], letter["attempts"], letter["reason"]) == ("label_node", 10, WHY)
    assert (letter["canBeReplayed"], letter["data"]) == (False, {"version": 7})
    assert letter["publishedAt"] == "2026-01-01T00:00:00Z"
    assert letter["deadSince"] > letter["publishedAt"]


def test_the_table_says_when_which_step_how_often_and_why(desk: Desk) -> None:
    kill(desk, "label_node", _message("u"))
    head, row, reason = desk.run(*LETTERS, "list").stdout.splitlines()
    assert head.split() == ["ID", "FIRST", "SENT", "STEP", "TRIED", "ABOUT"]
    id_, *rest = row.split()
    age = rest[0]
    assert rest == [age, "ago", "label_node", "10", "default/training", "(NodesChanged)"]
    assert id_ == listed(desk)[0]["id"]
    assert reason.strip() == (
        "label_node did not acknowledge it in 10 attempts; the message can be read"
    )


def test_to_list_takes_nothing_away_and_keeps_nothing_from_others(desk: Desk) -> None:
    kill(desk, "label_node", _message("u"))
    first = listed(desk)
    assert len(first) == 1
    assert listed(desk) == first


def test_while_somebody_thinks_nobody_else_gets_them_and_only_the_rest_is_given_back(
    desk: Desk,
) -> None:
    for step in ("label_node", "tear_down"):
        kill(desk, step, _message("u"))
    desk.run(*LETTERS, "replay", "--all", "--step", "tear_down")
    assert desk.subscriptions.leases == [(2, LEASE_S), (1, 0)]


def test_without_any_it_says_so(desk: Desk) -> None:
    result = desk.run(*LETTERS, "list")
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "",
        "There are no dead letters.\n",
    )
    assert listed(desk) == []


def test_a_replayed_one_goes_to_its_step_as_it_was_and_is_gone(desk: Desk) -> None:
    group = desk.harness.apply(training())
    data = _message(group["metadata"]["uid"], "Added")
    kill(desk, "create_resources", data, cluster="c")
    [letter] = listed(desk)
    result = desk.run(*LETTERS, "replay", letter["id"])
    assert result.exit_code == 0
    assert desk.published == [("create_resources", json.loads(data), {"cluster": "c"})]
    assert listed(desk) == []
    desk.harness.run_for(timedelta(seconds=5))
    assert desk.harness.condition("training", "Ready")["reason"] == "Provisioning"


@pytest.mark.parametrize(
    "arguments, replayed",
    [
        (["--all", "--step", "label_node"], ["label_node"]),
        (["--all"], ["label_node", "tear_down"]),
    ],
)
def test_some_or_all_are_replayed(desk: Desk, arguments: list[str], replayed: list[str]) -> None:
    for step in ("label_node", "tear_down"):
        kill(desk, step, _message("u"))
    assert desk.run(*LETTERS, "replay", *arguments).exit_code == 0
    assert sorted(desk.inboxes) == replayed
    left = {letter["step"] for letter in listed(desk)}
    assert left == {"label_node", "tear_down"} - set(replayed)


def test_what_no_step_can_read_stays_and_is_said(desk: Desk) -> None:
    kill(desk, "label_node", POISON)
    kill(desk, "label_node", _message("u"))
    poison = next(one for one in listed(desk) if not one["canBeReplayed"])
    result = desk.run(*LETTERS, "replay", "--all")
    assert (result.exit_code, desk.inboxes) == (1, ["label_node"])
    assert result.stderr == (
        f"{poison['id']} is kept: {WHY}\n"
        "Error: 1 dead letter cannot be replayed; remove what you do not need with `drop`\n"
    )
    assert [one["id"] for one in listed(desk)] == [poison["id"]]


def test_one_whose_publishing_is_refused_stays(desk: Desk) -> None:
    kill(desk, "label_node", _message("u"))
    desk.refuse_after = 0
    result = desk.run(*LETTERS, "replay", "--all")
    assert result.exit_code == 1
    assert "(0 messages published; it is safe to repeat the command)" in result.stderr
    assert len(listed(desk)) == 1


def test_a_dropped_one_is_gone_and_nothing_is_published(desk: Desk) -> None:
    for step in ("label_node", "tear_down"):
        kill(desk, step, _message("u"))
    first, second = listed(desk)
    result = desk.run(*LETTERS, "drop", first["id"])
    assert (result.exit_code, result.stderr) == (0, "Dropped 1 dead letter.\n")
    assert listed(desk) == [second]
    assert desk.published == []


@pytest.mark.parametrize("command", ["replay", "drop"])
def test_a_dry_run_shows_and_changes_nothing(desk: Desk, command: str) -> None:
    kill(desk, "label_node", _message("u"))
    before = listed(desk)
    result = desk.run(*LETTERS, command, "--all", "--dry-run")
    assert result.exit_code == 0
    assert "default/training" in result.stdout
    assert (listed(desk), desk.published) == (before, [])


@pytest.mark.parametrize("command", ["replay", "drop"])
def test_who_says_no_keeps_all(command: str) -> None:
    desk = Desk(Harness(ALONE), is_interactive=True)
    kill(desk, "label_node", _message("u"))
    result = desk.run(*LETTERS, command, "--all", typed="n\n")
    assert (result.exit_code, desk.published) == (1, [])
    assert f"{command.capitalize()} 1 dead letter? [y/N]" in result.stderr
    assert len(listed(desk)) == 1


@pytest.mark.parametrize("command", ["replay", "drop"])
@pytest.mark.parametrize("arguments", [[], ["1", "--all"]])
def test_which_ones_must_be_said(desk: Desk, command: str, arguments: list[str]) -> None:
    result = desk.run(*LETTERS, command, *arguments)
    assert result.exit_code == 2
    assert "name at least one, or give --all" in result.stderr


def test_a_step_that_there_is_not_is_wrong_usage(desk: Desk) -> None:
    result = desk.run(*LETTERS, "list", "--step", "label_nodes")
    assert result.exit_code == 2
    assert "'label_nodes'" in result.stderr


def test_an_id_that_is_not_there_is_named_and_nothing_happens(desk: Desk) -> None:
    kill(desk, "label_node", _message("u"))
    [letter] = listed(desk)
    result = desk.run(*LETTERS, "replay", letter["id"], "77")
    assert (result.exit_code, desk.published) == (1, [])
    assert result.stderr.startswith("Error: there is no dead letter 77; ")


def test_a_missing_subscription_is_said_with_what_to_do(desk: Desk) -> None:
    desk.subscriptions.refuse = CallError("pull from x", 404, "refused", "Not found.")
    result = desk.run(*LETTERS, "list")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        "Error: the call `pull from x` to Pub/Sub failed: 404 refused: Not found."
    )
    assert "PUBSUB_PROJECT and TOPIC_PREFIX must be those of the installation" in result.stderr


def test_more_than_one_page_is_read(desk: Desk) -> None:
    assert MAX_LISTED == 1_000
    for _ in range(250):
        kill(desk, "label_node", _message("u"))
    assert len(listed(desk)) == 250
