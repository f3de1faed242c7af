# ruff: noqa: E501  (a table reads best with a row on a line)
"""The shape variables of every documented topology, as the device plugin announces them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.inject_env.workloads import Answered, container, selector, stateful_set

DATA = Path(__file__).parents[2] / "data" / "topology.yaml"
TOPOLOGY: dict[str, Any] = yaml.safe_load(DATA.read_text())


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
    seen = answered.env()
    assert answered.warnings == []
    assert seen["TPU_TOPOLOGY"] == row["topology"]
    assert seen["TPU_ACCELERATOR_TYPE"] == row["accelerator_type"]
    assert seen["TPU_HOST_BOUNDS"] == vms["host_bounds"]
    assert seen["TPU_CHIPS_PER_HOST_BOUNDS"] == vms["chips_per_host_bounds"]
    assert len(seen["TPU_WORKER_HOSTNAMES"].split(",")) == vms["hosts"]


def test_the_machine_type_stands_for_the_accelerator() -> None:
    nodes = {
        "cloud.google.com/gke-tpu-topology": "2x2x2",
        "node.kubernetes.io/instance-type": "tpu7x-standard-4t",
    }
    seen = Answered(stateful_set(replicas=2, pod={"nodeSelector": nodes})).env()
    assert seen["TPU_ACCELERATOR_TYPE"] == "tpu7x-16"


@pytest.mark.parametrize(
    "topology, chips, warning",
    [
        ("2x2x", 4, "the node selector cloud.google.com/gke-tpu-topology=2x2x is no topology, as 2x2x2 is"),
        ("2x2x2", 3, "topology 2x2x2 has 8 chips, which Pods of 3 cannot share evenly; ask for as many "
         "google.com/tpu as a host has"),
    ],
)  # fmt: skip
def test_a_shape_that_does_not_fit_is_named(topology: str, chips: int, warning: str) -> None:
    target = stateful_set(container(tpu=chips), pod={"nodeSelector": selector("tpu7x", topology)})
    answered = Answered(target)
    assert answered.warnings == [warning]
    assert "TPU_TOPOLOGY" not in answered.env()
