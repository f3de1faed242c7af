"""The life of a JobSet whose Jobs get slices, with JobSet's own controller and webhooks.

The control plane and JobSet are real, the product runs as in ``make demo-jobset``, and its own webhooks
review the Jobs and Pods. VMs and kubelets are simulated: a Pod ends as its annotation says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from functions import release_slice
from local.cluster.manifests import GROUPS, NODES, item_path
from local.control_plane import workload_controllers
from local.control_plane.plane import OwnControlPlane
from local.jobsets import jobset as stand_in
from local.jobsets.objects import Call
from local.tests.jobsets.cluster import jobset
from local.tests.real_parts import get_workload_controllers, open_own_control_plane
from shared.base.timestamps import parse_time
from shared.frame.step import handle
from shared.runtime import get_runtime
from shared.slices.by_node_group.provider import RELEASE_ANNOTATION
from shared.triggers.message import SLICE_KIND, Cause, Message
from shared.triggers.routes import RELEASE_SLICE
from tests.real.inventory import list_everything
from tests.real.life import HANGS, JOBSET, LABELS, PODS, Document, Life, living
from tests.real.relay.waiting import until
from tests.support.pushes import push

pytestmark = [
    pytest.mark.real,
    pytest.mark.processes,
    pytest.mark.xdist_group("jobset controller"),
]

TRAIN = workload_controllers.JOBSET.path + "/train"


@pytest.fixture(scope="module")
def cluster() -> Iterator[OwnControlPlane]:
    """A cluster with JobSet."""
    folder = get_workload_controllers()
    with (
        open_own_control_plane() as plane,
        workload_controllers.running(plane, folder, workload_controllers.JOBSET),
    ):
        yield plane


async def test_a_jobset_keeps_its_slices_until_it_is_deleted_in_the_foreground(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    before = list_everything(cluster)
    async with living(cluster, tmp_path) as life:
        await life.apply()
        nodes = await life.run(attempt=0)
        assert [len(one) for one in nodes.values()] == [2, 2]
        assert len(set().union(*nodes.values())) == 4
        for pod in await life.client.list(PODS):
            labels, (container,) = pod["metadata"]["labels"], pod["spec"]["containers"]
            assert pod["spec"]["nodeSelector"]["job-key"] == labels[f"{LABELS}/job-key"]
            env = {one["name"]: one.get("value") for one in container["env"]}
            assert env["MEGASCALE_SLICE_ID"] == labels[f"{LABELS}/job-index"]

        await life.end_pods("Failed", "multislice-slice-0-1")
        assert await life.run(attempt=1) == nodes

        await life.ask("PATCH", JOBSET, {"spec": {"suspend": True}})
        await life.until(lambda pods: not pods, "the Pods are gone")
        await life.ask("PATCH", JOBSET, {"spec": {"suspend": False}})
        assert await life.run(attempt=1) == nodes

        await life.ask("DELETE", JOBSET, {"propagationPolicy": "Foreground"})
        await life.until_jobset_is_gone()
        for group in await life.client.list(GROUPS):
            assert RELEASE_ANNOTATION in group["metadata"]["annotations"]
            await life.ask("DELETE", item_path(GROUPS, group))
        await life.until_slices_are_gone()
    assert list_everything(cluster) ^ before == set()


async def test_the_slices_of_a_jobset_without_our_webhooks_that_its_ttl_deletes_are_released(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    """JobSet's exclusive topology alone separates its Jobs."""
    async with living(cluster, tmp_path, calls_webhooks=False) as life:
        await life.apply(ttlSecondsAfterFinished=2)
        nodes = await life.run(attempt=0)
        assert sorted(map(len, nodes.values())) == [2, 2]
        pools = {
            one["metadata"]["name"]: one["metadata"]["labels"].get("cloud.google.com/gke-nodepool")
            for one in await life.client.list(NODES)
        }
        assert len({frozenset(pools[one] for one in names) for names in nodes.values()}) == 2
        assert len({pools[one] for names in nodes.values() for one in names}) == 2
        for pod in await life.client.list(PODS):
            assert "job-key" not in pod["spec"]["nodeSelector"]
        await life.end_pods("Succeeded")
        await life.until_jobset_is_gone()
        await life.until_slices_are_gone()


