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
from local.control_plane import workload_controllers
from local.control_plane.plane import OwnControlPlane
from local.show.workload_demo import OPTIONS
from local.tests.real_parts import get_kueue, get_workload_controllers, open_own_control_plane
from shared.base.documents import find_condition
from tests.real.life import PODS, WITHIN_S, Document, Life, living
from tests.real.pods import kubectl
from tests.real.queues import (
    MARKS,
    ONE_SLICE,
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
REQUESTS = "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests"
LISTED = "default: {kinds: [JobSet, ProvisioningRequest], slices: 4}"
RESERVATION = f"projects/{PROJECT}/zones/us-east5-a/reservations/my-tpu-reservation"
RESERVED = {"cloud.google.com/compute-class": "v6e-reserved"}
INSERT = "instanceGroupManagers.insert"


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
                await life.ask("POST", CLASSES, manifest)
        yield life


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
        inserts = ("resourcePolicies", "instanceTemplates", "instanceGroupManagers")
        calls = life.supervisor.gce.calls.counts()
        assert {one: calls[f"{one}.insert"] for one in inserts} == dict.fromkeys(inserts, 2)
        await leave_nothing(life, "first", "second")
        await until(life, lambda requests: not requests)


def is_running(pod: Document, name: str) -> bool:
    return bool(pod["metadata"]["name"].startswith(name) and pod["status"]["phase"] == "Running")
