"""CustomResourceDefinitions: their validation, and the kinds that they define."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from local.kube import errors
from local.kube.catalogue import Catalogue
from local.kube.cel import CelError
from local.kube.errors import FieldError
from local.kube.jsonpath import compile_path
from local.kube.kinds import (
    AGE_COLUMN,
    NAME_COLUMN,
    Column,
    Document,
    Kind,
    expand_schema,
    with_object_fields,
)
from local.kube.scale import REPLICAS_PATH
from local.kube.schema import Schema
from local.kube.store import Change, Store
from local.kube.watch import Watches, end_watches
from local.kube.writing import Attributes

CRD_RESOURCE = "customresourcedefinitions.apiextensions.k8s.io"
_VERBS = ("get", "patch", "update")
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
"""The finalizer of a CRD until its objects are deleted."""


def kind_of(crd: Mapping[str, Any]) -> Kind:
    """The kind that a valid CRD defines, in its storage version."""
    spec = crd["spec"]
    names = spec["names"]
    version = _storage(spec)
    return Kind(
        group=spec["group"],
        kind=names["kind"],
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        namespaced=spec["scope"] == "Namespaced",
        version=version["name"],
        schema=compile_schema(json.dumps(version["schema"]["openAPIV3Schema"])),
        columns=(NAME_COLUMN, *_columns_of(version)),
        subresources=_subresources_of(version),
        selectable=tuple(one["jsonPath"][1:] for one in version.get("selectableFields", ())),
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        custom=True,
        served=version["served"],
    )


def _storage(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    version: Mapping[str, Any] = next(one for one in spec["versions"] if one["storage"])
    return version


@lru_cache(maxsize=64)
def compile_schema(source: str) -> Schema:
    """Compile a CRD's schema with the fields of all objects added; cached by its text."""
    schema: Document = json.loads(source)
    return Schema(with_object_fields(schema))


def _subresources_of(version: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    given = version.get("subresources", {})
    path = given.get("scale", {}).get("specReplicasPath")
    served = {"status": "status" in given, "scale": path == REPLICAS_PATH}
    return {name: _VERBS for name, is_served in served.items() if is_served}


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
            column.get("description", ""),
            column.get("priority", 0),
        )


def find_crd_errors(document: Document, old: Document | None) -> Iterator[FieldError]:
    """The violations of a CRD. Of its schema, only the parts that `Schema` reads are checked."""
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
    elif old is not None and _storage(old["spec"])["name"] != _storage(spec)["name"]:
        why = "the embedded API cannot change the version that is stored"
        yield errors.forbidden_field("spec.versions", why)
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


_KEYWORDS = Schema(
    expand_schema(
        {
            **dict.fromkeys(("type", "format", "pattern", "x-kubernetes-list-type"), "string"),
            "required": ["string"],
            "x-kubernetes-list-map-keys": ["string"],
            **dict.fromkeys(("minLength", "minItems", "minProperties"), "integer"),
            **dict.fromkeys(("maxLength", "maxItems", "maxProperties"), "integer"),
            **dict.fromkeys(("minimum", "maximum"), "number"),
            **dict.fromkeys(("properties", "items"), "object"),
            "x-kubernetes-validations": ["object"],
        }
    )
)
"""The keywords that `Schema` reads, with their types."""


def _keyword_errors(schema: Any, path: str) -> Iterator[FieldError]:
    """The keywords that `Schema` reads, and whose value has a wrong type."""
    wrong: str | None = f"{path} must be an object, and none of its keywords null"
    if isinstance(schema, dict) and all(
        schema.get(one, 0) is not None for one in _KEYWORDS.properties
    ):
        wrong = _KEYWORDS.find_mistyped(schema, path=path)
    if wrong is not None:
        yield errors.invalid_value(path, errors.OMITTED, wrong)
        return
    if not isinstance(schema.get("enum", []), list):
        yield errors.invalid_value(f"{path}.enum", schema["enum"], "must be a list")
    for name, child in schema.get("properties", {}).items():
        yield from _keyword_errors(child, f"{path}.properties[{name}]")
    for name in ("items", "additionalProperties"):
        if not isinstance(schema.get(name, True), bool):
            yield from _keyword_errors(schema[name], f"{path}.{name}")


def complete_crd(document: Document) -> None:
    """Set the names of a CRD that have defaults."""
    spec = document.get("spec") or {}
    kind = (spec.get("names") or {}).get("kind")
    if kind:
        names = {"singular": kind.lower(), "listKind": f"{kind}List", **spec["names"]}
        document["spec"] = {"conversion": {"strategy": "None"}, **spec, "names": names}


def establish(attributes: Attributes) -> None:
    """Accept a CRD's names. In Kubernetes, a controller does that about half a second later."""
    document, old = attributes.document, attributes.old
    if attributes.subresource:
        return
    spec, now = document["spec"], document["metadata"]["creationTimestamp"]
    known = None if old is None else old["status"].get("conditions")
    accepted = [
        _condition("NamesAccepted", "NoConflicts", "no conflicts found", now),
        _condition(
            "Established", "InitialNamesAccepted", "the initial names have been accepted", now
        ),
    ]
    document["status"] = {
        "conditions": known or accepted,
        "acceptedNames": spec["names"],
        "storedVersions": [_storage(spec)["name"]],
    }


def _condition(type_: str, reason: str, message: str, now: str) -> Document:
    reported = {"reason": reason, "message": message}
    return {"type": type_, "status": "True", "lastTransitionTime": now, **reported}


def mark_crd(crd: Document, now: str) -> None:
    """Add the finalizer and the condition Terminating to a CRD that is deleted."""
    meta = crd["metadata"]
    others = [one for one in meta.get("finalizers", ()) if one != CLEANUP_FINALIZER]
    meta["finalizers"] = [*others, CLEANUP_FINALIZER]
    terminating = _condition(
        "Terminating", "InstanceDeletionPending", "its objects are being deleted", now
    )
    status = crd["status"]
    crd["status"] = {**status, "conditions": [*(status.get("conditions") or ()), terminating]}


class CrdRegistrar:
    """Serves the kinds of CRDs as soon as they are stored."""

    def __init__(self, store: Store, catalogue: Catalogue, watches: Watches) -> None:
        self._store = store
        self._catalogue = catalogue
        self._watches = watches
        store.listen(self._follow, CRD_RESOURCE)

    def _follow(self, change: Change) -> None:
        if change.type == "DELETED":
            resource = change.record.key[1]
            self._catalogue.remove(resource)
            self._store.drop_collection(resource)
            end_watches(self._watches, resource)
        else:
            self._catalogue.add(kind_of(change.record.document))
