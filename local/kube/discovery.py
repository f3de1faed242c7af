"""Discovery: groups, resources, and OpenAPI v3 as far as kubectl needs it (validation, dry runs,
``explain``)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from local.kube.catalogue import Catalogue
from local.kube.kinds import Document, Kind


def find_document(catalogue: Catalogue, path: tuple[str, ...]) -> Document | None:
    """Find the document at a path that is not a resource."""
    match path:
        case ("version",):
            shown = {"major": "1", "minor": "36", "gitVersion": "v1.36.3"}
            return {**shown, "platform": "linux/amd64"}
        case ("api",):
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ("apis",):
            groups = [_group(group, names) for group, names in catalogue.groups().items() if group]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ("api", version):
            return _find_resource_list(catalogue, "", version)
        case ("apis", group, version):
            return _find_resource_list(catalogue, group, version)
        case ("openapi", "v3"):
            return _openapi_index(catalogue)
        case ("openapi", "v3", *_, group, version):
            kinds = list(_kinds_of(catalogue, "" if group == "api" else group, version))
            return _openapi(kinds) if kinds else None
    return None


def _kinds_of(catalogue: Catalogue, group: str, version: str) -> Iterator[Kind]:
    """The kinds of one group version."""
    return (one for one in catalogue if one.served and (one.group, one.version) == (group, version))


def _group(group: str, versions: list[str]) -> Document:
    listed = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": listed, "preferredVersion": listed[0]}


def _find_resource_list(catalogue: Catalogue, group: str, version: str) -> Document | None:
    """The APIResourceList of one group version; each subresource has its own entry."""
    kinds = list(_kinds_of(catalogue, group, version))
    if not kinds:
        return None
    return {
        "kind": "APIResourceList",
        **({"apiVersion": "v1"} if group else {}),  # which the core group's has not
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": list(_entries(kinds)),
    }


def _entries(kinds: Iterable[Kind]) -> Iterator[Document]:
    for kind in kinds:
        shared = {"namespaced": kind.namespaced, "kind": kind.kind}
        entry = {"name": kind.plural, "singularName": kind.singular, **shared}
        more = {"shortNames": list(kind.short_names), "categories": list(kind.categories)}
        more = {name: names for name, names in more.items() if names}
        yield {**entry, "verbs": list(kind.verbs), **more}
        for name, verbs in kind.subresources.items():
            path = f"{kind.plural}/{name}"
            entry = {"name": path, "singularName": "", **shared, **_OTHER_KINDS.get(name, {})}
            yield {**entry, "verbs": list(verbs)}


_OTHER_KINDS: dict[str, Document] = {
    "token": {"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"},
    "scale": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
}
"""The kinds of the subresources that are not of their resource's kind."""


# -- OpenAPI ---------------------------------------------------------------------------------------

V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""The content type of OpenAPI v2 in requests of Go clients."""
EMPTY_V2 = b""
"""An OpenAPI v2 document in protobuf without definitions: kubectl reads it if v3 does not have a kind,
and then reports that the kind does not exist."""

_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation", "force")
]
_METHODS = ("get", "post", "put", "patch", "delete")


def _openapi_index(catalogue: Catalogue) -> Document:
    """The list of documents. The URL of each has a hash of its content."""
    paths = {}
    for group, versions in catalogue.groups().items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            document = json.dumps(_openapi(_kinds_of(catalogue, group, version)))
            digest = hashlib.sha256(document.encode()).hexdigest().upper()[:32]
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def _openapi(kinds: Iterable[Kind]) -> Document:
    paths: Document = {}
    schemas: Document = {}
    for kind in kinds:
        gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"
        scope = f"{root}/namespaces/{{namespace}}" if kind.namespaced else root
        paths[f"{scope}/{kind.plural}/{{name}}"] = {
            method: {
                "operationId": f"{method}{kind.qualified_kind}",
                "parameters": _PARAMETERS,
                "x-kubernetes-action": method,
                "x-kubernetes-group-version-kind": gvk,
                "responses": {"200": {"description": "OK"}},
            }
            for method in _METHODS
        }
        group = ".".join(reversed(kind.group.split("."))) or "io.k8s.api.core"
        schemas[f"{group}.{kind.version}.{kind.kind}"] = {
            **_without_extensions(kind.schema.source),
            "x-kubernetes-group-version-kind": [gvk],
        }
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "unversioned"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _without_extensions(node: Any) -> Any:
    """A schema without Kubernetes' extensions: int-or-string gets a type, rules are removed."""
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
