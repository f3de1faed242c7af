"""Durations in the simulated GKE, in seconds, and behaviour that is not known for sure.

A value is drawn from a range each time. The defaults are of the order that users of GKE report.
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
    """Durations. ``operation_s`` overrides `OPERATION_S`."""

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
    """The limit of concurrent operations of a cluster, by an observed error."""

    tpu_taint: bool = False
    """Whether TPU Nodes have GKE's own taint, which GKE's admission makes TPU Pods tolerate."""

    def operation(self, verb: str) -> Range:
        """How long an operation of this verb runs."""
        return self.operation_s.get(verb) or OPERATION_S[verb]
