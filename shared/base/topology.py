"""The machine types and slice shapes of TPUNodeGroups, and which of them fit together.

Chips per VM are the machine type's suffix; a slice's chips are the product of its topology. Shapes
come from the Cloud TPU pages and from xpk's list.
"""

import re
from dataclasses import dataclass
from math import prod

from shared.base import names
from shared.base.accelerators import CHIP_BOUNDS, GENERATIONS, SLICE_HOST_CHIPS, Generation
from shared.base.fields import any_of

MACHINE_TYPE = re.compile(r"(?P<family>tpu7x|tpu7|ct6e)-[a-z]+-(?P<chips>[1248])t(-tpu)?")
TOPOLOGY = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*){1,2}")

V6E_SHAPES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
TPU7_SMALL_SHAPES = ("1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4")
TPU7_CHIPS = 9216
"""The chips of a pod of TPU7x, which is the largest slice."""
UNKNOWN_SHAPE = (
    f"topology must be a shape that exists. v6e: {any_of(V6E_SHAPES)}. TPU7x: "
    f"{', '.join(TPU7_SMALL_SHAPES)}, or AxBxC with A <= B <= C, each a multiple of 4, and at most "
    f"{TPU7_CHIPS} chips"
)

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


def count_chips(machine_type: str, hosts: int) -> int:
    """The chips of so many hosts, by the suffix of their machine type; 0 if it has none."""
    match = re.search(r"-([0-9]+)t\b", machine_type)
    return hosts * int(match[1]) if match else 0


def chips_of(topology: str) -> int:
    """Chips in a slice of a (well-formed) topology."""
    return prod(parse_dimensions(topology))


def is_known_shape(topology: str) -> bool:
    """Whether slices of this shape exist, of any machine type."""
    if topology in V6E_SHAPES or topology in TPU7_SMALL_SHAPES:
        return True
    dimensions = parse_dimensions(topology) if TOPOLOGY.fullmatch(topology) else []
    is_of_cubes = dimensions == sorted(dimensions) and not any(size % 4 for size in dimensions)
    return len(dimensions) == 3 and is_of_cubes and prod(dimensions) <= TPU7_CHIPS


def find_shape_violation(topology: str, machine: Machine) -> str | None:
    """Why VMs of this machine type cannot form a slice of this (well-formed) shape, or ``None``."""
    count, name = machine.generation.dimensions, machine.machine_type
    dimensions = parse_dimensions(topology)
    if len(dimensions) != count:
        number, example = ("two", "4x4") if count == 2 else ("three", "2x2x2")
        return f"topology must have {number} dimensions with {name}, as in {example}"
    if not is_known_shape(topology):
        return UNKNOWN_SHAPE
    bounds = CHIP_BOUNDS[machine.chips]
    if any(size % bound for size, bound in zip(dimensions, bounds, strict=False)):
        host = f"{bounds[0]}x{bounds[1]}"
        return f"topology {topology} cannot be made of {name} VMs, which are {host} chips each"
    return None


def find_count_violation(topology: str, machine: Machine, node_count: int, mode: str) -> str | None:
    """Why this number of VMs does not fit the topology, or ``None``.

    A BULK group is one slice of all its VMs; each VM of an INDIVIDUAL group is a slice of its own.
    """
    chips, name = chips_of(topology), machine.machine_type
    if mode == "INDIVIDUAL":
        if chips == machine.chips:
            return None
        host = "x".join(map(str, CHIP_BOUNDS[machine.chips][: machine.generation.dimensions]))
        return f"topology must be {host}: in an INDIVIDUAL group each {name} is a slice of its own"
    if node_count * machine.chips == chips:
        return None
    if chips == machine.chips:
        return (
            f"topology {topology} is one {name}: for {node_count} slices of one VM each set "
            "targetSizePolicyMode to INDIVIDUAL"
        )
    return (
        f"nodeCount must be {chips // machine.chips}: topology {topology} has {chips} chips, "
        f"a {name} has {machine.chips}"
    )


def find_host_violation(generation: Generation, topology: str, chips: int) -> str:
    """Why hosts with so many chips cannot form a slice that a Pod selects; empty if they can.

    For generations with `Generation.single_host_shapes`: the rule of GKE's node pools.
    """
    accelerator, selector = generation.accelerator, f"the Pod's nodeSelector {names.TOPOLOGY_LABEL}"
    if chips not in generation.single_host_shapes:
        return (
            f"the Pod asks for {chips} of {names.TPU_RESOURCE}: a host of {accelerator} has "
            f"{any_of(map(str, generation.single_host_shapes))}, all of which the Pod must ask for"
        )
    if not TOPOLOGY.fullmatch(topology) or topology.count("x") != generation.dimensions - 1:
        example = "4x4" if generation.dimensions == 2 else "2x2x2"
        return (
            f"{selector} is {topology!r}: a topology of {accelerator} has {generation.dimensions} "
            f"numbers above 0, as in {example}"
        )
    count, rest = divmod(chips_of(topology), chips)
    if rest:
        return (
            f"the topology {topology} has {chips_of(topology)} chips, which hosts of {chips} do not "
            f"make up: the Pod must ask for as much of {names.TPU_RESOURCE} as a host of the slice has"
        )
    if count > 1 and chips != SLICE_HOST_CHIPS:
        return (
            f"the topology {topology} would need {count} hosts of {chips} chips: the hosts of a slice "
            f"with more than one have {SLICE_HOST_CHIPS}, which the Pod must ask for"
        )
    own = generation.single_host_shapes[chips]
    if count == 1 and topology != own:
        return (
            f"{selector} is {topology!r}: a slice of one host of {accelerator} with {chips} chips is "
            f"{own}, which it must be"
        )
    return ""


def parse_dimensions(topology: str) -> list[int]:
    """The numbers of a (well-formed) topology."""
    return [int(part) for part in topology.split("x")]
