"""JobSets on a real API server, Job controller and scheduler; JobSet's controller is simulated."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.base.access import read_kubeconfig
from local.base.cluster_client import ClusterClient
from local.control_plane import jobset_crd
from local.control_plane.plane import OwnControlPlane
from local.jobsets import BESIDE_A_CONTROL_PLANE, Controller, LiveStandIn, PodBehaviour
from local.tests.jobsets.cluster import SLICE, TPU, Manifest, jobset
from local.tests.real_parts import get_jobset_crd, open_own_control_plane
from tests.real.relay.waiting import until
from tests.real.webhooks import Served, serving
from webhook.admit_job import AdmissionSettings, admit

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("jobsets")]

ROOT = Path(__file__).parents[2]
COMPONENT = ROOT / "infra" / "chart" / "manifests" / "admit-jobs"
EXAMPLES = sorted((ROOT / "examples").glob("jobset-v*.yaml"))
JOB_KEY = "jobset.sigs.k8s.io/job-key"
OPT_OUT = "tpu-provisioner.cloud.google.com/disable-autoprovisioning"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
NO_KUBELETS = ("--node-monitor-grace-period=600s",)
"""The Nodes have no kubelets, so this keeps them Ready during the tests."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnControlPlane]:
    """A cluster with JobSet's CRD, the webhook in effect, and the simulated controllers running."""
    admission = partial(admit, settings=AdmissionSettings())
    with (
        open_own_control_plane(controller_flags=NO_KUBELETS) as plane,
        serving(tmp_path_factory.mktemp("tls"), {"/mutate-jobs": admission}) as served,
    ):
        install(plane, served)
        with simulating(plane, tmp_path_factory.mktemp("access")):
            yield plane


def install(plane: OwnControlPlane, served: Served) -> None:
    definition = jobset_crd.read(get_jobset_crd())
    for manifest in (definition, served.configure(COMPONENT / "webhook.yaml")):
        done = plane.run_kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(manifest))
        assert done.returncode == 0, done.stderr
    until(lambda: plane.request("GET", JOBSETS)[0] == 200, "JobSets are served")
    probe = job(labels={JOB_KEY: "0123456789"})
    until(lambda: "job-key" in selector_of(dry_run(plane, JOBS, probe)), "the webhook is called")


@contextmanager
def simulating(plane: OwnControlPlane, scratch: Path) -> Iterator[None]:
    """Run the simulated controllers in a thread; their errors fail the test at the end."""
    access = read_kubeconfig(plane.kubeconfig, scratch)
    stop: asyncio.Future[asyncio.Event] = asyncio.Future(loop=(loop := asyncio.new_event_loop()))
    failures: list[BaseException] = []

    async def run() -> None:
        ending = asyncio.Event()
        stop.set_result(ending)
        async with ClusterClient(access) as client:
            behaviour = PodBehaviour(run_s=2.0)
            controllers = BESIDE_A_CONTROL_PLANE - {
                Controller.JOB_SELECTOR
            }  # the webhook writes it
            live = LiveStandIn(client, controllers=controllers, behaviour=behaviour)
            async with live.at_work():
                await ending.wait()

    def run_loop() -> None:
        try:
            loop.run_until_complete(run())
        except Exception as failure:
            failures.append(failure)
            raise

    thread = threading.Thread(target=run_loop, daemon=True)
    thread.start()
    yield
    loop.call_soon_threadsafe(lambda: stop.result().set())
    thread.join(30)
    assert not failures


def job(
    labels: dict[str, str] | None = None, selector: dict[str, str] | None = None, chips: str = "4"
) -> Manifest:
    container: Manifest = {"name": "jax", "image": "python"}
    if chips:
        container["resources"] = {"limits": {"google.com/tpu": chips}}
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "nodeSelector": TPU if selector is None else selector,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "probe", "labels": labels or {}},
        "spec": {"suspend": True, "template": {"spec": pod}},
    }


def dry_run(plane: OwnControlPlane, path: str, manifest: Manifest) -> Manifest:
    """Return the object as a dry run stores it; an unknown field is an error."""
    code, made = plane.request("POST", f"{path}?dryRun=All&fieldValidation=Strict", manifest)
    assert code == 201, made
    found: Manifest = made
    return found


