"""CustomResourceDefinitions: from the object to a kind that is served."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from local.kube import errors
from local.kube.catalogue import Catalogue
from local.kube.cel import CelError
from local.kube.checks import type_name
from local.kube.errors import FieldError
from local.kube.jsonpath import compile_path
from local.kube.kinds import (
    AGE_COLUMN,
    NAME_COLUMN,
    Column,
    Document,
    Kind,
    Version,
    with_object_fields,
)
from local.kube.schema import Schema
from local.kube.store import Change, Store
from local.kube.watch import WatchHub

CRD_RESOURCE = "customresourcedefinitions.apiextensions.k8s.io"
_COUNTED = ("Length", "Items", "Properties")
_MEMBER_TYPES = {
    "required": str,
    "x-kubernetes-list-map-keys": str,
    "x-kubernetes-validations": dict,
}
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
"""Holds a CRD until its objects are gone."""


def kind_of(crd: Mapping[str, Any]) -> Kind:
    """The kind that a (valid) CRD defines."""
    spec = crd["spec"]
    names = spec["names"]
    versions = [one for one in spec["versions"] if one["served"]]
    return Kind(
        group=spec["group"],
        kind=names["kind"],
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        namespaced=spec["scope"] == "Namespaced",
        versions={one["name"]: _version_of(one) for one in versions},
        storage=next(one["name"] for one in spec["versions"] if one["storage"]),
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        custom=True,
    )


def _version_of(version: Mapping[str, Any]) -> Version:
    has_status = "status" in version.get("subresources", {})
    return Version(
        version["name"],
        compile_schema(json.dumps(version["schema"]["openAPIV3Schema"])),
        (NAME_COLUMN, *_columns_of(version)),
        {"status": ("get", "patch", "update")} if has_status else {},
        tuple(field["jsonPath"].removeprefix(".") for field in version.get("selectableFields", ())),
    )


@lru_cache(maxsize=64)
def compile_schema(source: str) -> Schema:
    """A CRD's schema with what all objects have, compiled once per text in a process."""
    schema: Document = json.loads(source)
    return Schema(with_object_fields(schema))


def _columns_of(version: Mapping[str, Any]) -> Iterator[Column]:
    declared = version.get("additionalPrinterColumns")
    if not declared:
        yield AGE_COLUMN
        return
    for column in declared:
        yield Column(
            column["name"],
            column["jsonPath"],
            column["type"],
            column.get("format", ""),
            column.get("description") or _describe(column["jsonPath"]),
            column.get("priority", 0),
        )


def _describe(path: str) -> str:
    return f"Custom resource definition column (in JSONPath format): {path}"


def find_crd_errors(document: Document, old: Document | None) -> Iterator[FieldError]:
    """What keeps a CRD from being served. What it leaves unchecked of a schema is no more than
    what `Schema` does not read."""
    del old
    spec, name = document["spec"], document["metadata"]["name"]
    if name != f"{spec['names']['plural']}.{spec['group']}":
        yield errors.invalid_value(
            "metadata.name", name, 'must be spec.names.plural+"."+spec.group'
        )
    if spec["scope"] not in ("Cluster", "Namespaced"):
        yield errors.not_supported("spec.scope", spec["scope"], ["Cluster", "Namespaced"])
    if [one["storage"] for one in spec["versions"]].count(True) != 1:
        names = [one["name"] for one in spec["versions"]]
        why = "must have exactly one version marked as storage version"
        yield errors.invalid_value("spec.versions", names, why)
    for index, version in enumerate(spec["versions"]):
        yield from _version_errors(version, f"spec.versions[{index}]")


def _version_errors(version: Document, path: str) -> Iterator[FieldError]:
    schema = version.get("schema", {}).get("openAPIV3Schema")
    at = f"{path}.schema.openAPIV3Schema"
    if schema is None:
        yield errors.required(at, "schemas are required")
    elif schema.get("type") != "object":
        yield errors.invalid_value(f"{at}.type", schema.get("type"), "must be object at the root")
    elif unreadable := list(_keyword_errors(schema, at)):
        yield from unreadable
    else:
        try:
            compile_schema(json.dumps(schema))
        except CelError as error:
            yield errors.invalid_value(at, errors.OMITTED, str(error))
    for index, column in enumerate(version.get("additionalPrinterColumns", ())):
        try:
            compile_path(column["jsonPath"])
        except ValueError as error:
            where = f"{path}.additionalPrinterColumns[{index}].jsonPath"
            yield errors.invalid_value(where, column["jsonPath"], str(error))


