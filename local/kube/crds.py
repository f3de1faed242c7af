"""CustomResourceDefinitions: from the object to a kind that is served."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from local.kube.catalogue import Catalogue
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

    def reload(self) -> None:
        """Serve what the store's CRDs define, and nothing else that is not built in."""
        for kind in tuple(self._catalogue):
            if kind.custom:
                self._catalogue.remove(kind.resource)
        for record in self._store.records(CRD_RESOURCE):
            self._catalogue.add(kind_of(record.document))
