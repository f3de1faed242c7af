"""The simulated GKE as an application: the API of node pools, and the controls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any

from local.base import controls
from local.base.clock import Clock
from local.base.http import Request, Response
from local.gce.callers import Principal
from local.gce.calls import CallLog
from local.gce.refusals import Refused
from local.gke.calls import Router
from local.gke.cluster import Cluster
from local.gke.fault_plan import PoolFaultPlan
from local.gke.faults import Faults
from local.gke.nodes import Nodes
from local.gke.pool_api import PoolApi
from local.gke.pools import Pool
from local.gke.timings import Timings
from local.gke.wire import Document, numbered, wants_numbers

FAULTS = controls.list_faults(Faults)
"""The faults by name."""


class Simulator:
    """A simulated GKE, in memory and on a given clock, with the validation of the real one.

    ``nodes`` registers the Nodes of pools. ``on_log_entry`` gets each audit log entry, as a
    ``LogEntry`` in JSON form, at the time at which a sink gets it. ``principals`` are callers by
    bearer token; a request without token may do everything.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        clusters: Iterable[Cluster],
        random: Random,
        nodes: Nodes,
        on_log_entry: Callable[[dict[str, Any]], None],
        timings: Timings = Timings(),  # noqa: B008 - it is frozen
        principals: Mapping[str, Principal] = MappingProxyType({}),
    ) -> None:
        plan = PoolFaultPlan()
        self._clock = clock
        self._pools = PoolApi(
            clock,
            clusters=clusters,
            random=random,
            nodes=nodes,
            on_log_entry=on_log_entry,
            timings=timings,
            plan=plan,
        )
        self._router = Router(principals, plan)
        self.calls = CallLog()
        self.faults = Faults(plan, self._pools)

    def handle(self, request: Request) -> Response:
        """Answer one request to the API or to the controls."""
        if request.path.startswith(controls.PREFIX):
            return controls.answer(request, self.faults, FAULTS, self.state, self.faults.valid)
        call = self._router.read(request)
        try:
            document, message = self._pools.answer(call)
            if wants_numbers(request):
                document = numbered(document, message)
            response = Response.of_json(document)
        except Refused as refused:
            response = Response.of_json(refused.document(), refused.http)
        self.calls.records.append(call.record(response.status))
        return response

    def leftovers(self) -> list[str]:
        """The paths of all pools that exist, below their projects."""
        return sorted(f"{pool.place}/{pool.path}" for pool in self._pools)

    def state(self) -> Document:
        """The state, for users."""
        return {
            "time": self._clock.now().isoformat(),
            "pools": {
                pool.path: {"status": pool.status, "nodes": [node.name for node in pool.nodes]}
                for pool in self._pools
            },
            "calls": dict(self.calls.counts()),
        }

    def find_pool(self, name: str) -> Pool | None:
        """Find a pool by name, in any cluster."""
        return self._pools.find(name)
