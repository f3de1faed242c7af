"""``kubectl tng leaks``: what is left of slices without a group, and the commands that delete it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

import pytest

from functions.report_leaks.leaks import MIG_SERVICE, POLICY_SERVICE, TEMPLATE_SERVICE, Leak
from functions.report_leaks.observe import ObservedLeaks
from local.cloud.simulation import PROJECT
from replay.leaks import describe_leaks, render_commands
from shared.ports.gce.values import ListedResource
from shared.ports.gke_settings import GkeSettings
from shared.settings import GKE
from tests.faults.jobsets import SETTINGS, post, prepare
from tests.stories import helpers
from tests.stories.jobsets import phases, until
from tests.stories.node_pool_slices import POOLS, send
from tests.support.harness import GKE_CLUSTER, GKE_REGION, Harness
from tests.unit.replay.tool import Tool, training

NAME = "tng-train-1a2b3c4d"
LEAK = Leak(
    "p",
    "default/train",
    "u",
    (
        ListedResource("p", MIG_SERVICE, "us-central1-c", NAME, "", None),
        ListedResource("p", TEMPLATE_SERVICE, "", NAME, "", None),
        ListedResource("p", POLICY_SERVICE, "us-central1", NAME, "", None),
    ),
)
NODES = "No TPUNodeGroup has these Nodes. When their VMs are gone, delete them:"
COMMANDS = (
    f"gcloud compute instance-groups managed delete {NAME} --zone=us-central1-c --project=p",
    f"gcloud compute instance-templates delete {NAME} --project=p",
    f"gcloud compute resource-policies delete {NAME} --region=us-central1 --project=p",
)


@cache
def leaked() -> tuple[Tool, str]:
    """A Ready slice whose group a user has deleted, with its finalizer, an hour ago; and its name."""
    tool = Tool(helpers.ready(training()))
    name = helpers.resource_name(tool.harness, "training")
    tool.harness.delete("training")
    path = helpers.group_path("training")
    helpers.patch(tool.harness, path, {"metadata": {"finalizers": []}})
    tool.harness.run_for(timedelta(hours=2))
    return tool, name


def test_a_leaked_slice_is_shown_with_the_commands_that_delete_it() -> None:
    tool, name = leaked()
    before = tool.harness.simulation.gce.leftovers()
    commands = [one.replace(NAME, name).replace("=p", f"={PROJECT}") for one in COMMANDS]
    result = tool.run("leaks")
    assert (result.exit_code, result.stderr) == (0, "")
    head, *rest = result.stdout.splitlines()
    assert head.startswith("TPUNodeGroup default/training (uid ")
    assert head.endswith("running VMs are billed. To delete them, run in this order:")
    nodes = [f"kubectl delete node {node}" for node in sorted(helpers.nodes(tool.harness))]
    assert rest == [*(f"    {one}" for one in commands), NODES, *(f"    {one}" for one in nodes)]
    document, left = tool.json("leaks")
    assert (document["commands"], left["commands"]) == (commands, nodes)
    assert f"managed instance group {name} with 2 VMs" in document["message"]
    assert tool.harness.simulation.gce.leftovers() == before
    assert tool.published == []


def test_commands_come_from_compute_engine_and_not_from_the_log() -> None:
    tool, _ = leaked()
    line = next(one for one in tool.harness.log.lines if one.get("decision") == "LeakedSlice")
    assert "gcloud" not in str(line)
    assert line["note"].endswith("To see the commands that delete them: kubectl tng leaks")
    tool.run("leaks")
    assert tool.logs.queries == []


def test_the_commands_delete_the_mig_first_and_name_each_location() -> None:
    assert tuple(render_commands(LEAK)) == COMMANDS


@pytest.mark.parametrize("field", ["name", "project", "location"])
@pytest.mark.parametrize(
    "text", ["a;id", "$(id)", "a b", "-a", "a\n", "--zone=b", "É", "a'", "a|b"]
)
def test_a_name_that_a_shell_may_read_as_more_is_in_no_command(field: str, text: str) -> None:
    change: dict[str, Any] = {field: text}
    bad = replace(LEAK.resources[0], **change)
    assert list(render_commands(replace(LEAK, resources=(bad,)))) == []


def test_nodes_without_a_group_are_shown_with_the_commands_that_delete_them(tool: Tool) -> None:
    names = [f"{NAME}-{suffix}" for suffix in ("aaaa", "bbbb")]
    for name in names:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        headers = helpers.as_kubelet(name)
        tool.harness.simulation.admin("POST", "/api/v1/nodes", node, **headers)
    tool.harness.run_for(timedelta(hours=2))
    result = tool.run("leaks")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        NODES,
        *(f"    kubectl delete node {name}" for name in names),
    ]


def test_a_node_pool_without_its_labels_is_shown_with_the_command_that_deletes_it() -> None:
    tool = Tool(Harness(slices=SETTINGS[GKE]))
    prepare(tool.harness)
    post(tool.harness)
    until(tool.harness, lambda: phases(tool.harness) == ["Running"])
    (pool,) = (path.rpartition("/")[2] for path in tool.harness.gke.leftovers())
    send(tool.harness, "PUT", f"{POOLS}/{pool}", {"labels": {"labels": {"a": "b"}}})
    tool.harness.run_for(timedelta(hours=1))
    result = tool.run("leaks")
    assert (result.exit_code, result.stderr) == (0, "")
    head, *commands = result.stdout.splitlines()
    assert head == (
        f"Node pool {pool} has the name of a slice and not its labels: somebody has replaced them, and "
        "nothing releases it. It is billed until you delete it; its workload may still run on it. When "
        "that has ended, run:"
    )
    command = (
        f"gcloud container node-pools delete {pool} --cluster={GKE_CLUSTER} --location={GKE_REGION} "
        f"--project={PROJECT}"
    )
    assert commands == [f"    {command}"]
    assert [one["commands"] for one in tool.json("leaks")] == [[command]]


def test_a_node_pool_of_an_unknown_cluster_or_with_a_wrong_name_has_no_command() -> None:
    gke = GkeSettings("p", "us-east5", "c")
    for name, settings in (("a-0123456789abcdef", None), ("a;id-0123456789abcdef", gke)):
        observed = ObservedLeaks((), 0, pools=(name,))
        ((message, commands),) = describe_leaks(observed, settings)
        assert (message.rpartition("it. ")[2], commands) == ("When that has ended, delete it.", [])


def test_a_cluster_without_leaks_is_reported(tool: Tool) -> None:
    result = tool.run("leaks")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No leaked slice was found.\n"


def test_a_project_that_cannot_be_read_is_an_error(tool: Tool) -> None:
    tool.harness.simulation.gce.faults.fail_next(
        "instanceGroupManagers.aggregatedList", http=403, calls=9
    )
    result = tool.run("leaks")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Error: Not seen: project {PROJECT}; the call ")
    assert "roles/compute.viewer" in result.stderr


def test_a_list_without_an_unreachable_zone_is_an_error(tool: Tool) -> None:
    tool.harness.simulation.gce.faults.hide_scope("zones/us-central1-c")
    result = tool.run("leaks")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"Error: Not seen: zones/us-central1-c (UNREACHABLE) of project {PROJECT}\n"
    )


def test_slices_of_the_original_are_not_leaked_in_a_copy_of_its_cluster(tool: Tool) -> None:
    tool.harness.settings["admin"] = replace(
        tool.harness.settings["admin"], installation_id="the copy's"
    )
    result = tool.run("leaks")
    assert (result.exit_code, result.stdout) == (1, "")
    text = " ".join(result.stderr.split())
    assert "INSTALLATION_ID of the functions is the copy's. The cluster is not the one of" in text
