"""Counts of the calls of a lifecycle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from local.cloud.simulation import identity
from shared.triggers.message import SWEEP_KIND
from shared.triggers.routes import ROUTES, STEPS
from tests.stories import helpers
from tests.stories.helpers import MINUTE
from tests.support.harness import Harness

CLUSTER_STEPS = frozenset(step for step in STEPS if SWEEP_KIND in ROUTES[step].causes)
"""The steps whose calls are about all groups."""


@dataclass(frozen=True)
class Cost:
    """A number of calls that servers received."""

    writes: int
    """To Compute Engine."""
    reads: int
    """From Compute Engine."""
    kubernetes: int

    @property
    def calls(self) -> int:
        return self.writes + self.reads + self.kubernetes

    def __str__(self) -> str:
        return (
            f"{self.writes} GCE writes, {self.reads} GCE reads, {self.kubernetes} Kubernetes calls"
        )

    def __sub__(self, other: Cost) -> Cost:
        return Cost(
            self.writes - other.writes,
            self.reads - other.reads,
            self.kubernetes - other.kubernetes,
        )


def max_cost(nodes: int, *, bootstraps: bool = True) -> Cost:
    """The most calls that the lifecycle of a slice may take; with `max_kubernetes_to_ready` the only
    place that has the budget."""
    if not bootstraps:
        return Cost(6, 16 + 2 * nodes, 50 + 6 * nodes)
    return Cost(6 + nodes, 16 + 3 * nodes, 60 + 8 * nodes)


def max_kubernetes_to_ready(nodes: int) -> int:
    """The most calls to the API server until a slice whose VMs join with tokens is Ready, without the
    sweep's."""
    return 45 + 5 * nodes


def run_lifecycle(
    harness: Harness, applied: dict[str, Any], note: Callable[[], object] = lambda: None
) -> None:
    """Create a slice, wait, delete it, and wait again.

    ``note`` is called when it is Ready, when it is to be deleted, and when it is gone.
    """
    harness.apply(applied)
    helpers.until_ready(harness)
    note()
    harness.run_for(5 * MINUTE)
    note()
    harness.delete(helpers.NAME)
    helpers.until_gone(harness)
    note()
    harness.run_for(5 * MINUTE)
    assert harness.leftovers() == []


class CallCounter:
    """Counts calls by step and by server, from its creation on.

    Calls are counted by step when they are sent, and compared with those that the servers received.
    """

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._writes: Counter[str] = Counter()
        self._reads: Counter[str] = Counter()
        self._cluster_reads = 0
        harness.simulation.gce.calls.clear()
        harness.simulation.kube.calls.clear()
        harness.hooks.before = self._note

    def _note(self, step: str, call: str) -> None:
        method, _, path = call.partition(" ")
        if path.startswith("/compute/") and step in CLUSTER_STEPS:
            self._cluster_reads += 1
        elif path.startswith("/compute/"):
            is_read = method == "GET" or path.endswith("/listManagedInstances")
            (self._reads if is_read else self._writes)[step] += 1

    def kubernetes(self, step: str) -> int:
        """A step's calls to the API server."""
        return self._harness.simulation.kube.calls.by_user[identity(step.replace("_", "-")).name]

    def with_sweep(self) -> int:
        """All steps' calls to the API server, with those of the sweep and ``report_leaks``."""
        return self.cost().kubernetes + sum(map(self.kubernetes, CLUSTER_STEPS))

    def kubernetes_by_call(self) -> Counter[tuple[str, str]]:
        """The calls to the API server by step and call, without steps that list all groups."""
        steps = {identity(step.replace("_", "-")).name: step for step in STEPS}
        return Counter(
            (
                steps[call.user],
                "/".join(filter(None, (f"{call.verb} {call.resource}", call.subresource))),
            )
            for call in self._harness.simulation.kube.calls
            if steps.get(call.user, "sweep") not in CLUSTER_STEPS
        )

    def reads(self, step: str) -> int:
        """A step's reads of Compute Engine."""
        return self._reads[step]

    def cost(self) -> Cost:
        """All calls of all steps, without those of the steps that list all groups."""
        gce = self._harness.simulation.gce.calls
        kubernetes = sum(self.kubernetes(step) for step in STEPS if step not in CLUSTER_STEPS)
        return Cost(gce.writes(), gce.reads() - self._cluster_reads, kubernetes)

    def rejected_writes(self) -> int:
        """Writes that Compute Engine rejected."""
        calls = self._harness.simulation.gce.calls.records
        return sum(call.is_write and call.status >= 400 for call in calls)

    def rows(self, title: str) -> Iterable[str]:
        """A line for each step with its calls."""
        for step in STEPS:
            yield (
                f"calls, {title:<32} {step:<16} GCE writes {self._writes[step]:>4}"
                f"  reads {self._reads[step]:>4}  Kubernetes {self.kubernetes(step):>5}"
            )

    def agrees_with_the_servers(self) -> bool:
        """True if the servers received each call of the steps exactly once."""
        cost = self.cost()
        return (self._writes.total(), self._reads.total()) == (cost.writes, cost.reads)
