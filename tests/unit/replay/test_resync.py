"""``kubectl tng resync``: a resync by hand, to the inboxes that have something to look for."""

from __future__ import annotations

from datetime import timedelta

import pytest

from replay.commands import Topic
from replay.publications import GROUP_STEPS
from tests.harness import Harness
from tests.unit.replay.desk import ALONE, Desk, training

READY = timedelta(minutes=30)


def test_a_sync_is_published_with_the_current_time(desk: Desk) -> None:
    group = desk.harness.apply(training())
    desk.harness.run_for(timedelta(minutes=7))
    result = desk.run("resync", "default/training")
    assert result.exit_code == 0
    assert desk.published == [
        (
            "create_resources",
            {
                "version": 1,
                "kind": "TPUNodeGroup",
                "namespace": "default",
                "name": "training",
                "uid": group["metadata"]["uid"],
                "cause": "Resync",
                "at": "2026-01-01T00:07:00Z",
            },
            {"cluster": desk.harness.runtime("admin").connection.constants["cluster"]}
            | {"cause": "Resync"},
        )
    ]


def test_the_result_names_group_topic_and_the_id_to_look_for_in_the_log(desk: Desk) -> None:
    desk.harness.apply(training())
    head, row = desk.run("resync", "default/training").stdout.splitlines()
    assert head.split() == ["ABOUT", "CAUSE", "TOPIC", "MESSAGE", "ID"]
    about, cause, topic, message_id = row.split()
    assert (about, cause) == ("default/training", "Resync")
    assert topic == "tpu-functions-create-resources"
    desk.harness.run_for(timedelta(seconds=5))
    assert message_id in [line.get("message_id") for line in desk.harness.log.lines]


def test_a_persons_syncs_and_approvals_bring_a_slice_to_ready_and_away_again(desk: Desk) -> None:
    """A resync of a group says nothing of requests for certificates: ``kubectl certificate approve``."""
    desk.harness.apply(training())
    assert _sync_until(desk, lambda: desk.harness.is_ready("training"))
    desk.harness.delete("training")
    assert _sync_until(desk, lambda: desk.harness.group("training") is None)
    assert set(desk.inboxes) == set(GROUP_STEPS)


def _sync_until(desk: Desk, condition: object) -> bool:
    assert callable(condition)
    for _ in range(60):
        if condition():
            return True
        desk.run("resync", "default/training")
        _approve_by_hand(desk)
        desk.harness.run_for(timedelta(seconds=30))
    return False


def _approve_by_hand(desk: Desk) -> None:
    requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    for request in desk.harness.simulation.admin("GET", requests)["items"]:
        if not request["status"].get("conditions"):
            approved = {"type": "Approved", "status": "True", "reason": "KubectlApprove"}
            request["status"] = {"conditions": [approved]}
            path = f"{requests}/{request['metadata']['name']}/approval"
            desk.harness.simulation.admin("PUT", path, request)


def test_a_ready_group_is_looked_at_by_label_node(busy_desk: Desk) -> None:
    busy_desk.harness.apply(training())
    assert busy_desk.harness.run_until(lambda: busy_desk.harness.is_ready("training"), READY)
    busy_desk.run("resync", "default/training")
    assert busy_desk.inboxes == ["label_node"]


def test_a_group_being_deleted_is_looked_at_by_tear_down(busy_desk: Desk) -> None:
    busy_desk.harness.apply(training())
    busy_desk.harness.run_for(timedelta(minutes=1))
    busy_desk.harness.delete("training")
    busy_desk.run("resync", "default/training")
    assert busy_desk.inboxes == ["tear_down"]


@pytest.mark.parametrize("step", GROUP_STEPS)
def test_the_inbox_can_be_named(desk: Desk, step: str) -> None:
    desk.harness.apply(training())
    desk.run("resync", "default/training", "--step", step)
    assert desk.inboxes == [step]


def test_every_step_that_looks_at_groups_can_be_named() -> None:
    assert tuple(Topic) == GROUP_STEPS


def test_all_means_every_group_of_every_namespace(desk: Desk) -> None:
    for name in ("one", "two", "three"):
        desk.harness.apply(training(name))
    result = desk.run("resync", "--all")
    assert result.exit_code == 0
    assert sorted(message["name"] for _, message, _ in desk.published) == ["one", "three", "two"]


