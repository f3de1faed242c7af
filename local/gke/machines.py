"""The TPU machine types of GKE. Other machine types are accepted without a table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

FAMILIES = {
    "ct4p-hightpu": ("tpu-v4-podslice", {4: "2x2x1"}),
    "ct5lp-hightpu": ("tpu-v5-lite-podslice", {1: "1x1", 4: "2x2", 8: "2x4"}),
    "ct5p-hightpu": ("tpu-v5p-slice", {4: "2x2x1"}),
    "ct6e-standard": ("tpu-v6e-slice", {1: "1x1", 4: "2x2", 8: "2x4"}),
    "tpu7x-standard": ("tpu7x", {1: "1x1x1", 4: "2x2x1"}),
}
"""By family: the accelerator label, and the topology of a single host by its chips."""
_TPU = re.compile(r"(?P<family>(?:ct[0-9]|tpu)[a-z0-9]*-[a-z]+)-(?P<chips>[0-9]+)t")
_OTHER = re.compile(r"[a-z][a-z0-9]*-[a-z]+[a-z0-9-]*")


@dataclass(frozen=True)
class Machine:
    """A TPU machine type. ``own_topology`` is that of a slice of one host."""

    name: str
    family: str
    accelerator: str
    chips: int
    own_topology: str


def find_machine(name: str) -> Machine | None:
    """Find a TPU machine type; ``None`` if there is none of that name."""
    match = _TPU.fullmatch(name)
    if match is None:
        return None
    accelerator, topologies = FAMILIES.get(match["family"], ("", {}))
    chips = int(match["chips"])
    if chips not in topologies:
        return None
    return Machine(name, match["family"], accelerator, chips, topologies[chips])


def exists(name: str) -> bool:
    """Whether a machine type exists; without TPU, every name of the right form does."""
    return find_machine(name) is not None or (
        _TPU.fullmatch(name) is None and _OTHER.fullmatch(name) is not None
    )


def count_hosts(topology: str, machine: Machine) -> int:
    """The number of machines of a slice with this topology; 0 if there is no such slice."""
    if not re.fullmatch(r"[1-9][0-9]*(x[1-9][0-9]*){1,2}", topology):
        return 0
    chips = prod(int(side) for side in topology.split("x"))
    return chips // machine.chips if chips % machine.chips == 0 else 0
