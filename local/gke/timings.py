"""How long things take in the simulated GKE, in seconds, and the few points that are not known.

A range is drawn from anew each time. The defaults are of the order of what users of GKE report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Range = tuple[float, float]

OPERATION_S: Mapping[str, Range] = MappingProxyType(
    {
        "nodePools.create": (90.0, 240.0),
        "nodePools.update": (5.0, 20.0),
        "nodePools.delete": (60.0, 180.0),
    }
)
"""How long an operation runs. A pool's creation ends when its VMs run."""


@dataclass(frozen=True)
class Timings:
    """Durations. ``operation_s`` holds what shall differ from `OPERATION_S`."""

    operation_s: Mapping[str, Range] = field(default_factory=dict)
    pending_s: Range = (0.5, 2.0)
    """How long an operation is PENDING before it is RUNNING."""
    failed_create_s: Range = (30.0, 90.0)
    """How long the creation of a pool runs that finds no capacity."""
    register_s: Range = (20.0, 60.0)
    """From the end of a pool's creation to its Nodes; those of a pool come one after the other."""
    operation_retention_s: float = 24 * 3600.0
    """How long a finished operation can be asked for; assumed."""
    log_delay_s: Range = (0.3, 2.0)
    """From a log entry's timestamp to its delivery."""
    operations_at_once: int = 5
    """How many operations a cluster carries out at a time; as the refusal was seen to say."""

    tpu_taint: bool = False
    """Whether TPU Nodes bear GKE's own taint. GKE's admission has each Pod that asks for TPUs tolerate
    it; where nothing does that, the Nodes are better without."""

    def operation(self, verb: str) -> Range:
        """How long an operation of this verb runs."""
        return self.operation_s.get(verb) or OPERATION_S[verb]
