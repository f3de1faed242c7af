"""OpenAPI v3: as much as kubectl asks of it for validation, dry runs and ``explain``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from local.kube.catalogue import Catalogue
from local.kube.discovery import kinds_of
from local.kube.kinds import Document, Kind, Version, qualify

V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""The content type in which clients of Go ask for OpenAPI v2."""
EMPTY_V2 = b""
"""OpenAPI v2 as protobuf, without a definition: kubectl asks for it about a kind that v3 does not
have, finds nothing there either, and says that there is no such kind."""

_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation", "force")
]
_ACTIONS = {"get": "get", "post": "post", "put": "put", "patch": "patch", "delete": "delete"}


def index(catalogue: Catalogue) -> Document:
    """The list of documents, each by an address that changes when the document does."""
    paths = {
        path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={_hash(document)}"}
        for path, document in _documents(catalogue)
    }
    return {"paths": paths}


def find_document(catalogue: Catalogue, path: str) -> Document | None:
    """The document of one group version; ``path`` as in ``apis/example.com/v1``."""
    parts = path.split("/")
    group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[-1])
    kinds = list(kinds_of(catalogue, group, version))
    return _document(kinds, version) if kinds else None


def _documents(catalogue: Catalogue) -> Iterator[tuple[str, Document]]:
    for group, versions in catalogue.groups().items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            yield path, _document(kinds_of(catalogue, group, version), version)


def _hash(document: Document) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest().upper()[:32]


def _document(kinds: Iterable[Kind], version: str) -> Document:
    paths: Document = {}
    schemas: Document = {}
    for kind in kinds:
        paths.update(_paths(kind, kind.versions[version]))
        schemas[_schema_name(kind, version)] = _schema(kind, kind.versions[version])
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "unversioned"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _schema_name(kind: Kind, version: str) -> str:
    reversed_group = ".".join(reversed(kind.group.split("."))) if kind.group else "io.k8s.api.core"
    return f"{reversed_group}.{version}.{kind.kind}"


def _gvk(kind: Kind, version: str) -> Document:
    return {"group": kind.group, "version": version, "kind": kind.kind}


def _paths(kind: Kind, version: Version) -> Iterator[tuple[str, Document]]:
    root = f"/apis/{kind.group}/{version.name}" if kind.group else f"/api/{version.name}"
    scope = f"{root}/namespaces/{{namespace}}" if kind.namespaced else root
    collection = f"{scope}/{kind.plural}"
    yield collection, _path_item(kind, version, {"get": "list", "post": "post"})
    if not kind.virtual:
        yield f"{collection}/{{name}}", _path_item(kind, version, _ACTIONS)


def _path_item(kind: Kind, version: Version, actions: dict[str, str]) -> Document:
    return {
        method: {
            "operationId": f"{action}{qualify(kind.kind, kind.group)}",
            "parameters": _PARAMETERS,
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": _gvk(kind, version.name),
            "responses": {"200": {"description": "OK"}},
        }
        for method, action in actions.items()
    }


def _schema(kind: Kind, version: Version) -> Document:
    schema = _without_extensions(version.schema.source)
    return {**schema, "x-kubernetes-group-version-kind": [_gvk(kind, version.name)]}


def _without_extensions(node: Any) -> Any:
    """A schema as OpenAPI knows it: int-or-string gets its type, the rules stay behind."""
    if isinstance(node, list):
        return [_without_extensions(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {
        name: _without_extensions(value)
        for name, value in node.items()
        if name not in ("x-kubernetes-validations", "x-go-omitempty")
    }
    if node.get("x-kubernetes-int-or-string") is True:
        return {"type": "string", "format": "int-or-string", **plain}
    return plain
