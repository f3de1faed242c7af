"""The context that all resources of the simulated Compute Engine share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from local.base.clock import Clock
from local.base.machine import VmAgentFactory
from local.gce.audit import AuditLog
from local.gce.environment import Environment
from local.gce.operations import Operations
from local.gce.supply import Supply
from local.gce.timings import Timings


class Context(Environment):
    """The environment with the audit log, the operations, the supply and the agents."""

    def __init__(
        self,
        clock: Clock,
        *,
        projects: Mapping[str, str],
        random: Random,
        agents: VmAgentFactory,
        on_log_entry: Callable[[dict[str, Any]], None],
        timings: Timings,
    ) -> None:
        super().__init__(clock, projects=projects, random=random, timings=timings)
        self.agents = agents
        self.audit = AuditLog(self, on_log_entry)
        self.supply = Supply(self)
        self.operations = Operations(self, self.audit)
