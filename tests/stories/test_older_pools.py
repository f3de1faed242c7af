"""Node pools that TPU Provisioner has made, of JobSets that live on under this system."""

from __future__ import annotations

import json
from typing import Any

import pytest

from local.http import Request
from shared.slices.by_node_pool.desired_pool import HASH_LABEL, build_desired_slice
from shared.slices.jobsets import JOB_KEY_SELECTOR, find_leader, job_key
from tests import jobset_objects as objects
from tests.harness import GKE_CLUSTER, Harness
from tests.stories.jobsets import NAME, RUNS_ON, SECOND, are_running, delete, told, until
from tests.stories.life import HOUR, MINUTE
from tests.stories.test_node_pool_slices import SETTINGS, is_gone, post, world

OLDER = "train-bfcf5"
POOLS = f"/v1/{SETTINGS.cluster_path}/nodePools"


def older_world(**change: Any) -> Harness:
    """TPU Provisioner has just asked for a pool, and has been stopped."""
    harness = world()
    harness.jobsets.habits = RUNS_ON
    make(harness, **change)
    return harness


def make(harness: Harness, **change: Any) -> None:
    selector = {JOB_KEY_SELECTOR: job_key(objects.NAMESPACE, objects.JOB)}
    leader = find_leader(objects.waiting_pod(spec={"nodeSelector": selector}))
    assert leader is not None
    pool = {
        **json.loads(json.dumps(build_desired_slice(leader, SETTINGS).body)),
        "name": OLDER,
        **change,
    }
    pool["config"]["labels"][HASH_LABEL] = "b49fcd4867"
    ask(harness, "POST", POOLS, {"nodePool": pool})


def ask(harness: Harness, method: str, path: str, body: dict[str, Any]) -> None:
    headers = {"content-type": "application/json"}
    data = json.dumps(body).encode()
    answer = harness.gke.handle(
        Request.of(method, f"http://container.local{path}", headers=headers, body=data)
    )
    assert answer.status == 200, answer.body


def pools(harness: Harness) -> list[str]:
    return [path.rpartition("/")[2] for path in harness.gke.leftovers()]


def created(harness: Harness) -> int:
    records = harness.gke.calls.records
    return sum((one.verb, one.status) == ("nodePools.create", 200) for one in records)


def test_a_pool_that_is_still_being_made_is_waited_for_and_goes_with_its_jobset() -> None:
    harness = older_world()
    post(harness)
    until(harness, lambda: are_running(harness))
    harness.run_for(10 * MINUTE)
    assert pools(harness) == [OLDER]
    delete(harness)
    until(harness, lambda: is_gone(harness))
    assert created(harness) == 1


def test_a_pool_that_could_not_be_made_is_replaced() -> None:
    harness = world()
    harness.jobsets.habits = RUNS_ON
    harness.gke.faults.fail_operations("nodePools.create", code=8, message="no capacity")
    make(harness)
    until(harness, lambda: harness.gke.find_pool(OLDER).status == "ERROR")  # type: ignore[union-attr]
    post(harness)
    until(harness, lambda: are_running(harness))
    assert pools(harness) == [NAME]
    assert (
        f"Pod NodePoolDeletionStarted: Deleting node pool {OLDER} to create it anew: no capacity"
        in (told(harness))
    )
    assert created(harness) == 2


def test_a_pool_that_has_lost_its_nodes_and_gets_them_back_is_the_only_one() -> None:
    """A running JobSet is preempted while its pool mends itself."""
    harness = older_world()
    post(harness)
    until(harness, lambda: are_running(harness))
    harness.gke.faults.lose_nodes(OLDER, 4)
    delete(harness)
    harness.run_for(5 * SECOND)
    post(harness)
    harness.run_for(20 * MINUTE)
    assert pools(harness) == [OLDER]
    assert not are_running(harness)
    ask(harness, "PUT", f"{POOLS}/{OLDER}", {"resourceLabels": {"labels": {"repaired": "yes"}}})
    until(harness, lambda: are_running(harness))
    assert pools(harness) == [OLDER]
    assert created(harness) == 1


@pytest.mark.parametrize(
    "change",
    [{"initialNodeCount": 2, "placementPolicy": {"type": "COMPACT", "tpuTopology": "2x4"}}],
)
def test_a_pool_that_is_not_what_the_pod_asks_for_is_replaced(change: dict[str, Any]) -> None:
    harness = older_world(**change)
    post(harness)
    until(harness, lambda: are_running(harness), 2 * HOUR)
    assert pools(harness) == [NAME]


def test_a_pool_of_another_job_whose_key_begins_the_same_is_left_alone() -> None:
    harness = world()
    harness.jobsets.habits = RUNS_ON
    theirs = {"google.com/nodepool-manager": "tpu-provisioner"}
    theirs |= {"google.com/tpu-provisioner-jobset-name": "other"}
    harness.gke.faults.make_pool(GKE_CLUSTER, OLDER, theirs)
    post(harness)
    until(harness, lambda: NAME in pools(harness))
