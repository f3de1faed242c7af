"""Generations, machine types and shapes: the valid combinations and the messages of violations."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shared.base.accelerators import CHIP_BOUNDS, GENERATIONS
from shared.base.topology import (
    GROUP_GENERATIONS,
    Machine,
    chips_of,
    find_count_violation,
    find_machine,
    find_shape_violation,
    is_known_shape,
)
from tests.support.builders import DATA
from tests.support.specs import shapes

DOCUMENT: dict[str, Any] = yaml.safe_load((DATA / "topology.yaml").read_text())
FAMILY = {"v6e": "ct6e", "tpu7x": "tpu7x"}
"""The generations that groups can have, and the family of their machine types."""


def machine(machine_type: str) -> Machine:
    found = find_machine(machine_type)
    assert found is not None
    return found


@pytest.mark.parametrize("machine_type, topology, hosts", list(shapes()))
def test_a_documented_shape_has_the_documented_number_of_vms(
    machine_type: str, topology: str, hosts: int
) -> None:
    mode = "INDIVIDUAL" if hosts == 1 else "BULK"
    host = machine(machine_type)
    assert find_shape_violation(topology, host) is None
    assert is_known_shape(topology)
    assert find_count_violation(topology, host, hosts, mode) is None
    if hosts > 1:
        assert find_count_violation(topology, host, hosts + 1, mode) is not None


@pytest.mark.conformance("generations.v6e")
@pytest.mark.parametrize("name", FAMILY)
def test_a_generation_has_the_documented_properties(name: str) -> None:
    row, generation = DOCUMENT["generations"][name], GROUP_GENERATIONS[FAMILY[name]]
    assert generation.accelerator == row["gke_label"] == row["operator_label"]["always"]
    assert generation.dimensions == row["dimensions"]
    chips = {machine_type: machine(machine_type).chips for machine_type in row["machine_types"]}
    assert chips == {name: entry["chips"] for name, entry in row["machine_types"].items()}


ONE_HOST = {
    "tpu-v4-podslice": {4: "2x2x1"},
    "tpu-v5-lite-podslice": {1: "1x1", 4: "2x2", 8: "2x4"},
    "tpu-v5p-slice": {4: "2x2x1"},
    "tpu-v6e-slice": {1: "1x1", 4: "2x2", 8: "2x4"},
    "tpu7": {},
    "tpu7x": {1: "1x1x1", 4: "2x2x1"},
}


def test_a_slice_of_one_host_has_one_shape_for_its_chips() -> None:
    assert {name: one.single_host_shapes for name, one in GENERATIONS.items()} == ONE_HOST


LIBTPU = {
    "tpu-v4-podslice": (3, "v4", 2),
    "tpu-v5-lite-podslice": (2, "v5litepod", 1),
    "tpu-v5p-slice": (3, "v5p", 2),
    "tpu-v6e-slice": (2, "v6e", 1),
    "tpu7": (3, "", 0),
    "tpu7x": (3, "tpu7x", 2),
}


def test_a_generation_has_dimensions_and_cores_and_a_name_in_libtpu() -> None:
    assert {
        name: (one.dimensions, one.libtpu_name, one.cores) for name, one in GENERATIONS.items()
    } == LIBTPU


@pytest.mark.conformance("rules.chips_per_host_bounds", "request-three")
def test_the_chip_bounds_of_a_host_are_those_of_the_device_plugin() -> None:
    documented = DOCUMENT["rules"]["chips_per_host_bounds"]
    assert {
        chips: ",".join(map(str, bounds)) for chips, bounds in CHIP_BOUNDS.items()
    } == documented


@pytest.mark.conformance(
    cases={
        "ct6e-standard-2t-ct6e-2": "node-chips",
        "zones/us-central1-a/machineTypes/tpu7x-standard-4t-tpu7x-4": "node-machine-type-url",
    }
)
@pytest.mark.parametrize(
    "machine_type, family, chips",
    [
        ("tpu7x-standard-1t", "tpu7x", 1),
        ("ct6e-standard-2t", "ct6e", 2),
        ("ct6e-standard-8t", "ct6e", 8),
        ("tpu7-standard-4t", "tpu7", 4),
        ("tpu7x-standard-4t-tpu", "tpu7x", 4),
        ("zones/us-central1-a/machineTypes/tpu7x-standard-4t", "tpu7x", 4),
        (
            "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a/machineTypes/"
            "ct6e-standard-4t",
            "ct6e",
            4,
        ),
    ],
)
def test_a_machine_type_has_a_generation_and_chips(
    machine_type: str, family: str, chips: int
) -> None:
    found = machine(machine_type)
    assert (found.generation.family, found.chips) == (family, chips)
    assert found.machine_type == machine_type.rsplit("/", 1)[-1]


@pytest.mark.conformance(
    cases={
        "ct4p-hightpu-4t": "node-accelerator-older generations.v4",
        "ct5lp-hightpu-4t": "generations.v5e",
        "ct5p-hightpu-4t": "generations.v5p",
    }
)
@pytest.mark.parametrize(
    "machine_type",
    [
        "ct5lp-hightpu-4t",
        "ct5p-hightpu-4t",
        "ct4p-hightpu-4t",
        "n1-standard-1",
        "tpu7x-standard-16t",
        "tpu7x-standard-3t",
        "tpu7x-standard",
        "tpu7x-4t",
        "tpu7x-standard-4t\n",
        "",
    ],
)
def test_another_machine_type_is_not_found(machine_type: str) -> None:
    assert find_machine(machine_type) is None


@pytest.mark.conformance("rules.chips", "v6e-8-two-meanings")
@pytest.mark.parametrize("machine_type, hosts", [("ct6e-standard-8t", 1), ("ct6e-standard-4t", 2)])
def test_the_number_of_vms_follows_from_topology_and_machine_type(
    machine_type: str, hosts: int
) -> None:
    assert chips_of("2x4") // machine(machine_type).chips == hosts
    assert find_count_violation("2x4", machine(machine_type), hosts, "BULK") is None


@pytest.mark.conformance("rules.hosts")
@pytest.mark.conformance("generations.tpu7x")
@given(
    cubes=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
    offset=st.integers(0, 3),
)
def test_a_large_v7_shape_is_valid_if_it_is_a_sorted_block_of_cubes_within_a_pod(
    cubes: tuple[int, int, int], offset: int
) -> None:
    a, b, c = (4 * number for number in cubes)
    c += offset
    fits = a <= b <= c and offset == 0 and a * b * c <= 9216
    violation = find_shape_violation(f"{a}x{b}x{c}", machine("tpu7x-standard-4t"))
    assert (violation is None) == fits
    assert is_known_shape(f"{a}x{b}x{c}") == fits
