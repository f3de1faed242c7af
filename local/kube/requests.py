"""Parses method, path and query of a request as kube-apiserver does."""

from __future__ import annotations

from dataclasses import dataclass

from local.base.http import Request

_METHOD_VERBS = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})


@dataclass(frozen=True)
class RequestInfo:
    """The attributes of a request for authorization. ``resource`` is empty for other URLs."""

    verb: str
    path: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def full_resource(self) -> str:
        """The resource with its subresource, as in ``widgets/status``."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def is_true(request: Request, name: str) -> bool:
    """A flag of the query: true if it is set, and neither ``false`` nor ``0``."""
    return bool(request.query.get(name)) and request.argument(name) not in ("false", "0")


def parse_request(request: Request) -> RequestInfo:
    """Parse a request. What it names need not exist."""
    parts = [part for part in request.path.split("/") if part]
    verb = _METHOD_VERBS.get(request.method, request.method.lower())
    if parts[:1] == ["api"] and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return RequestInfo(verb, request.path)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and not (len(rest) == 3 and rest[2] in _NAMESPACE_SUBRESOURCES):
            rest = rest[2:]
    name = rest[1] if len(rest) > 1 else ""
    return RequestInfo(
        verb if name else _collection_verb(request, verb),
        request.path,
        group,
        version,
        rest[0],
        "/".join(rest[2:]),
        namespace,
        name or _selected_name(request),
    )


def _collection_verb(request: Request, verb: str) -> str:
    if verb == "get":
        return "watch" if is_true(request, "watch") else "list"
    return "deletecollection" if verb == "delete" else verb


def _selected_name(request: Request) -> str:
    """The name in a field selector: a list of one name is authorized as a read of it (documented)."""
    selector = request.argument("fieldSelector")
    terms = [term for term in selector.split(",") if term.startswith("metadata.name=")]
    return terms[0].removeprefix("metadata.name=").removeprefix("=") if terms else ""
