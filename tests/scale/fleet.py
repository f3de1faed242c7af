"""A fleet of small slices on a virtual clock, and what it costs minute by minute."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from local.base.http import Request
from local.cloud.simulation import identity, topic
from shared.base.names import STEPS
from tests.harness import Harness
from tests.manifests import manifest
from tests.stories.life import MINUTE, ONE_HOST, STANDARD

RATE_QUOTA = 1_500
"""Requests a minute of each group: the default that Compute Engine's page on rate quotas gave."""
_GROUPS = "/apis/tpu.google.com/v1alpha1/tpunodegroups"


@dataclass(frozen=True)
class Cost:
    """What has been done: calls that arrived, messages, and what became of them."""

    reads: int
    """Calls to Compute Engine that only read; of the steps."""
    writes: int
    refused: int
    """Calls to Compute Engine beyond the rate quota; they are among the others, too."""
    kubernetes: int
    """Calls of the steps to the API server, without the sweep's."""
    sweep: int
    """The sweep's calls to the API server."""
    invocations: int
    nacks: int
    """Deliveries that Pub/Sub has to make again."""

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
    """So many slices, half of one host and half of two, in one simulation."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.harness = Harness()
        self._counted: Counter[str] = Counter()
        self.harness.simulation.gce.faults.set_rate_quota(RATE_QUOTA)

    @property
    def hosts(self) -> int:
        """All VMs of it."""
        return self.size + self.size // 2

    def apply(self) -> None:
        """All of them at once."""
        for number in range(self.size):
            shape = ONE_HOST if number % 2 == 0 else {}
            self.harness.apply(manifest(f"slice-{number}", instanceConfig=STANDARD, **shape))

    def delete(self) -> None:
        """All of them at once."""
        for number in range(self.size):
            self.harness.delete(f"slice-{number}")

    def count_ready(self) -> int:
        """How many are Ready."""
        return sum(_is_ready(group) for group in self._groups())

    def count_left(self) -> int:
        """How many groups there are."""
        return len(self._groups())

    def minutes(self, count: int) -> list[Cost]:
        """Let so many minutes pass; what each has cost."""
        return [self.minute() for _ in range(count)]

    def minute(self) -> Cost:
        """Let a minute pass; what it has cost."""
        before = self.cost()
        self.harness.run_for(MINUTE)
        return self.cost() - before

    def cost(self) -> Cost:
        """All that has been done so far."""
        calls = self.harness.simulation.kube.calls.by_user
        by_step = {step: calls[identity(step.replace("_", "-")).name] for step in STEPS}
        gce = self._count_gce()
        return Cost(
            reads=gce["read"],
            writes=gce["write"],
            refused=gce["refused"],
            kubernetes=sum(count for step, count in by_step.items() if step != "sweep"),
            sweep=by_step["sweep"],
            invocations=len(self.harness.answers),
            nacks=sum(self._subscription(step).counts.refused for step in STEPS),
        )

    def dead_letters(self) -> int:
        """Messages that were given up."""
        return sum(self._subscription(step).counts.dead_lettered for step in STEPS)

    def list_bytes(self) -> int:
        """How much a list of all groups is, as the sweep reads it page by page."""
        request = Request.of("GET", _GROUPS, headers={"Authorization": "Bearer sweep"})
        return len(self.harness.simulation.kube.handle(request).body)

    def _count_gce(self) -> Counter[str]:
        log = self.harness.simulation.gce.calls
        for record in log.records:
            self._counted["write" if record.is_write else "read"] += 1
            self._counted["refused"] += record.status == 403
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
