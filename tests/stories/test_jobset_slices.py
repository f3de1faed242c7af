"""JobSets whose slices are TPUNodeGroups: from a Pod that no Node takes to nothing left of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from local.jobsets import Habits
from shared.settings import TPU_NODE_GROUP
from tests import jobset_objects as objects
from tests.harness import Harness
from tests.jobset_objects import JOBSET, NAMESPACE
from tests.manifests import manifest
from tests.stories import life
from tests.stories.life import HOUR, MINUTE

NAME = "train-bfcf5ebea76efcf5"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
JOBSETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
OPTIONS = "/api/v1/namespaces/tpu-functions/configmaps"
MERGE = {"Content-Type": "application/merge-patch+json"}
SECOND = timedelta(seconds=1)
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


def until(harness: Harness, holds: Callable[[], bool], timeout: timedelta = HOUR) -> None:
    """Let time pass until something holds, by ten seconds: to ask after each event takes long."""
    end = harness.clock.now() + timeout
    while not holds():
        assert harness.clock.now() < end, life.why(harness)
        harness.run_for(10 * SECOND)


def until_gone(harness: Harness) -> None:
    until(harness, lambda: harness.group(NAME) is None, 15 * MINUTE)


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
    until(harness, lambda: are_running(harness))
    nodes = {node["metadata"]["name"] for node in life.nodes(harness).values()}
    assert {pod["spec"]["nodeName"] for pod in pods(harness)} == nodes
    until_gone(harness)
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []
    assert told(harness) == [CREATING, f"{DELETING} has ended (Completed)"]


def uid(harness: Harness) -> str:
    group = harness.group(NAME, NAMESPACE)
    assert group is not None
    return str(group["metadata"]["uid"])


def until_running(harness: Harness) -> None:
    until(harness, lambda: are_running(harness))


def until_told(harness: Harness, words: str) -> None:
    until(harness, lambda: any(words in line for line in told(harness)))


def selecting(**labels: str) -> dict[str, Any]:
    """A change: the JobSet's Pods select by these, too."""
    one = objects.jobset()["spec"]["replicatedJobs"][0]
    one["template"]["spec"]["template"]["spec"]["nodeSelector"] |= labels
    return {"spec": {"replicatedJobs": [one]}}


