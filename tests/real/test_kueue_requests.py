"""ProvisioningRequests of Kueue itself, in the queue of examples/kueue-slices-first.yaml.

The controllers are those of `tests.real.test_kueue`. Each flavor has quota for one slice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from local import jobsets
from local.cloud.simulation import PROJECT
from local.cluster.manifests import GROUPS, label_workload
from local.control_plane import workload_controllers
from local.control_plane.plane import OwnControlPlane
from local.show.workload_demo import OPTIONS
from local.tests.real_parts import get_kueue, get_workload_controllers, open_own_control_plane
from shared.base.documents import find_condition
from shared.base.names import WORKLOAD_LABEL
from tests.real.life import PODS, WITHIN_S, Document, Life, living
from tests.real.pods import kubectl
from tests.real.queues import (
    JOBSETS,
    LABEL,
    MARKS,
    ONE_SLICE,
    WORKLOADS,
    is_suspended,
    leave_nothing,
    queue,
    run,
    until_slices_are,
    until_without_quota,
)
from tests.support.class_specs import CLASSES
from tests.support.harness import ROOT

pytestmark = MARKS

QUEUE = "slices-first"
EXAMPLE = list(yaml.safe_load_all((ROOT / "examples" / f"kueue-{QUEUE}.yaml").read_text()))
DEFINITION = Path(jobsets.__file__).parent / "provisioning_request.yaml"
GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
REQUESTS = "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests"
LISTED = "default: {kinds: [JobSet, Job, LeaderWorkerSet, ProvisioningRequest], slices: 4}"
CLASS = "cloud.google.com/compute-class"
RESERVATION = f"projects/{PROJECT}/zones/us-east5-a/reservations/my-tpu-reservation"
RESERVED, SPOT, FLEX = ({CLASS: f"v6e-{one}"} for one in ("reserved", "spot", "flex-start"))
INSERTS = [
    f"{one}.insert" for one in ("resourcePolicies", "instanceTemplates", "instanceGroupManagers")
]
INSERT = INSERTS[-1]
NEXT_CANDIDATE_WITHIN_S = WITHIN_S + 120
"""Whether to try again is looked at once a minute."""
MOST_CALLS = 40
"""To Compute Engine in the life of a slice of two hosts. Alone and on time, such a life has 27 to 33."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[OwnControlPlane]:
    """A cluster with the queue. Kueue serves requests only if their definition exists when it starts."""
    folder, kueue = get_workload_controllers(), get_kueue()
    with open_own_control_plane() as plane:
        kubectl(plane, "apply", "-f", str(DEFINITION))
        kubectl(plane, "wait", "--for=condition=Established", "crd", "--all")
        with (
            workload_controllers.running(plane, folder, workload_controllers.JOBSET),
            workload_controllers.running(plane, folder, workload_controllers.LWS),
            workload_controllers.running(plane, kueue, workload_controllers.KUEUE),
        ):
            for manifest in EXAMPLE:
                for group in manifest["spec"].get("resourceGroups", ()):
                    for flavor in group["flavors"]:
                        flavor["resources"][0]["nominalQuota"] = ONE_SLICE
                if manifest["kind"] != "TPUSliceClass":
                    kubectl(plane, "apply", "-f", "-", stdin=json.dumps(manifest))
            high = {
                "apiVersion": workload_controllers.KUEUE.api_version,
                "kind": "WorkloadPriorityClass",
                "metadata": {"name": "high"},
                "value": 1000,
            }
            kubectl(plane, "apply", "-f", "-", stdin=json.dumps(high))
            yield plane


@asynccontextmanager
async def serving(
    cluster: OwnControlPlane, folder: Path, vms: int = 64, **settings: Any
) -> AsyncIterator[Life]:
    """Run the product with the example's classes; the reservation has this number of VMs."""
    async with living(cluster, folder, **settings) as life:
        life.supervisor.gce.faults.set_reservation(RESERVATION, "ct6e-standard-4t", vms)
        await life.ask("PATCH", OPTIONS, {"data": {"namespaces": LISTED}})
        for manifest in EXAMPLE:
            if manifest["kind"] == "TPUSliceClass":
                manifest = manifest | {"spec": manifest["spec"] | {"giveUpAfter": "30s"}}
                await life.ask("POST", CLASSES, manifest)
        yield life
        calls = life.supervisor.gce.calls.counts()
        assert {calls[one] for one in INSERTS} == {calls[INSERT]}
        assert calls.total() <= MOST_CALLS * calls[INSERT], calls


async def until(
    life: Life, condition: Callable[[list[Document]], bool], path: str = REQUESTS
) -> None:
    """Wait until a condition holds for the objects of a collection."""
    try:
        async with asyncio.timeout(WITHIN_S):
            while not condition(await life.client.list(path)):
                await asyncio.sleep(0.1)
    except TimeoutError:
        found = [one.get("status") for one in await life.client.list(path)]
        raise AssertionError(f"not in {WITHIN_S:.0f} s: {found}") from None