@pytest.mark.slow
async def test_a_pod_that_hangs_in_a_deletion_in_the_foreground_keeps_its_slice_for_ten_minutes(
    cluster: OwnControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JobSet waits for the Pod, the Pod for its Node, and the Node for the slice."""
    async with living(cluster, tmp_path) as life:
        await life.apply()
        await life.run(attempt=0)
        await life.end_pods("true", "multislice-slice-0-1", key=HANGS)
        await life.ask("DELETE", JOBSET, {"propagationPolicy": "Foreground"})
        await life.until(lambda pods: len(pods) == 1, "one Pod is left")
        (message,) = await life.until_reported("InUse")
        (pod,) = await life.client.list(PODS)
        groups = await life.client.list(GROUPS)
        (group,) = [one for one in groups if one["metadata"]["name"] in message]
        assert message.endswith(
            "because Pods of Job default/multislice-slice-0 run on it: it is deleted when they have "
            "ended, at the latest ten minutes after the grace period of their deletion"
        )
        jobset = await life.ask("GET", JOBSET)
        assert "foregroundDeletion" in jobset["metadata"]["finalizers"]
        overdue = parse_time(pod["metadata"]["deletionTimestamp"]) + timedelta(minutes=10)
        release = partial(release_at, life, monkeypatch, group)
        assert release(overdue - timedelta(seconds=1)) == "InUse"
        assert release(overdue) == "Releasing"
        await life.until_slices_are_gone()
        await life.until_jobset_is_gone()


def release_at(
    life: Life, monkeypatch: pytest.MonkeyPatch, group: Document, moment: datetime
) -> str:
    """Run release_slice about a slice in this process, at a time to come; return the outcome."""
    for name, value in life.environment("release-slice").items():
        monkeypatch.setenv(name, value)
    runtime = replace(get_runtime.__wrapped__(), now=lambda: moment)
    metadata = group["metadata"]
    names = metadata["namespace"], metadata["name"], metadata["uid"]
    message = Message(*names, Cause.RESYNC, moment, kind=SLICE_KIND)
    body = push(json.loads(message.encode()))
    return handle(RELEASE_SLICE, release_slice.STEP.run, body, runtime).outcome


def test_the_stand_in_creates_and_resumes_jobs_as_jobset_does(cluster: OwnControlPlane) -> None:
    given = {"zone": "a", "kept": "a"}
    manifest = jobset(suspend=True, selector=given, restart_policy="")
    cluster.request("POST", workload_controllers.JOBSET.path, manifest)
    until(lambda: len(list_jobs(cluster)) == 2, "the Jobs are created")
    for name, expected in simulate(cluster, {}).items():
        # JobSet's webhook adds the affinity, and the label of the priority, to Pods.
        del expected["spec"]["template"]["spec"]["affinity"]
        del expected["spec"]["template"]["metadata"]["labels"][f"{LABELS}/priority"]
        assert find_difference(expected, list_jobs(cluster)[name]) == ""
    _, stored = cluster.request("GET", TRAIN)
    (replicated,) = stored["spec"]["replicatedJobs"]
    replicated["template"]["spec"]["template"]["spec"]["nodeSelector"] = {"zone": "b", "new": "b"}
    change_jobset(cluster, replicatedJobs=[replicated])
    before = list_jobs(cluster)
    change_jobset(cluster, suspend=False)
    until(
        lambda: not any(one["spec"]["suspend"] for one in list_jobs(cluster).values()),
        "the Jobs are resumed",
    )
    for name, expected in simulate(cluster, before).items():
        merged = {"zone": "b", "kept": "a", "new": "b"}
        assert selector_of(list_jobs(cluster)[name]) == merged
        assert given | selector_of(expected) == merged
    cluster.request("DELETE", TRAIN, {"propagationPolicy": "Foreground"})


def list_jobs(cluster: OwnControlPlane) -> dict[str, Document]:
    """Return the Jobs by their names."""
    _, found = cluster.request("GET", "/apis/batch/v1/namespaces/default/jobs")
    kind = {"apiVersion": "batch/v1", "kind": "Job"}
    return {one["metadata"]["name"]: {**kind, **one} for one in found["items"]}


def selector_of(job: Document) -> dict[str, str]:
    """Return the node selector of a Job's Pods."""
    return dict(job["spec"]["template"]["spec"]["nodeSelector"])


def change_jobset(cluster: OwnControlPlane, **spec: Any) -> None:
    """Change fields of the JobSet's spec."""
    kind = "application/merge-patch+json"
    code, answer = cluster.request("PATCH", TRAIN, {"spec": spec}, kind)
    assert code == 200, answer


def simulate(cluster: OwnControlPlane, jobs: Mapping[str, Document]) -> dict[str, Document]:
    """Return what the stand-in sends about the Jobs of the stored JobSet, by their names."""
    _, stored = cluster.request("GET", TRAIN)
    steps = stand_in.step(stored, [*jobs.values()], datetime.now(UTC), adds_selector=False)
    calls = [one for one in steps if isinstance(one, Call) and "/apis/batch/" in one.path]
    assert len(calls) == 2
    bodies = [one.body or {} for one in calls]
    names = [one.path.rpartition("/")[2] for one in calls]
    return {
        body["metadata"].get("name", name): body for name, body in zip(names, bodies, strict=True)
    }


def find_difference(expected: Any, actual: Any, path: str = "") -> str:
    """Describe the first part of a document that another one does not contain."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        parts = (
            find_difference(part, actual.get(key), f"{path}/{key}")
            for key, part in expected.items()
        )
        return next(filter(None, parts), "")
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        both = enumerate(zip(expected, actual, strict=True))
        parts = (find_difference(*pair, f"{path}/{number}") for number, pair in both)
        return next(filter(None, parts), "")
    return "" if expected == actual else f"{path}: {expected} is not {actual}"
