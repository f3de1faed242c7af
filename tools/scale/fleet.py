"""A fleet of small slices on a virtual clock, and its calls by minute."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from local.base.http import Request
from local.cloud.simulation import identity, topic
from shared.triggers.routes import STEPS
from tests.stories.helpers import MINUTE, ONE_HOST, STANDARD
from tests.support.harness import Harness
from tests.support.manifests import manifest

RATE_QUOTA = 1_500
"""Requests per minute of each quota group: the default in Compute Engine's documentation."""
_GROUPS = "/apis/tpu.google.com/v1alpha1/tpunodegroups"


@dataclass(frozen=True)
class Cost:
    """Numbers of calls that servers received, invocations and nacks."""

    reads: int
    """Reads of Compute Engine by the steps."""
    writes: int
    rejected: int
    """Calls to Compute Engine that the rate quota rejected; reads and writes include them."""
    kubernetes: int
    """Calls of the steps to the API server, without those of the sweep."""
    sweep: int
    """The sweep's calls to the API server."""
    invocations: int
    nacks: int
    """Deliveries that Pub/Sub must repeat."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(_values(self), _values(other), strict=True)))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(a - b for a, b in zip(_values(self), _values(other), strict=True)))

    @property
    def gce(self) -> int:
        """All calls to Compute Engine."""
        return self.reads + self.writes


NOTHING = Cost(0, 0, 0, 0, 0, 0, 0)


def _values(cost: Cost) -> tuple[int, ...]:
    return tuple(vars(cost).values())


class Fleet:
    """A number of slices in one simulation, half of them with one host and half with two."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.harness = Harness()
        self._counted: Counter[str] = Counter()
        self.harness.simulation.gce.faults.set_rate_quota(RATE_QUOTA)

    @property
    def hosts(self) -> int:
        """The number of VMs."""
        return self.size + self.size // 2

    def apply(self) -> None:
        """Apply all groups at the same time."""
        for number in range(self.size):
            shape = ONE_HOST if number % 2 == 0 else {}
            self.harness.apply(manifest(f"slice-{number}", instanceConfig=STANDARD, **shape))

    def delete(self) -> None:
        """Delete all groups at the same time."""
        for number in range(self.size):
            self.harness.delete(f"slice-{number}")

    def count_ready(self) -> int:
        """Count the groups that are Ready."""
        return sum(_is_ready(group) for group in self._groups())

    def count_left(self) -> int:
        """Count the existing groups."""
        return len(self._groups())

    def minutes(self, count: int) -> list[Cost]:
        """Let minutes pass; return the cost of each."""
        return [self.minute() for _ in range(count)]

    def minute(self) -> Cost:
        """Let a minute pass; return its cost."""
        before = self.cost()
        self.harness.run_for(MINUTE)
        return self.cost() - before

    def cost(self) -> Cost:
        """The cost so far."""
        calls = self.harness.simulation.kube.calls.by_user
        by_step = {step: calls[identity(step.replace("_", "-")).name] for step in STEPS}
        gce = self._count_gce()
        return Cost(
            reads=gce["read"],
            writes=gce["write"],
            rejected=gce["rejected"],
            kubernetes=sum(count for step, count in by_step.items() if step != "sweep"),
            sweep=by_step["sweep"],
            invocations=len(self.harness.answers),
            nacks=sum(self._subscription(step).counts.refused for step in STEPS),
        )

    def dead_letters(self) -> int:
        """The number of dead letters."""
        return sum(self._subscription(step).counts.dead_lettered for step in STEPS)

    def list_bytes(self) -> int:
        """The size of a list of all groups, which the sweep reads in pages."""
        request = Request.of("GET", _GROUPS, headers={"Authorization": "Bearer sweep"})
        return len(self.harness.simulation.kube.handle(request).body)

    def _count_gce(self) -> Counter[str]:
        log = self.harness.simulation.gce.calls
        for record in log.records:
            self._counted["write" if record.is_write else "read"] += 1
            self._counted["rejected"] += record.status == 403
        log.clear()
        return self._counted

    def _subscription(self, step: str) -> Any:
        name = topic(step).replace("/topics/", "/subscriptions/")
        return self.harness.simulation.pubsub.get_subscription(name)

    def _groups(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.harness.simulation.admin("GET", _GROUPS)["items"]
        return found


def _is_ready(group: dict[str, Any]) -> bool:
    conditions = group.get("status", {}).get("conditions", [])
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
