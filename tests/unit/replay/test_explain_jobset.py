# ruff: noqa: E501  (each row of a table is one line)
"""``replay explain --jobset``: prints what both steps would do about a JobSet's slices."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from shared.settings import GKE, TPU_NODE_GROUP
from tests.faults.jobsets import SETTINGS, post, prepare, running, slices
from tests.stories.jobsets import NAME, PODS, delete, pods, until
from tests.support.harness import Harness
from tests.unit.replay.tool import ALONE, Tool

ABOUT = ("explain", "default/train", "--jobset")
NOUNS = {TPU_NODE_GROUP: "TPUNodeGroup", GKE: "node pool"}
PREFIXES = {TPU_NODE_GROUP: "TPUNodeGroup", GKE: "NodePool"}


def make_tool(provider: str, *, alone: bool) -> Tool:
    harness = (
        Harness(ALONE, slices=SETTINGS[provider]) if alone else Harness(slices=SETTINGS[provider])
    )
    prepare(harness)
    return Tool(harness)


def wait_for_a_slice(tool: Tool) -> None:
    post(tool.harness)
    until(
        tool.harness, lambda: [pod["status"]["phase"] for pod in pods(tool.harness)] == ["Pending"]
    )
    tool.harness.run_for(timedelta(seconds=10))


def rows(tool: Tool) -> list[tuple[Any, ...]]:
    fields = ("step", "about", "triggeredBySweep", "outcome", "note", "actions")
    return [tuple(one[key] for key in fields) for one in tool.json(*ABOUT)["steps"]]


@pytest.mark.parametrize("provider", SETTINGS)
def test_a_waiting_pod_is_explained_with_the_slice_that_would_be_created(provider: str) -> None:
    tool = make_tool(provider, alone=True)
    wait_for_a_slice(tool)
    (pod,) = pods(tool.harness)
    before = len(tool.calls)
    ((step, about, is_triggered, outcome, note, actions),) = rows(tool)
    assert (step, about, is_triggered, outcome, note) == (
        "provision_slice",
        pod["metadata"]["name"],
        True,
        "Creating",
        "",
    )
    assert actions[0] == f"create the slice {NAME}"
    started = f"event {PREFIXES[provider]}CreationStarted: Creating {NOUNS[provider]} {NAME}, "
    assert actions[1].startswith(started)
    assert [call for call in tool.calls[before:] if not call.startswith("GET ")] == []
    assert slices(tool.harness) == []


@pytest.mark.parametrize("provider", SETTINGS)
def test_a_slice_in_use_is_kept_and_released_after_its_jobset_is_deleted(provider: str) -> None:
    tool = make_tool(provider, alone=False)
    post(tool.harness)
    until(tool.harness, lambda: running(tool.harness) == 1)
    assert rows(tool) == [("release_slice", NAME, False, "Needed", "", [])]
    assert tool.json(*ABOUT)["state"] == "has not ended"
    lines = tool.run(*ABOUT).stdout.splitlines()
    hint = f"To see whether the slice is Ready: kubectl tng explain default/{NAME}"
    assert (hint in lines) == (provider == TPU_NODE_GROUP)
    delete(tool.harness)
    ((step, about, is_triggered, outcome, _, actions),) = rows(tool)
    assert (step, about, is_triggered, outcome) == ("release_slice", NAME, True, "DeadlineSet")
    assert actions[0].startswith(f"set the release deadline of {NAME} to 20")
    assert tool.json(*ABOUT)["state"] == "no longer exists"


def test_the_table_has_the_steps_with_their_actions() -> None:
    tool = make_tool(TPU_NODE_GROUP, alone=True)
    wait_for_a_slice(tool)
    (pod,) = pods(tool.harness)
    result = tool.run(*ABOUT)
    lines = result.stdout.splitlines()
    assert lines[:2] == [
        "JobSet default/train has not ended: 1 Pod waiting for a slice, 0 slices.",
        "",
    ]
    assert lines[2].split() == ["STEP", "BY", "SWEEP", "ABOUT", "OUTCOME"]
    assert lines[3].split() == ["provision_slice", "yes", pod["metadata"]["name"], "Creating"]
    assert lines[4] == f"    - create the slice {NAME}"
    assert lines[5].startswith("    - event TPUNodeGroupCreationStarted: Creating ")


def test_a_jobset_without_waiting_pods_and_slices_is_reported_as_such() -> None:
    tool = make_tool(TPU_NODE_GROUP, alone=True)
    post(tool.harness)
    lines = tool.run(*ABOUT).stdout.splitlines()
    assert lines == [
        "JobSet default/train has not ended: none of its Pods waits for a slice, and it has no slice.",
    ]


def test_a_slice_that_cannot_be_created_is_explained() -> None:
    tool = make_tool(TPU_NODE_GROUP, alone=True)
    wait_for_a_slice(tool)
    (pod,) = pods(tool.harness)
    labels = {"metadata": {"labels": {"jobset.sigs.k8s.io/job-key": "0" * 40}}}
    merge = {"Content-Type": "application/merge-patch+json"}
    tool.harness.simulation.admin("PATCH", f"{PODS}/{pod['metadata']['name']}", labels, **merge)
    ((_, _, _, outcome, note, actions),) = rows(tool)
    assert outcome == "InputRefused"
    assert note.endswith("slices are created only for this Job")
    assert actions == [f"event TPUNodeGroupCreationFailed: {note}"]
    first = tool.run(*ABOUT).stdout.splitlines()[0]
    assert (
        first == f"JobSet default/train has not ended: 1 Pod waiting for a slice, 0 slices. {note}."
    )


def test_an_error_of_gke_is_reported_with_its_message() -> None:
    tool = make_tool(GKE, alone=True)
    wait_for_a_slice(tool)
    tool.harness.gke.faults.fail_next("*", 10, 403, "forbidden", "Required container.clusters.get")
    result = tool.run(*ABOUT)
    assert result.exit_code == 1
    assert (
        result.stderr
        == "Error: a step could not observe, or does not run; the lines above say why\n"
    )
    assert result.stdout.count("CannotObserve") == 2
    cause = result.stdout.splitlines()[0]
    assert ": 1 Pod waiting for a slice, an unknown number of slices. the call " in cause
    assert cause.endswith(" cluster's project.")
    assert "You need the role roles/container.clusterViewer" in result.stdout


def test_a_missing_jobset_is_reported() -> None:
    tool = make_tool(TPU_NODE_GROUP, alone=True)
    result = tool.run(*ABOUT)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no JobSet default/train, and no slice of one" in result.stderr


def test_without_the_setting_it_does_not_say_what_jobsets_get(tool: Tool) -> None:
    result = tool.run(*ABOUT)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "JOBSET_PROVIDER is not set here, so it is not known which slices" in result.stderr


POD = ("explain", "default/alone", "--pod")
ASKS: dict[str, Any] = {
    "containers": [
        {
            "name": "c",
            "image": "i",
            "resources": {"requests": {"google.com/tpu": "4"}, "limits": {"google.com/tpu": "4"}},
        }
    ],
    "nodeSelector": {"cloud.google.com/gke-tpu-topology": "2x2x1"},
}
OPT_OUT = "tpu-provisioner.cloud.google.com/disable-autoprovisioning"
NO_SLICE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"nodeName": "n"}, "is on Node n, so that it needs no slice."),
    ({}, {"containers": [{"name": "c", "image": "i"}]}, "requests no google.com/tpu, so that it gets no slice."),
    ({}, {"nodeSelector": {}}, "selects no topology, so that it gets no slice; set the node selector cloud.google.com/gke-tpu-topology."),
    ({"annotations": {OPT_OUT: "true"}}, {}, f"has opted out of slices, by {OPT_OUT} or because a ProvisioningRequest provides its Nodes."),
    ({}, {}, "has no controller, and slices are created for Pods of JobSets only; apply a TPUNodeGroup with topology 2x2x1."),
    (
        {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "serve-5", "uid": "u", "controller": True}]},
        {},
        "is of ReplicaSet serve-5, and slices are created for Pods of JobSets only; apply a TPUNodeGroup with topology 2x2x1.",
    ),
]  # fmt: skip


@pytest.mark.parametrize("metadata, spec, why", NO_SLICE, ids=[row[2][:30] for row in NO_SLICE])
def test_a_pod_is_explained_that_gets_no_slice(
    tool: Tool, metadata: dict[str, Any], spec: dict[str, Any], why: str
) -> None:
    """It needs no settings of JobSets: nothing depends on them."""
    metadata = {"name": "alone", "namespace": "default", **metadata}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**ASKS, **spec}}
    assert "uid" in tool.harness.simulation.admin("POST", PODS, made)["metadata"]
    assert tool.run(*POD).stdout.split() == f"Pod default/alone {why}".split()
    assert tool.json(*POD) == {
        "pod": "default/alone",
        "cause": f"Pod default/alone {why}",
        "steps": [],
    }


def test_a_pod_of_a_jobset_is_explained_with_the_slice_that_would_be_created() -> None:
    tool = make_tool(TPU_NODE_GROUP, alone=True)
    wait_for_a_slice(tool)
    (pod,) = pods(tool.harness)
    name = pod["metadata"]["name"]
    explained = tool.json("explain", f"default/{name}", "--pod")
    assert explained["cause"] == f"Pod default/{name} of JobSet train waits for a slice."
    assert [one["outcome"] for one in explained["steps"]] == ["Creating"]
    lines = tool.run("explain", f"default/{name}", "--pod").stdout.splitlines()
    assert lines[3].split() == ["provision_slice", "yes", name, "Creating"]
    index = {"metadata": {"annotations": {"batch.kubernetes.io/job-completion-index": "1"}}}
    merge = {"Content-Type": "application/merge-patch+json"}
    tool.harness.simulation.admin("PATCH", f"{PODS}/{name}", index, **merge)
    assert tool.json("explain", f"default/{name}", "--pod")["cause"].endswith(
        "waits for the slice of the first Pod of its Job, which has completion index 0."
    )


@pytest.mark.parametrize(
    "arguments, code, error",
    [
        (POD, 1, "there is no Pod default/alone; kubectl get pods -A lists them"),
        ((*POD, "--jobset"), 2, "--jobset and --pod exclude each other"),
    ],
)
def test_a_pod_that_cannot_be_explained_is_an_error(
    tool: Tool, arguments: tuple[str, ...], code: int, error: str
) -> None:
    result = tool.run(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert error in result.stderr
