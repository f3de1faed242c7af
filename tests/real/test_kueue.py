"""JobSets, Jobs and LeaderWorkerSets in the queues of examples/jobset-kueue.yaml, with Kueue itself.

The controllers and webhooks of Kueue, JobSet and LeaderWorkerSet are real; the rest is as in
`tests.real.life`. Kueue is built by ``make control-plane ARGS=--kueue``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from local.cluster.manifests import label_workload
from local.control_plane import workload_controllers
from local.control_plane.plane import OwnControlPlane
from local.show.workload_demo import OPTIONS
from local.tests.real_parts import get_kueue, get_workload_controllers, open_own_control_plane
from tests.real.life import PODS, WITHIN_S, Document, Life, living
from tests.real.pods import kubectl
from tests.real.queues import (
    JOBSETS,
    LABEL,
    MARKS,
    ONE_SLICE,
    group_names,
    is_suspended,
    leave_nothing,
    queue,
    run,
    set_template,
    until_slices_are,
    until_without_quota,
)
from tests.support.harness import ROOT

pytestmark = MARKS

QUEUES = ROOT / "examples" / "jobset-kueue.yaml"


@pytest.fixture(scope="module")
def cluster() -> Iterator[OwnControlPlane]:
    """A cluster with the queues, where each has quota for one slice."""
    folder, kueue = get_workload_controllers(), get_kueue()
    with (
        open_own_control_plane() as plane,
        workload_controllers.running(plane, folder, workload_controllers.JOBSET),
        workload_controllers.running(plane, folder, workload_controllers.LWS),
        workload_controllers.running(plane, kueue, workload_controllers.KUEUE),
    ):
        for manifest in yaml.safe_load_all(QUEUES.read_text()):
            for group in manifest.get("spec", {}).get("resourceGroups", ()):
                group["flavors"][0]["resources"][0]["nominalQuota"] = ONE_SLICE
            kubectl(plane, "apply", "-f", "-", stdin=json.dumps(manifest))
        yield plane


async def test_a_second_jobset_waits_without_a_slice_until_the_first_has_ended(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    async with living(cluster, tmp_path) as life:
        await set_template(life)
        await queue(life, "first")
        await run(life, "first")
        await queue(life, "second")
        slices = await group_names(life)
        assert len(slices) == 1
        assert await is_suspended(life, "second")
        await life.end_pods("Succeeded")
        await life.until(second_runs, "second runs")
        # For half a minute, the slice of the first one exists beside it.
        (left,) = await until_slices_are(life, 1)
        assert left["metadata"]["name"] not in slices
        await leave_nothing(life, "first", "second")


def second_runs(pods: list[Document]) -> bool:
    """Return whether both Pods of the second JobSet run."""
    mine = [one for one in pods if one["metadata"]["name"].startswith("second")]
    return [one["status"]["phase"] for one in mine] == ["Running"] * 2


async def test_a_preempted_jobset_keeps_its_slice_and_is_resumed_there(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    async with living(cluster, tmp_path) as life:
        await set_template(life)
        await queue(life, "low")
        nodes = await run(life, "low")
        await queue(life, "high", priority="high")
        others = await run(life, "high")
        assert await is_suspended(life, "low")
        assert not set(nodes.values()) & set(others.values())
        await until_slices_are(life, 2)
        await life.ask("DELETE", f"{JOBSETS}/high", {"propagationPolicy": "Foreground"})
        # Its Pods may have changed places.
        assert {*(await run(life, "low")).values()} == {*nodes.values()}
        await leave_nothing(life, "low")


async def test_a_preempted_jobset_that_is_not_admitted_again_loses_its_slice_and_gets_another(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    async with living(cluster, tmp_path, suspended_release_minutes=1) as life:
        await set_template(life)
        await queue(life, "low")
        lost = await run(life, "low")
        before = await group_names(life)
        await queue(life, "high", priority="high")
        await run(life, "high")
        (left,) = await until_slices_are(life, 1, WITHIN_S + 60)
        assert left["metadata"]["name"] not in before
        assert await is_suspended(life, "low")
        await life.ask("DELETE", f"{JOBSETS}/high", {"propagationPolicy": "Foreground"})
        assert not set(lost.values()) & set((await run(life, "low")).values())
        await leave_nothing(life, "low")


async def test_a_leader_worker_set_whose_queue_is_stopped_loses_its_slice_and_gets_another(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    async with living(cluster, tmp_path, suspended_release_minutes=1) as life:
        await set_template(life)
        limits = "default: {kinds: [LeaderWorkerSet], slices: 4, chips: 32}"
        await life.ask("PATCH", OPTIONS, {"data": {"namespaces": limits}})
        path = next(one for one, manifest in WAITING.items() if manifest["kind"] != "Job")
        labelled = label_workload(WAITING[path])
        labelled["metadata"]["labels"][f"{LABEL}/queue-name"] = "tpus"
        await life.ask("POST", path.rpartition("/")[0], labelled)
        await until_alone(life, {path: WAITING[path]})
        assert len(await group_names(life)) == 1
        queue = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/tpus"
        await life.ask("PATCH", queue, {"spec": {"stopPolicy": "HoldAndDrain"}})
        await until_slices_are(life, 0, WITHIN_S + 120)
        assert all(one["spec"]["schedulingGates"] for one in await life.client.list(PODS))
        await life.ask("PATCH", queue, {"spec": {"stopPolicy": "None"}})
        await until_alone(life, {path: WAITING[path]})
        await life.ask("DELETE", path, {"propagationPolicy": "Foreground"})
        await leave_nothing(life)


MODELS = {"tpus": "STANDARD", "tpus-reserved": "RESERVATION_BOUND", "tpus-spot": "SPOT"}
"""How each queue buys."""


async def test_the_queue_determines_how_the_slice_is_bought(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    async with living(cluster, tmp_path) as life:
        await set_template(life)
        for name in MODELS:
            await queue(life, name, name)
        found = {
            group["metadata"]["name"].rpartition("-")[0]: group["spec"]["instanceConfig"]
            for group in await until_slices_are(life, 3)
        }
        assert {name: one["provisioningModel"] for name, one in found.items()} == MODELS
        assert [name for name, one in found.items() if "reservation" in one] == ["tpus-reserved"]
        await leave_nothing(life, *MODELS)


async def test_a_jobset_that_selects_spot_in_the_queue_of_a_reservation_holds_its_quota_without_a_slice(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    """Kueue admits it, because the flavor has no such key."""
    async with living(cluster, tmp_path) as life:
        await set_template(life)
        await queue(life, "spot", "tpus-reserved", selects={"cloud.google.com/gke-spot": "true"})
        assert await life.until_reported("CreationFailed") == [
            "the Pod's nodeSelector has both cloud.google.com/gke-spot and "
            "cloud.google.com/reservation-name: VMs of a reservation are never Spot; it must have one "
            "of them"
        ]
        await queue(life, "reserved", "tpus-reserved")
        await until_without_quota(life, "reserved")
        assert (await is_suspended(life, "spot"), await group_names(life)) == (False, set())
        await life.ask("DELETE", f"{JOBSETS}/spot", {"propagationPolicy": "Foreground"})
        (group,) = await until_slices_are(life, 1)
        assert group["spec"]["instanceConfig"]["provisioningModel"] == "RESERVATION_BOUND"
        await leave_nothing(life, "reserved")


async def test_an_indexed_job_and_a_leader_worker_set_have_no_slice_until_they_are_admitted(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    async with living(cluster, tmp_path) as life:
        await set_template(life)
        limits = "default: {kinds: [Job, LeaderWorkerSet], slices: 4, chips: 32}"
        await life.ask("PATCH", OPTIONS, {"data": {"namespaces": limits}})
        # Without their own key, Pods of LeaderWorkerSets would run on the slice that the JobSet leaves.
        await life.ask("PATCH", "/api/v1/namespaces/default", {"metadata": {"labels": TIED}})
        await queue(life, "first")
        await run(life, "first")
        for path, manifest in WAITING.items():
            labelled = label_workload(manifest)
            labelled["metadata"]["labels"][f"{LABEL}/queue-name"] = "tpus"
            await life.ask("POST", path.rpartition("/")[0], labelled)
        assert len(await group_names(life)) == 1
        await life.ask("DELETE", f"{JOBSETS}/first", {"propagationPolicy": "Foreground"})
        left = dict(WAITING)
        while left:  # both were created in one second, so either may be the first
            path = await until_alone(life, left)
            name = left.pop(path)["metadata"]["name"]
            (group,) = await until_slices_are(life, 1)
            assert group["metadata"]["name"].startswith(name)
            await life.ask("DELETE", path, {"propagationPolicy": "Foreground"})
        await leave_nothing(life)


def read(file: str) -> Document:
    """Read an example of one object."""
    return dict(yaml.safe_load((ROOT / "examples" / file).read_text()))


def list_waiting() -> dict[str, Document]:
    """Return a Job of one host, and a LeaderWorkerSet of one group of two hosts, by path."""
    job, lws = read("indexed-job-v6e-2x2.yaml"), read("leaderworkerset-v6e-2x4.yaml")
    job["spec"] |= {"completions": 1, "parallelism": 1}
    jobs, sets = "/apis/batch/v1/namespaces/default/jobs", workload_controllers.LWS.path
    return {f"{path}/{one['metadata']['name']}": one for path, one in ((jobs, job), (sets, lws))}


WAITING = list_waiting()
TIED = {"tpu-functions.dev/tie": "enabled"}


async def until_alone(life: Life, workloads: Mapping[str, Document]) -> str:
    """Wait until the Pods of one workload run, and no others; return its path."""
    found: list[str] = []

    def check(pods: list[Document]) -> bool:
        names = [one["metadata"]["name"] for one in pods if one["status"]["phase"] == "Running"]
        for path, manifest in workloads.items():
            count = 1 if manifest["kind"] == "Job" else 2
            mine = [one for one in names if one.startswith(manifest["metadata"]["name"])]
            if mine == names and len(mine) == count:
                found.append(path)
        return bool(found)

    await life.until(check, "only the Pods of one workload run")
    return found[0]
