"""TPU machine types and topologies: how many chips a VM has and what shapes VMs can form."""

from __future__ import annotations

import math
import re

_TPU = re.compile(
    r"(ct6e-standard|tpu7x-standard|ct5p-hightpu|ct5lp-hightpu|ct4p-hightpu)-(\d)t(-tpu)?"
)
_DIMENSIONS = {"ct6e": 2, "ct5lp": 2, "tpu7x": 3, "ct5p": 3, "ct4p": 3}
FAMILIES = tuple(_DIMENSIONS)
"""The machine families with TPUs."""
_MANY_VMS = 4
"""Only VMs of four chips form slices of more than one VM."""


def family_of(machine_type: str) -> str:
    """The machine family: ``ct6e`` of ``ct6e-standard-4t``."""
    return machine_type.partition("-")[0]


def chips_of(machine_type: str) -> int:
    """The TPU chips of one VM; 0 for a machine type without TPU."""
    match = _TPU.fullmatch(machine_type)
    return int(match.group(2)) if match else 0


def count_vms(topology: str, machine_type: str) -> int | None:
    """The number of VMs of a topology; ``None`` if the machine type does not fit it."""
    chips = chips_of(machine_type)
    sides = [int(side) for side in topology.split("x") if side.isdecimal()]
    if not chips or len(sides) != topology.count("x") + 1 or 0 in sides:
        return None
    count, rest = divmod(math.prod(sides), chips)
    fits = len(sides) == _DIMENSIONS[family_of(machine_type)] and rest == 0 and count > 0
    return count if fits and (count == 1 or chips == _MANY_VMS) else None
