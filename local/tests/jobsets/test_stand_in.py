# ruff: noqa: E501  (a table reads best with a row on a line)
"""The stand-in for JobSet runs JobSets on a cluster that has only Nodes."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from local.control_plane import jobset_crd
from local.jobsets import BESIDE_A_CONTROL_PLANE, Controller, PodBehaviour
from local.tests.jobsets.cluster import CRD, TPU, Cluster, jobset
from local.tests.real_parts import get_jobset_crd

FIRST, SECOND = "train-slice-0", "train-slice-1"
UNBOUND = {f"{FIRST}-0": "", f"{SECOND}-0": ""}


def condition(item: Any, kind: str) -> Any:
    conditions = item.get("status", {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == kind), {})


def applied(*, behaviour: PodBehaviour | None = None, **wishes: Any) -> Cluster:
    cluster = Cluster(behaviour)
    cluster.apply(jobset(**wishes))
    cluster.run_for(5)
    return cluster


def test_the_jobs_of_a_jobset_have_its_labels_and_annotations() -> None:
    cluster = applied()
    jobs = cluster.jobs()
    assert list(jobs) == [FIRST, SECOND]
    marks = {
        "jobset.sigs.k8s.io/jobset-name": "train",
        "jobset.sigs.k8s.io/replicatedjob-name": "slice",
        "jobset.sigs.k8s.io/replicatedjob-replicas": "2",
        "jobset.sigs.k8s.io/job-index": "1",
        "jobset.sigs.k8s.io/restart-attempt": "0",
        "jobset.sigs.k8s.io/job-key": hashlib.sha1(b"default/train-slice-1").hexdigest(),
    }
    template = jobs[SECOND]["spec"]["template"]["metadata"]
    for metadata in (jobs[SECOND]["metadata"], template):
        for kind in ("labels", "annotations"):
            assert marks.items() <= metadata[kind].items()


def test_the_first_pod_waits_for_a_node_and_the_others_for_the_first() -> None:
    cluster = applied()
    assert cluster.nodes_of_pods() == UNBOUND
    pod = cluster.pods()[f"{FIRST}-0"]
    assert pod["status"]["phase"] == "Pending"
    assert condition(pod, "PodScheduled")["reason"] == "Unschedulable"
    for kind in ("labels", "annotations"):
        assert pod["metadata"][kind]["batch.kubernetes.io/job-completion-index"] == "0"
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {"google.com/tpu": "4"}


def test_each_job_gets_a_slice_and_completes_without_remains() -> None:
    cluster = applied()
    cluster.add_slice("b", SECOND)
    cluster.add_slice("a", FIRST)
    cluster.run_for(5)
    assert cluster.nodes_of_pods() == {
        **{f"{FIRST}-{index}": f"a-{index}" for index in range(2)},
        **{f"{SECOND}-{index}": f"b-{index}" for index in range(2)},
    }
    assert {pod["status"]["phase"] for pod in cluster.pods().values()} == {"Running"}
    cluster.run_for(90)
    assert cluster.jobset()["status"]["terminalState"] == "Completed"
    assert condition(cluster.jobset(), "Completed")["status"] == "True"
    cluster.delete_jobset()
    cluster.run_for(5)
    assert (cluster.jobs(), cluster.pods()) == ({}, {})


REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("no Node", {}, "no nodes available to schedule pods"),
    ("another's", {"job": SECOND}, "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."),
    ("tainted", {"job": FIRST, "taint": "team"}, "0/2 nodes are available: 2 node(s) had untolerated taint(s)."),
]  # fmt: skip


@pytest.mark.parametrize(
    "slice_, message", [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_an_unschedulable_pod_has_the_reason(slice_: dict[str, Any], message: str) -> None:
    cluster = applied(replicas=1)
    if slice_:
        cluster.add_slice("a", **slice_)
    cluster.run_for(5)
    pod = cluster.pods()[f"{FIRST}-0"]
    assert condition(pod, "PodScheduled")["message"] == message


def test_the_chips_of_a_node_limit_its_pods() -> None:
    cluster = applied(replicas=1, hosts=3)
    cluster.add_slice("a", FIRST)
    cluster.run_for(5)
    (left,) = [pod for pod in cluster.pods().values() if "nodeName" not in pod["spec"]]
    words = "0/2 nodes are available: 2 Insufficient google.com/tpu."
    assert condition(left, "PodScheduled")["message"] == words


REJECTED = "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = invalid TPU chip count request, you must request all 4 chips on this node together, which is unexpected"


@pytest.mark.parametrize(
    "accelerator, chips, message",
    [
        ("tpu-v6e-slice", (4,), None), ("tpu-v6e-slice", (4, 0), None), ("tpu7x", (2, 2), None),
        ("tpu-v6e-slice", (2, 2), REJECTED), ("tpu-v6e-slice", (2,), REJECTED),
    ],
)  # fmt: skip
def test_the_chips_of_a_host_are_allocated_together_except_on_tpu7x(
    accelerator: str, chips: tuple[int, ...], message: str | None
) -> None:
    labels = {"cloud.google.com/gke-tpu-accelerator": accelerator}
    body = jobset(replicas=1, hosts=1, selector=labels)
    spec = body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    spec["containers"] = [
        {"name": f"c{number}", "image": "python:3.12", "resources": {"limits": {"google.com/tpu": count}}}
        for number, count in enumerate(chips)
    ]  # fmt: skip
    cluster = Cluster()
    cluster.apply(body)
    cluster.add_slice("a", FIRST, hosts=1, **labels)
    cluster.run_for(5)
    status = cluster.pods()[f"{FIRST}-0"]["status"]
    assert status.get("message") == message
    assert status.get("reason") == (message and "UnexpectedAdmissionError")
    assert status["phase"] == ("Failed" if message else "Running")


def test_exclusive_jobs_do_not_share_a_slice_even_without_keys() -> None:
    cluster = Cluster(controllers=frozenset(Controller) - {Controller.JOB_SELECTOR})
    cluster.apply(jobset())
    cluster.add_slice("a", hosts=4)
    cluster.run_for(5)
    assert list(cluster.nodes_of_pods().values()) == ["a-0", "a-1", ""]
    cluster.add_slice("b", hosts=4)
    cluster.run_for(5)
    assert list(cluster.nodes_of_pods().values()) == ["a-0", "a-1", "b-0", "b-1"]


def test_jobs_that_are_not_exclusive_share() -> None:
    cluster = Cluster(controllers=frozenset(Controller) - {Controller.JOB_SELECTOR})
    cluster.apply(jobset(exclusive=False))
    cluster.add_slice("a", hosts=4)
    cluster.run_for(5)
    assert sorted(cluster.nodes_of_pods().values()) == ["a-0", "a-1", "a-2", "a-3"]


def fail_at_first(pod: Any) -> str:
    attempt = pod["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"]
    return "Failed" if attempt == "0" else "Succeeded"


def test_a_restarted_jobset_keeps_its_job_keys() -> None:
    cluster = applied(replicas=1, max_restarts=1, behaviour=PodBehaviour(ends=fail_at_first))
    before = cluster.jobs()[FIRST]
    cluster.add_slice("a", FIRST)
    cluster.run_for(90)
    after = cluster.jobs()[FIRST]
    assert cluster.jobset()["status"]["restarts"] == 1
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    key = "jobset.sigs.k8s.io/job-key"
    assert after["metadata"]["labels"][key] == before["metadata"]["labels"][key]
    assert list(cluster.nodes_of_pods().values()) == ["a-0", "a-1"]
    cluster.run_for(90)
    assert cluster.jobset()["status"]["terminalState"] == "Completed"


def test_a_jobset_without_restarts_fails_and_stops_its_other_jobs() -> None:
    def end(pod: Any) -> str:
        return "Failed" if pod["spec"]["hostname"].startswith(FIRST) else ""

    cluster = applied(behaviour=PodBehaviour(ends=end))
    cluster.add_slice("a", FIRST)
    cluster.add_slice("b", SECOND)
    cluster.run_for(90)
    assert cluster.jobset()["status"]["terminalState"] == "Failed"
    assert condition(cluster.jobset(), "Failed")["message"] == (
        "jobset failed: job train-slice-0 has failed"
    )
    assert list(cluster.jobs()) == [FIRST]


def test_a_suspended_jobset_has_jobs_without_pods_until_it_is_resumed() -> None:
    cluster = applied(suspend=True)
    assert list(cluster.jobs()) == [FIRST, SECOND]
    assert cluster.pods() == {}
    assert condition(cluster.jobset(), "Suspended")["status"] == "True"
    cluster.suspend_jobset(False)
    cluster.run_for(5)
    assert cluster.nodes_of_pods() == UNBOUND
    assert condition(cluster.jobset(), "Suspended")["status"] == "False"
    cluster.suspend_jobset(True)
    cluster.run_for(5)
    assert cluster.pods() == {}


def test_a_resumed_job_keeps_the_selectors_of_its_old_template_beside_the_new_ones() -> None:
    cluster = applied(replicas=1, selector={**TPU, "zone": "a"})
    first = cluster.jobs()[FIRST]["status"]["startTime"]
    cluster.suspend_jobset(True)
    cluster.run_for(5)
    cluster.patch_jobset(
        {
            "replicatedJobs": jobset(replicas=1, selector={"zone": "b", "new": ""})["spec"][
                "replicatedJobs"
            ]
        }
    )
    cluster.suspend_jobset(False)
    cluster.run_for(5)
    job = cluster.jobs()[FIRST]
    selector = job["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {**TPU, "zone": "b", "new": "", "job-key": selector["job-key"]}
    assert job["status"]["startTime"] > first
    (pod,) = cluster.pods().values()
    assert pod["spec"]["nodeSelector"] == selector


def test_pods_of_a_deleted_node_are_recreated() -> None:
    cluster = applied(replicas=1, hosts=1)
    cluster.add_slice("a", FIRST, hosts=1)
    cluster.run_for(5)
    cluster.ask("DELETE", "/api/v1/nodes/a-0")
    cluster.run_for(5)
    assert cluster.nodes_of_pods() == {f"{FIRST}-0": ""}


def running(behaviour: PodBehaviour, **wishes: Any) -> Cluster:
    """A JobSet of one Job with one Pod, which runs."""
    cluster = applied(behaviour=behaviour, replicas=1, hosts=1, **wishes)
    cluster.add_slice("a", FIRST, hosts=1)
    cluster.run_for(5)
    return cluster


def test_a_deleted_pod_ends_when_its_kubelet_has_stopped_it() -> None:
    cluster = running(PodBehaviour(ends=lambda _: "", stop_s=20))
    cluster.delete_jobset(propagationPolicy="Foreground")
    cluster.run_for(19)
    (pod,) = cluster.pods().values()
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 30
    assert cluster.jobset()["metadata"]["finalizers"] == ["foregroundDeletion"]
    cluster.run_for(3)
    assert (cluster.pods(), cluster.jobs(), cluster.jobset()["reason"]) == ({}, {}, "NotFound")


def silence(cluster: Cluster) -> None:
    """Set the Ready condition of the Node as for a kubelet that is gone."""
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    merge = {"Content-Type": "application/merge-patch+json"}
    cluster.ask("PATCH", "/api/v1/nodes/a-0/status", {"status": {"conditions": [ready]}}, **merge)


HANGS: dict[str, tuple[PodBehaviour, Any]] = {
    "a process that does not end": (PodBehaviour(hangs=lambda _: True), lambda _: None),
    "a kubelet that is gone": (PodBehaviour(), silence),
}


@pytest.mark.parametrize("behaviour, hurt", HANGS.values(), ids=HANGS)
def test_a_pod_that_nobody_ends_exists_until_its_node_is_gone(
    behaviour: PodBehaviour, hurt: Any
) -> None:
    cluster = running(behaviour)
    hurt(cluster)
    cluster.delete_jobset(propagationPolicy="Foreground")
    cluster.run_for(3600)
    assert [pod["status"]["phase"] for pod in cluster.pods().values()] == ["Running"]
    cluster.ask("DELETE", "/api/v1/nodes/a-0")
    cluster.run_for(5)
    assert (cluster.pods(), cluster.jobset()["reason"]) == ({}, "NotFound")


def test_a_pod_on_a_node_without_a_kubelet_is_evicted_after_five_minutes() -> None:
    cluster = running(PodBehaviour(ends=lambda _: ""))
    silence(cluster)
    cluster.run_for(290)
    assert len(cluster.items("/api/v1/pods")) == 1
    cluster.run_for(20)
    old, new = sorted(
        cluster.items("/api/v1/pods"), key=lambda pod: pod["metadata"]["creationTimestamp"]
    )
    assert "deletionTimestamp" in old["metadata"]
    assert new["status"]["phase"] == "Pending"


def test_a_jobset_that_has_ended_is_deleted_in_the_foreground_when_its_ttl_is_over() -> None:
    cluster = running(PodBehaviour(), ttl_s=100)
    cluster.run_for(70)
    assert cluster.jobset()["status"]["terminalState"] == "Completed"
    cluster.run_for(100)
    assert (cluster.pods(), cluster.jobs(), cluster.jobset()["reason"]) == ({}, {}, "NotFound")


def test_the_status_of_a_jobset_counts_its_jobs() -> None:
    cluster = applied(
        behaviour=PodBehaviour(
            ends=lambda pod: "Succeeded" if "slice-0" in pod["metadata"]["name"] else ""
        )
    )
    cluster.add_slice("a", FIRST)
    cluster.add_slice("b", SECOND)
    cluster.run_for(10)
    counts = {"name": "slice", "ready": 2, "succeeded": 0, "failed": 0, "active": 2, "suspended": 0}
    assert cluster.jobset()["status"]["replicatedJobsStatus"] == [counts]
    cluster.run_for(90)
    counts |= {"ready": 1, "succeeded": 1, "active": 1}
    assert cluster.jobset()["status"]["replicatedJobsStatus"] == [counts]


def test_without_a_restart_policy_a_pod_that_fails_is_restarted_in_place() -> None:
    cluster = running(PodBehaviour(ends=lambda _: "Failed"), restart_policy="")
    cluster.run_for(600)
    assert [pod["status"]["phase"] for pod in cluster.pods().values()] == ["Running"]


def test_next_to_a_control_plane_no_pods_are_created_or_bound() -> None:
    cluster = Cluster(controllers=BESIDE_A_CONTROL_PLANE)
    cluster.apply(jobset())
    cluster.run_for(5)
    assert list(cluster.jobs()) == [FIRST, SECOND]
    assert cluster.pods() == {}


def test_no_selector_is_written_if_the_webhook_is_installed() -> None:
    cluster = Cluster(controllers=frozenset(Controller) - {Controller.JOB_SELECTOR})
    cluster.apply(jobset())
    cluster.run_for(5)
    assert "job-key" not in cluster.jobs()[FIRST]["spec"]["template"]["spec"]["nodeSelector"]


def test_kubectl_shows_a_job_with_its_columns() -> None:
    cluster = applied(replicas=1)
    cluster.add_slice("a", FIRST)
    cluster.run_for(90)
    table = cluster.ask(
        "GET", "/apis/batch/v1/jobs", accept="application/json;as=Table;v=v1;g=meta.k8s.io"
    )
    (row,) = table["rows"]
    assert row["cells"][:4] == [FIRST, "Complete", "2/2", "66s"]


@pytest.mark.real
def test_the_crd_has_the_names_and_columns_of_jobsets_own() -> None:
    original = jobset_crd.read(get_jobset_crd())
    for part in ("group", "scope", "names"):
        assert CRD["spec"][part] == original["spec"][part]
    (ours,), (theirs,) = CRD["spec"]["versions"], original["spec"]["versions"]
    for part in ("name", "subresources"):
        assert ours[part] == theirs[part]
    described = [column.items() for column in theirs["additionalPrinterColumns"]]
    for column, original_column in zip(ours["additionalPrinterColumns"], described, strict=True):
        assert column.items() <= original_column