def is_provisioned(request: Document) -> bool:
    return find_condition(request.get("status", {}), "Provisioned").get("status") == "True"


async def list_kinds(life: Life) -> dict[str, str]:
    """The provisioning model of each slice, by the name of its owner."""
    found = await life.client.list(GROUPS)
    return {
        one["metadata"]["name"].rpartition("-")[0]: one["spec"]["instanceConfig"][
            "provisioningModel"
        ]
        for one in found
    }


def count_inserts(life: Life) -> int:
    return life.supervisor.gce.calls.counts()[INSERT]


async def test_a_second_jobset_waits_for_quota_without_a_request_until_the_first_has_ended(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    async with serving(cluster, tmp_path) as life:
        seen: list[bool] = []

        def note(requests: list[Document]) -> bool:
            seen.extend(is_provisioned(one) for one in requests)
            return True in seen

        await queue(life, "first", QUEUE, selects=RESERVED)
        await until(life, note)
        assert seen[0] is False
        nodes = await run(life, "first")
        (request,) = await life.client.list(REQUESTS)
        await queue(life, "second", QUEUE, selects=RESERVED)
        await until_without_quota(life, "second")
        await until_slices_are(life, 1)
        assert await is_suspended(life, "second")
        assert [one["metadata"]["uid"] for one in await life.client.list(REQUESTS)] == [
            request["metadata"]["uid"]
        ]
        assert count_inserts(life) == 1
        for pod in await life.client.list(PODS):
            consumed = pod["metadata"]["annotations"]
            assert (
                consumed["autoscaling.x-k8s.io/consume-provisioning-request"]
                == (request["metadata"]["name"])
            )
        await life.end_pods("Succeeded")
        await life.until(
            lambda pods: len([one for one in pods if is_running(one, "second")]) == 2,
            "the second runs",
        )
        await until_slices_are(life, 1)
        pods = [one for one in await life.client.list(PODS) if is_running(one, "second")]
        assert not {one["spec"]["nodeName"] for one in pods} & set(nodes.values())
        assert count_inserts(life) == 2
        await leave_nothing(life, "first", "second")
        await until(life, lambda requests: not requests)


def is_running(pod: Document, name: str) -> bool:
    return bool(pod["metadata"]["name"].startswith(name) and pod["status"]["phase"] == "Running")


async def test_workloads_are_admitted_to_reserved_spot_and_flex_start_flavors_in_order(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    async with serving(cluster, tmp_path) as life:
        await queue(life, "chosen", QUEUE, selects=SPOT)
        await until_slices_are(life, 1)
        for count, name in enumerate(("one", "two"), 2):
            await queue(life, name, QUEUE)
            await until_slices_are(life, count)
        await queue(life, "three", QUEUE)
        await until_without_quota(life, "three")
        await life.until(
            lambda pods: [one["status"]["phase"] for one in pods] == ["Running"] * 6, "three run"
        )
        assert await list_kinds(life) == {
            "chosen": "SPOT",
            "one": "RESERVATION_BOUND",
            "two": "FLEX_START",
        }
        assert count_inserts(life) == 3
        await life.ask("DELETE", f"{JOBSETS}/three", {"propagationPolicy": "Foreground"})
        await leave_nothing(life, "chosen", "one", "two")


async def test_a_stockout_falls_to_the_next_candidate_and_never_to_the_next_flavor(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    """Kueue chooses flavors by quota alone."""
    async with serving(cluster, tmp_path, vms=0) as life:
        faults = life.supervisor.gce.faults
        faults.set_capacity("us-east5-b", "ct6e", 0)
        await queue(life, "spot", QUEUE, selects=SPOT)
        await run(life, "spot", NEXT_CANDIDATE_WITHIN_S)
        (group,) = await life.client.list(GROUPS)
        assert group["spec"]["nodeLocation"] == "us-central1-b"
        await queue(life, "reserved", QUEUE)

        def is_told(workloads: list[Document]) -> bool:
            """Whether a Workload shows its users what the cloud has answered."""
            checks = [one.get("status", {}).get("admissionChecks", ()) for one in workloads]
            texts = [check.get("message", "") for one in checks for check in one]
            return any("my-tpu-reservation" in text for text in texts)

        await until(life, is_told, WORKLOADS)
        found = await life.client.list(WORKLOADS)
        (mine,) = (one for one in found if one["metadata"]["name"].startswith("jobset-reserved"))
        (admitted,) = mine["status"]["admission"]["podSetAssignments"]
        assert admitted["flavors"] == {"google.com/tpu": "v6e-class-reserved"}
        assert await is_suspended(life, "reserved")
        faults.set_reservation(RESERVATION, "ct6e-standard-4t", 2)
        await life.until(
            lambda pods: len([one for one in pods if is_running(one, "reserved")]) == 2,
            "it runs when the reservation has room",
            NEXT_CANDIDATE_WITHIN_S,
        )
        await leave_nothing(life, "spot", "reserved")


async def test_a_preempted_jobset_is_admitted_to_another_flavor_and_gets_its_slice_there(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    async with serving(cluster, tmp_path, suspended_release_minutes=1) as life:
        await queue(life, "low", QUEUE)
        await run(life, "low")
        assert await list_kinds(life) == {"low": "RESERVATION_BOUND"}
        await queue(life, "high", QUEUE, selects=RESERVED, priority="high")
        await life.until(
            lambda pods: [one["status"]["phase"] for one in pods] == ["Running"] * 4, "both run"
        )
        assert await list_kinds(life) == {"low": "SPOT", "high": "RESERVATION_BOUND"}
        await leave_nothing(life, "low", "high")


async def test_a_preempted_jobset_releases_its_slice_for_the_other_and_gets_one_again(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    async with serving(cluster, tmp_path, vms=2, suspended_release_minutes=1) as life:
        await queue(life, "low", QUEUE, selects=RESERVED)
        await run(life, "low")
        await queue(life, "high", QUEUE, selects=RESERVED, priority="high")
        # The reservation has one slice: that of the preempted JobSet, for a minute.
        await until(
            life, lambda requests: ["high" in one["metadata"]["name"] for one in requests] == [True]
        )
        await life.until(
            lambda pods: [is_running(one, "high") for one in pods] == [True] * 2,
            "the other runs",
            NEXT_CANDIDATE_WITHIN_S,
        )
        assert await list_kinds(life) == {"high": "RESERVATION_BOUND"}
        assert await is_suspended(life, "low")
        await life.ask("DELETE", f"{JOBSETS}/high", {"propagationPolicy": "Foreground"})
        await life.until(
            lambda pods: [is_running(one, "low") for one in pods] == [True] * 2,
            "the preempted one runs",
            NEXT_CANDIDATE_WITHIN_S,
        )
        await until_slices_are(life, 1)
        await leave_nothing(life, "low")


def read(file: str) -> Document:
    """The workload of an example, in the queue."""
    found = label_workload(next(yaml.safe_load_all((ROOT / "examples" / file).read_text())))
    found["metadata"]["labels"][f"{LABEL}/queue-name"] = QUEUE
    return found


async def test_an_indexed_job_gets_its_slice_before_its_pods(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    """Without a key of its own: its Pods select their slice by the key of the workload."""
    job = read("indexed-job-v6e-2x4.yaml")
    del job["spec"]["template"]["spec"]["nodeSelector"]["job-key"]
    async with serving(cluster, tmp_path) as life:
        path = "/apis/batch/v1/namespaces/default/jobs"
        await life.ask("POST", path, job)
        await until(life, lambda requests: list(map(is_provisioned, requests)) == [True])
        await life.until(
            lambda pods: [is_running(one, "train") for one in pods] == [True] * 2, "runs"
        )
        assert await list_kinds(life) == {"train": "RESERVATION_BOUND"}
        await life.ask("DELETE", f"{path}/train", {"propagationPolicy": "Foreground"})
        await life.until_slices_are_gone()
        assert count_inserts(life) == 1


async def test_each_group_of_a_leader_worker_set_gets_its_slice_before_its_pods(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    """Without an exclusive topology: Kueue ties the Pods of each group to the group's own slice."""
    manifest = read("leaderworkerset-v6e-2x4.yaml")
    manifest["spec"]["replicas"] = 2
    del manifest["metadata"]["annotations"]
    path = workload_controllers.LWS.path
    async with serving(cluster, tmp_path) as life:
        await life.ask("POST", path, manifest)
        await until(life, lambda requests: list(map(is_provisioned, requests)) == [True] * 2)
        await life.until(
            lambda pods: [is_running(one, "serve") for one in pods] == [True] * 4, "run"
        )
        found = [
            one["spec"]["instanceConfig"]["provisioningModel"]
            for one in await until_slices_are(life, 2)
        ]
        assert sorted(found) == ["RESERVATION_BOUND", "SPOT"]
        assert count_inserts(life) == 2
        ties = {
            (pod["metadata"]["labels"][GROUP_INDEX], pod["spec"]["nodeSelector"][WORKLOAD_LABEL])
            for pod in await life.client.list(PODS)
        }
        assert len(ties) == len(dict(ties)) == len({key for _, key in ties}) == 2
        await life.ask("DELETE", f"{path}/serve", {"propagationPolicy": "Foreground"})
        await life.until_slices_are_gone()
        await until(life, lambda requests: not requests)
