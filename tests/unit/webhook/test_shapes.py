# ruff: noqa: E501  (each row of a table is one line)
"""The shape variables of every documented topology, as the device plugin announces them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.topology import TOPOLOGY
from tests.unit.webhook.workloads import Answered, container, selector, stateful_set


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
