"""The simulated Compute Engine as an application: the API, and the controls beside it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any

from local.clock import Clock
from local.gce.calls import CallLog, Principal
from local.gce.dials import Dials
from local.gce.faults import Faults, UnknownFault
from local.gce.refusals import Refused
from local.gce.router import Router
from local.gce.schema import Document
from local.gce.world import World
from local.http import Request, Response
from local.machine import GuestFactory

_CONTROLS = "/_simulator/"
_ASKED_BY_THE_SIMULATOR = frozenset(
    {
        "denied_to", "refuse", "slowness", "take_operation_error", "take_refusal",
        "wiring_outcome",
    }
)  # fmt: skip
FAULTS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        name: method
        for name, method in inspect.getmembers(Faults, inspect.isfunction)
        if not name.startswith("_") and name not in _ASKED_BY_THE_SIMULATOR
    }
)
"""The faults that can be asked for over HTTP, by name."""


class Simulator:
    """A Compute Engine that refuses what the real one refuses, in memory and on a given clock.

    ``projects`` are ids and numbers. ``guests`` makes the software in each VM. ``on_log_entry``
    gets each audit log entry, as a ``LogEntry`` in JSON form, when it would reach a sink.
    ``principals`` are callers by bearer token; who comes without a token may do everything.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        projects: Mapping[str, str],
        random: Random,
        guests: GuestFactory,
        on_log_entry: Callable[[dict[str, Any]], None],
        dials: Dials = Dials(),  # noqa: B008 - it is frozen
        principals: Mapping[str, Principal] = MappingProxyType({}),
    ) -> None:
        self.calls = CallLog()
        self._world = World(
            clock,
            projects=projects,
            random=random,
            guests=guests,
            on_log_entry=on_log_entry,
            dials=dials,
        )
        self._router = Router(self._world, principals, self.calls)
        self._world.act = self._router.act
        self.faults = self._world.faults

    def handle(self, request: Request) -> Response:
        """Answer one request to the API or to the controls."""
        if request.path.startswith(_CONTROLS):
            return self._control(request)
        return self._router.handle(request)

    def leftovers(self) -> list[str]:
        """The paths of all policies, templates, groups and VMs that exist."""
        return sorted(self._world.paths())

    def state(self) -> Document:
        """What there is, for people."""
        world = self._world
        return {
            "time": world.clock.now().isoformat(),
            "policies": [policy.path for policy in world.policies.shelf],
            "templates": [template.path for template in world.templates.shelf],
            "groups": [group.summary() for group in world.groups.shelf],
            "instances": {vm.path: vm.status for vm in world.instances.shelf},
            "calls": dict(self.calls.counts()),
        }

    def _control(self, request: Request) -> Response:
        name = request.path.removeprefix(_CONTROLS)
        if request.method == "GET" and name == "state":
            return Response.of_json(self.state())
        if request.method == "GET" and name == "faults":
            return Response.of_json({fault: describe_fault(fault) for fault in FAULTS})
        if request.method != "POST" or name not in FAULTS:
            return Response.of_json({"error": f"no such fault: {name}"}, 404)
        return self._bring_about(name, request.body)

    def _bring_about(self, name: str, body: bytes) -> Response:
        fault: Callable[..., Document | None] = getattr(self.faults, name)
        try:
            arguments = inspect.signature(fault).bind(**json.loads(body or b"{}"))
        except (TypeError, ValueError) as error:
            return Response.of_json({"error": f"{name}: {error}"}, 400)
        try:
            result = fault(*arguments.args, **arguments.kwargs)
        except UnknownFault as error:
            return Response.of_json({"error": str(error)}, 409)
        except Refused as refused:
            return Response.of_json(refused.document(), refused.http)
        return Response.of_json(result or {})


def describe_fault(name: str) -> str:
    """A fault's arguments and what it does."""
    parameters = list(inspect.signature(FAULTS[name]).parameters.values())[1:]
    arguments = ", ".join(
        parameter.name
        if parameter.default is parameter.empty
        else f"{parameter.name}={parameter.default!r}"
        for parameter in parameters
    )
    meaning = inspect.getdoc(FAULTS[name]) or ""
    return f"({arguments}): {' '.join(meaning.split()).replace('``', '`')}"
