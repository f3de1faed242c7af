"""Pods that the real scheduler reports as unschedulable, and JobSets with JobSet's CRD."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from local.control_plane.plane import OwnControlPlane
from local.tests.real_parts import get_jobset_crd
from shared.base.names import ACCELERATOR_LABEL, JOB_KEY, JOBSET_NAME, TOPOLOGY_LABEL, TPU_RESOURCE
from shared.base.slice_names import job_key
from shared.slices.kinds.jobset import EXCLUSIVE_TOPOLOGY
from shared.slices.units import OPT_OUT
from tests.real.relay.conftest import MERGE_PATCH, RelaySetup
from tests.real.relay.manifests import JOBSETS, MANIFESTS
from tests.real.relay.process import RelayProcess, request_token, run_relay, write_kubeconfig
from tests.real.relay.waiting import until
from tests.support import chart
from tests.support.harness import ROOT
from tests.support.manifests import manifest

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("relay")]

JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def permissions(setup: RelaySetup) -> Iterator[None]:
    """The components' permissions of the relay and the steps; the objects of the test are deleted."""
    files = [argument for path in MANIFESTS for argument in ("-f", path)]
    _kubectl(setup.plane, "apply", *files)
    # The API server may take minutes to delete a CRD that it has not established yet.
    crd = "crd/tpusliceclasses.tpu-functions.dev"
    _kubectl(setup.plane, "wait", "--for=condition=Established", crd)
    yield
    _kubectl(setup.plane, "delete", *files)
    _kubectl(setup.plane, "delete", "crd", "jobsets.jobset.x-k8s.io", "--ignore-not-found")
    _kubectl(setup.plane, "delete", "job,pods", "--all", "--force", "--grace-period=0")


@contextmanager
def _run_jobset_relay(setup: RelaySetup, folder: str, **settings: str) -> Iterator[RelayProcess]:
    """Run a relay that watches JobSets; it may not have listed yet."""
    (setup.folder / folder).mkdir()
    token = request_token(setup.plane)
    kubeconfig = write_kubeconfig(setup.plane, setup.folder / folder, setup.proxy.port, token)
    with run_relay(kubeconfig, setup.subscriptions.address, JOBSETS="true", **settings) as relay:
        yield relay


@pytest.mark.usefixtures("permissions")
def test_the_template_of_slices_is_kept_when_the_manifests_are_applied_again(
    setup: RelaySetup,
) -> None:
    page = (ROOT / "docs" / "jobsets.md").read_text()
    (command,) = re.findall(
        r"^kubectl (.*patch configmap jobsets.*jobset-template.yaml)$", page, re.M
    )
    _kubectl(setup.plane, *command.replace("=examples", f"={ROOT}/examples").split())
    options = str(chart.MANIFESTS / "jobsets" / "options.yaml")
    for _ in range(2):
        _kubectl(setup.plane, "apply", "-f", options)
    path = "/api/v1/namespaces/tpu-functions/configmaps/jobsets"
    assert "kind: TPUNodeGroup" in setup.ask("GET", path)["data"]["template"]


@pytest.mark.usefixtures("permissions")
def test_the_relay_publishes_the_first_unschedulable_pod_of_a_job(setup: RelaySetup) -> None:
    _apply_crd(setup.plane)
    with _run_jobset_relay(setup, "first") as relay:
        relay.wait_until_listed(kinds=("Pod", "JobSet"))
        setup.ask("POST", JOBS, _job("train-workers-0", pods=3))
        until(lambda: len(_list_unschedulable(setup)) == 3, "the scheduler has tried all Pods")
        leader = next(pod for pod in _list_unschedulable(setup) if _is_first(pod))
        name, uid = leader["metadata"]["name"], leader["metadata"]["uid"]
        message = setup.subscriptions.wait_for_message("provision_slice", name, "Unschedulable")
        assert (message.document["kind"], message.document["uid"]) == ("Pod", uid)
        until(lambda: relay.metric("waiting_pods") == 1, "one Pod is unschedulable")
        until(
            lambda: relay.metric("published_messages_total", step="provision_slice") == 1,
            "one message is published",
        )

        _label(setup, name, {OPT_OUT: "true"})
        until(lambda: relay.metric("waiting_pods") == 0, "it opts out of a slice")
        _label(setup, name, {OPT_OUT: None})
        until(
            lambda: relay.metric("published_messages_total", step="provision_slice") == 2,
            "it is published again",
        )

        running = {"status": {"phase": "Running"}}
        setup.plane.request("PATCH", f"{PODS}/{name}/status", running, MERGE_PATCH)
        until(lambda: relay.metric("waiting_pods") == 0, "it is no longer unschedulable")
        assert relay.metric("watch_events_total", kind="Pod", event="DELETED") == 1
        assert setup.plane.request("GET", f"{PODS}/{name}")[0] == 200


