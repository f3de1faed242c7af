"""``replay explain --jobset``: what both steps would do about a JobSet's slices, told and not done."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from shared.frame.settings import GKE, TPU_NODE_GROUP
from tests.faults.test_jobsets import SETTINGS, post, prepare, running, slices
from tests.harness import Harness
from tests.stories.jobsets import NAME, PODS, delete, pods, until
from tests.unit.replay.desk import ALONE, Desk

ABOUT = ("explain", "default/train", "--jobset")
NOUNS = {TPU_NODE_GROUP: "TPUNodeGroup", GKE: "node pool"}
PREFIXES = {TPU_NODE_GROUP: "TPUNodeGroup", GKE: "NodePool"}


def make_desk(provider: str, *, alone: bool) -> Desk:
    harness = (
        Harness(ALONE, slices=SETTINGS[provider]) if alone else Harness(slices=SETTINGS[provider])
    )
    prepare(harness)
    return Desk(harness)


def wait_for_a_slice(desk: Desk) -> None:
    post(desk.harness)
    until(
        desk.harness, lambda: [pod["status"]["phase"] for pod in pods(desk.harness)] == ["Pending"]
    )
    desk.harness.run_for(timedelta(seconds=10))


def rows(desk: Desk) -> list[tuple[Any, ...]]:
    fields = ("step", "about", "triggeredBySweep", "outcome", "note", "actions")
    return [tuple(one[key] for key in fields) for one in desk.json(*ABOUT)["steps"]]


@pytest.mark.parametrize("provider", SETTINGS)
def test_a_pod_that_waits_gets_the_slice_that_would_be_made(provider: str) -> None:
    desk = make_desk(provider, alone=True)
    wait_for_a_slice(desk)
    (pod,) = pods(desk.harness)
    asked = len(desk.asked)
    ((step, about, is_triggered, outcome, note, actions),) = rows(desk)
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
    assert [call for call in desk.asked[asked:] if not call.startswith("GET ")] == []
    assert slices(desk.harness) == []


@pytest.mark.parametrize("provider", SETTINGS)
def test_a_slice_in_use_stays_and_is_released_when_its_jobset_is_gone(provider: str) -> None:
    desk = make_desk(provider, alone=False)
    post(desk.harness)
    until(desk.harness, lambda: running(desk.harness) == 1)
    assert rows(desk) == [("release_slice", NAME, False, "Needed", "", [])]
    assert desk.json(*ABOUT)["state"] == "has not ended"
    lines = desk.run(*ABOUT).stdout.splitlines()
    hint = f"To see whether the slice is Ready: kubectl tng explain default/{NAME}"
    assert (hint in lines) == (provider == TPU_NODE_GROUP)
    delete(desk.harness)
    ((step, about, is_triggered, outcome, _, actions),) = rows(desk)
    assert (step, about, is_triggered, outcome) == ("release_slice", NAME, True, "DeadlineSet")
    assert actions[0].startswith(f"set the release deadline of {NAME} to 20")
    assert desk.json(*ABOUT)["state"] == "no longer exists"


def test_a_table_is_for_people() -> None:
    desk = make_desk(TPU_NODE_GROUP, alone=True)
    wait_for_a_slice(desk)
    (pod,) = pods(desk.harness)
    result = desk.run(*ABOUT)
    lines = result.stdout.splitlines()
    assert lines[:2] == [
        "JobSet default/train has not ended: 1 Pod waiting for a slice, 0 slices.",
        "",
    ]
    assert lines[2].split() == ["STEP", "ABOUT", "BY", "SWEEP", "OUTCOME"]
    assert lines[3].split() == ["provision_slice", pod["metadata"]["name"], "yes", "Creating"]
    assert lines[4] == f"    - create the slice {NAME}"
    assert lines[5].startswith("    - event TPUNodeGroupCreationStarted: Creating ")


def test_a_jobset_that_waits_for_nothing_says_so() -> None:
    desk = make_desk(TPU_NODE_GROUP, alone=True)
    post(desk.harness)
    lines = desk.run(*ABOUT).stdout.splitlines()
    assert lines == [
        "JobSet default/train has not ended: none of its Pods waits for a slice, and it has no slice.",
    ]


def test_what_cannot_be_made_is_explained() -> None:
    desk = make_desk(TPU_NODE_GROUP, alone=True)
    wait_for_a_slice(desk)
    (pod,) = pods(desk.harness)
    labels = {"metadata": {"labels": {"jobset.sigs.k8s.io/job-key": "0" * 40}}}
    merge = {"Content-Type": "application/merge-patch+json"}
    desk.harness.simulation.admin("PATCH", f"{PODS}/{pod['metadata']['name']}", labels, **merge)
    ((_, _, _, outcome, note, actions),) = rows(desk)
    assert outcome == "InputRefused"
    assert note.endswith("a slice is made for no other Job")
    assert actions == [f"event TPUNodeGroupCreationFailed: {note}"]
    first = desk.run(*ABOUT).stdout.splitlines()[0]
    assert (
        first == f"JobSet default/train has not ended: 1 Pod waiting for a slice, 0 slices. {note}."
    )


def test_a_refused_read_of_gke_is_reported_in_its_words() -> None:
    desk = make_desk(GKE, alone=True)
    wait_for_a_slice(desk)
    desk.harness.gke.faults.fail_next("*", 10, 403, "forbidden", "Required container.clusters.get")
    result = desk.run(*ABOUT)
    assert result.exit_code == 1
    assert (
        result.stderr
        == "Error: a step could not observe; the lines below its name show the error\n"
    )
    assert result.stdout.count("CannotObserve") == 2
    assert "You need the role roles/container.clusterViewer" in result.stdout


def test_a_jobset_that_is_not_there_is_named() -> None:
    desk = make_desk(TPU_NODE_GROUP, alone=True)
    result = desk.run(*ABOUT)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no JobSet default/train, and no slice of one" in result.stderr


def test_an_installation_without_slices_for_jobsets_says_so(desk: Desk) -> None:
    result = desk.run(*ABOUT)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "JOBSET_PROVIDER is not set, so JobSets get no slices" in result.stderr
