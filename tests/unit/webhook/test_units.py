"""The variables of 32 Pods agree with the slices that they run on, whatever their kind.

The Pods of a unit share a slice (`shared.slices.units`): each has another number, and all have the names
of exactly these Pods. Pods of other units are on other slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shared.slices.units import read_demand
from tests.unit.webhook.lws import ORDERS, PREFIX, Admitted
from tests.unit.webhook.workloads import (
    Answered,
    Manifest,
    container,
    group_pod,
    job,
    jobset_labels,
    pod,
    pod_of,
    selector,
    stateful_set,
)

PODS = 32
SHAPES: dict[str, tuple[str, str, int, int]] = {
    "v6e 4x4": ("tpu-v6e-slice", "4x4", 4, 4),
    "v6e 2x4": ("tpu-v6e-slice", "2x4", 8, 1),
    "v5e 4x8": ("tpu-v5-lite-podslice", "4x8", 4, 8),
    "v5p 2x2x4": ("tpu-v5p-slice", "2x2x4", 4, 4),
    "v4 2x2x1": ("tpu-v4-podslice", "2x2x1", 4, 1),
    "tpu7x 2x2x2": ("tpu7x", "2x2x2", 4, 2),
    "tpu7x 2x2x1": ("tpu7x", "2x2x1", 4, 1),
    "no accelerator 4x4": ("", "4x4", 4, 4),
}
"""Accelerator, topology, chips of a Pod, hosts of a slice."""
Units = Iterator[tuple[list[Answered], list[str]]]
"""The Pods of each unit, and their DNS names."""


def of_stateful_sets(chips: Manifest, spec: Any, hosts: int) -> Units:
    for number in range(1 if hosts == 1 else PODS // hosts):
        replicas = PODS if hosts == 1 else hosts
        stored = Answered(stateful_set(chips, name=f"web{number}", replicas=replicas, pod=spec))
        yield from units(stored, replicas, hosts, f"web{number}", "nginx")


def of_jobs(chips: Manifest, spec: Any, hosts: int) -> Units:
    for number in range(1 if hosts == 1 else PODS // hosts):
        count = PODS if hosts == 1 else hosts
        stored = Answered(job(chips, name=f"job{number}", count=count, subdomain="s", pod=spec))
        yield from units(stored, count, hosts, f"job{number}", "s")


def of_jobset(chips: Manifest, spec: Any, hosts: int) -> Units:
    for number in range(PODS // hosts):
        labels, name = jobset_labels(PODS // hosts, number), f"ms-slice-{number}"
        made = job(chips, name=name, count=hosts, subdomain="ms", labels=labels, pod=spec)
        yield from units(Answered(made), hosts, hosts, name, "ms")


def of_deployment(chips: Manifest, spec: Any, hosts: int) -> Units:
    for number in range(PODS if hosts == 1 else 0):
        yield [Answered(pod(chips, name=f"serve-{number}", owner="ReplicaSet", **spec))], [""]


def units(stored: Answered, count: int, hosts: int, name: str, service: str) -> Units:
    """The units of a workload with numbered Pods, which are created in the reverse order."""
    assert stored.warnings == []
    made = {one: Answered(pod_of(stored.target, one)) for one in reversed(range(count))}
    for first in range(0, count, hosts):
        numbers = range(first, first + hosts)
        yield [made[one] for one in numbers], [f"{name}-{one}.{service}" for one in numbers]


def of_groups(order: str, policy: str) -> Callable[[Manifest, Any, int], Units]:
    def build(chips: Manifest, spec: Any, hosts: int) -> Units:
        for number in range(PODS // hosts):
            names = [f"serve-{number}", *(f"serve-{number}-{one}" for one in range(1, hosts))]
            own = names[0] if policy == "UniquePerReplica" else "serve"
            answers: list[Answered] = []
            for index, name in enumerate(names):
                subdomain = own if index else "serve"
                made = group_pod(
                    chips, name=name, index=index, size=hosts, subdomain=subdomain, **spec
                )
                made["metadata"]["labels"][f"{PREFIX}/group-index"] = str(number)
                made["metadata"]["annotations"][f"{PREFIX}/subdomainPolicy"] = policy
                answers.append(Admitted(made, configuration=order))
            yield answers, [f"{name}.{own}" for name in names]

    return build


KINDS: dict[str, Callable[[Manifest, Any, int], Units]] = {
    "StatefulSet": of_stateful_sets,
    "Job": of_jobs,
    "JobSet": of_jobset,
    "Deployment": of_deployment,
    **{
        f"LeaderWorkerSet {policy} {order}": of_groups(order, policy)
        for order in ORDERS
        for policy in ("Shared", "UniquePerReplica")
    },
}


@pytest.mark.parametrize("accelerator, topology, chips, hosts", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_variables_of_all_pods_agree_with_their_slices(
    kind: str, accelerator: str, topology: str, chips: int, hosts: int
) -> None:
    one = container(tpu=chips)
    one["resources"]["requests"] = one["resources"]["limits"]  # as the API server does
    spec = {"nodeSelector": selector(accelerator, topology)}
    slices: dict[str, Any] = {}
    for answers, names in KINDS[kind](one, spec, hosts):
        seen = []
        for answered in answers:
            assert answered.warnings == []
            variables, name = answered.env(), answered.target["metadata"]["name"]
            assert variables["TPU_TOPOLOGY"] == topology
            seen.append(variables["TPU_WORKER_ID"])
            listed = variables["TPU_WORKER_HOSTNAMES"].split(",")
            assert listed == (["localhost"] if hosts == 1 and "Leader" not in kind else names)
            slices.setdefault(variables["TPU_NAME"].replace("<metadata.name>", name), names)
            assert read_demand(answered.target).hosts == hosts
        assert seen == [str(number) for number in range(hosts)]
    assert len(slices) == (PODS // hosts if kind != "Deployment" or hosts == 1 else 0)