@pytest.mark.usefixtures("permissions")
def test_with_all_workloads_running_pods_cost_nothing_and_cpu_pods_are_not_kept(
    setup: RelaySetup,
) -> None:
    """JobSet is not installed."""
    setup.plane.register_node({"metadata": {"name": "cpu-1"}, "kind": "Node", "apiVersion": "v1"})
    running = {"status": {"phase": "Running"}}
    with _run_jobset_relay(setup, "all", SLICE_WORKLOADS="true") as relay:
        relay.wait_until_listed(kinds=("Pod",))
        until(lambda: relay.get("/readyz")[0] == 200, "JobSet need not be installed")
        for index in range(50):
            setup.ask("POST", PODS, _cpu_pod(f"runs-{index}", nodeName="cpu-1"))
            setup.plane.request("PATCH", f"{PODS}/runs-{index}/status", running, MERGE_PATCH)
            _label(setup, f"runs-{index}", {"a": "b"})
        setup.ask("POST", PODS, _cpu_pod("waits"))
        until(
            lambda: relay.metric("watch_events_total", kind="Pod", event="MODIFIED") >= 1,
            "the scheduler has tried the other Pod",
        )
        binding = {"metadata": {"name": "waits"}, "target": {"kind": "Node", "name": "cpu-1"}}
        setup.ask("POST", f"{PODS}/waits/binding", binding)
        until(
            lambda: relay.metric("watch_events_total", kind="Pod", event="DELETED") == 1,
            "a Pod that gets its Node is not watched any more",
        )
        setup.plane.request("PATCH", f"{PODS}/waits/status", running, MERGE_PATCH)
        setup.ask("POST", PODS, _cpu_pod("last"))
        until(
            lambda: relay.metric("watch_events_total", kind="Pod", event="ADDED") == 2,
            "only the two Pods without a Node are sent",
        )
        counts = [relay.metric(name) for name in ("waiting_pods", "published_messages_total")]
        assert counts == [0, 0]


@pytest.mark.usefixtures("permissions")
def test_the_relay_publishes_ended_and_deleted_jobsets_and_a_new_relay_publishes_recent_ones(
    setup: RelaySetup,
) -> None:
    _apply_crd(setup.plane)
    with _run_jobset_relay(setup, "first") as relay:
        relay.wait_until_listed(kinds=("Pod", "JobSet"))
        for name in ("done", "gone", "busy"):
            setup.ask("POST", JOBSETS, _jobset(name))
        _end(setup, "done", "Completed")
        setup.subscriptions.wait_for_message("release_slice", "done", "Completed")
        setup.ask("DELETE", f"{JOBSETS}/gone")
        setup.subscriptions.wait_for_message("release_slice", "gone", "Gone")
        until(
            lambda: relay.metric("published_messages_total", step="release_slice") == 2,
            "both have been counted",
        )
        assert relay.metric("jobsets") == 2
    setup.subscriptions.received.clear()
    with _run_jobset_relay(setup, "second") as relay:
        setup.subscriptions.wait_for_message("release_slice", "done", "Completed")
        until(
            lambda: relay.metric("published_messages_total", step="release_slice") == 1,
            "it has been counted",
        )


