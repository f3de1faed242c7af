# ruff: noqa: E501  (each row of a table is one line)
"""The shape variables of every documented topology, as the device plugin announces them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.topology import TOPOLOGY
from tests.unit.webhook.workloads import (
    SPLIT,
    Answered,
    container,
    job,
    pod_of,
    selector,
    stateful_set,
)


def shapes() -> Iterator[Any]:
    for generation in TOPOLOGY["generations"].values():
        for row in generation["topologies"]:
            for machine_type, vms in row["vms"].items():
                chips = generation["machine_types"][machine_type]["chips"]
                yield pytest.param(
                    generation["gke_label"], row, vms, chips, id=f"{machine_type} {row['topology']}"
                )


@pytest.mark.parametrize("label, row, vms, chips", list(shapes()))
def test_a_documented_shape_has_its_bounds_and_type(
    label: str, row: dict[str, Any], vms: dict[str, Any], chips: int
) -> None:
    target = stateful_set(
        container(tpu=chips),
        replicas=vms["hosts"],
        pod={"nodeSelector": selector(label, row["topology"])},
    )
    answered = Answered(target)
    variables = answered.env()
    assert answered.warnings == []
    assert variables["TPU_TOPOLOGY"] == row["topology"]
    assert variables["TPU_ACCELERATOR_TYPE"] == row["accelerator_type"]
    assert variables["TPU_HOST_BOUNDS"] == vms["host_bounds"]
    assert variables["TPU_CHIPS_PER_HOST_BOUNDS"] == vms["chips_per_host_bounds"]
    assert len(variables["TPU_WORKER_HOSTNAMES"].split(",")) == vms["hosts"]


def test_the_machine_type_selects_the_accelerator_type() -> None:
    nodes = {
        "cloud.google.com/gke-tpu-topology": "2x2x2",
        "node.kubernetes.io/instance-type": "tpu7x-standard-4t",
    }
    variables = Answered(stateful_set(replicas=2, pod={"nodeSelector": nodes})).env()
    assert variables["TPU_ACCELERATOR_TYPE"] == "tpu7x-16"


IMPOSSIBLE: list[tuple[str, str, list[int], str]] = [
    ("tpu-v6e-slice", "2x2x2", [4], "the Pod's nodeSelector cloud.google.com/gke-tpu-topology is '2x2x2': a topology of tpu-v6e-slice has 2 numbers above 0, as in 4x4"),
    ("tpu7x", "4x4", [4], "the Pod's nodeSelector cloud.google.com/gke-tpu-topology is '4x4': a topology of tpu7x has 3 numbers above 0, as in 2x2x2"),
    ("tpu-v5p-slice", "4x4", [4], "the Pod's nodeSelector cloud.google.com/gke-tpu-topology is '4x4': a topology of tpu-v5p-slice has 3 numbers above 0, as in 2x2x2"),
    ("tpu-v5-lite-podslice", "4x4", [8], "the topology 4x4 would need 2 hosts of 8 chips: the hosts of a slice with more than one have 4, which the Pod must ask for"),
    ("tpu-v6e-slice", "4x2", [8], "the Pod's nodeSelector cloud.google.com/gke-tpu-topology is '4x2': a slice of one host of tpu-v6e-slice with 8 chips is 2x4, which it must be"),
    ("tpu-v6e-slice", "4x4", [2], "the Pod asks for 2 of google.com/tpu: a host of tpu-v6e-slice has 1, 4 or 8, all of which the Pod must ask for"),
    ("tpu-v6e-slice", "2x4", [4, 4], SPLIT),
    ("tpu-v6e-slice", "4x4", [3, 1], SPLIT),
    ("a-new-one", "2x2x4", [2, 2], SPLIT),
    ("tpu7x", "2x2x4", [3, 1], "containers ask for 3 and 1 google.com/tpu, but all processes of a slice have the same number; ask for the same in each"),
]  # fmt: skip


@pytest.mark.parametrize("accelerator, topology, chips, warning", IMPOSSIBLE)
@pytest.mark.parametrize("asked", ["", "enabled"])
def test_nothing_is_injected_for_a_slice_that_cannot_exist(
    accelerator: str, topology: str, chips: list[int], warning: str, asked: str
) -> None:
    if asked and accelerator == "a-new-one":
        return  # then its processes are those of the annotation
    each = [container(f"c{number}", count) for number, count in enumerate(chips)]
    target = stateful_set(*each, replicas=4, pod={"nodeSelector": selector(accelerator, topology)})
    annotations = {"tpu-functions.dev/process-addresses": asked}
    target["spec"]["template"]["metadata"]["annotations"] = annotations
    template = Answered(target)
    for answered in (template, Answered(pod_of(template.target, 1)), Answered(pod_of(target, 1))):
        assert (answered.warnings, answered.env("c0")) == ([warning], {})


DISABLED = (
    "2 containers ask for google.com/tpu at the same time, so each needs an address, but "
    "tpu-functions.dev/process-addresses is disabled; leave it out, or ask for all chips in one container"
)


@pytest.mark.parametrize(
    "accelerator, warning",
    [("tpu7x", DISABLED), ("", DISABLED), ("tpu-v5p-slice", SPLIT)],
)
def test_several_containers_without_addresses_are_a_warning_that_names_the_annotation(
    accelerator: str, warning: str
) -> None:
    nodes = {"nodeSelector": selector(accelerator, "2x2x2")}
    target = job(container("a", 2), container("b", 2), count=2, pod=nodes)
    annotations = {"tpu-functions.dev/process-addresses": "disabled"}
    target["spec"]["template"]["metadata"]["annotations"] = annotations
    assert Answered(target).warnings == [warning]
    assert Answered(target, is_strict=True).response["status"]["message"] == warning


@pytest.mark.parametrize(
    "accelerator, variables, warnings",
    [("tpu7x", ("2", "4"), []), ("tpu-v5p-slice", ("", ""), [SPLIT]), ("", ("", ""), [SPLIT])],
)
def test_several_containers_of_a_template_may_get_their_accelerator_later(
    accelerator: str, variables: tuple[str, str], warnings: list[str]
) -> None:
    """Kueue selects it when it admits the workload, and that calls no webhook for the template."""
    both = container("a", 2), container("b", 2)
    template = Answered(
        job(*both, count=2, pod={"nodeSelector": selector("", "2x2x2")}), is_strict=True
    )
    assert (template.env("a"), template.warnings) == ({}, [SPLIT])
    template.pod()["nodeSelector"] |= selector(accelerator)
    answered = Answered(pod_of(template.target, 1))
    env = answered.env("a")
    assert (env.get("TPU_WORKER_ID", ""), env.get("JAX_PROCESS_COUNT", "")) == variables
    assert answered.warnings == warnings


@pytest.mark.parametrize(
    "topology, chips, warning",
    [
        ("2x2x", 4, "the node selector cloud.google.com/gke-tpu-topology=2x2x is not a topology, as in 2x2x2"),
        ("2x2x2", 3, "topology 2x2x2 has 8 chips, which Pods of 3 cannot share evenly; ask for as many "
         "google.com/tpu as a host has"),
    ],
)  # fmt: skip
def test_an_invalid_shape_is_a_warning_that_names_it(
    topology: str, chips: int, warning: str
) -> None:
    target = stateful_set(container(tpu=chips), pod={"nodeSelector": selector("tpu7x", topology)})
    answered = Answered(target)
    assert answered.warnings == [warning]
    assert "TPU_TOPOLOGY" not in answered.env()
