"""Pods that the real scheduler finds no Node for, and JobSets by JobSet's own definition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from local.control_plane.plane import OwnControlPlane
from shared.base.names import ACCELERATOR_LABEL, JOB_KEY, JOBSET_NAME, TOPOLOGY_LABEL, TPU_RESOURCE
from shared.slices.jobsets import EXCLUSIVE_TOPOLOGY, OPT_OUT, job_key
from tests.manifests import manifest
from tests.real.relay.conftest import INSTALLATION, MERGE_PATCH, Scene
from tests.real.relay.patience import until
from tests.real.relay.process import RelayProcess, request_token, run_relay, write_kubeconfig
from tests.real_parts import get_jobset_crd

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("relay")]

COMPONENTS = Path(INSTALLATION) / "components"
MANIFESTS = [
    str(path)
    for name in ("jobsets", "jobsets-node-groups")
    for path in (COMPONENTS / name).glob("[!k]*.yaml")
]
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
MISSING = (
    "404: the API server does not know /apis/jobset.x-k8s.io/v1alpha2/jobsets; "
    "its CustomResourceDefinition must be applied"
)


@pytest.fixture
def rights(scene: Scene) -> Iterator[None]:
    """What the components give the relay and the steps, while a test runs; what it leaves goes."""
    files = [argument for path in MANIFESTS for argument in ("-f", path)]
    _kubectl(scene.plane, "apply", *files)
    yield
    _kubectl(scene.plane, "delete", *files)
    _kubectl(scene.plane, "delete", "crd", "jobsets.jobset.x-k8s.io", "--ignore-not-found")
    _kubectl(scene.plane, "delete", "job,pods", "--all", "--force", "--grace-period=0")


@contextmanager
def _a_relay(scene: Scene, folder: str) -> Iterator[RelayProcess]:
    """A relay that tells of JobSets; it may not have listed yet."""
    (scene.folder / folder).mkdir()
    token = request_token(scene.plane)
    kubeconfig = write_kubeconfig(scene.plane, scene.folder / folder, scene.wire.port, token)
    with run_relay(kubeconfig, scene.mailbox.address, JOBSETS="true") as relay:
        yield relay


@pytest.mark.usefixtures("rights")
def test_of_a_jobs_pods_the_first_is_told_of_when_no_node_takes_it(scene: Scene) -> None:
    _apply_definition(scene.plane)
    with _a_relay(scene, "first") as relay:
        relay.wait_until_listed(kinds=("Pod", "JobSet"))
        scene.ask("POST", JOBS, _job("train-workers-0", pods=3))
        until(lambda: len(_list_unschedulable(scene)) == 3, "the scheduler has tried all Pods")
        leader = next(pod for pod in _list_unschedulable(scene) if _is_first(pod))
        name, uid = leader["metadata"]["name"], leader["metadata"]["uid"]
        letter = scene.mailbox.wait_for_news("provision_slice", name, "Unschedulable")
        assert (letter.document["kind"], letter.document["uid"]) == ("Pod", uid)
        until(lambda: relay.metric("waiting_pods") == 1, "one Pod waits")
        assert relay.metric("published_messages_total", step="provision_slice") == 1

        _label(scene, name, {OPT_OUT: "true"})
        until(lambda: relay.metric("waiting_pods") == 0, "it wants no slice")
        _label(scene, name, {OPT_OUT: None})
        until(
            lambda: relay.metric("published_messages_total", step="provision_slice") == 2,
            "it is told of again",
        )

        running = {"status": {"phase": "Running"}}
        scene.plane.request("PATCH", f"{PODS}/{name}/status", running, MERGE_PATCH)
        until(lambda: relay.metric("waiting_pods") == 0, "it waits no more")
        assert relay.metric("watch_events_total", kind="Pod", event="DELETED") == 1
        assert scene.plane.request("GET", f"{PODS}/{name}")[0] == 200


@pytest.mark.usefixtures("rights")
def test_a_jobset_is_told_of_when_it_ends_or_goes_and_a_new_relay_tells_what_is_fresh(
    scene: Scene,
) -> None:
    _apply_definition(scene.plane)
    with _a_relay(scene, "first") as relay:
        relay.wait_until_listed(kinds=("Pod", "JobSet"))
        for name in ("done", "gone", "busy"):
            scene.ask("POST", JOBSETS, _jobset(name))
        _end(scene, "done", "Completed")
        scene.mailbox.wait_for_news("release_slice", "done", "Completed")
        scene.ask("DELETE", f"{JOBSETS}/gone")
        scene.mailbox.wait_for_news("release_slice", "gone", "Gone")
        until(
            lambda: relay.metric("published_messages_total", step="release_slice") == 2,
            "both have been counted",
        )
        assert relay.metric("jobsets") == 2
    scene.mailbox.letters.clear()
    with _a_relay(scene, "second") as relay:
        scene.mailbox.wait_for_news("release_slice", "done", "Completed")
        until(
            lambda: relay.metric("published_messages_total", step="release_slice") == 1,
            "it has been counted",
        )


@pytest.mark.usefixtures("rights")
def test_without_jobsets_definition_it_tells_of_groups_and_of_jobsets_when_that_comes(
    scene: Scene,
) -> None:
    with _a_relay(scene, "first") as relay:
        line = relay.wait_for_line(lambda line: line.get("detail") == MISSING, "what is missing")
        assert (line["kind"], line["severity"]) == ("JobSet", "WARNING")
        relay.wait_until_listed(kinds=("TPUNodeGroup", "Node", "Pod"))
        assert relay.get("/readyz") == (503, f"JobSet: not listed yet: {MISSING}\n")
        assert relay.get("/healthz") == (200, "ok\n")
        scene.add_group("train")
        until(
            lambda: relay.metric("published_messages_total", step="create_resources") == 1,
            "it tells of the group",
        )
        _apply_definition(scene.plane)
        relay.wait_until_listed(kinds=("JobSet",))
        assert relay.get("/readyz") == (200, "ok\n")
        scene.ask("POST", JOBSETS, _jobset("gone"))
        scene.ask("DELETE", f"{JOBSETS}/gone")
        scene.mailbox.wait_for_news("release_slice", "gone", "Gone")


@pytest.mark.usefixtures("rights")
def test_the_steps_of_jobsets_may_delete_slices_of_jobsets_and_no_other_group(
    scene: Scene,
) -> None:
    scene.add_group("somebodys")
    made = manifest("train-0123456789abcdef")
    made["metadata"]["labels"] = {"tpu-functions.dev/jobset-name": "train"}
    scene.ask("POST", "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups", made)
    words = "the steps of JobSets may only touch TPUNodeGroups made for JobSets"
    delete = ("delete", "tng", "--as=system:serviceaccount:tpu-functions:release-slice")
    until(
        lambda: words in scene.plane.run_kubectl(*delete, "somebodys", "--dry-run=server").stderr,
        "another group is refused",
    )
    said = scene.plane.run_kubectl(*delete, "train-0123456789abcdef")
    assert (said.returncode, said.stderr) == (0, "")


def _kubectl(plane: OwnControlPlane, *arguments: str) -> None:
    said = plane.run_kubectl(*arguments)
    assert said.returncode == 0, said.stderr


def _apply_definition(plane: OwnControlPlane) -> None:
    # Client-side it would be copied into an annotation, for which it is too long.
    _kubectl(plane, "apply", "--server-side", "-f", str(get_jobset_crd()))
    until(lambda: plane.request("GET", JOBSETS)[0] == 200, "JobSets are served")


def _job(name: str, pods: int) -> dict[str, Any]:
    """A Job as JobSet makes it."""
    marks = {JOBSET_NAME: "train", JOB_KEY: job_key("default", name)}
    annotations = {**marks, EXCLUSIVE_TOPOLOGY: "cloud.google.com/gke-nodepool"}
    chips = {"limits": {TPU_RESOURCE: "4"}}
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": {TOPOLOGY_LABEL: "2x2x3", ACCELERATOR_LABEL: "tpu7x"},
        "containers": [{"name": "train", "image": "train", "resources": chips}],
    }
    template = {"metadata": {"labels": marks, "annotations": annotations}, "spec": pod}
    indexed = {"completionMode": "Indexed", "parallelism": pods, "completions": pods}
    return {"metadata": {"name": name}, "spec": {**indexed, "template": template}}


def _jobset(name: str) -> dict[str, Any]:
    job = _job(name, pods=1)
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [{"name": "workers", "template": {"spec": job["spec"]}}]},
    }


def _end(scene: Scene, name: str, end: str) -> None:
    moment = scene.ask("GET", f"{JOBSETS}/{name}")["metadata"]["creationTimestamp"]
    condition = {"type": end, "status": "True", "reason": "Ended", "message": "It has ended."}
    status = {"conditions": [{**condition, "lastTransitionTime": moment}]}
    code, answer = scene.plane.request(
        "PATCH", f"{JOBSETS}/{name}/status", {"status": status}, MERGE_PATCH
    )
    assert code == 200, answer


def _label(scene: Scene, name: str, labels: dict[str, str | None]) -> None:
    change = {"metadata": {"labels": labels}}
    code, answer = scene.plane.request("PATCH", f"{PODS}/{name}", change, MERGE_PATCH)
    assert code == 200, answer


def _list_unschedulable(scene: Scene) -> list[dict[str, Any]]:
    return [
        pod
        for pod in scene.ask("GET", PODS)["items"]
        if any(one["reason"] == "Unschedulable" for one in pod["status"].get("conditions", ()))
    ]


def _is_first(pod: dict[str, Any]) -> bool:
    index: str = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
    return index == "0"
