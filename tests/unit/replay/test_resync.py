"""``kubectl tng resync``: publishes a resync to the steps that have work."""

from __future__ import annotations

from datetime import timedelta

import pytest

from replay.commands import Topic
from shared.triggers.routes import GROUP_STEPS
from tests.support.harness import Harness
from tests.unit.replay.tool import ALONE, Tool, training

READY = timedelta(minutes=30)


def test_a_resync_has_the_current_time(tool: Tool) -> None:
    group = tool.harness.apply(training())
    tool.harness.run_for(timedelta(minutes=7))
    result = tool.run("resync", "default/training")
    assert result.exit_code == 0
    assert tool.published == [
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
            {"cluster": tool.harness.runtime("admin").connection.constants["cluster"]}
            | {"cause": "Resync"},
        )
    ]


def test_the_output_names_group_topic_and_the_message_id_of_the_log_line(tool: Tool) -> None:
    tool.harness.apply(training())
    head, row = tool.run("resync", "default/training").stdout.splitlines()
    assert head.split() == ["ABOUT", "CAUSE", "TOPIC", "MESSAGE", "ID"]
    about, cause, topic, message_id = row.split()
    assert (about, cause) == ("default/training", "Resync")
    assert topic == "tpu-functions-create-resources"
    tool.harness.run_for(timedelta(seconds=5))
    assert message_id in [line.get("message_id") for line in tool.harness.log.lines]


def test_manual_resyncs_and_approvals_create_and_delete_a_slice(tool: Tool) -> None:
    """A resync does not approve certificate requests: this is ``kubectl certificate approve``."""
    tool.harness.apply(training())
    assert _resync_until(tool, lambda: tool.harness.is_ready("training"))
    tool.harness.delete("training")
    assert _resync_until(tool, lambda: tool.harness.group("training") is None)
    assert set(tool.topics) == set(GROUP_STEPS)


def _resync_until(tool: Tool, condition: object) -> bool:
    assert callable(condition)
    for _ in range(60):
        if condition():
            return True
        tool.run("resync", "default/training")
        _approve_manually(tool)
        tool.harness.run_for(timedelta(seconds=30))
    return False


def _approve_manually(tool: Tool) -> None:
    requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    for request in tool.harness.simulation.admin("GET", requests)["items"]:
        if not request["status"].get("conditions"):
            approved = {"type": "Approved", "status": "True", "reason": "KubectlApprove"}
            request["status"] = {"conditions": [approved]}
            path = f"{requests}/{request['metadata']['name']}/approval"
            tool.harness.simulation.admin("PUT", path, request)


def test_a_resync_of_a_ready_group_is_published_to_label_node(busy_tool: Tool) -> None:
    busy_tool.harness.apply(training())
    assert busy_tool.harness.run_until(lambda: busy_tool.harness.is_ready("training"), READY)
    busy_tool.run("resync", "default/training")
    assert busy_tool.topics == ["label_node"]


def test_a_resync_of_a_group_that_is_being_deleted_is_published_to_tear_down(
    busy_tool: Tool,
) -> None:
    busy_tool.harness.apply(training())
    busy_tool.harness.run_for(timedelta(minutes=1))
    busy_tool.harness.delete("training")
    busy_tool.run("resync", "default/training")
    assert busy_tool.topics == ["tear_down"]


@pytest.mark.parametrize("step", GROUP_STEPS)
def test_a_resync_can_be_published_to_a_named_step(tool: Tool, step: str) -> None:
    tool.harness.apply(training())
    tool.run("resync", "default/training", "--step", step)
    assert tool.topics == [step]


def test_a_resync_can_be_published_to_every_step_that_observes_groups() -> None:
    assert tuple(Topic) == GROUP_STEPS


def test_all_resyncs_every_group_of_every_namespace(tool: Tool) -> None:
    for name in ("one", "two", "three"):
        tool.harness.apply(training(name))
    result = tool.run("resync", "--all", "--yes")
    assert result.exit_code == 0
    assert sorted(message["name"] for _, message, _ in tool.published) == ["one", "three", "two"]


def test_a_dry_run_prints_the_messages_and_publishes_nothing(tool: Tool) -> None:
    tool.harness.apply(training())
    [shown] = tool.json("resync", "default/training", "--dry-run")
    assert shown["messageId"] is None
    assert shown["topic"] == "tpu-functions-create-resources"
    assert shown["message"]["cause"] == "Resync"
    assert tool.published == []


def test_the_json_output_has_the_published_message(tool: Tool) -> None:
    tool.harness.apply(training())
    [shown] = tool.json("resync", "default/training")
    [(step, message, attributes)] = tool.published
    assert (shown["step"], shown["message"], shown["attributes"]) == (step, message, attributes)


@pytest.mark.parametrize(
    "typed, code, published", [("y\n", 0, 2), ("n\n", 1, 0), ("", 130, 0)], ids=["y", "n", "end"]
)
def test_the_user_must_confirm_before_all_groups_are_triggered(
    typed: str, code: int, published: int
) -> None:
    tool = Tool(Harness(ALONE), is_interactive=True)
    for name in ("one", "two"):
        tool.harness.apply(training(name))
    result = tool.run("resync", "--all", typed=typed)
    assert "Publish 2 resyncs of 2 groups? [y/N]" in result.stderr
    assert (result.exit_code, len(tool.published)) == (code, published)


def test_a_missing_group_is_reported(tool: Tool) -> None:
    result = tool.run("resync", "default/training")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "Error: there is no TPUNodeGroup default/training; `kubectl tng get -A` lists them\n"
    )


def test_a_resync_of_all_without_groups_publishes_nothing(tool: Tool) -> None:
    result = tool.run("resync", "--all")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "Nothing to publish: there are no groups.\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "name one group, or give --all"),
        (["default/training", "--all"], "name one group, or give --all"),
        (["a/b/c"], "'a/b/c' must be NAME, KIND/NAME or NAMESPACE/NAME"),
        (["default/training", "-n", "b"], "is in another namespace than --namespace b"),
        (["pod/training"], "'pod/training' must be a TPUNodeGroup"),
        (["default/training", "--step", "sweep"], "'sweep' is not one of"),
    ],
    ids=["neither", "both", "too many", "two namespaces", "another kind", "unknown step"],
)
def test_wrong_usage_is_reported_before_any_call(
    tool: Tool, arguments: list[str], message: str
) -> None:
    result = tool.run("resync", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert tool.calls == []


def test_a_failed_publication_reports_what_was_published() -> None:
    tool = Tool(Harness(ALONE), fail_after=1)
    for name in ("one", "two"):
        tool.harness.apply(training(name))
    result = tool.run("resync", "--all", "--yes")
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr == (
        "Error: the call `publish to tpu-functions-create-resources` to Pub/Sub failed: 403 refused: "
        "User not authorized. You need the role roles/pubsub.publisher on this topic. (1 of 2 were "
        "published; it is safe to repeat the command)\n"
    )


def test_an_error_of_the_cluster_is_reported_with_its_message(tool: Tool) -> None:
    kubeconfig = tool.harness.kubeconfig("admin")
    kubeconfig.write_text(kubeconfig.read_text().replace('"admin"', '"nobody"'))
    result = tool.run("resync", "default/training")
    assert result.exit_code == 1
    assert "401 Unauthorized" in result.stderr
    assert "Your kubeconfig's credentials are not accepted" in result.stderr
