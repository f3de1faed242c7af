"""What Pods ask of slices."""

from __future__ import annotations

from typing import Any

from shared.slices.kinds import find_leader
from shared.slices.units import Demand, Unit


def asked(pod: dict[str, Any]) -> tuple[Demand, Unit]:
    """What a Pod that waits asks for, and its unit."""
    leader = find_leader(pod)
    assert leader is not None
    unit = leader.kind.find_unit(leader.demand)
    assert unit is not None
    return leader.demand, unit