@pytest.mark.usefixtures("permissions")
def test_the_steps_of_jobsets_may_delete_slices_of_jobsets_and_no_other_group(
    setup: RelaySetup,
) -> None:
    setup.add_group("other")
    group = manifest("train-0123456789abcdef")
    group["metadata"]["labels"] = {"tpu-functions.dev/jobset-name": "train"}
    setup.ask("POST", "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups", group)
    error = "the steps of JobSets may only create, change and delete TPUNodeGroups"
    delete = ("delete", "tng", "--as=system:serviceaccount:tpu-functions:release-slice")
    until(
        lambda: error in setup.plane.run_kubectl(*delete, "other", "--dry-run=server").stderr,
        "the deletion of another group is denied",
    )
    result = setup.plane.run_kubectl(*delete, "train-0123456789abcdef")
    assert (result.returncode, result.stderr) == (0, "")


def _kubectl(plane: OwnControlPlane, *arguments: str) -> None:
    result = plane.run_kubectl(*arguments)
    assert result.returncode == 0, result.stderr


def _apply_crd(plane: OwnControlPlane) -> None:
    # A client-side apply copies it into an annotation, for which it is too long.
    _kubectl(plane, "apply", "--server-side", "-f", str(get_jobset_crd()))
    until(lambda: plane.request("GET", JOBSETS)[0] == 200, "JobSets are served")


def _job(name: str, pods: int) -> dict[str, Any]:
    """Return a Job as JobSet creates it."""
    labels = {JOBSET_NAME: "train", JOB_KEY: job_key("default", name)}
    annotations = {**labels, EXCLUSIVE_TOPOLOGY: "cloud.google.com/gke-nodepool"}
    chips = {"limits": {TPU_RESOURCE: "4"}}
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": {TOPOLOGY_LABEL: "2x2x3", ACCELERATOR_LABEL: "tpu7x"},
        "containers": [{"name": "train", "image": "train", "resources": chips}],
    }
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}
    indexed = {"completionMode": "Indexed", "parallelism": pods, "completions": pods}
    return {"metadata": {"name": name}, "spec": {**indexed, "template": template}}


def _cpu_pod(name: str, **spec: str) -> dict[str, Any]:
    """Return a Pod that asks for no chips, and for a Node that does not exist unless it has one."""
    containers = [{"name": "web", "image": "web", "resources": {"requests": {"cpu": "1"}}}]
    selector = {} if spec else {"nodeSelector": {"a": "b"}}
    return {"metadata": {"name": name}, "spec": {"containers": containers, **selector, **spec}}


def _jobset(name: str) -> dict[str, Any]:
    job = _job(name, pods=1)
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [{"name": "workers", "template": {"spec": job["spec"]}}]},
    }


def _end(setup: RelaySetup, name: str, end: str) -> None:
    created = setup.ask("GET", f"{JOBSETS}/{name}")["metadata"]["creationTimestamp"]
    condition = {"type": end, "status": "True", "reason": "Ended", "message": "It has ended."}
    status = {"conditions": [{**condition, "lastTransitionTime": created}]}
    code, answer = setup.plane.request(
        "PATCH", f"{JOBSETS}/{name}/status", {"status": status}, MERGE_PATCH
    )
    assert code == 200, answer


def _label(setup: RelaySetup, name: str, labels: dict[str, str | None]) -> None:
    change = {"metadata": {"labels": labels}}
    code, answer = setup.plane.request("PATCH", f"{PODS}/{name}", change, MERGE_PATCH)
    assert code == 200, answer


def _list_unschedulable(setup: RelaySetup) -> list[dict[str, Any]]:
    return [
        pod
        for pod in setup.ask("GET", PODS)["items"]
        if any(one["reason"] == "Unschedulable" for one in pod["status"].get("conditions", ()))
    ]


def _is_first(pod: dict[str, Any]) -> bool:
    index: str = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
    return index == "0"
