"""Node pools that TPU Provisioner created, of JobSets that this system now manages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from local.jobsets import Controller
from shared.base.slice_names import JOB_KEY_SELECTOR, job_key
from shared.settings import GKE
from shared.slices.by_node_pool.desired_pool import HASH_LABEL
from tests.stories.helpers import HOUR, MINUTE
from tests.stories.jobsets import (
    FAILS_ONCE,
    NAME,
    RUNS_FOREVER,
    SECOND,
    apply,
    apply_options,
    are_running,
    delete,
    reported_events,
    until,
)
from tests.stories.node_pool_slices import POOLS, SETTINGS, is_gone, new_harness, post, send
from tests.support import jobset_objects as objects
from tests.support.harness import GKE_CLUSTER, Harness
from tests.support.slices import asked, build_pool

OLDER = "train-bfcf5"
KEY = {JOB_KEY_SELECTOR: job_key(objects.NAMESPACE, objects.JOB)}
"""The fields that the admission server of TPU Provisioner adds."""


def new_older_cluster(**change: Any) -> Harness:
    """TPU Provisioner has just requested a pool, and was stopped."""
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    make(harness, **change)
    return harness


def make(harness: Harness, selector: Mapping[str, str] = KEY, **change: Any) -> None:
    demand, unit = asked(objects.waiting_pod(spec={"nodeSelector": selector}))
    pool = {
        **json.loads(json.dumps(build_pool(demand, unit, SETTINGS).body)),
        "name": OLDER,
        **change,
    }
    pool["config"]["labels"][HASH_LABEL] = "b49fcd4867"
    send(harness, "POST", POOLS, {"nodePool": pool})


def pools(harness: Harness) -> list[str]:
    return [path.rpartition("/")[2] for path in harness.gke.leftovers()]


def created(harness: Harness) -> int:
    records = harness.gke.calls.records
    return sum((one.verb, one.status) == ("nodePools.create", 200) for one in records)


def test_a_pool_in_creation_is_awaited_and_deleted_with_its_jobset() -> None:
    harness = new_older_cluster()
    post(harness)
    until(harness, lambda: are_running(harness))
    harness.run_for(10 * MINUTE)
    assert pools(harness) == [OLDER]
    delete(harness)
    until(harness, lambda: is_gone(harness))
    assert created(harness) == 1


def test_a_pool_whose_creation_failed_is_replaced() -> None:
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    harness.gke.faults.fail_operations("nodePools.create", code=8, message="no capacity")
    make(harness)
    until(harness, lambda: harness.gke.find_pool(OLDER).status == "ERROR")  # type: ignore[union-attr]
    post(harness)
    until(harness, lambda: are_running(harness))
    assert pools(harness) == [NAME]
    assert (
        f"Pod NodePoolDeletionStarted: Deleting node pool {OLDER} to create it again: no capacity"
        in (reported_events(harness))
    )
    assert created(harness) == 2


def test_a_pool_that_loses_its_nodes_and_regains_them_stays_the_only_one() -> None:
    """A running JobSet is preempted while GKE repairs its pool."""
    harness = new_older_cluster()
    post(harness)
    until(harness, lambda: are_running(harness))
    harness.gke.faults.lose_nodes(OLDER, 4)
    delete(harness)
    harness.run_for(5 * SECOND)
    post(harness)
    harness.run_for(20 * MINUTE)
    assert pools(harness) == [OLDER]
    assert not are_running(harness)
    send(harness, "PUT", f"{POOLS}/{OLDER}", {"resourceLabels": {"labels": {"repaired": "yes"}}})
    until(harness, lambda: are_running(harness))
    assert pools(harness) == [OLDER]
    assert created(harness) == 1


@pytest.mark.parametrize(
    "change",
    [{"initialNodeCount": 2, "placementPolicy": {"type": "COMPACT", "tpuTopology": "2x4"}}],
)
def test_a_pool_that_is_not_what_the_pod_requests_is_replaced(change: dict[str, Any]) -> None:
    harness = new_older_cluster(**change)
    post(harness)
    until(harness, lambda: are_running(harness), 2 * HOUR)
    assert pools(harness) == [NAME]


def test_a_pool_of_another_job_whose_key_has_the_same_prefix_is_not_touched() -> None:
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    labels = {"google.com/nodepool-manager": "tpu-provisioner"}
    labels |= {"google.com/tpu-provisioner-jobset-name": "other"}
    harness.gke.faults.make_pool(GKE_CLUSTER, OLDER, labels)
    post(harness)
    until(harness, lambda: NAME in pools(harness))


def selecting(**labels: str) -> dict[str, Any]:
    """The JobSet, with additional node selectors of its Pods."""
    jobset = objects.jobset()
    (job,) = jobset["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"]["spec"]["nodeSelector"] |= labels
    return jobset


ICI = "cloud.google.com/gke-tpu-ici-resiliency"
SELECTORS: dict[str, tuple[dict[str, str], dict[str, str], bool]] = {
    "nothing but the Job's key": ({}, {}, True),
    "a label that the pool has": ({"team": "a"}, {"team": "a"}, True),
    "a label that the pool lacks": ({}, {"team": "a"}, False),
    "another value of a label": ({"team": "a"}, {"team": "b"}, False),
    "a label less": ({"team": "a"}, {}, True),
    "another resiliency": ({ICI: "false"}, {ICI: "true"}, False),
    "no resiliency any more": ({ICI: "false"}, {}, True),
    "a label of the kubelet's domain": ({}, {"node.kubernetes.io/team": "a"}, False),
}


@pytest.mark.parametrize("case", SELECTORS.values(), ids=SELECTORS)
def test_a_recreated_job_runs_whatever_it_selects_now(
    case: tuple[dict[str, str], dict[str, str], bool],
) -> None:
    before, after, is_kept = case
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    make(harness, {**KEY, **before})
    apply(harness, selecting(**before))
    until(harness, lambda: are_running(harness))
    delete(harness)
    harness.run_for(10 * SECOND)
    apply(harness, selecting(**after))
    until(harness, lambda: are_running(harness))
    harness.run_for(10 * MINUTE)
    assert are_running(harness)
    assert pools(harness) == [OLDER if is_kept else NAME]


@pytest.mark.parametrize(
    "labels, is_kept",
    [({"team": "a"}, True), ({"team": "b"}, False), ({ICI: "true"}, False)],
)
def test_a_pool_is_kept_or_replaced_depending_on_what_its_pods_select(
    labels: dict[str, str], is_kept: bool
) -> None:
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    apply(harness, selecting(team="a"))
    until(harness, lambda: are_running(harness))
    delete(harness)
    harness.run_for(10 * SECOND)
    apply(harness, selecting(**labels))
    until(harness, lambda: are_running(harness))
    harness.run_for(10 * MINUTE)
    assert are_running(harness)
    assert pools(harness) == [NAME]
    assert created(harness) == (1 if is_kept else 2)


# docs/migrate-from-tpu-provisioner.md

GUIDE = Path(__file__).parents[2] / "docs" / "migrate-from-tpu-provisioner.md"
STEPS = re.split(r"^[0-9]\. ", GUIDE.read_text().partition("## Steps")[2], flags=re.MULTILINE)[1:]
INSTALLED = {
    "mutatingwebhookconfiguration": [
        "tpu-provisioner-admission-controller",
        "tpu-provisioner-jobs",
    ],
    "namespace": ["tpu-provisioner-system"],
    "clusterrole": [
        "tpu-provisioner-manager-role",
        "tpu-provisioner-proxy-role",
        "tpu-provisioner-metrics-reader",
    ],
    "clusterrolebinding": [
        "tpu-provisioner-manager-rolebinding",
        "tpu-provisioner-proxy-rolebinding",
    ],
}
"""The cluster-wide objects of all releases of TPU Provisioner."""


def test_the_guide_deletes_everything_that_the_other_has_installed_and_its_webhook_first() -> None:
    text = STEPS[2].replace("\\\n", " ")
    lines = [line.split() for line in re.findall(r"^ *kubectl delete (.*)$", text, re.MULTILINE)]
    deleted = {kind: [name for name in names if name[:2] != "--"] for kind, *names in lines}
    assert deleted == INSTALLED
    assert next(iter(deleted)) == "mutatingwebhookconfiguration"


@pytest.mark.parametrize("has_admission", [False, True])
def test_during_the_migration_a_jobset_keeps_running_and_can_restart(
    has_admission: bool,
) -> None:
    harness = Harness(slices={"slice_provider": "", "gke": None})
    if not has_admission:
        harness.jobsets.controllers -= {Controller.JOB_SELECTOR}
    harness.jobsets.behaviour = RUNS_FOREVER
    make(harness, KEY if has_admission else {})
    apply(harness, objects.jobset(spec={"failurePolicy": {"maxRestarts": 1}}))
    until(harness, lambda: are_running(harness))

    stop, install, _ = STEPS
    assert "scale deployment" in stop
    assert '`jobset_provider = "gke"`' in install
    assert "`injectEnv.admitJobs`" in install
    apply_options(harness)
    harness.configure(slice_provider=GKE, gke=SETTINGS)
    harness.jobsets.controllers |= {Controller.JOB_SELECTOR}
    harness.run_for(10 * MINUTE)
    assert (are_running(harness), pools(harness)) == (True, [OLDER])

    harness.jobsets.behaviour = FAILS_ONCE
    until(harness, lambda: not are_running(harness))
    until(harness, lambda: are_running(harness))
    harness.run_for(10 * MINUTE)
    assert are_running(harness)
    assert pools(harness) == [OLDER if has_admission else NAME]
    delete(harness)
    until(harness, lambda: is_gone(harness))