def test_a_dry_run_shows_all_and_publishes_nothing(desk: Desk) -> None:
    desk.harness.apply(training())
    [shown] = desk.json("resync", "default/training", "--dry-run")
    assert shown["messageId"] is None
    assert shown["topic"] == "tpu-functions-create-resources"
    assert shown["message"]["cause"] == "Resync"
    assert desk.published == []


def test_a_dry_run_says_in_its_table_that_nothing_was_published(desk: Desk) -> None:
    desk.harness.apply(training())
    assert "(not published)" in desk.run("resync", "--all", "--dry-run").stdout


def test_what_json_shows_is_what_was_published(desk: Desk) -> None:
    desk.harness.apply(training())
    [shown] = desk.json("resync", "default/training")
    [(step, message, attributes)] = desk.published
    assert (shown["step"], shown["message"], shown["attributes"]) == (step, message, attributes)


@pytest.mark.parametrize(
    "typed, code, published", [("y\n", 0, 2), ("n\n", 1, 0), ("", 130, 0)], ids=["y", "n", "end"]
)
def test_the_user_must_confirm_before_all_groups_are_triggered(
    typed: str, code: int, published: int
) -> None:
    desk = Desk(Harness(ALONE), is_interactive=True)
    for name in ("one", "two"):
        desk.harness.apply(training(name))
    result = desk.run("resync", "--all", typed=typed)
    assert "Publish 2 resyncs of 2 groups? [y/N]" in result.stderr
    assert (result.exit_code, len(desk.published)) == (code, published)


@pytest.mark.parametrize("arguments", [["--yes"], ["--dry-run"]], ids=" ".join)
def test_nobody_is_asked_who_has_said_so(arguments: list[str]) -> None:
    desk = Desk(Harness(ALONE), is_interactive=True)
    desk.harness.apply(training())
    result = desk.run("resync", "--all", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_group_that_is_not_there_is_named(desk: Desk) -> None:
    result = desk.run("resync", "default/training")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "Error: there is no TPUNodeGroup default/training; "
        "kubectl get tpunodegroups -A lists them\n"
    )


def test_without_groups_there_is_nothing_to_publish(desk: Desk) -> None:
    result = desk.run("resync", "--all")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "Nothing to publish: there are no groups.\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "name one group, or give --all"),
        (["default/training", "--all"], "name one group, or give --all"),
        (["training"], "'training' must be NAMESPACE/NAME, as in default/my-slice"),
        (["a/b/c"], "'a/b/c' must be NAMESPACE/NAME, as in default/my-slice"),
        (["/training"], "'/training' must be NAMESPACE/NAME, as in default/my-slice"),
        (["default/training", "--step", "sweep"], "'sweep' is not one of"),
    ],
    ids=["neither", "both", "no namespace", "too many", "empty namespace", "no such inbox"],
)
def test_wrong_usage_is_said_before_anything_is_read(
    desk: Desk, arguments: list[str], message: str
) -> None:
    result = desk.run("resync", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert desk.asked == []


def test_an_interrupted_publication_reports_both_parts() -> None:
    desk = Desk(Harness(ALONE), refuse_after=1)
    for name in ("one", "two"):
        desk.harness.apply(training(name))
    result = desk.run("resync", "--all")
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr == (
        "Error: the call `publish to tpu-functions-create-resources` to Pub/Sub failed: 403 refused: "
        "User not authorized. You need the role roles/pubsub.publisher on this topic. (1 of 2 were "
        "published; it is safe to repeat the command)\n"
    )


def test_a_refusal_by_the_cluster_is_reported_in_its_words(desk: Desk) -> None:
    kubeconfig = desk.harness.kubeconfig("admin")
    kubeconfig.write_text(kubeconfig.read_text().replace('"admin"', '"nobody"'))
    result = desk.run("resync", "default/training")
    assert result.exit_code == 1
    assert "401 Unauthorized" in result.stderr
    assert "Your kubeconfig's credentials are not accepted" in result.stderr


def test_in_80_columns_nothing_is_cut_off(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.harness.apply(training("a-name-that-is-as-long-as-names-of-groups-are-at-times"))
    unfolded = desk.run("resync", "--all", "--dry-run").stdout
    monkeypatch.setenv("COLUMNS", "80")
    folded = desk.run("resync", "--all", "--dry-run").stdout
    assert max(map(len, folded.splitlines())) <= 80 < max(map(len, unfolded.splitlines()))
    assert sorted("".join(folded.split())) == sorted("".join(unfolded.split()))