def selector_of(made: Manifest) -> dict[str, str]:
    found: dict[str, str] = made["spec"]["template"]["spec"].get("nodeSelector", {})
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_crd_of_jobset_accepts_the_example(path: Path, cluster: OwnControlPlane) -> None:
    assert dry_run(cluster, JOBSETS, yaml.safe_load(path.read_text()))["kind"] == "JobSet"


UNCHANGED_JOBS: list[tuple[str, Manifest]] = [
    ("no JobSet", job()),
    ("opted out", job({JOB_KEY: "0123456789", OPT_OUT: "True"})),
    ("no TPUs", job({JOB_KEY: "0123456789"}, chips="")),
    ("no topology", job({JOB_KEY: "0123456789"}, selector={"disk": "ssd"})),
]


@pytest.mark.parametrize(
    "manifest", [row[1] for row in UNCHANGED_JOBS], ids=[row[0] for row in UNCHANGED_JOBS]
)
def test_a_job_that_needs_no_slice_is_stored_unchanged(
    manifest: Manifest, cluster: OwnControlPlane
) -> None:
    assert "job-key" not in selector_of(dry_run(cluster, JOBS, manifest))


def test_the_pods_of_each_job_are_bound_to_its_slice_and_only_to_it(
    cluster: OwnControlPlane,
) -> None:
    code, made = cluster.request("POST", JOBSETS, jobset())
    assert code == 201, made
    first_pods = {"train-slice-0-0", "train-slice-1-0"}
    until(lambda: set(unschedulable(cluster)) == first_pods, "the first Pods are unschedulable")
    keys = {pod["metadata"]["labels"][JOB_KEY] for pod in unschedulable(cluster).values()}
    for name, labels in (("unassigned", {}), *((key[:5], {"job-key": key}) for key in keys)):
        add_slice(cluster, name, labels)
    until(lambda: len(node_names(cluster)) == 4, "all Pods are bound")
    for index in range(2):
        pods = [
            pod for pod in items(cluster, PODS) if hostname(pod).startswith(f"train-slice-{index}")
        ]
        (key,) = {pod["metadata"]["labels"][JOB_KEY] for pod in pods}
        assert {pod["spec"]["nodeName"] for pod in pods} == {f"{key[:5]}-0", f"{key[:5]}-1"}
    until(lambda: terminal_state(cluster) == "Completed", "the JobSet is complete")
    cluster.request("DELETE", f"{JOBSETS}/train")
    until(lambda: not items(cluster, PODS) and not items(cluster, JOBS), "all is deleted")


def add_slice(plane: OwnControlPlane, name: str, labels: dict[str, str]) -> None:
    """Add two Nodes that are Ready and have four chips each."""
    for number in range(2):
        metadata = {"name": f"{name}-{number}", "labels": {**TPU, SLICE: name, **labels}}
        plane.request("POST", "/api/v1/nodes", {"metadata": metadata})
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        resources = {"google.com/tpu": "4", "pods": "15"}
        status = {"conditions": [ready], "capacity": resources, "allocatable": resources}
        code, answer = plane.request(
            "PATCH",
            f"/api/v1/nodes/{name}-{number}/status",
            {"status": status},
            "application/merge-patch+json",
        )
        assert code == 200, answer


def items(plane: OwnControlPlane, path: str) -> list[Manifest]:
    found: list[Manifest] = plane.request("GET", path)[1]["items"]
    return found


def hostname(pod: Manifest) -> str:
    return str(pod["spec"]["hostname"])


def node_names(plane: OwnControlPlane) -> dict[str, str]:
    """Return the Nodes of the bound Pods, by hostname."""
    pods = items(plane, PODS)
    return {hostname(pod): pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]}


def unschedulable(plane: OwnControlPlane) -> dict[str, Manifest]:
    """Return the first Pods that the scheduler reports as unschedulable, by hostname."""

    def is_unschedulable(pod: Manifest) -> bool:
        conditions: list[Any] = pod["status"].get("conditions", [])
        return any(one.get("reason") == "Unschedulable" for one in conditions)

    pods = [pod for pod in items(plane, PODS) if hostname(pod).endswith("-0")]
    return {hostname(pod): pod for pod in pods if is_unschedulable(pod)}


def terminal_state(plane: OwnControlPlane) -> str:
    _, found = plane.request("GET", f"{JOBSETS}/train")
    return str(found.get("status", {}).get("terminalState", ""))
