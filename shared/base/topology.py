"""Machine types and slice shapes of TPUNodeGroups: which exist, and which fit each other.

Chips per VM are the machine type's suffix; a slice's chips are the product of its topology. Shapes
come from the Cloud TPU pages and from xpk's list.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from shared.base.accelerators import CHIP_BOUNDS, GENERATIONS, Generation

MACHINE_TYPE = re.compile(r"(?P<family>tpu7x|tpu7|ct6e)-[a-z]+-(?P<chips>[1248])t(-tpu)?")
TOPOLOGY = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*){1,2}")

_V6E_SHAPES = frozenset({"1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"})
_TPU7_SMALL_SHAPES = frozenset({"1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4"})
_TPU7_MAX_CUBES = 144
"""A pod of TPU7x has 9,216 chips: 144 cubes of 4x4x4."""

GROUP_GENERATIONS = {
    one.family: one for one in GENERATIONS.values() if one.family in ("ct6e", "tpu7", "tpu7x")
}
"""The generations that TPUNodeGroups support, by the family of their machine types."""


@dataclass(frozen=True)
class Machine:
    """A TPU VM of one machine type."""

    machine_type: str
    generation: Generation
    chips: int


def find_machine(machine_type: str) -> Machine | None:
    """The machine of a machine type (a name or a URL); ``None`` if it is not v6e or v7."""
    bare = machine_type.rsplit("/", 1)[-1]
    match = MACHINE_TYPE.fullmatch(bare)
    if match is None:
        return None
    return Machine(bare, GROUP_GENERATIONS[match["family"]], int(match["chips"]))


def chips_of(topology: str) -> int:
    """Chips in a slice of a (well-formed) topology."""
    return prod(parse_dimensions(topology))


def find_unknown_shape_violation(topology: str) -> str | None:
    """Why there is no slice of this shape, whatever its VMs are, or ``None``."""
    dimensions = parse_dimensions(topology)
    if any(_is_known_shape(topology, dimensions, it) for it in GROUP_GENERATIONS.values()):
        return None
    flat, cubic = _shapes_of(GROUP_GENERATIONS["ct6e"]), _shapes_of(GROUP_GENERATIONS["tpu7x"])
    return f"{topology} is not a slice topology; ct6e has {flat}; tpu7 and tpu7x have {cubic}"


def find_shape_violation(topology: str, machine: Machine) -> str | None:
    """Why a slice of this shape cannot be made of this machine, or ``None``."""
    generation = machine.generation
    dimensions = parse_dimensions(topology)
    if len(dimensions) != generation.dimensions:
        example = "4x4" if generation.dimensions == 2 else "2x2x2"
        return (
            f"{generation.family} slices have {generation.dimensions} dimensions, "
            f"as in {example}; {topology} has {len(dimensions)}"
        )
    if not _is_known_shape(topology, dimensions, generation):
        return f"{generation.family} has no slice of {topology}; it has {_shapes_of(generation)}"
    bounds = CHIP_BOUNDS[machine.chips]
    if any(size % bound for size, bound in zip(dimensions, bounds, strict=False)):
        host = "x".join(str(bound) for bound in bounds[: len(dimensions)])
        return (
            f"{topology} cannot be divided into hosts of {machine.machine_type}, {host} chips each"
        )
    return None


def find_count_violation(topology: str, machine: Machine, node_count: int, mode: str) -> str | None:
    """Why this many VMs do not make what the topology says, or ``None``.

    A BULK group is one slice of all its VMs; each VM of an INDIVIDUAL group is a slice of its own.
    """
    chips = chips_of(topology)
    if mode == "INDIVIDUAL":
        if chips == machine.chips:
            return None
        return (
            f"a VM of an INDIVIDUAL group is a slice of its own: {machine.machine_type} has "
            f"{machine.chips} chips, {topology} has {chips}"
        )
    wanted = chips // machine.chips
    if node_count == wanted:
        return None
    return (
        f"{topology} has {chips} chips, which are {wanted} nodes of {machine.machine_type} "
        f"({machine.chips} chips each), not {node_count}"
    )


def parse_dimensions(topology: str) -> list[int]:
    """The numbers of a (well-formed) topology."""
    return [int(part) for part in topology.split("x")]


def _is_known_shape(topology: str, dimensions: list[int], generation: Generation) -> bool:
    if generation.dimensions == 2:
        return topology in _V6E_SHAPES
    cubes = dimensions == sorted(dimensions) and not any(size % 4 for size in dimensions)
    return topology in _TPU7_SMALL_SHAPES or (
        cubes and prod(size // 4 for size in dimensions) <= _TPU7_MAX_CUBES
    )


def _shapes_of(generation: Generation) -> str:
    if generation.dimensions == 2:
        return ", ".join(sorted(_V6E_SHAPES, key=chips_of))
    small = ", ".join(sorted(_TPU7_SMALL_SHAPES, key=chips_of))
    return f"{small} and AxBxC of multiples of 4 with A<=B<=C, as 4x4x8"