def test_a_restart_keeps_the_slice() -> None:
    harness = world()
    harness.jobsets.habits = Habits(
        ends=lambda pod: (
            "Failed"
            if pod["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == "0"
            else ""
        )
    )
    post(harness, spec={"failurePolicy": {"maxRestarts": 1}})
    until_running(harness)
    before = uid(harness)
    until(harness, lambda: jobset(harness).get("status", {}).get("restarts") == 1)
    harness.run_for(5 * MINUTE)
    assert are_running(harness)
    assert uid(harness) == before
    assert harness.made["instanceGroupManagers.insert"] == 1


def test_a_jobset_that_is_made_again_at_once_keeps_its_slice() -> None:
    harness = world()
    harness.jobsets.habits = RUNS_ON
    post(harness)
    until_running(harness)
    before = uid(harness)
    delete(harness)
    harness.run_for(20 * SECOND)
    assert "tpu-functions.dev/release-after" in marks(harness)
    post(harness)
    harness.run_for(10 * MINUTE)
    assert are_running(harness)
    assert uid(harness) == before
    assert "tpu-functions.dev/release-after" not in marks(harness)


def marks(harness: Harness) -> dict[str, str]:
    group = harness.group(NAME, NAMESPACE)
    assert group is not None
    found: dict[str, str] = group["metadata"]["annotations"]
    return found


def test_a_jobset_that_is_deleted_leaves_nothing_behind() -> None:
    harness = world()
    harness.jobsets.habits = RUNS_ON
    post(harness)
    until_running(harness)
    delete(harness)
    until_gone(harness)
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []
    assert told(harness) == [CREATING, f"{DELETING} no longer exists"]


def pause(harness: Harness, value: str | None) -> None:
    harness.world.admin("PATCH", f"{OPTIONS}/jobsets", {"data": {"paused": value}}, **MERGE)


def test_while_it_is_paused_nothing_is_made_and_what_is_over_goes() -> None:
    harness = world()
    post(harness)
    until_running(harness)
    pause(harness, "true")
    until_gone(harness)
    delete(harness)
    harness.run_for(2 * MINUTE)
    post(harness)
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []
    assert told(harness)[2:] == [
        'Pod SlicePaused: No slice is made: the ConfigMap tpu-functions/jobsets has paused: "true". It '
        "goes on when that is taken out"
    ]
    pause(harness, None)
    until_running(harness)


def test_what_cannot_be_is_told_once() -> None:
    harness = world()
    post(harness, **selecting(**{"cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice"}))
    harness.run_for(HOUR)
    assert told(harness) == [
        "Pod TPUNodeGroupCreationFailed: the Pod's nodeSelector cloud.google.com/gke-tpu-accelerator "
        "is 'tpu-v5p-slice': it must be tpu-v6e-slice, tpu7 or tpu7x, which TPUNodeGroups are made of"
    ]
    assert harness.leftovers() == []


def test_a_jobset_that_asks_for_another_slice_gets_it() -> None:
    harness = world()
    harness.jobsets.habits = RUNS_ON
    post(harness)
    until_running(harness)
    before = uid(harness)
    delete(harness)
    harness.run_for(10 * SECOND)
    post(harness, **selecting(**{"cloud.google.com/gke-spot": "true"}))
    until(harness, lambda: are_running(harness) and uid(harness) != before)
    group = harness.group(NAME, NAMESPACE)
    assert group is not None
    assert group["spec"]["instanceConfig"]["provisioningModel"] == "SPOT"
    assert told(harness)[1].startswith(
        f"Pod TPUNodeGroupDeletionStarted: Deleting TPUNodeGroup {NAME} to create it anew: the Pod "
        "asks for"
    )


def test_a_slice_in_use_is_not_replaced_until_it_is_free() -> None:
    harness = world()
    harness.jobsets.habits = RUNS_ON
    post(harness)
    until_running(harness)
    before = uid(harness)
    node = pods(harness)[0]["spec"]["nodeName"]
    delete(harness)
    harness.run_for(10 * SECOND)
    guest = objects.pod(
        metadata={
            "name": "guest",
            "labels": {"batch.kubernetes.io/job-name": "other"},
            "ownerReferences": None,
        },
        spec={"nodeName": node},
    )
    harness.world.admin("POST", PODS, guest)
    post(harness, **selecting(**{"cloud.google.com/gke-spot": "true"}))
    until_told(harness, "in use by Job default/other")
    harness.run_for(10 * MINUTE)
    assert uid(harness) == before
    harness.world.admin("DELETE", f"{PODS}/guest", {"gracePeriodSeconds": 0})
    until(harness, lambda: harness.group(NAME) is None or uid(harness) != before)


def test_what_somebody_made_is_not_touched() -> None:
    harness = world()
    theirs = manifest(NAME)
    harness.apply(theirs)
    post(harness)
    until_told(harness, "that was not made for a JobSet, of that name")
    before = uid(harness)
    delete(harness)
    harness.run_for(10 * MINUTE)
    assert uid(harness) == before


def test_each_job_gets_a_slice_of_its_own() -> None:
    harness = world()
    harness.jobsets.habits = RUNS_ON
    one = objects.jobset()["spec"]["replicatedJobs"][0]
    post(harness, spec={"replicatedJobs": [{**one, "replicas": 2}]})
    running = ["Running"] * 8
    until(harness, lambda: [pod["status"]["phase"] for pod in pods(harness)] == running)
    pools = {
        node["metadata"]["name"]: node["metadata"]["labels"]["cloud.google.com/gke-nodepool"]
        for node in life.nodes(harness).values()
    }
    places = {
        (pod["metadata"]["labels"]["batch.kubernetes.io/job-name"], pools[pod["spec"]["nodeName"]])
        for pod in pods(harness)
    }
    assert len(places) == len({job for job, _ in places}) == len(set(pools.values())) == 2


def test_a_job_that_a_jobset_no_longer_has_loses_its_slice() -> None:
    harness = world()
    harness.jobsets.habits = RUNS_ON
    one = objects.jobset()["spec"]["replicatedJobs"][0]
    post(harness, spec={"replicatedJobs": [{**one, "replicas": 2}]})
    until(harness, lambda: harness.is_ready(NAME) and len(life.nodes(harness)) == 8)
    delete(harness)
    harness.run_for(10 * SECOND)
    post(harness)
    until(harness, lambda: len(life.nodes(harness)) == 4)
    assert harness.is_ready(NAME)


def test_the_slice_of_a_suspended_jobset_is_released_when_that_is_wanted() -> None:
    harness = world({"suspended_release": 10 * MINUTE})
    harness.jobsets.habits = RUNS_ON
    post(harness)
    until_running(harness)
    suspend(harness, is_suspended=True)
    harness.run_for(9 * MINUTE)
    assert harness.is_ready(NAME)
    until_gone(harness)
    suspend(harness, is_suspended=False)
    until_running(harness)


def suspend(harness: Harness, *, is_suspended: bool) -> None:
    change = {"spec": {"suspend": is_suspended}}
    harness.world.admin("PATCH", f"{JOBSETS}/{JOBSET}", change, **MERGE)


def test_the_slice_of_a_suspended_jobset_is_kept_if_nobody_minds() -> None:
    harness = world()
    harness.jobsets.habits = RUNS_ON
    post(harness)
    until_running(harness)
    suspend(harness, is_suspended=True)
    harness.run_for(3 * HOUR)
    assert harness.is_ready(NAME)