_KEYWORD_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("type", "format", "pattern", "x-kubernetes-list-type"), (str,)),
    **dict.fromkeys(("required", "enum", "x-kubernetes-list-map-keys"), (list,)),
    **dict.fromkeys(("properties", "items"), (dict,)),
    **dict.fromkeys((f"m{end}{what}" for end in ("in", "ax") for what in _COUNTED), (int,)),
    **dict.fromkeys(("minimum", "maximum"), (int, float)),
    "additionalProperties": (bool, dict),
    "x-kubernetes-validations": (list,),
}


def _keyword_errors(schema: Any, path: str) -> Iterator[FieldError]:
    """Keywords that `Schema` reads, and whose value is of a type that it cannot read."""
    if not isinstance(schema, dict):
        yield errors.wrong_type(path, type_name(schema), f"{path} must be an object")
        return
    for keyword, types in _KEYWORD_TYPES.items():
        value = schema.get(keyword)
        if value is not None and not isinstance(value, types):
            at = f"{path}.{keyword}"
            yield errors.wrong_type(at, type_name(value), f"{at} is of the wrong type")
    for keyword, type_ in _MEMBER_TYPES.items():
        value = schema.get(keyword)
        members = value if isinstance(value, list) else ()
        if any(not isinstance(one, type_) for one in members):
            yield errors.wrong_type(f"{path}.{keyword}", "array", "a member is of the wrong type")
    properties = schema.get("properties")
    for name, child in properties.items() if isinstance(properties, dict) else ():
        yield from _keyword_errors(child, f"{path}.properties[{name}]")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from _keyword_errors(schema[name], f"{path}.{name}")


def complete_crd(document: Document) -> None:
    """Complete a CRD by the names that follow from others."""
    spec = document["spec"] = {"conversion": {"strategy": "None"}, **document["spec"]}
    spec["versions"] = [_without_nulls(version) for version in spec["versions"]]
    kind = spec["names"]["kind"]
    spec["names"] = {"singular": kind.lower(), "listKind": f"{kind}List", **spec["names"]}


def note_stored_versions(document: Document) -> None:
    """Note in a CRD's status the version that its objects are stored in from now on."""
    status = document.get("status") or {
        "conditions": None,
        "acceptedNames": {"plural": "", "kind": ""},
    }
    earlier = status.get("storedVersions") or ()
    stored = [one["name"] for one in document["spec"]["versions"] if one["storage"]]
    document["status"] = {
        **status,
        "storedVersions": [*earlier, *(name for name in stored if name not in earlier)],
    }


def is_established(crd: Mapping[str, Any]) -> bool:
    """Whether the names of a CRD are accepted as they are."""
    return bool(crd["status"]["acceptedNames"] == crd["spec"]["names"])


def establish(crd: Document, now: str) -> None:
    """Accept a CRD's names. Kubernetes does so in a controller, half a second or so later."""
    settled = {"status": "True", "lastTransitionTime": now}
    conditions = crd["status"]["conditions"] or [
        {
            "type": "NamesAccepted",
            **settled,
            "reason": "NoConflicts",
            "message": "no conflicts found",
        },
        {
            "type": "Established",
            **settled,
            "reason": "InitialNamesAccepted",
            "message": "the initial names have been accepted",
        },
    ]
    names = crd["spec"]["names"]
    crd["status"] = {**crd["status"], "conditions": conditions, "acceptedNames": names}


def mark_crd(crd: Document, now: str) -> None:
    """Hold a CRD that is to be deleted until its objects are gone."""
    meta = crd["metadata"]
    held = [one for one in meta.get("finalizers", ()) if one != CLEANUP_FINALIZER]
    meta["finalizers"] = [*held, CLEANUP_FINALIZER]
    terminating = {
        "type": "Terminating",
        "status": "True",
        "lastTransitionTime": now,
        "reason": "InstanceDeletionPending",
        "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will "
        "begin soon",
    }
    conditions = [*(crd["status"]["conditions"] or ()), terminating]
    crd["status"] = {**crd["status"], "conditions": conditions}


def _without_nulls(value: Any) -> Any:
    """A schema as Go writes it: null is the same as nothing, except among values."""
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: item if name in ("default", "enum") else _without_nulls(item)
        for name, item in value.items()
        if item is not None or name == "default"
    }


class CrdRegistrar:
    """Serves what CRDs define, from the moment that they are stored."""

    def __init__(self, store: Store, catalogue: Catalogue, hub: WatchHub) -> None:
        self._store = store
        self._catalogue = catalogue
        self._hub = hub
        store.listen(self._follow, CRD_RESOURCE)

    def _follow(self, change: Change) -> None:
        if change.type == "DELETED":
            resource = change.record.key[1]
            self._catalogue.remove(resource)
            self._store.drop_collection(resource)
            self._hub.cut(resource)
        else:
            self._catalogue.add(kind_of(change.record.document))
