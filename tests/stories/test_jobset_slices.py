"""JobSets whose slices are TPUNodeGroups: from a Pod that no Node takes to nothing left of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from local.jobsets import Habits
from shared.settings import TPU_NODE_GROUP
from tests import jobset_objects as objects
from tests.harness import Harness
from tests.jobset_objects import JOBSET, NAMESPACE
from tests.stories import life
from tests.stories.life import MINUTE

NAME = "train-bfcf5ebea76efcf5"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
JOBSETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
OPTIONS = "/api/v1/namespaces/tpu-functions/configmaps"
MERGE = {"Content-Type": "application/merge-patch+json"}
RUNS_ON = Habits(ends=lambda _: "")


def world(settings: dict[str, Any] | None = None, **data: str) -> Harness:
    """A world in which JobSets get slices; ``data`` is more of the ConfigMap's."""
    harness = Harness(slices={"jobset_provider": TPU_NODE_GROUP, **(settings or {})})
    harness.world.admin("POST", OPTIONS, objects.config_map(**data))
    return harness


def post(harness: Harness, **change: Any) -> None:
    answer = harness.world.admin("POST", JOBSETS, objects.jobset(**change))
    assert answer["kind"] == "JobSet", answer


def delete(harness: Harness) -> None:
    harness.world.admin("DELETE", f"{JOBSETS}/{JOBSET}")


def jobset(harness: Harness) -> dict[str, Any]:
    found: dict[str, Any] = harness.world.admin("GET", f"{JOBSETS}/{JOBSET}")
    return found


def pods(harness: Harness) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = harness.world.admin("GET", PODS)["items"]
    return found


def are_running(harness: Harness) -> bool:
    phases = [pod["status"]["phase"] for pod in pods(harness)]
    return phases == ["Running"] * 4


def told(harness: Harness) -> list[str]:
    """The Events about Pods and JobSets, in the order in which they were first told."""
    events = harness.world.admin("GET", f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    mine = [one for one in events if one["involvedObject"]["kind"] in ("Pod", "JobSet")]
    mine.sort(key=lambda one: (one["firstTimestamp"], int(one["metadata"]["resourceVersion"])))
    return [f"{one['involvedObject']['kind']} {one['reason']}: {one['message']}" for one in mine]


CREATING = (
    f"Pod TPUNodeGroupCreationStarted: Creating TPUNodeGroup {NAME}, 4 hosts of ct6e-standard-4t "
    "(4x4), for Job train-workers-0 of JobSet train"
)
DELETING = f"JobSet TPUNodeGroupDeletionStarted: Deleting TPUNodeGroup {NAME}: JobSet train"


def test_a_jobset_gets_its_slice_runs_and_leaves_nothing_behind() -> None:
    harness = world()
    post(harness)
    life.until(harness, lambda: are_running(harness))
    nodes = {node["metadata"]["name"] for node in life.nodes(harness).values()}
    assert {pod["spec"]["nodeName"] for pod in pods(harness)} == nodes
    life.until_gone(harness, NAME, timedelta(minutes=15))
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []
    assert told(harness) == [CREATING, f"{DELETING} has ended (Completed)"]
