"""The simulated Compute Engine as an application: the API, and the controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any

from local.base import controls
from local.base.clock import Clock
from local.base.http import Request, Response
from local.base.machine import VmAgentFactory
from local.gce.callers import Principal
from local.gce.calls import CallLog
from local.gce.context import Context
from local.gce.faults import Faults
from local.gce.inventory import Inventory
from local.gce.refusals import Refused
from local.gce.resources import Resources
from local.gce.router import Router
from local.gce.schema import Document
from local.gce.timings import Timings

FAULTS = controls.list_faults(Faults)
"""The faults by name."""


class Simulator:
    """A simulated Compute Engine, in memory and on a given clock, with the validation of the real one.

    ``projects`` are ids and numbers. ``agents`` creates the software of each VM. ``on_log_entry``
    gets each audit log entry, as a ``LogEntry`` in JSON form, at the time at which a sink gets it.
    ``principals`` are callers by bearer token; a request without token may do everything.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        projects: Mapping[str, str],
        random: Random,
        agents: VmAgentFactory,
        on_log_entry: Callable[[dict[str, Any]], None],
        timings: Timings = Timings(),  # noqa: B008 - it is frozen
        principals: Mapping[str, Principal] = MappingProxyType({}),
    ) -> None:
        self.calls = CallLog()
        self._context = Context(
            clock,
            projects=projects,
            random=random,
            agents=agents,
            on_log_entry=on_log_entry,
            timings=timings,
        )
        self._resources = Resources(self._context)
        self._router = Router(self._context, self._resources, principals, self.calls)
        self.faults = Faults(self._context, self._resources, self._router.act, self._router.routes)

    def restrict(self, inventory: Inventory) -> None:
        """Set the zones, machine types, images, networks and disk types that exist."""
        self._context.inventory = inventory

    def handle(self, request: Request) -> Response:
        """Answer one request to the API or to the controls."""
        if request.path.startswith(controls.PREFIX):
            try:
                return controls.answer(request, self.faults, FAULTS, self.state, self.faults.valid)
            except Refused as refused:
                return Response.of_json(refused.document(), refused.http)
        return self._router.handle(request)

    def leftovers(self) -> list[str]:
        """The paths of all policies, templates, groups and VMs that exist."""
        return sorted(self._resources.paths())

    def state(self) -> Document:
        """The state, for users."""
        resources = self._resources
        return {
            "time": self._context.clock.now().isoformat(),
            "policies": [policy.path for policy in resources.policies.store],
            "templates": [template.path for template in resources.templates.store],
            "groups": [group.summary() for group in resources.groups.store],
            "instances": {vm.path: vm.status for vm in resources.instances.store},
            "calls": dict(self.calls.counts()),
        }
