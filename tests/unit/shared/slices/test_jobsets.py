"""Which Pods wait for a slice: the rows of TPU Provisioner, with corrections of known errors."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from shared.base.names import COMPLETION_INDEX
from shared.base.slice_names import job_key
from shared.slices.kinds import find_leader, find_waiting
from shared.slices.kinds.jobset import (
    JOBSET,
    count_completed,
)
from shared.slices.kinds.kind import find_fence_violation
from shared.slices.units import Controller, Unit, find_split_violation
from tests.support import jobset_objects as objects
from tests.support.builders import DATA
from tests.support.slices import asked

DOCUMENT: dict[str, Any] = yaml.safe_load((DATA / "tpu_provisioner.yaml").read_text())
POD: Mapping[str, Any] = DOCUMENT["fixtures"]["pod"]
ROWS: dict[str, dict[str, Any]] = {
    row["id"]: row
    for row in DOCUMENT["rows"]
    if row["area"] == "filter" and "between_event_and_reconcile" not in row["given"]
}
CORRECTED = {
    "filter-optout-capital": False,
    "filter-tpu-zero": False,
    "filter-no-controller-owner": False,
    "filter-tpu-in-init-container-only": True,
}
"""Rows that are known to be wrong, with the correct result: true if the Pod waits for a slice."""


def pod(**change: Any) -> dict[str, Any]:
    """Return the Pod of the table with the changes of a row."""
    given = {**POD, **{name: change[name] for name in change.keys() - MERGED}}
    maps = {name: merged(POD[name], change.get(name) or {}) for name in MERGED}
    scheduled, owner = given["pod_scheduled"], given["owner"]
    deleted = given["deletion_timestamp"]
    return {
        "metadata": {
            "name": POD["name"],
            "namespace": POD["namespace"],
            "uid": "pod-uid",
            "labels": maps["labels"],
            "annotations": maps["annotations"],
            "ownerReferences": [{"controller": True, **owner}] if owner else [],
            **({"deletionTimestamp": deleted} if deleted else {}),
        },
        "spec": {
            "nodeSelector": maps["node_selector"],
            "containers": containers(given["containers"]),
            "initContainers": containers(given.get("init_containers", [])),
        },
        "status": {
            "phase": given["phase"],
            "conditions": [{"type": "PodScheduled", **scheduled}] if scheduled else [],
        },
    }


MERGED = {"labels", "annotations", "node_selector"}


def merged(before: Mapping[str, str], change: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**before, **change}.items() if value is not None}


def containers(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": f"c{number}", "resources": one} for number, one in enumerate(given)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.conformance(name)) for name in ROWS]
)
def test_a_pod_waits_for_a_slice_as_in_tpu_provisioner(name: str) -> None:
    row = ROWS[name]
    leader = find_leader(pod(**row["given"]["pod"]))
    is_jobset = leader is not None and leader.kind.is_always_on
    assert is_jobset is CORRECTED.get(name, row["expect"]["triggers"])


def test_only_rows_that_are_known_to_be_wrong_are_corrected() -> None:
    assert {ROWS[name]["verdict"] for name in CORRECTED} == {"known_wrong"}


def test_the_fields_of_a_leader_are_read_from_its_pod() -> None:
    leader = find_leader(pod(owner={"kind": "ReplicaSet", "name": "rs-1"}))
    assert leader is not None
    demand, unit = leader.demand, JOBSET.find_unit(leader.demand)
    assert demand.controller == Controller("ReplicaSet", "rs-1", "")
    assert unit == Unit("JobSet", "default", "jobset-test", "rs-1")
    assert (demand.chips, demand.accelerator) == (4, "tpu-v5p-slice")
    assert (demand.topology, demand.hosts) == ("8x16x16", 512)


@pytest.mark.parametrize(
    "index, is_leader, refusal",
    [
        ("0", True, ""),
        ("3", False, ""),
        (
            None,
            False,
            "ReplicaSet rs-1 is not Indexed: slices are created only for those with completionMode: "
            "Indexed",
        ),
    ],
)
def test_the_pod_with_index_0_leads_and_one_without_index_gets_no_slice(
    index: str | None, is_leader: bool, refusal: str
) -> None:
    owner = {"kind": "ReplicaSet", "name": "rs-1"}
    waiting = find_waiting(pod(owner=owner, annotations={COMPLETION_INDEX: index}))
    assert waiting is not None
    assert (waiting.claim.kind.name, waiting.claim.is_leader) == ("JobSet", is_leader)
    assert waiting.claim.refusal == refusal


def test_the_completed_jobs_of_a_jobset_are_counted_also_if_an_entry_has_no_number() -> None:
    counts = [{"name": "a"}, {"name": "b", "succeeded": 2}, {"name": "c", "succeeded": "x"}]
    assert count_completed({"status": {"replicatedJobsStatus": counts}}) == 2


@pytest.mark.parametrize("value", ["true", "True", "YES", " on ", "1"])
def test_any_spelling_of_true_opts_out(value: str) -> None:
    opt_out = {"tpu-provisioner.cloud.google.com/disable-autoprovisioning": value}
    assert find_leader(pod(labels=opt_out)) is None


@pytest.mark.parametrize("key", ["consume-provisioning-request", "provisioning-class-name"])
@pytest.mark.parametrize("domain", ["autoscaling.x-k8s.io", "cluster-autoscaler.kubernetes.io"])
def test_a_pod_that_gets_its_nodes_by_a_provisioning_request_asks_for_no_slice(
    domain: str, key: str
) -> None:
    assert find_leader(pod(annotations={f"{domain}/{key}": "queued-provisioning.gke.io"})) is None
    assert find_leader(pod(annotations={f"{domain}/{key}": ""})) is not None


@pytest.mark.parametrize("value", ["false", "no", "0", ""])
def test_another_value_does_not_opt_out(value: str) -> None:
    opt_out = {"tpu-provisioner.cloud.google.com/disable-autoprovisioning": value}
    assert find_leader(pod(labels=opt_out)) is not None


@pytest.mark.parametrize(
    "invalid",
    [
        {},
        {"metadata": None, "spec": [], "status": ""},
        {"metadata": {"labels": [], "annotations": 3}, "spec": {"containers": "c"}},
    ],
)
def test_a_pod_of_any_shape_is_read(invalid: dict[str, Any]) -> None:
    assert find_leader(invalid) is None


JOB = POD["owner"]["name"]
OWN, FOREIGN = job_key("default", JOB), job_key("other", JOB)
LABEL = "jobset.sigs.k8s.io/job-key"
KEYS: dict[str, tuple[dict[str, Any], str | None]] = {
    "the key of the Pod's Job": ({"labels": {LABEL: OWN}}, None),
    "the key of the Pod's Job, also as a selector": (
        {"labels": {LABEL: OWN}, "node_selector": {"job-key": OWN}},
        None,
    ),
    "the key of a Job of another namespace": (
        {"labels": {LABEL: FOREIGN}},
        f"the label {LABEL} is '{FOREIGN}': for Job default/{JOB} JobSet computes {OWN}, and slices are "
        "created only for this Job",
    ),
    "no key": (
        {"labels": {LABEL: None}},
        f"the Pod has no label {LABEL}: JobSet sets it on the Pods of its Jobs",
    ),
    "short key": (
        {"labels": {LABEL: "abc"}},
        f"the label {LABEL} is 'abc': for Job default/{JOB} JobSet computes {OWN}, and slices are "
        "created only for this Job",
    ),
    "no name of a JobSet": (
        {
            "labels": {"jobset.sigs.k8s.io/jobset-name": None},
            "annotations": {"jobset.sigs.k8s.io/jobset-name": "x/../y?z"},
        },
        "the Pod's jobset.sigs.k8s.io/jobset-name is 'x/../y?z': it must be the name of a JobSet",
    ),
    "the key of a Job of another namespace, as a selector": (
        {"labels": {LABEL: OWN}, "node_selector": {"job-key": FOREIGN}},
        f"the Pod's nodeSelector job-key is '{FOREIGN}': it must be the Pod's label {LABEL}, {OWN}: "
        "slices are created only for this Job",
    ),
}


@pytest.mark.conformance(
    cases={"no key": "name-job-key-label-missing", "short key": "name-key-shorter-than-5"}
)
@pytest.mark.parametrize("case", KEYS.values(), ids=KEYS)
def test_the_key_of_another_job_is_a_violation(case: tuple[dict[str, Any], str | None]) -> None:
    change, violation = case
    assert JOBSET.find_pod_violation(*asked(pod(**change))) == (violation or "")


EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
FENCES: dict[str, tuple[dict[str, Any], bool]] = {
    "exclusive topology": ({}, True),
    "nothing": ({"annotations": {EXCLUSIVE: None}}, False),
    "the selector of admit-jobs": (
        {"annotations": {EXCLUSIVE: None}, "node_selector": {"job-key": OWN}},
        True,
    ),
    "nothing, for one host": (
        {
            "annotations": {EXCLUSIVE: None},
            "node_selector": {"cloud.google.com/gke-tpu-topology": "2x2x1"},
        },
        True,
    ),
}


@pytest.mark.parametrize("case", FENCES.values(), ids=FENCES)
def test_pods_of_other_jobs_are_kept_from_several_hosts_by(
    case: tuple[dict[str, Any], bool],
) -> None:
    change, is_fenced = case
    demand, unit = asked(pod(**change))
    assert (find_fence_violation(JOBSET, demand, unit) == "") is is_fenced


@pytest.mark.parametrize("topology, is_refused", [("2x2x1", False), ("2x2x2", True)])
@pytest.mark.parametrize("selector", [{}, {"job-key": OWN}])
def test_an_exclusive_topology_of_one_host_is_no_fence_of_several(
    topology: str, is_refused: bool, selector: dict[str, str]
) -> None:
    selected = {"cloud.google.com/gke-tpu-topology": topology, **selector}
    item = pod(annotations={EXCLUSIVE: "kubernetes.io/hostname"}, node_selector=selected)
    expected = (
        "the exclusive topology of the JobSet is kubernetes.io/hostname, so that all Pods of a slice "
        "would have to run on one of its hosts: it must be cloud.google.com/gke-nodepool"
    )
    assert find_fence_violation(JOBSET, *asked(item)) == (expected if is_refused else "")


V6E, V7X = "tpu-v6e-slice", "tpu7x"


@pytest.mark.parametrize(
    "accelerator, containers, before, asks",
    [
        (V6E, (4,), (), None),
        (V6E, (4, 0), (4,), None),
        (V7X, (2, 2), (), None),
        (V6E, (2, 2), (), 2),
        (V6E, (1, 3), (), 1),
        (V6E, (4,), (2,), 2),
    ],
)
def test_only_on_tpu7x_containers_may_share_the_chips_of_a_host(
    accelerator: str, containers: tuple[int, ...], before: tuple[int, ...], asks: int | None
) -> None:
    asking = [
        [{"resources": {"requests": {"google.com/tpu": str(count)}}} for count in counts]
        for counts in (containers, before)
    ]
    item = pod(node_selector={"cloud.google.com/gke-tpu-accelerator": accelerator})
    item["spec"] |= {"containers": asking[0], "initContainers": asking[1]}
    demand, _ = asked(item)
    assert find_split_violation(demand) == (
        asks
        and f"a container asks for {asks} of the host's 4 google.com/tpu: only on tpu7x can "
        "containers share them, else one must ask for all"
    )


IN_SEQUENCE = (
    "Job train-workers-0 of JobSet train has parallelism 4 and completions 8: they must be equal, "
    "because all hosts of a slice run together"
)


@pytest.mark.parametrize(
    "topology, completions, violation",
    [("4x4", 8, IN_SEQUENCE), ("4x4", 4, ""), ("4x4", 2, ""), ("2x2", 8, "")],
    ids=["some Pods after others", "all together", "fewer than may run at once", "one host"],
)
def test_all_pods_of_a_job_on_several_hosts_must_run_together(
    topology: str, completions: int, violation: str
) -> None:
    jobset = objects.jobset()
    jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] = completions
    waiting = objects.waiting_pod(spec={"nodeSelector": objects.selector(topology=topology)})
    cluster: Any = SimpleNamespace(find_owner=lambda *_: jobset)
    assert JOBSET.find(cluster, asked(waiting)[0]).violation == violation
