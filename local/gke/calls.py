"""Parses HTTP requests into calls of the API: principal, method, resource."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from local.base.http import Request
from local.gce.callers import Principal
from local.gce.calls import CallRecord
from local.gke import wire
from local.gke.fault_plan import PoolFaultPlan
from local.gke.refusals import PERMISSION_MISSING, UNAUTHENTICATED, UNKNOWN_PATH
from local.gke.wire import Document

DEFAULT_PRINCIPAL = Principal("user@example.com")
"""The principal of calls without an Authorization header; may do everything."""

_PATH = re.compile(
    r"/(?P<version>v1|v1beta1)/projects/(?P<project>[^/]+)/locations/(?P<location>[^/]+)"
    r"(?:/clusters/(?P<cluster>[^/]+))?/(?P<collection>nodePools|operations)(?:/(?P<name>[^/]+))?"
)
_VERBS = {
    "POST": ("create", ""),
    "GET": ("list", "get"),
    "PUT": ("", "update"),
    "DELETE": ("", "delete"),
}
"""Verbs by HTTP method: of the collection, of an item."""
METHODS = frozenset(
    {
        "nodePools.create", "nodePools.delete", "nodePools.get", "nodePools.list",
        "nodePools.update", "operations.get", "operations.list",
    }
)  # fmt: skip
"""The methods of the API."""
_CHANGES = frozenset({"create", "delete", "update"})


@dataclass
class Call:
    """One request. ``verb`` is the method's name, ``unknown`` if there is no such method."""

    request: Request
    verb: str
    is_authenticated: bool
    principal: Principal
    denied: frozenset[str]
    version: str = ""
    project: str = ""
    location: str = ""
    cluster: str = ""
    name: str = ""
    document: Document = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether the method changes something."""
        return self.verb.partition(".")[2] in _CHANGES

    @property
    def place(self) -> str:
        """The location in links: ``zones/`` for zones."""
        is_zone = self.location.count("-") == 2
        return f"{'zones' if is_zone else 'locations'}/{self.location}"

    @property
    def asked_name(self) -> str:
        """The name in the body of a create call; empty if there is none."""
        try:
            return str(json.loads(self.request.body)["nodePool"]["name"])
        except (ValueError, KeyError, TypeError):
            return ""

    def check(self) -> None:
        """Raise `Refused` for an unknown path and an unknown caller."""
        if self.verb == "unknown":
            raise UNKNOWN_PATH.refused()
        if not self.is_authenticated:
            raise UNAUTHENTICATED.refused()

    def may(self, permission: str) -> bool:
        """Whether the caller has an IAM permission."""
        granted = self.principal.permissions
        return permission not in self.denied and (granted is None or permission in granted)

    def demand(self, permission: str) -> None:
        """Raise `Refused` (403) when the caller lacks a permission on the cluster."""
        if not self.may(permission):
            resource = f"projects/{self.project}/{self.place}/clusters/{self.cluster}"
            raise PERMISSION_MISSING.refused(permission=permission, resource=resource)

    def read_body(self, message: str) -> Document:
        """Parse the body as the message of that name. Raises `Refused`."""
        self.document = wire.parse(self.request.body, message)
        return self.document

    def record(self, status: int) -> CallRecord:
        """The record of the call."""
        email = self.principal.email if self.is_authenticated else ""
        return CallRecord(email, self.verb, self.writes, status)


class Router:
    """Parses requests."""

    def __init__(self, principals: Mapping[str, Principal], plan: PoolFaultPlan) -> None:
        self._principals = principals
        self._plan = plan

    def read(self, request: Request) -> Call:
        """Parse a request into a call."""
        header = request.headers.get("authorization", "")
        known = self._principals.get(header.removeprefix("Bearer "))
        principal = known or (DEFAULT_PRINCIPAL if not header else Principal(""))
        denied = self._plan.denied_to(principal.email)
        is_known = known is not None or not header
        match = _PATH.fullmatch(request.path)
        verb = _find_verb(request.method, match) if match else ""
        if not match or not verb:
            return Call(request, "unknown", is_known, principal, denied)
        return Call(
            request,
            verb,
            is_known,
            principal,
            denied,
            version=match["version"],
            project=match["project"],
            location=match["location"],
            cluster=match["cluster"] or "",
            name=match["name"] or "",
        )


def _find_verb(method: str, match: re.Match[str]) -> str:
    of_all, of_one = _VERBS.get(method, ("", ""))
    verb = f"{match['collection']}.{of_one if match['name'] else of_all}"
    has_place = bool(match["cluster"]) == (match["collection"] == "nodePools")
    return verb if verb in METHODS and has_place else ""
