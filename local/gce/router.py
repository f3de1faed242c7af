"""Routes HTTP requests to the methods of the API.

The checks of every call, in this order: authentication, whether the API is enabled, injected faults, the
body's shape, permissions, a repeated ``requestId``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from local.base.http import Request, Response
from local.gce.callers import Caller, Principal
from local.gce.calls import Call, CallLog, CallRecord, Route
from local.gce.context import Context
from local.gce.operation import Operation
from local.gce.refusals import (
    NOT_FOUND,
    UNAUTHENTICATED,
    UNKNOWN_PATH,
    UNKNOWN_REGION,
    UNKNOWN_ZONE,
    Refused,
)
from local.gce.resources import Resources
from local.gce.schema import Document, parse_body

DEFAULT_PRINCIPAL = Principal("user@example.com")
"""The principal of calls without an Authorization header; may do everything."""

_SURFACES = frozenset({"v1", "beta"})
_PLACED = frozenset({"zones", "regions"})


class Router:
    """All methods of the API."""

    def __init__(
        self,
        context: Context,
        resources: Resources,
        principals: Mapping[str, Principal],
        calls: CallLog,
    ) -> None:
        self._context = context
        self._resources = resources
        self._principals = principals
        self._calls = calls
        nouns = (
            resources.policies, resources.templates, resources.groups, resources.instances,
            resources.machine_types, context.operations,
        )  # fmt: skip
        self._routes = {route.pattern: route for noun in nouns for route in noun.routes()}

    @property
    def routes(self) -> tuple[Route, ...]:
        """The methods of the API."""
        return tuple(self._routes.values())

    def handle(self, request: Request) -> Response:
        """Answer one HTTP request and log it."""
        principal = self._find_principal(request)
        call = self._find_call(request, principal or Principal(""))
        try:
            if call is None:
                raise UNKNOWN_PATH.refused(path=request.path)
            if principal is None:
                raise UNAUTHENTICATED.refused()
            response = Response.of_json(self._answer(call))
        except Refused as refused:
            response = Response.of_json(refused.document(), refused.http)
        self._calls.records.append(_record(call, principal, response))
        return response

    def act(self, caller: Caller, method: str, path: str, body: Document | None) -> Document:
        """Make a call without HTTP and without the call log. ``path`` may have a query.

        Raises `Refused`.
        """
        request = Request.of(method, f"/compute/v1/{path}")
        call = self._match(request, caller)
        if call is None:
            raise UNKNOWN_PATH.refused(path=path)
        if call.route.body:
            call = replace(call, body=parse_body(json.dumps(body or {}).encode(), call.route.body))
        return _document(call.route.answer(call))

    def _find_principal(self, request: Request) -> Principal | None:
        header = request.headers.get("authorization", "")
        if not header:
            return DEFAULT_PRINCIPAL
        return self._principals.get(header.removeprefix("Bearer "))

    def _find_call(self, request: Request, principal: Principal) -> Call | None:
        caller = Caller(
            principal,
            request.headers.get("user-agent", ""),
            request.path.split("/", 3)[2] if request.path.count("/") > 2 else "",
            self._context.fault_plan.denied_to(principal.email),
        )
        return self._match(request, caller)

    def _match(self, request: Request, caller: Caller) -> Call | None:
        """Parse method and path into a call, without the body."""
        parts = request.path.split("/")
        if len(parts) < 7 or parts[1] != "compute" or parts[2] not in _SURFACES:
            return None
        project, scope = self._context.project_id(parts[4]), parts[5]
        place, rest = (parts[6:7], parts[7:]) if scope in _PLACED else ([], parts[6:])
        name = rest[1] if len(rest) > 1 else ""
        pattern = " ".join(
            (request.method, scope, *rest[:1], *(["NAME"] if name else []), *rest[2:])
        )
        route = self._routes.get(pattern)
        if route is None:
            return None
        return Call(route, request, caller, project, "/".join((scope, *place)), name, {})

    def _answer(self, call: Call) -> Document:
        try:
            if call.project not in self._context.projects:
                raise NOT_FOUND.refused(resource=f"projects/{call.project}")
            self._context.fault_plan.refuse(call.route, call.project)
            self._raise_planned_error(call, executed=False)
            self._check_place(call)
            if call.route.body:
                call = replace(call, body=parse_body(call.request.body, call.route.body))
            document = self._execute(call)
        except Refused as refused:
            self._log(call, refused)
            raise
        self._raise_planned_error(call, executed=True)
        return document

    def _check_place(self, call: Call) -> None:
        inventory = self._context.inventory
        if call.location.startswith("zones/") and not inventory.has_zone(call.place):
            raise UNKNOWN_ZONE.refused(zone=call.place)
        if call.location.startswith("regions/") and not inventory.has_region(call.place):
            raise UNKNOWN_REGION.refused(region=call.place)

    def _execute(self, call: Call) -> Document:
        resource = call.path if call.name or call.body else f"projects/{call.project}"
        call.caller.demand(call.route.permission, resource)
        repeated = self._context.operations.find_repeated(call) if call.route.writes else None
        return _document(repeated or call.route.answer(call))

    def _raise_planned_error(self, call: Call, *, executed: bool) -> None:
        refused = self._context.fault_plan.take_refusal(call.route.verb, executed=executed)
        if refused is not None:
            raise refused

    def _log(self, call: Call, refused: Refused) -> None:
        """Log a refused change, if its project is known."""
        if not call.route.writes or call.project not in self._context.projects:
            return
        known = self._resources.find_id(call.path)
        self._context.audit.write_refusal(
            call.caller, call.route.verb, call.path, known, call.body, refused.log
        )


def _document(answer: Document | Operation) -> Document:
    return answer.document() if isinstance(answer, Operation) else answer


def _record(call: Call | None, principal: Principal | None, response: Response) -> CallRecord:
    email = principal.email if principal is not None else ""
    if call is None:
        return CallRecord(email, "unknown", is_write=False, status=response.status)
    return CallRecord(email, call.route.verb, call.route.writes, response.status)
